"""Joined documents, cut at every S tokens.

:class:`ConcatLayout` makes rows, in any order, of blocks in memory; :class:`Joiner` of documents that come little by little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.arguments import at_least
from stoker.errors import ConfigError, StateError
from stoker.integers import mix
from stoker.tokens.batch import Extents, LMBatch
from stoker.tokens.layouts.assemble import TokenRows, full_lengths, put_eos
from stoker.tokens.layouts.base import BlockInput, DocumentBlock, RowMaker, TokenLayout, order_of, state_number
from stoker.tokens.layouts.bin_packing import TooLong
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged, gather_spans, offsets_of
from stoker.tokens.sources.source import TokenSource
from stoker.types import Array, Ids


def stream_starts(lengths: Ids, settings: LMSettings) -> Ids:
    """The begin of each document in the stream of all, joined; int64, shape ``(documents + 1,)``, the total last.

    Args:
        lengths: tokens in each document, without eos; zeros are allowed.
        settings: says whether eos is put behind documents.
    """
    return offsets_of(full_lengths(lengths, settings))


def windows(
    documents: Ragged, skip: int, count: int, settings: LMSettings, *, first_document: int | Ids = 0
) -> LMBatch:
    """Rows of a stream: documents joined, from token ``skip`` on, cut at every S tokens.

    Args:
        documents: what follows on each other in the stream. That a document ends with the last of them, where it does not,
            only costs the label of its last token.
        skip: tokens of them, eos counted, that go before the first row.
        count: number of rows. If tokens end within the last one, it is filled with padding.
        settings: see :class:`LMSettings`.
        first_document: the number of the first document, or the numbers of all.

    Raises:
        FormatError: an id is not in the vocabulary.
        ConfigError: there are not so many rows, or the last is not full and there is no ``pad_id``.
    """
    return _windows(documents, skip, count, settings, first_document).batch(settings)


def _windows(documents: Ragged, skip: int, count: int, settings: LMSettings, first_document: int | Ids) -> TokenRows:
    documents.check(settings.limit)
    size = settings.seq_len
    starts = documents.offsets if settings.eos_id is None else stream_starts(documents.lengths, settings)
    total = int(starts[-1])
    if skip < 0 or count < 0 or (count and skip + (count - 1) * size >= total):
        raise ConfigError(f"asked for {count} rows of {size} tokens from token {skip} on, of only {total} tokens")
    numbers = first_document
    if isinstance(numbers, int):
        numbers = np.arange(numbers, numbers + len(documents), dtype=np.int64)
    at = skip + size * np.arange(count, dtype=np.int64)
    return _rows_at(DocumentBlock(documents, numbers, None, starts), at, settings)


def _rows_at(block: DocumentBlock, at: Ids, settings: LMSettings) -> TokenRows:
    """Rows that begin at some offsets in a block's stream. If it ends within the last of them, the rest is padding."""
    size, total = settings.seq_len, int(block.starts[-1])
    shifted, ends = settings.labels == "shifted", np.minimum(at + size, total)
    tokens = at.size * size - (int(at[-1]) + size - int(ends[-1]) if at.size else 0)
    made: Extents | Callable[[], Extents]
    if settings.eos_id is None and block.order is None and bool((np.diff(at) == size).all()):
        # The tokens lie there as they are.
        first = int(at[0]) if at.size else 0
        ids = block.documents.values[first : first + tokens]
        if tokens < at.size * size:
            ids = np.append(ids, np.zeros(at.size * size - tokens, dtype=ids.dtype))
        low, high = np.searchsorted(block.starts, (first, first + tokens), side="right" if shifted else "left").tolist()
        borders = block.starts[low:high] - (first + shifted)
        made = partial(_extents, block, at, ends, size)
    else:
        rows, begins, lengths, targets = _spans(block, at, ends, size)
        documents = rows if block.order is None else block.order[rows]
        starts, ended = block.starts[rows], begins + lengths == block.starts[rows + 1]
        lasts = (targets + lengths - 1)[ended]
        sources = block.documents.offsets[documents] + (begins - starts)
        copied = lengths if settings.eos_id is None else lengths - ended
        ids = gather_spans(block.documents.values, sources, copied, targets, at.size * size)
        ids = put_eos(ids, lasts, settings)
        borders = lasts if shifted else targets[begins == starts]
        made = Extents(targets, lengths, block.numbers[documents])
    if settings.labels == "none" or settings.cross_document_labels:
        # Nothing follows the last token of all.
        borders = np.arange(tokens - 1, tokens)[: shifted and at.size > 0 and int(ends[-1]) == total]
    return _labelled(block, ids.reshape(-1, size), tokens, ends, borders, settings, made)


