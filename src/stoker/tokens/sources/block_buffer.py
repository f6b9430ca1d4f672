"""Decoded groups of documents, put together in memory that is used again; and counts that only their lengths tell."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.concurrency.threads import Threads
from stoker.errors import CorruptDataError, FormatError
from stoker.formats.common.gather import empty
from stoker.reading.bad_samples import is_of_sample
from stoker.tokens.layouts.bin_packing import TooLong, pack_documents, split
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged, offsets_of
from stoker.tokens.sources.source import Salvageable, TokenSource, describe_row
from stoker.types import Array, Ids

_AHEAD: Final = 4
# Tokens are kept in the narrowest of these that holds them all.
_KINDS = tuple(np.dtype(name) for name in ("uint16", "uint32", "int64"))


@dataclass(frozen=True, slots=True)
class LostDocuments:
    """Documents that follow each other, of which tokens can not be read.

    Attributes:
        first, stop: their numbers among those that were gathered.
        reason: what is wrong.
        tokens: numbers of these tokens in the one document; ``None``: all of all documents.
    """

    first: int
    stop: int
    reason: Exception
    tokens: Ids | None = None


class Gathered:
    """Takes chunks of decoded documents, one after the other.

    Tokens are copied, so that what they were decoded into is free at once, into 16 bits where ids allow it. Documents
    without tokens are left out.

    ``tokens`` says how many will come, ``limit`` is one more than the largest id that is allowed. ``lost``: what :meth:`add`
    could not read.
    """

    def __init__(self, tokens: int, limit: int) -> None:
        self._limit = limit
        self._kind = 0
        self._values: Array = _memory(tokens, self._kind)
        self._used = 0
        self._ends: list[Ids] = []
        self._numbers: list[Ids] = []
        self._counts = (0, 0)
        self._masks: list[tuple[int, Array]] = []
        self._column = "tokens"
        self.lost: list[LostDocuments] = []

    @property
    def documents(self) -> int:
        """Documents that were taken."""
        return self._counts[0]

    def add(self, source: TokenSource, group: int, *, salvage: bool) -> None:
        """Add a group, if it has tokens.

        Where ``salvage``, documents that can not be read are no errors: there are zeros for their tokens, listed in
        :attr:`lost`. A token that is no id keeps its place. What does not decode, and lies between documents that do, has
        as many documents and tokens as the group should have more: so many, and of nearly equal lengths, stand for it.
        What is not the documents' fault is an error; so is damage that has more documents than tokens.
        """
        groups = source.groups
        first_row, rows, tokens = int(groups.first_rows[group]), int(groups.rows[group]), int(groups.tokens[group])
        if not tokens:
            return
        mark = len(self._ends), len(self.lost), self._used, self._counts
        before, row, chunks = self._counts, first_row, source.chunks(group)
        try:
            for chunk in chunks:
                self._take(self._with_ids(chunk) if salvage else chunk.check(self._limit), row)
                self._column = chunk.column
                row += len(chunk)
            self._check_found(before, rows, tokens, source.where(group))
            return
        except Exception as error:
            if not (salvage and is_of_sample(error)):
                raise
            reason = error
        left = rows - self._counts[0] + before[0], tokens - self._counts[1] + before[1]
        last = None
        if 0 < left[0] <= left[1]:
            last = self._last_documents(source, group, left)
        elif left != (0, 0):
            # More than there should be: nothing of it can be trusted.
            (ends, lost, self._used, self._counts), row, left = mark, first_row, (rows, tokens)
            del self._ends[ends:], self._numbers[ends:], self.lost[lost:]
            self._masks = [one for one in self._masks if one[0] < self._used]
            if not 0 < rows <= tokens:
                raise reason
        if last is not None:
            left = left[0] - int((last.lengths > 0).sum()), left[1] - last.values.size
        if left[0]:
            each, more = divmod(left[1], left[0])
            lengths = np.full(left[0], each, dtype=np.int64)
            lengths[:more] += 1
            self.lost.append(LostDocuments(self.documents, self.documents + left[0], reason))
            self._take(Ragged(np.zeros(left[1], dtype=np.uint16), offsets_of(lengths)), row)
        if last is not None:
            self._take(last, first_row + int(last.rows[0]))

    def _last_documents(self, source: TokenSource, group: int, left: tuple[int, int]) -> Ragged | None:
        """The documents behind damage, unless there would be no documents and tokens left for the damage itself."""
        try:
            last = source.last_documents(group) if isinstance(source, Salvageable) else None
        except Exception as error:
            if not is_of_sample(error):
                raise
            return None
        if last is None or not len(last):
            return None
        documents, tokens = left[0] - int((last.lengths > 0).sum()), left[1] - last.values.size
        if not (0 < documents <= tokens or (documents, tokens) == (0, 0)):
            return None
        used, lost = self._counts, len(self.lost)
        cleaned = self._with_ids(last)
        shift = documents  # those that are lost come before them
        self.lost[lost:] = [replace(one, first=one.first + shift, stop=one.stop + shift) for one in self.lost[lost:]]
        assert self._counts == used
        return cleaned

    def _with_ids(self, chunk: Ragged) -> Ragged:
        """A chunk that is taken next, with zeros for tokens that are no ids; these are noted as lost."""
        try:
            return chunk.check(self._limit)
        except FormatError:
            pass
        wrong = chunk.values < 0
        if self._limit <= np.iinfo(chunk.values.dtype).max:
            wrong |= chunk.values >= self._limit
        tokens = np.flatnonzero(wrong)
        owners = np.searchsorted(chunk.offsets, tokens, side="right") - 1
        numbers = self._counts[0] + np.cumsum(chunk.lengths > 0) - 1
        documents, firsts = np.unique(owners, return_index=True)
        for document, here in zip(documents.tolist(), np.split(tokens, firsts[1:]), strict=True):
            try:
                chunk.take(np.array([document])).check(self._limit)
            except FormatError as error:
                number = int(numbers[document])
                self.lost.append(LostDocuments(number, number + 1, error, here - chunk.offsets[document]))
        values = np.where(wrong, chunk.values.dtype.type(0), chunk.values)
        return chunk.with_values(values)

    def _check_found(self, before: tuple[int, int], rows: int, tokens: int, where: str) -> None:
        found = self._counts[0] - before[0], self._counts[1] - before[1]
        if found != (rows, tokens):
            raise CorruptDataError(
                f"{where}: {found[1]} tokens in {found[0]} documents, but {tokens} in {rows} by its footer or index: it is "
                "damaged, or was replaced after it was indexed: write it again"
            )

    def finish(self, describe: Callable[[int], str]) -> tuple[Ragged, Ids]:
        """All documents, and the number of each document's row among the rows of all groups; int64.

        ``describe`` names a row by that number, for messages.
        """
        zero = np.zeros(1, dtype=np.int64)
        offsets = np.concatenate([zero, *self._ends])
        numbers = np.concatenate([zero[:0], *self._numbers])
        made = Ragged(self._values[: self._used], offsets, column=self._column, where=describe, rows=numbers)
        if self._masks:
            made.loss_mask = np.zeros(self._used, np.bool_)
            for first, part in self._masks:
                made.loss_mask[first : first + part.size] = part
        return made, numbers

    def _take(self, chunk: Ragged, first_row: int) -> None:
        size = chunk.values.size
        if size:
            while not np.can_cast(chunk.values.dtype, _KINDS[self._kind]) and (
                int(chunk.values.max()) > np.iinfo(_KINDS[self._kind]).max
            ):
                self._widen(self._kind + 1)
            if self._used + size > self._values.size:  # more than was promised; told when the group ends
                self._values = np.concatenate([self._values[: self._used], np.empty(size, _KINDS[self._kind])])
            self._values[self._used : self._used + size] = chunk.values
        if chunk.loss_mask is not None:
            self._masks.append((self._used, chunk.loss_mask))
        full = chunk.lengths > 0
        ends, numbers = chunk.offsets[1:] + self._used, np.arange(first_row, first_row + len(chunk), dtype=np.int64)
        if not full.all():
            ends, numbers = ends[full], numbers[full]
        self._ends.append(ends)
        self._numbers.append(numbers)
        self._used += size
        self._counts = self._counts[0] + ends.size, self._counts[1] + size

    def _widen(self, kind: int) -> None:
        wider: Array = _memory(self._values.size, kind)
        wider[: self._used] = self._values[: self._used]
        self._values, self._kind = wider, kind


def _memory(tokens: int, kind: int) -> Array:
    """Memory for so many tokens, which may have held others: new memory costs more than what is copied into it."""
    memory: Array = empty(1, tokens * _KINDS[kind].itemsize)[0].view(_KINDS[kind])
    return memory


def measure(source: TokenSource, groups: Sequence[int], look: Callable[[int], Any]) -> Iterator[Any]:
    """Results of a function that reads a group, for each of some groups, in order; it is called on threads."""
    threads = Threads(min(8, os.cpu_count() or 1), "measure")
    running: deque[Future[Any]] = deque()
    try:
        for turn, group in enumerate(groups):
            source.fetch(groups[turn : turn + threads.count + _AHEAD])
            running.append(threads.submit(partial(look, group)))
            if len(running) > threads.count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        threads.close()


def lengths_of(source: TokenSource, group: int) -> Ids:
    """Tokens in each document of a group that is not empty; int64."""
    lengths = np.concatenate([np.zeros(0, np.int64), *(chunk.lengths for chunk in source.chunks(group))])
    return lengths[lengths > 0]


def counts_of(source: TokenSource, group: int) -> Ids:
    """The number of documents of a group that are not empty, and of their tokens; int64."""
    lengths = lengths_of(source, group)
    return np.array([lengths.size, lengths.sum()], dtype=np.int64)


def good_lengths(source: TokenSource, limit: int, group: int) -> Ids:
    """Tokens in each document of a group that is not empty, also where some can not be read; int64.

    ``limit`` is one more than the largest id that is allowed; see :meth:`Gathered.add`.
    """
    gathered = Gathered(int(source.groups.tokens[group]), limit)
    gathered.add(source, group, salvage=True)
    return gathered.finish(str)[0].lengths


def packed_rows(source: TokenSource, bounds: Ids, settings: LMSettings, too_long: TooLong, *, salvage: bool) -> Ids:
    """The number of rows that the documents of each cell fill when they are packed.

    ``bounds``: first group of each cell, and their number, int64, shape ``(cells + 1,)``. Where ``salvage``, documents that
    can not be read are counted as :func:`good_lengths` has them.
    """
    look = partial(good_lengths, source, settings.limit) if salvage else partial(lengths_of, source)
    found = measure(source, range(int(bounds[-1])), look)
    counts = np.empty(bounds.size - 1, dtype=np.int64)
    for cell, (first, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        lengths = np.concatenate([next(found) for _ in range(first, stop)])
        try:
            counts[cell] = rows_of_lengths(lengths, settings, too_long)
        except FormatError as error:
            raise _named(error, source, range(first, stop), settings) from None
    return counts


def _named(error: FormatError, source: TokenSource, groups: Sequence[int], settings: LMSettings) -> FormatError:
    """The error of the first document of some groups that is too long, with its row.

    The groups are decoded again for it: lengths without those of empty documents do not tell a row's number.
    """
    where = partial(describe_row, source)
    for group in groups:
        row = int(source.groups.first_rows[group])
        for chunk in source.chunks(group):
            documents = Ragged(chunk.values, chunk.offsets, column=chunk.column, where=where, rows=row)
            try:
                split(documents, settings, "error")
            except FormatError as found:
                return found
            row += len(chunk)
    return error


def rows_of_lengths(lengths: Ids, settings: LMSettings, too_long: TooLong) -> int:
    """Rows that documents of these lengths fill when they are packed together, without memory for tokens."""
    offsets = offsets_of(lengths)
    documents = Ragged(np.broadcast_to(np.zeros((), dtype=np.uint8), (int(offsets[-1]),)), offsets)
    return pack_documents(documents, settings, too_long).count
