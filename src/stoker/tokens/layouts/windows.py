"""Rows of joined documents: one stream, cut at every S tokens. Empty documents get no eos and are left out."""

from __future__ import annotations

from functools import partial

import numpy as np

from stoker.errors import ConfigError
from stoker.tokens.batch import Extents, LMBatch
from stoker.tokens.layouts.assemble import batch_arrays, full_lengths, make_batch
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged, copy_spans
from stoker.types import Array, Ids


def stream_starts(lengths: Ids, settings: LMSettings) -> Ids:
    """The begin of each document in the stream of all, joined; int64, shape ``(documents + 1,)``, the total last.

    Args:
        lengths: tokens in each document, without eos; zeros are allowed.
        settings: says whether eos is put behind documents.
    """
    starts = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(full_lengths(lengths, settings), out=starts[1:])
    return starts


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
    documents.check(settings.limit)
    size = settings.seq_len
    starts = documents.offsets if settings.eos_id is None else stream_starts(documents.lengths, settings)
    total = int(starts[-1])
    end = min(skip + count * size, total)
    if skip < 0 or count < 0 or (count and skip + (count - 1) * size >= total):
        raise ConfigError(f"{count} rows of {size} tokens from token {skip} on, where there are {total} tokens")
    tokens = end - skip
    ids, labels = batch_arrays(count * size, settings)
    _copy_stream(documents, starts, skip, ids[:tokens], settings)
    if tokens < ids.size:
        ids[tokens:] = settings.padding("a row that no tokens fill")
    if labels is not None:
        _label_stream(documents, starts, skip, ids[:tokens], labels, settings)
    extents = partial(_window_extents, starts, skip, end, size, first_document)
    return make_batch(ids, labels, (count, size), settings, tokens, extents)


def _label_stream(documents: Ragged, starts: Ids, skip: int, ids: Array, labels: Array, settings: LMSettings) -> None:
    """Labels of rows of a stream, of which ``ids`` are the tokens from ``skip`` on; the rest is padding."""
    tokens, end = ids.size, skip + ids.size
    if settings.labels == "shifted":
        # From the stream, not from the ids: so the last slot has its label, too.
        have = min(tokens, int(starts[-1]) - skip - 1)
        _copy_stream(documents, starts, skip + 1, labels[: max(have, 0)], settings)
        labels[max(have, 0) :] = settings.ignore_index
        border = -1
    else:
        labels[:tokens] = ids
        labels[tokens:] = settings.ignore_index
        border = 0
    if not settings.cross_document_labels:
        # Documents that begin in (skip, end], or in [skip, end) where tokens are their own labels.
        low, high = np.searchsorted(starts, (skip, end), side="left" if border == 0 else "right").tolist()
        labels[starts[low:high] + (border - skip)] = settings.ignore_index


def _copy_stream(documents: Ragged, starts: Ids, skip: int, out: Array, settings: LMSettings) -> None:
    """``out`` becomes the stream's tokens from ``skip`` on."""
    if settings.eos_id is None:
        out[:] = documents.values[skip : skip + out.size]
        return
    if not out.size:
        return
    end = skip + out.size
    first = int(np.searchsorted(starts, skip, side="right")) - 1
    stop = int(np.searchsorted(starts, end, side="left"))
    begins = np.maximum(starts[first:stop], skip)
    ends = starts[first + 1 : stop + 1] - 1  # offsets of eos; wrong for empty documents, which are dropped next
    full = documents.offsets[first + 1 : stop + 1] > documents.offsets[first:stop]
    begins, ends = begins[full], ends[full]
    sources = (documents.offsets[first:stop] - starts[first:stop])[full] + begins
    copy_spans(documents.values, sources, np.minimum(ends, end) - begins, out, begins - skip)
    out[ends[: ends.size - (int(ends[-1]) >= end)] - skip] = settings.eos_id


def _window_extents(starts: Ids, skip: int, end: int, size: int, first_document: int | Ids) -> Extents:
    """The extents of documents in rows of ``size``, which are tokens ``[skip, end)`` of a stream."""
    rows = np.arange(skip, end, size, dtype=np.int64)
    low, high = np.searchsorted(starts, (skip, end)).tolist()
    # Documents' beginnings and rows', merged; an empty document begins where the next one does.
    borders = np.union1d(rows, starts[low:high])
    row = np.searchsorted(starts, borders, side="right") - 1
    numbers = row + first_document if isinstance(first_document, int) else first_document[row]
    return Extents(borders - skip, np.diff(borders, append=end), numbers)
