"""From spans of documents, and where they go, to rows; and from rows to batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from stoker.errors import FormatError
from stoker.integers import ranges
from stoker.tokens.batch import Extents, LMBatch, extents_of_part, extents_of_parts, gaps_and_spans
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged, gather_spans
from stoker.types import Array, Ids

_LINE = 64
_WIDENED = 4 << 20
"""Bytes of ids and labels that are made of rows at a time: they stay in the processor's cache until they are used."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Rows that batches are made of. They are smaller, as ids are of the dtype that they have in memory, and labels follow
    from ids but for some. So rows of several blocks are put together, and into another order, at little cost.

    Attributes:
        ids: shape ``(rows, width)``; anything where there is no token.
        tokens: slots that are not padding; those of eos count.
        slots: of labels that are not those of ``"unshifted"`` ones, or of ``"shifted"`` ones in one row: there the last of
            each row is among them; int64, in any order.
        labels: these labels; int64.
        made: the extents of documents, or a function that computes them.
        cut: documents of which the layout cut something off, and tokens that were cut off.
    """

    ids: Array
    tokens: int
    slots: Ids
    labels: Ids
    made: Extents | Callable[[], Extents]
    cut: tuple[int, int] = (0, 0)

    @classmethod
    def concat(cls, parts: Sequence[TokenRows], rows: Ids | None = None) -> TokenRows:
        """The rows of all parts, of which there is at least one, of one width and made with the same settings.

        ``rows``: numbers of them all, int64, in the order in which they come; default: as they are.
        """
        if len(parts) == 1 and rows is None:
            return parts[0]
        shapes = [part.shape for part in parts]
        width = shapes[0][1]
        ends = np.cumsum([0, *(count for count, _ in shapes)])
        kinds = {part.ids.dtype for part in parts}
        ids = np.empty((int(ends[-1]), width), kinds.pop() if len(kinds) == 1 else np.int64)
        slots = np.concatenate([part.slots + first * width for part, first in zip(parts, ends.tolist(), strict=False)])
        places = np.arange(len(ids), dtype=np.int64)
        if rows is not None:
            places[rows] = places.copy()
            row = slots // width
            slots += (places[row] - row) * width
        for part, first, stop in zip(parts, ends.tolist(), ends[1:].tolist(), strict=False):
            ids[slice(first, stop) if rows is None else places[first:stop]] = part.ids
        return cls(
            ids,
            sum(part.tokens for part in parts),
            slots,
            np.concatenate([part.labels for part in parts]),
            cache(partial(extents_of_parts, [part.made for part in parts], shapes, rows)),
            (sum(part.cut[0] for part in parts), sum(part.cut[1] for part in parts)),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens in a row."""
        return self.ids.shape[0], self.ids.shape[1]

    @property
    def extents(self) -> Extents:
        """Positions of documents' tokens."""
        return self.made if isinstance(self.made, Extents) else self.made()

    def part(self, first: int, stop: int) -> TokenRows:
        """Rows that follow each other, without a copy. They do not report cut documents."""
        width = self.shape[1]
        begin, end = first * width, stop * width
        here = (self.slots >= begin) & (self.slots < end)
        made = cache(partial(extents_of_part, self.made, width, first, stop))
        tokens = end - begin if self.tokens == self.ids.size else int(made().lengths.sum())
        return TokenRows(self.ids[first:stop], tokens, self.slots[here] - begin, self.labels[here], made)

    def batches(self, rows: int, settings: LMSettings) -> Iterator[list[LMBatch]]:
        """Batches of so many rows each, the last of the remainder; lists of those that are made at once."""
        count, width = self.shape
        row_bytes = width * settings.output.itemsize * (1 if settings.labels == "none" else 2)
        step = max(1, _WIDENED // (rows * row_bytes)) * rows
        if count <= step:
            yield self.batch(settings).split(rows)
            return
        for first in range(0, count, step):
            yield self.part(first, min(first + step, count)).batch(settings).split(rows)

    def batch(self, settings: LMSettings) -> LMBatch:
        """All rows as one batch."""
        made, padding = self.made, None
        ids, labels = batch_arrays(self.ids.size, settings)
        ids.reshape(self.shape)[:] = self.ids
        if self.tokens < ids.size:
            made = self.extents
            gaps = gaps_and_spans(made.starts, made.lengths, ids.size)[::2]
            begins = np.append(np.zeros(1, dtype=np.int64), made.starts + made.lengths)
            padding = ranges(begins[gaps > 0], gaps[gaps > 0])
            ids[padding] = settings.padding("a batch has slots that no token fills")
        if labels is not None:
            if settings.labels == "shifted":
                labels[:-1] = ids[1:]
            else:
                labels[:] = ids
            labels[self.slots] = self.labels
            if padding is not None:
                labels[padding] = settings.ignore_index
        return LMBatch(
            ids.reshape(self.shape),
            None if labels is None else labels.reshape(self.shape),
            settings.labels,
            self.tokens,
            made,
            settings.ignore_index,
            settings.reset_positions,
            *self.cut,
        )


@dataclass(frozen=True, slots=True)
class DocumentSpans:
    """Runs of documents, and where they lie in a batch. Lengths count eos as a token of its document.

    Attributes:
        rows: row of each span's document in the :class:`Ragged`; int64, shape ``(k,)``.
        firsts: its first token in the document.
        lengths: tokens, at least 1.
        starts: its slot in the batch, ``row * width + column``; rising, and no span overlaps another or leaves its row.
    """

    rows: Ids
    firsts: Ids
    lengths: Ids
    starts: Ids


def full_lengths(lengths: Ids, settings: LMSettings) -> Ids:
    """Lengths of documents with the eos that is put behind those that are not empty."""
    return lengths if settings.eos_id is None else lengths + (lengths > 0)


def batch_arrays(size: int, settings: LMSettings) -> tuple[Array, Array | None]:
    """Uninitialised ids and labels of a batch, shape ``(size,)`` each, at multiples of 64 bytes, as JAX wants them.

    Without labels, if none are asked for.

    They are one allocation. Two of the same size make glibc hand their memory back and ask for it again with each batch,
    and the page faults then take three times as long as all the rest.
    """
    output, wanted = settings.output, settings.labels != "none"
    line = _LINE // output.itemsize
    padded = -(-size // line) * line
    both = np.empty((1 + wanted) * padded + line, dtype=output)
    first = -both.__array_interface__["data"][0] % _LINE // output.itemsize
    return both[first : first + size], both[first + padded : first + padded + size] if wanted else None


def too_long_error(documents: Ragged, row: int, length: int, settings: LMSettings, remedy: str) -> FormatError:
    """The error for a document that a row does not hold."""
    return FormatError(
        f"{documents.describe_row(row)}: {length} tokens, more than seq_len={settings.seq_len}: pass {remedy}, or "
        "a larger seq_len"
    )


def put_eos(ids: Array, slots: Ids, settings: LMSettings) -> Array:
    """Ids with eos in some slots; in a wider dtype, if theirs does not hold it."""
    eos = settings.eos_id
    if eos is None:
        return ids
    if eos > np.iinfo(ids.dtype).max:
        ids = ids.astype(settings.output)
    ids[slots] = eos
    return ids


def assemble(
    documents: Ragged,
    spans: DocumentSpans,
    shape: tuple[int, int],
    settings: LMSettings,
    *,
    first_document: int | Ids = 0,
    cut: tuple[int, int] = (0, 0),
) -> TokenRows:
    """The rows that have these spans.

    ``first_document`` is the number that the first of ``documents`` has in ``document_ids``, or the numbers of all;
    ``cut``: the documents and tokens that the layout cut off, to be told.
    """
    documents.check(settings.limit)
    inside = documents.offsets[spans.rows + 1] - documents.offsets[spans.rows]
    stops = spans.firsts + spans.lengths
    with_eos = stops > inside  # eos is beyond the document's own tokens
    sources = documents.offsets[spans.rows] + spans.firsts
    slots = spans.starts + spans.lengths - 1
    ids = gather_spans(documents.values, sources, spans.lengths - with_eos, spans.starts, shape[0] * shape[1])
    ids = put_eos(ids, slots[with_eos], settings)
    if settings.labels == "shifted":
        labels = _next_tokens(documents, spans, ids, stops == full_lengths(inside, settings), settings, shape[1])
    else:
        slots = spans.starts[:0]
        if settings.labels == "unshifted" and not settings.cross_document_labels:
            # What begins a row without beginning its document is not predicted from another one.
            slots = spans.starts[(spans.firsts == 0) | (spans.starts % max(shape[1], 1) > 0)]
        labels = np.full(slots.size, settings.ignore_index)
    if documents.loss_mask is not None and settings.labels != "none":
        masked = ~_loss_mask(documents, documents.loss_mask, spans, ids.size, with_eos)
        if settings.labels == "shifted":
            masked = np.append(masked[1:], False)
            masked[slots] = False  # labelled already
        more = np.flatnonzero(masked)
        slots, labels = np.append(slots, more), np.append(labels, np.full(more.size, settings.ignore_index))
    numbers = spans.rows + first_document if isinstance(first_document, int) else first_document[spans.rows]
    made = Extents(spans.starts, spans.lengths, numbers)
    return TokenRows(ids.reshape(shape), int(spans.lengths.sum()), slots, labels, made, cut)


def _loss_mask(
    documents: Ragged, mask: NDArray[np.bool_], spans: DocumentSpans, size: int, with_eos: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The mask of so many slots; an eos has that of the last token of its document."""
    sources = documents.offsets[spans.rows] + spans.firsts
    found: NDArray[np.bool_] = gather_spans(mask, sources, spans.lengths - with_eos, spans.starts, size)
    ended = np.flatnonzero(with_eos)
    found[(spans.starts + spans.lengths - 1)[ended]] = mask[documents.offsets[spans.rows[ended] + 1] - 1]
    return found


def _next_tokens(
    documents: Ragged,
    spans: DocumentSpans,
    ids: Array,
    whole: NDArray[np.bool_],
    settings: LMSettings,
    width: int,
) -> Ids:
    """The label of each span's last token: what follows it in its document, if anything does."""
    follows = np.full(spans.starts.size, settings.ignore_index, dtype=np.int64)
    part = np.flatnonzero(~whole)
    if part.size:
        rows = spans.rows[part]
        at = documents.offsets[rows] + spans.firsts[part] + spans.lengths[part]
        eos = at == documents.offsets[rows + 1]
        follows[part] = documents.values[at - eos]
        if settings.eos_id is not None:
            follows[part[eos]] = settings.eos_id
        if documents.loss_mask is not None:
            follows[part[~documents.loss_mask[at - eos]]] = settings.ignore_index
    if settings.cross_document_labels and spans.starts.size:
        ends = spans.starts + spans.lengths
        near = np.zeros(whole.size, dtype=bool)
        near[:-1] = whole[:-1] & (ends[:-1] == spans.starts[1:])
        near &= ends % width != 0
        follows[near] = ids[ends[near]]
    return follows