def _labelled(
    block: DocumentBlock,
    ids: Array,
    tokens: int,
    ends: Ids,
    borders: Ids,
    settings: LMSettings,
    made: Extents | Callable[[], Extents],
) -> TokenRows:
    """Rows of a block with their labels. ``ends``: where each ends in the block's stream. ``borders``: slots of labels that
    are not to be learnt, as they are of another document."""
    size, ignored = settings.seq_len, settings.ignore_index
    slots, labels = borders, np.full(borders.size, ignored)
    if settings.labels == "shifted":
        slots = borders[borders % size < size - 1]
        labels = np.concatenate([_behind(block, ends, settings), labels[: slots.size]])
        slots = np.concatenate([np.arange(size - 1, ids.size, size), slots])
    return TokenRows(ids, tokens, slots, labels, made)


def _spans(block: DocumentBlock, at: Ids, ends: Ids, size: int) -> tuple[Ids, Ids, Ids, Ids]:
    """The documents of rows, by their places in the block's order; where each begins in its stream; its tokens; its slot."""
    first = np.searchsorted(block.starts, at, side="right") - 1
    counts = np.searchsorted(block.starts, ends, side="left") - first
    upto = np.cumsum(counts)
    rows: Ids = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(first - (upto - counts), counts)
    begins: Ids = np.maximum(block.starts[rows], np.repeat(at, counts))
    lengths: Ids = np.minimum(block.starts[rows + 1], np.repeat(ends, counts)) - begins
    targets: Ids = begins + np.repeat(np.arange(0, at.size * size, size) - at, counts)
    if lengths.all():
        return rows, begins, lengths, targets
    full = lengths > 0
    return rows[full], begins[full], lengths[full], targets[full]


def _extents(block: DocumentBlock, at: Ids, ends: Ids, size: int) -> Extents:
    rows, _, lengths, targets = _spans(block, at, ends, size)
    return Extents(targets, lengths, block.numbers[rows])


def _behind(block: DocumentBlock, ends: Ids, settings: LMSettings) -> Ids:
    """Labels of the last tokens of rows: what is behind them, if it may be learnt; ``ends``: as of :func:`_labelled`."""
    # More of its last document, or the next one that is not empty.
    last = np.minimum(np.searchsorted(block.starts, ends, side="right") - 1, len(block.documents) - 1)
    documents = last if block.order is None else block.order[last]
    values, starts = block.documents.values, block.starts[last]
    sources = block.documents.offsets[documents] + (ends - starts)
    tokens = values[np.minimum(sources, values.size - 1)].astype(np.int64)
    if settings.eos_id is not None:
        tokens[block.starts[last + 1] == ends + 1] = settings.eos_id
    tokens[(ends == block.starts[-1]) | ((starts == ends) & (not settings.cross_document_labels))] = (
        settings.ignore_index
    )
    return tokens


def _across(blocks: Iterable[DocumentBlock], inside: int, count: int, settings: LMSettings) -> TokenRows:
    """Rows that begin in one block and go on in others, or of which the last is not full. Only where their documents lie in
    two blocks are these copied: blocks may be large."""
    needed, skip = inside + count * settings.seq_len + 1, -1
    documents, numbers = [], []
    for block in blocks:
        first = 0
        if skip < 0:
            first = _document_at(block, inside)
            skip = inside - int(block.starts[first])
        stop = min(int(np.searchsorted(block.starts, needed, side="left")), len(block.documents))
        needed -= int(block.starts[-1])
        rows = slice(first, stop)
        if block.order is None:
            documents.append(block.documents[rows])
            numbers.append(block.numbers[rows])
        else:
            documents.append(block.documents.take(block.order[rows]))
            numbers.append(block.numbers[block.order[rows]])
        if needed <= 0:
            break
    return _windows(Ragged.concat(documents), skip, count, settings, np.concatenate(numbers))


def _document_at(block: DocumentBlock, token: int) -> int:
    """The document in which a token of a block's stream lies, by its place in the block's order."""
    return int(np.searchsorted(block.starts, token, side="right")) - 1


