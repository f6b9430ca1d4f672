"""Decoded groups of documents, put together in memory that is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.common.reused_memory import empty
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Array, Ids

# Tokens are kept in the narrowest of these that holds them all.
_KINDS = tuple(np.dtype(name) for name in ("uint16", "uint32", "int64"))


class Gathered:
    """Takes chunks of decoded documents, one after the other.

    Tokens are copied, so that what they were decoded into is free at once, into 16 bits where ids allow it. Documents
    without tokens are left out.

    Args:
        tokens: how many tokens will come.
        limit: one more than the largest id that is allowed.
    """

    def __init__(self, tokens: int, limit: int) -> None:
        self._limit = limit
        self._kind = 0
        self._values: Array = _memory(tokens, self._kind)
        self._used = 0
        self._ends: list[Ids] = []
        self._numbers: list[Ids] = []
        self._counts = (0, 0)
        self._column = "tokens"

    @property
    def documents(self) -> int:
        """Documents that were taken."""
        return self._counts[0]

    def add(self, chunks: Iterable[Ragged], first_row: int, rows: int, tokens: int, where: str) -> None:
        """Add a group.

        Args:
            chunks: its documents.
            first_row: number of its first row among the rows of all groups.
            rows: documents with tokens that it should have.
            tokens: tokens that it should have.
            where: names it in errors.

        Raises:
            FormatError: an id is not in the vocabulary.
            CorruptDataError: it has other numbers of documents and tokens.
        """
        before = self._counts
        for chunk in chunks:
            chunk.check(self._limit)
            self._take(chunk, first_row)
            self._column = chunk.column
            first_row += len(chunk)
        found = self._counts[0] - before[0], self._counts[1] - before[1]
        if found != (rows, tokens):
            raise CorruptDataError(
                f"{where}: {found[1]} tokens in {found[0]} documents, but {tokens} in {rows} by its footer or index: it is "
                "damaged, or was replaced after it was indexed: write it again"
            )

    def finish(self, describe: Callable[[int], str]) -> tuple[Ragged, Ids]:
        """All documents, and the number of each document's row among the rows of all groups; int64.

        Args:
            describe: names a row by that number, for messages.
        """
        zero = np.zeros(1, dtype=np.int64)
        offsets = np.concatenate([zero, *self._ends])
        numbers = np.concatenate([zero[:0], *self._numbers])
        return Ragged(self._values[: self._used], offsets, column=self._column, where=describe, rows=numbers), numbers

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
