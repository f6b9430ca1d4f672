"""The layouts: which tokens of documents go where in a batch. Pure functions.

========== =========================================================================================================
``pad``    one document a row, filled up with padding; too long ones are an error, or cut (``too_long="truncate"``)
``windows`` documents joined into one stream, cut into rows at every S tokens; any rows of it can be asked for
``pack``   whole documents side by side in rows, as full as can be; only what is longer than a row is split
========== =========================================================================================================

For documents that come little by little see :class:`~stoker.tokens.layouts.streaming_concat.Joiner` and
:class:`~stoker.tokens.layouts.streaming_pack.Packer`. Empty documents get no eos and are left out; only ``pad`` gives them
a row, of padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from stoker.errors import ConfigError
from stoker.tokens.batch import Extents, LMBatch
from stoker.tokens.layouts.assemble import DocumentRuns, assemble, batch_arrays, full_lengths, too_long_error
from stoker.tokens.layouts.bin_packing import PackedPieces, TooLong, place
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.runs import copy_runs
from stoker.types import Array, Ids

__all__ = ["Cover", "cover", "pack", "pad", "stream_starts", "windows"]


def pad(
    documents: Ragged,
    settings: LMSettings,
    *,
    too_long: Literal["error", "truncate"] = "error",
    side: Literal["right", "left"] = "right",
    longest: bool = False,
    multiple: int = 1,
    first_document: int = 0,
) -> LMBatch:
    """One document a row.

    Args:
        documents: the batch's documents, of which each gets a row.
        settings: see :class:`LMSettings`; needs ``pad_id``.
        too_long: what becomes of a document longer than ``seq_len``, its eos counted: an error, or its end is cut off and
            counted in ``cut_documents`` and ``cut_tokens``.
        side: where padding goes.
        longest: rows are as wide as the longest document, not ``seq_len``.
        multiple: rows are as wide as a multiple of this, where ``longest``.
        first_document: the number of the first document.

    Raises:
        FormatError: a document is too long, or an id is not in the vocabulary.
        ConfigError: there is no ``pad_id``, or an argument is unknown.
    """
    settings.padding("the pad layout")
    if too_long not in ("error", "truncate") or side not in ("right", "left") or multiple < 1:
        raise ConfigError(
            f"too_long={too_long!r}, side={side!r}, multiple={multiple}: too_long is 'error' or 'truncate', side is "
            "'right' or 'left', multiple is at least 1"
        )
    whole = full_lengths(documents.lengths, settings)
    lengths = np.minimum(whole, settings.seq_len)
    cut = np.flatnonzero(whole > lengths)
    if cut.size and too_long == "error":
        raise too_long_error(documents, int(cut[0]), int(whole[cut[0]]), settings, "too_long='truncate'")
    width = settings.seq_len
    if longest:
        width = min(width, -(-max(int(lengths.max(initial=0)), 1) // multiple) * multiple)
    rows = np.flatnonzero(lengths)
    lengths = lengths[rows]
    starts = rows * width
    if side == "left":
        starts += width - lengths
    pieces = DocumentRuns(rows, np.zeros(rows.size, dtype=np.int64), lengths, starts)
    told = (cut.size, int(whole.sum() - lengths.sum()))
    return assemble(documents, pieces, (len(documents), width), settings, first_document=first_document, cut=told)


def stream_starts(lengths: Ids, settings: LMSettings) -> Ids:
    """Where each document begins in the stream of all, joined; int64, shape ``(documents + 1,)``, the total last.

    Args:
        lengths: tokens in each document, without eos; zeros are allowed.
        settings: says whether eos is put behind documents.
    """
    starts = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(full_lengths(lengths, settings), out=starts[1:])
    return starts


@dataclass(frozen=True, slots=True)
class Cover:
    """The documents that some windows are made of: ``[first, stop)``; ``skip`` tokens of the first go before."""

    first: int
    stop: int
    skip: int


def cover(starts: Ids, first: int, count: int, settings: LMSettings) -> Cover:
    """Which documents windows ``[first, first + count)`` of a stream need.

    ``windows(documents[c.first : c.stop], c.skip, count, settings, first_document=c.first)`` then makes them. Window j has
    tokens ``[j * S, (j + 1) * S)`` of the stream; with shifted labels, the token behind is needed as well.

    Args:
        starts: from :func:`stream_starts`.
        first: number of the first window.
        count: number of windows.
        settings: see :class:`LMSettings`.

    Raises:
        ConfigError: the stream has no such window. One that is not full is a window.
    """
    total, size = int(starts[-1]), settings.seq_len
    if first < 0 or count < 1 or (first + count - 1) * size >= total:
        raise ConfigError(f"windows {first} to {first + count - 1} of a stream that has {-(-total // size)}")
    begin, end = first * size, (first + count) * size
    # Only labels across documents need the document that begins just behind.
    crossing = settings.labels == "shifted" and settings.cross_document_labels
    row = int(np.searchsorted(starts, begin, side="right")) - 1
    stop = int(np.searchsorted(starts, min(end + crossing, total), side="left"))
    return Cover(row, stop, begin - int(starts[row]))


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
    return LMBatch(
        ids.reshape(count, size),
        None if labels is None else labels.reshape(count, size),
        settings.labels,
        tokens,
        partial(_window_extents, starts, skip, end, size, first_document),
        settings.ignore_index,
        settings.reset_positions,
    )


def _label_stream(documents: Ragged, starts: Ids, skip: int, ids: Array, labels: Array, settings: LMSettings) -> None:
    """Labels of rows of a stream, of which ``ids`` are the tokens from ``skip`` on; the rest is padding."""
    tokens, end = ids.size, skip + ids.size
    if settings.labels == "shifted":
        # From the stream, not from the ids: so the last place has its label, too.
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
    ends = starts[first + 1 : stop + 1] - 1  # places of eos; wrong for empty documents, which are dropped next
    full = documents.offsets[first + 1 : stop + 1] > documents.offsets[first:stop]
    begins, ends = begins[full], ends[full]
    sources = (documents.offsets[first:stop] - starts[first:stop])[full] + begins
    copy_runs(documents.values, sources, np.minimum(ends, end) - begins, out, begins - skip)
    out[ends[: ends.size - (int(ends[-1]) >= end)] - skip] = settings.eos_id


def _window_extents(starts: Ids, skip: int, end: int, size: int, first_document: int | Ids) -> Extents:
    """Where documents lie in rows of ``size``, which are tokens ``[skip, end)`` of a stream."""
    rows = np.arange(skip, end, size, dtype=np.int64)
    low, high = np.searchsorted(starts, (skip, end)).tolist()
    # Documents' beginnings and rows', merged; an empty document begins where the next one does.
    borders = np.union1d(rows, starts[low:high])
    row = np.searchsorted(starts, borders, side="right") - 1
    numbers = row + first_document if isinstance(first_document, int) else first_document[row]
    return Extents(borders - skip, np.diff(borders, append=end), numbers)


def pack(documents: Ragged, settings: LMSettings, *, too_long: TooLong = "split", first_document: int = 0) -> LMBatch:
    """All documents in as few rows as best-fit-decreasing finds; see :func:`~stoker.tokens.layouts.best_fit.best_fit`.

    Args:
        documents: what to pack.
        settings: see :class:`LMSettings`; needs ``pad_id``.
        too_long: a document longer than ``seq_len``, its eos counted, is ``"split"`` into pieces, cut (``"truncate"``), or
            an ``"error"``.
        first_document: the number of the first document.

    Raises:
        FormatError: a document is too long, or an id is not in the vocabulary.
        ConfigError: there is no ``pad_id``, or ``too_long`` is unknown.
    """
    settings.padding("the pack layout")
    placed: PackedPieces = place(documents, settings, too_long)
    return assemble(
        documents,
        placed.pieces(0, placed.count, settings.seq_len),
        (placed.count, settings.seq_len),
        settings,
        first_document=first_document,
        cut=placed.cut,
    )