class Joiner:
    """Joins documents and cuts the stream into rows; what does not fill a batch is carried on to the next.

    Documents are numbered in the order in which they are fed. Batches depend on nothing but the documents and these
    arguments; the state is two numbers: the document in which the next row begins, and the token in it.

    Args:
        settings: see :class:`LMSettings`.
        batch_size: rows in a batch; all but the last have so many. It may be another after a resume.
        state: from :meth:`state_dict`, to go on there; then feed documents from number :attr:`next_document` on.

    Raises:
        ConfigError: ``batch_size`` is less than 1.
        StateError: the state is of a joiner with other settings.
    """

    def __init__(self, settings: LMSettings, batch_size: int, *, state: Mapping[str, Any] | None = None) -> None:
        at_least(1, batch_size=batch_size)
        self._settings = settings
        self._batch_size = batch_size
        self._parts: deque[DocumentBlock] = deque()  # of documents that were fed together
        self._tokens = 0  # in all parts, eos counted
        self._number = 0  # of the document to be fed next
        self._token = 0  # where the next row begins in the first part
        self._finished = False
        if state is not None:
            if state.get("version") != 1 or state.get("eos") != (settings.eos_id is not None):
                raise StateError(
                    f"this is not a state of a joiner of this version with these settings: {dict(state)!r}"
                )
            self._number, self._token = state_number(state, "document"), state_number(state, "token")

    @property
    def next_document(self) -> int:
        """The number of the document to be fed next."""
        return self._number

    def feed(self, documents: Ragged) -> Iterator[LMBatch]:
        """Take in the next documents, all at once, and yield the batches that are ready.

        Batches that were not taken come with those of the next call.

        Raises:
            FormatError: when a batch is made, an id is not in the vocabulary.
            StateError: the first document after a resume is shorter than what was delivered of it.
            ConfigError: :meth:`finish` was called before.
        """
        if self._finished:
            raise ConfigError("this joiner is finished: make a new one for more documents")
        starts = stream_starts(documents.lengths, self._settings)
        if not self._parts and len(documents) and self._token > int(starts[1]):
            raise StateError(
                f"document {self._number} has {int(starts[1])} tokens, but the state says that {self._token} were "
                "delivered: has the data changed?"
            )
        if len(documents):
            first, self._number = self._number, self._number + len(documents)
            numbers = np.arange(first, self._number, dtype=np.int64)
            self._parts.append(DocumentBlock(documents, numbers, None, starts))
            self._tokens += int(starts[-1])
        return self._batches(whole=True)

    def finish(self, *, remainder: bool | None = None) -> Iterator[LMBatch]:
        """Yield the last batches, of which the last may have fewer rows.

        Args:
            remainder: fill the last row with padding, where tokens do not; else leave those tokens out. Default: fill it
                where there is a ``pad_id``.
        """
        self._finished = True
        filled = self._settings.pad_id is not None if remainder is None else remainder
        return self._batches(whole=not filled, last=True)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last; JSON-serialisable."""
        document, token = self._number, self._token
        if self._parts:
            row = _document_at(self._parts[0], token)
            document, token = int(self._parts[0].numbers[row]), token - int(self._parts[0].starts[row])
        return {"version": 1, "document": document, "token": token, "eos": self._settings.eos_id is not None}

    def _batches(self, *, whole: bool, last: bool = False) -> Iterator[LMBatch]:
        settings, size = self._settings, self._settings.seq_len
        # A label across documents at the end of a row needs the first token of the document that follows.
        ahead = int(not last and settings.cross_document_labels and settings.labels == "shifted")
        while True:
            left = self._tokens - self._token
            rows = min((left - ahead) // size if whole else -(-left // size), self._batch_size)
            if rows < (1 if last else self._batch_size):
                self._let_go()
                return
            end = self._token + min(rows * size, left)
            batch = _across(self._parts, self._token, rows, settings).batch(settings)
            while self._parts and end >= (tokens := int(self._parts[0].starts[-1])):
                self._parts.popleft()
                self._tokens -= tokens
                end -= tokens
            self._token = end
            yield batch

    def _let_go(self) -> None:
        """Keep a copy of the few documents that are left of a part, not its whole memory."""
        if len(self._parts) != 1:
            return
        part = self._parts[0]
        row = _document_at(part, self._token)
        rest = part.documents[row:]
        if 4 * rest.values.size < part.documents.values.size:
            first = int(part.starts[row])
            kept = rest.take(np.arange(len(rest)))
            self._parts[0] = DocumentBlock(kept, part.numbers[row:], None, part.starts[row:] - first)
            self._token, self._tokens = self._token - first, self._tokens - first


_TAG_ROWS: Final = 23


class ConcatLayout(TokenLayout):
    """Documents end to end, cut at every ``seq_len`` tokens. Amounts are tokens, eos counted.

    Rows that lie in one block come in an order of their own, so that a long document is not trained on from its beginning
    to its end; those that go on in the next block come last.
    """

    name = "concat"
    joins = True
    needs_padding = False

    def __init__(self, settings: LMSettings, too_long: TooLong) -> None:
        super().__init__(settings, too_long)
        self.step = settings.seq_len
        self.partial = settings.pad_id is not None
        self._eos = int(settings.eos_id is not None)
        self._shifted = settings.labels == "shifted"
        # Labels across documents need the token behind a row, which may be of another block.
        self.reach = int(self._shifted and settings.cross_document_labels)

    def amounts(self, source: TokenSource, bounds: Ids, tokens: Ids, rows: Ids) -> Ids:  # noqa: ARG002
        return tokens + rows if self._eos else tokens

    def row_maker(
        self,
        batch_size: int,
        lookahead: int,  # noqa: ARG002
        state: Mapping[str, Any] | None,
        fetch: Callable[[Ids], Ragged],  # noqa: ARG002
    ) -> RowMaker:
        return Joiner(self.settings, batch_size, state=state)

    def block(self, found: BlockInput) -> DocumentBlock:
        documents, size = found.documents, self.settings.seq_len
        order = order_of(len(documents), found.key)
        starts = stream_starts(documents.lengths if order is None else documents.lengths[order], self.settings)
        rows = None
        if found.key is not None:
            rows = order_of(self._full(int(starts[-1]), -found.before % size), mix(found.key, _TAG_ROWS))
        whole = not self._eos and bool((documents.lengths == size).all())
        return DocumentBlock(documents, found.numbers, order, starts, rows=rows, whole=whole)

    def _full(self, total: int, phase: int) -> int:
        """Number of rows that lie in a block of so many amounts, of which the first begins at ``phase``."""
        return max(0, total - self.reach - phase) // self.settings.seq_len

    def take(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> TokenRows:
        size = self.settings.seq_len
        parts: list[TokenRows] = []
        for number, block in enumerate(blocks):
            total = int(block.starts[-1])
            first, phase = divmod(inside, size)
            # Rows that lie in the block, and rows that begin in it.
            full, begun = self._full(total, phase), -(-(total - phase) // size)
            taken = min(count, full - first)
            if taken > 0:
                rows = np.arange(first, first + taken, dtype=np.int64)
                if block.rows is not None:
                    rows = block.rows[first : first + taken]
                parts.append(self._inside(block, phase + rows * size))
                count -= taken
                first += taken
            taken = min(count, begun - first)
            if taken > 0:
                parts.append(_across(blocks[number:], phase + first * size, taken, self.settings))
                count -= taken
            if not count:
                break
            inside = phase + begun * size - total
        return TokenRows.concat(parts)

    def _inside(self, block: DocumentBlock, at: Ids) -> TokenRows:
        """Rows that lie in one block, by the offsets in its stream at which they begin."""
        settings, size = self.settings, self.settings.seq_len
        if not block.whole or int(at[0]) % size:
            return _rows_at(block, at, settings)
        # A document is a row.
        rows = at // size
        documents = rows if block.order is None else block.order[rows]
        ids = block.documents.values.reshape(-1, size)[documents]
        made = partial(_whole_rows, block.numbers, documents, size)
        if settings.cross_document_labels:
            return _labelled(block, ids, ids.size, at + size, at[:0], settings, made)
        # The token behind a row is of another document: there is no need to look for it.
        slots = np.arange(size - 1 if self._shifted else 0, 0 if settings.labels == "none" else ids.size, size)
        return TokenRows(ids, ids.size, slots, np.full(slots.size, settings.ignore_index), made)


def _whole_rows(numbers: Ids, documents: Ids, size: int) -> Extents:
    """The extents of rows that are a document each."""
    count = documents.size
    starts = np.arange(0, count * size, size, dtype=np.int64)
    return Extents(starts, np.full(count, size, dtype=np.int64), numbers[documents])
