"""The columns of batches of which no sample is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.unstacked import Unstacked
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Batch, Ids

# Shards of which samples are tried, from the first on with as many between each two; and samples of each.
_SHARDS: Final = 8
_ROWS: Final = 32


class EmptyBatch:
    """The columns of a batch without samples: those of the first good one of some samples of the dataset, without rows.

    So they depend neither on what a process has read before nor on where a run was resumed. Where none of the samples that
    are tried is good, they are those of the first batch that was met.

    ``table``: the dataset's shards. ``has_met``: whether it has met a batch.
    """

    def __init__(self, table: ShardTable) -> None:
        self._table = table
        self._found: Batch | None = None
        self._met: Batch = {}
        self.has_met = False

    def meet(self, columns: Batch) -> None:
        """Take note of the columns of samples that are delivered."""
        if not self.has_met:
            self._met = _without_rows(columns)
            self.has_met = True

    def columns(self, read: Callable[[int, int], Batch]) -> Batch:
        """The columns; the caller's own. Empty where they are not known.

        ``read``: gives the columns of the sample at a shard and a row; empty where it is bad or filtered.
        """
        if self._found is None:
            self._found = self._look(read)
        return {name: column.copy() for name, column in (self._found or self._met).items()}

    def _look(self, read: Callable[[int, int], Batch]) -> Batch:
        for shard, row in self._tried():
            try:
                columns = read(shard, row)
            except ConfigError:  # no other sample can be had in the place of this one
                continue
            if columns:
                return _without_rows(columns)
        return {}

    def _tried(self) -> Iterator[tuple[int, int]]:
        sizes = self._table.sizes
        present = np.flatnonzero(sizes)
        for shard in _spaced(len(present), _SHARDS).tolist():
            number = int(present[shard])
            for row in _spaced(int(sizes[number]), _ROWS).tolist():
                yield number, row


def _spaced(count: int, most: int) -> Ids:
    """Some of so many numbers from 0 on, equally spaced."""
    some = min(count, most)
    return np.arange(some, dtype=np.int64) * count // max(1, some)


def _without_rows(columns: Batch) -> Batch:
    return {
        name: column.column(0, 0) if isinstance(column, Unstacked) else column[:0].copy()
        for name, column in columns.items()
    }
