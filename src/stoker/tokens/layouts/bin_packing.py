"""Packs spans of documents into rows, so that these are as full as can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from stoker.errors import ConfigError
from stoker.tokens.layouts.assemble import DocumentSpans, full_lengths, too_long_error
from stoker.tokens.layouts.best_fit import best_fit
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Ids

TooLong = Literal["split", "truncate", "error"]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Spans of documents in rows; sorted by row, and in it by document.

    Attributes:
        documents: row of each span's document in its :class:`Ragged`; int64, shape ``(k,)``, as are all.
        firsts: its first token in the document.
        lengths: its tokens, eos counted.
        columns: where it begins in its row.
        bounds: of the spans of each row; shape ``(rows + 1,)``.
        cut: documents and tokens that were cut off.
    """

    documents: Ids
    firsts: Ids
    lengths: Ids
    columns: Ids
    bounds: Ids
    cut: tuple[int, int]

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.bounds.size - 1

    def spans(self, first: int, stop: int, width: int) -> DocumentSpans:
        """The spans of rows ``[first, stop)`` in a batch of these rows."""
        low, high = int(self.bounds[first]), int(self.bounds[stop])
        rows = np.repeat(np.arange(stop - first, dtype=np.int64), np.diff(self.bounds[first : stop + 1]))
        here = slice(low, high)
        return DocumentSpans(
            self.documents[here], self.firsts[here], self.lengths[here], rows * width + self.columns[here]
        )


def pack_documents(documents: Ragged, settings: LMSettings, too_long: TooLong) -> PackedRows:
    """Pack documents into rows by best-fit-decreasing.

    Raises:
        FormatError: a document is too long, where that is an error.
        ConfigError: ``too_long`` is unknown.
    """
    rows, firsts, lengths, cut = split(documents, settings, too_long)
    return into_rows(rows, firsts, lengths, best_fit(lengths, settings.seq_len), cut)


def split(documents: Ragged, settings: LMSettings, too_long: TooLong) -> tuple[Ids, Ids, Ids, tuple[int, int]]:
    """Spans that fit a row: their documents, first tokens and lengths; and what was cut off."""
    check_too_long(too_long)
    whole = full_lengths(documents.lengths, settings)
    size = settings.seq_len
    rows = np.flatnonzero(whole)
    lengths = whole[rows]
    if not lengths.size or int(lengths.max()) <= size:
        return rows, np.zeros(rows.size, dtype=np.int64), lengths, (0, 0)
    if too_long == "error":
        row = int(np.argmax(whole > size))
        raise too_long_error(documents, row, int(whole[row]), settings, "too_long='split' or 'truncate'")
    if too_long == "truncate":
        short = np.minimum(lengths, size)
        cut = int((lengths > size).sum()), int((lengths - short).sum())
        return rows, np.zeros(rows.size, dtype=np.int64), short, cut
    counts = -(-lengths // size)
    ends = np.cumsum(counts)
    number = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - counts, counts)
    firsts = number * size
    return np.repeat(rows, counts), firsts, np.minimum(np.repeat(lengths, counts) - firsts, size), (0, 0)


def into_rows(documents: Ids, firsts: Ids, lengths: Ids, row: Ids, cut: tuple[int, int]) -> PackedRows:
    """Spans sorted into rows.

    Args:
        documents, firsts, lengths, cut: see :class:`PackedRows`.
        row: number of the row of each span; int64, shape ``(k,)``.
    """
    order = np.argsort(row, kind="stable")
    row, lengths = row[order], lengths[order]
    count = int(row[-1]) + 1 if row.size else 0
    bounds = np.searchsorted(row, np.arange(count + 1))
    ends = np.cumsum(lengths)
    before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[bounds[:-1]]
    columns = ends - lengths - np.repeat(before, np.diff(bounds))
    return PackedRows(documents[order], firsts[order], lengths, columns, bounds, cut)


def check_too_long(too_long: TooLong) -> None:
    """See that ``too_long=`` is known.

    Raises:
        ConfigError: it is not.
    """
    if too_long not in get_args(TooLong):
        raise ConfigError(f"too_long={too_long!r} is unknown; known: {', '.join(get_args(TooLong))}")
