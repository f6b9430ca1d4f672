"""From spans of documents, and where they go, to a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.errors import FormatError
from stoker.integers import ranges
from stoker.tokens.batch import Extents, LMBatch, gaps_and_spans
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged, copy_spans
from stoker.types import Array, Ids

_LINE = 64


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


def assemble(
    documents: Ragged,
    spans: DocumentSpans,
    shape: tuple[int, int],
    settings: LMSettings,
    *,
    first_document: int | Ids = 0,
    cut: tuple[int, int] = (0, 0),
) -> LMBatch:
    """The batch that has these spans.

    ``first_document`` is the number that the first of ``documents`` has in ``document_ids``, or the numbers of all;
    ``cut``: the documents and tokens that the layout cut off, to be told.
    """
    documents.check(settings.limit)
    size = shape[0] * shape[1]
    lengths = documents.lengths
    inside = lengths[spans.rows]
    stops = spans.firsts + spans.lengths
    with_eos = stops > inside  # eos is beyond the document's own tokens
    whole = stops == full_lengths(inside, settings)
    sources = documents.offsets[spans.rows] + spans.firsts
    ids, labels = batch_arrays(size, settings)
    copy_spans(documents.values, sources, spans.lengths - with_eos, ids, spans.starts)
    lasts = spans.starts + spans.lengths - 1
    if settings.eos_id is not None:
        ids[lasts[with_eos]] = settings.eos_id
    padding = None
    tokens = int(spans.lengths.sum())
    if tokens < size:
        pad = settings.padding("a batch has slots that no token fills")
        gaps = gaps_and_spans(spans.starts, spans.lengths, size)[::2]
        begins = np.append(np.zeros(1, dtype=np.int64), lasts + 1)
        padding = ranges(begins[gaps > 0], gaps[gaps > 0])
        ids[padding] = pad
    if labels is not None:
        unlearnt = None if documents.learnt is None else ~_learnt(documents, spans, size, with_eos)
        if settings.labels == "shifted":
            labels[:-1] = ids[1:]
            if unlearnt is not None:
                labels[:-1][unlearnt[1:]] = settings.ignore_index
            labels[lasts] = _next_tokens(documents, spans, ids, whole, settings, shape[1])
        else:
            labels[:] = ids
            if unlearnt is not None:
                labels[unlearnt] = settings.ignore_index
            if not settings.cross_document_labels:
                # What begins a row without beginning its document is not predicted from another one.
                borders = (spans.firsts == 0) | (spans.starts % max(shape[1], 1) > 0)
                labels[spans.starts[borders]] = settings.ignore_index
        if padding is not None:
            labels[padding] = settings.ignore_index
    numbers = spans.rows + first_document if isinstance(first_document, int) else first_document[spans.rows]
    return make_batch(ids, labels, shape, settings, tokens, Extents(spans.starts, spans.lengths, numbers), cut)


def _learnt(documents: Ragged, spans: DocumentSpans, size: int, with_eos: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which slots have tokens that are learnt; an eos is where the last token of its document is."""
    assert documents.learnt is not None
    found = np.zeros(size, np.bool_)
    copy_spans(
        documents.learnt, documents.offsets[spans.rows] + spans.firsts, spans.lengths - with_eos, found, spans.starts
    )
    ended = np.flatnonzero(with_eos)
    found[(spans.starts + spans.lengths - 1)[ended]] = documents.learnt[documents.offsets[spans.rows[ended] + 1] - 1]
    return found


def make_batch(
    ids: Array,
    labels: Array | None,
    shape: tuple[int, int],
    settings: LMSettings,
    tokens: int,
    made: Extents | Callable[[], Extents],
    cut: tuple[int, int] = (0, 0),
) -> LMBatch:
    """The batch of ids and labels that :func:`batch_arrays` gave and that were filled; see :class:`LMBatch`."""
    return LMBatch(
        ids.reshape(shape),
        None if labels is None else labels.reshape(shape),
        settings.labels,
        tokens,
        made,
        settings.ignore_index,
        settings.reset_positions,
        *cut,
    )


def _next_tokens(
    documents: Ragged,
    spans: DocumentSpans,
    ids: Array,
    whole: np.ndarray[tuple[int], np.dtype[np.bool_]],
    settings: LMSettings,
    width: int,
) -> Array:
    """The label of each span's last token: what follows it in its document, if anything does."""
    follows = np.full(spans.starts.size, settings.ignore_index, dtype=ids.dtype)
    part = np.flatnonzero(~whole)
    if part.size:
        rows = spans.rows[part]
        at = documents.offsets[rows] + spans.firsts[part] + spans.lengths[part]
        eos = at == documents.offsets[rows + 1]
        follows[part] = documents.values[at - eos]
        if settings.eos_id is not None:
            follows[part[eos]] = settings.eos_id
        if documents.learnt is not None:
            follows[part[~documents.learnt[at - eos]]] = settings.ignore_index
    if settings.cross_document_labels and spans.starts.size:
        ends = spans.starts + spans.lengths
        near = np.zeros(whole.size, dtype=bool)
        near[:-1] = whole[:-1] & (ends[:-1] == spans.starts[1:])
        near &= ends % width != 0
        follows[near] = ids[ends[near]]
    return follows
