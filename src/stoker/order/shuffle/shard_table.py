"""Shards as the order sees them: how many samples each holds, and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.types import Ids


class ShardTable:
    """Sample counts of the shards. Sample ids count through the shards in index order.

    Attributes:
        sizes: int64, shape ``(shards,)``: samples in each shard; zeros are allowed.
        starts: int64, shape ``(shards + 1,)``: id of each shard's first sample; the last entry is the total.
        total: number of samples.
    """

    __slots__ = ("_starts", "sizes", "total")

    def __init__(self, sizes: NDArray[np.integer]) -> None:
        counts = np.ascontiguousarray(sizes, dtype=np.int64)
        if counts.ndim != 1 or (counts.size and int(counts.min()) < 0):
            raise ConfigError("shard sizes must be one-dimensional and not negative")
        counts.flags.writeable = False
        self.sizes: Ids = counts
        self.total = int(counts.sum())
        self._starts: Ids | None = None

    @property
    def starts(self) -> Ids:
        """See the class; computed when it is first asked for."""
        if self._starts is None:
            starts = np.zeros(self.sizes.size + 1, dtype=np.int64)
            np.cumsum(self.sizes, out=starts[1:])
            starts.flags.writeable = False
            self._starts = starts
        return self._starts

    def __len__(self) -> int:
        return int(self.sizes.size)

    def ids(self, shards: Ids, rows: Ids) -> Ids:
        """Id of each sample by its shard and its row in it."""
        return self.starts[shards] + rows

    def locate(self, ids: Ids) -> tuple[Ids, Ids]:
        """Shard number and row in it of each sample id, both int64 of the shape of ``ids``."""
        shards = np.searchsorted(self.starts, ids, side="right") - 1
        return shards, ids - self.starts[shards]
