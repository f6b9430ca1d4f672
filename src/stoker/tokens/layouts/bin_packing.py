"""Packs spans of documents into rows, so that these are as full as can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stoker.errors import ConfigError
from stoker.integers import ranges
from stoker.tokens.layouts.assemble import DocumentSpans, full_lengths, too_long_error
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Ids

_WORD = 1024


def best_fit(lengths: Ids, capacity: int) -> Ids:
    """The row that each length goes to.

    Lengths are placed in falling order, each where the least room is left over (D. S. Johnson et al., "Worst-case
    performance bounds for simple one-dimensional packing algorithms", SIAM J. Comput. 1974; for training in H. Ding et al.,
    "Fewer truncations improve language modeling", ICML 2024). Equal lengths are placed many at a time, and the best room is
    found in a set of bits, so that it takes about half a microsecond a length.

    Args:
        lengths: int64, shape ``(n,)``, each in ``[1, capacity]``.
        capacity: of a row.

    Returns:
        Row numbers; int64, shape ``(n,)``. Rows are numbered by their first length in the order given, so that they come
        in about the order of the documents, not of their lengths.

    Raises:
        ConfigError: a length is not in range.

    >>> best_fit(np.array([3, 5, 2, 4]), 7).tolist()
    [0, 1, 1, 0]
    """
    if not lengths.size:
        return np.zeros(0, dtype=np.int64)
    if int(lengths.min()) < 1 or int(lengths.max()) > capacity:
        raise ConfigError(
            f"lengths to pack must be from 1 to {capacity}, found {int(lengths.min())} to {int(lengths.max())}"
        )
    order = np.argsort(-lengths, kind="stable")
    values, counts = np.unique(lengths, return_counts=True)
    open_rows = _OpenRows(capacity)
    found: list[int] = []
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        open_rows.add(length, count, found)
    rows = np.empty(lengths.size, dtype=np.int64)
    rows[order] = found
    _, first = np.unique(rows, return_index=True)
    numbers = np.empty(first.size, dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(first.size)
    return numbers[rows]


class _OpenRows:
    """Rows by the room that is left in them.

    ``words`` is a set of bits: bit r is set where a row has room r. ``top`` has a bit for each word that is not zero.
    """

    __slots__ = ("capacity", "count", "rows", "top", "words")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.rows: dict[int, list[int]] = {}
        self.words = [0] * (capacity // _WORD + 1)
        self.top = 0

    def add(self, length: int, count: int, found: list[int]) -> None:
        """Place ``count`` times a length that is none of those before surpasses; their rows are added to ``found``.

        The row with the least room that is enough stays the best one until it is full: what is left in it is less still.
        """
        while count:
            space = self._least(length)
            if not space:
                self._open(length, count, found)
                return
            rows = self.rows[space]
            each = min(space // length, count)
            chosen = rows[-(count // each) :]
            del rows[-len(chosen) :]
            if not rows:
                self._drop(space)
            found += chosen * each
            count -= each * len(chosen)
            self._put(chosen, space - each * length)

    def _open(self, length: int, count: int, found: list[int]) -> None:
        """New rows for ``count`` times a length, as many in each as it holds; the last may get fewer."""
        each = self.capacity // length
        full, rest = divmod(count, each)
        rows = list(range(self.count, self.count + full))
        self.count += full
        found += rows * each
        self._put(rows, self.capacity - each * length)
        if rest:
            found += [self.count] * rest
            self._put([self.count], self.capacity - rest * length)
            self.count += 1

    def _least(self, length: int) -> int:
        """The least room of at least ``length``; 0 if there is none."""
        word, bit = divmod(length, _WORD)
        low = self.words[word] >> bit
        if low:
            return length + (low & -low).bit_length() - 1
        high = self.top >> (word + 1)
        if not high:
            return 0
        word += (high & -high).bit_length()
        low = self.words[word]
        return word * _WORD + (low & -low).bit_length() - 1

    def _put(self, rows: list[int], space: int) -> None:
        if space and rows:
            there = self.rows.get(space)
            if there is None:
                self.rows[space] = rows
                word, bit = divmod(space, _WORD)
                self.words[word] |= 1 << bit
                self.top |= 1 << word
            else:
                there += rows

    def _drop(self, space: int) -> None:
        del self.rows[space]
        word, bit = divmod(space, _WORD)
        self.words[word] ^= 1 << bit
        if not self.words[word]:
            self.top ^= 1 << word


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

    def spans(self, rows: Ids, width: int) -> DocumentSpans:
        """The spans of some rows in a batch of these rows, in this order."""
        low = self.bounds[rows]
        counts = self.bounds[rows + 1] - low
        here = ranges(low, counts)
        starts = np.repeat(np.arange(rows.size, dtype=np.int64) * width, counts) + self.columns[here]
        return DocumentSpans(self.documents[here], self.firsts[here], self.lengths[here], starts)


def pack_documents(documents: Ragged, settings: LMSettings, too_long: TooLong) -> PackedRows:
    """Pack documents into rows by best-fit-decreasing."""
    rows, firsts, lengths, cut = split(documents, settings, too_long)
    return into_rows(rows, firsts, lengths, best_fit(lengths, settings.seq_len), cut)


def split(documents: Ragged, settings: LMSettings, too_long: TooLong) -> tuple[Ids, Ids, Ids, tuple[int, int]]:
    """Spans that fit a row: their documents, first tokens and lengths; and what was cut off."""
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

    ``row`` is the number of the row of each span; the rest is as :class:`PackedRows` has it.
    """
    order = np.argsort(row, kind="stable")
    row, lengths = row[order], lengths[order]
    count = int(row[-1]) + 1 if row.size else 0
    bounds = np.searchsorted(row, np.arange(count + 1))
    ends = np.cumsum(lengths)
    before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[bounds[:-1]]
    columns = ends - lengths - np.repeat(before, np.diff(bounds))
    return PackedRows(documents[order], firsts[order], lengths, columns, bounds, cut)
