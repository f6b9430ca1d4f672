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

    __slots__ = ("sizes", "starts", "total")

    def __init__(self, sizes: NDArray[np.integer]) -> None:
        counts = np.ascontiguousarray(sizes, dtype=np.int64)
        if counts.ndim != 1 or (counts.size and int(counts.min()) < 0):
            raise ConfigError("shard sizes must be one-dimensional and not negative")
        starts = np.zeros(counts.size + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        counts.flags.writeable = False
        starts.flags.writeable = False
        self.sizes: Ids = counts
        self.starts: Ids = starts
        self.total = int(starts[-1])

    def __len__(self) -> int:
        return int(self.sizes.size)

    def locate(self, ids: Ids) -> tuple[Ids, Ids]:
        """Shard number and row in it of each sample id, both int64 of the shape of ``ids``."""
        shards = np.searchsorted(self.starts, ids, side="right") - 1
        return shards, ids - self.starts[shards]
