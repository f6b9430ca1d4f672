"""Shards as the order sees them: how many samples each holds; and finding which shard, or other interval, has an offset."""

from __future__ import annotations

from typing import Final

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


_BUCKETS_PER_RUN: Final = 4
_MOST_STEPS: Final = 6


class IntervalLookup:
    """Some intervals, none of them empty, that together cover ``[0, total)``; finds by division or through a table which of
    them has an offset.

    Where all are of one length, but for one that may be shorter, as the last shard of a dataset is, an offset is divided by
    it. Otherwise buckets of ``2**shift`` offsets divide ``[0, total)``, two to four for each interval. A table holds the
    interval of each bucket's first offset; from there the lookup takes as many steps as intervals begin in one bucket, which
    is one where lengths are similar. Where a bucket has many intervals, it bisects instead. 8 bytes a bucket and an interval.
    The table is made when it is first needed.

    ``lengths``: of each interval; int64, shape ``(intervals,)``. ``starts``: first offset of each interval and, last, the
    total, where they are known; int64, shape ``(intervals + 1,)``.
    """

    __slots__ = ("_length", "_missing", "_next", "_shift", "_sign", "_steps", "starts")

    def __init__(self, lengths: Ids, starts: Ids | None = None) -> None:
        if starts is None:
            starts = np.zeros(lengths.size + 1, dtype=np.int64)
            np.cumsum(lengths, out=starts[1:])
        self.starts: Ids = starts
        self._next: Ids | None = None
        # The length of all intervals, if they have one: 0-d, which NumPy takes faster than a scalar.
        self._length: Ids | None = None
        # Of the one that is shorter: where it ends, and how many offsets it lacks.
        self._missing: tuple[Ids, Ids] | None = None
        length = int(lengths.max(initial=0))
        shorter = length * lengths.size - int(starts[-1])
        if not shorter:
            self._length = np.asarray(length)
        elif shorter < length and np.count_nonzero(others := lengths != length) == 1:
            self._length = np.asarray(length)
            self._missing = np.asarray(starts[int(np.argmax(others)) + 1]), np.asarray(shorter)

    def _make_table(self) -> Ids:
        starts = self.starts
        total = int(starts[-1])
        shift = max(0, (total // max(1, _BUCKETS_PER_RUN * (starts.size - 1))).bit_length())
        self._shift = np.asarray(shift, dtype=np.int64)
        buckets = ((total - 1) >> shift) + 1
        # Interval i begins at or before the first offset of all buckets from `at` on.
        at = (starts[1:-1] + ((1 << shift) - 1)) >> shift
        begins = np.bincount(at[at < buckets], minlength=max(1, buckets))
        # One more than the interval, as `find` first compares whether an offset is less than its start.
        begins[0] += 1
        found = np.cumsum(begins, dtype=np.int64)
        # Intervals that begin inside the bucket; one that begins at its first offset does no harm.
        self._steps = int(np.bincount(starts[1:-1] >> shift, minlength=1).max())
        self._sign = np.asarray(63, dtype=np.int64)
        self._next = found
        return found

    def find(self, offsets: Ids) -> Ids:
        """The interval of each offset in ``[0, total)``; int64 of the shape of ``offsets``."""
        if self._length is not None:
            if self._length == 1:  # such as files that are a sample each
                return offsets
            if self._missing is not None:
                end, missing = self._missing
                offsets = offsets + (offsets >= end) * missing
            found: Ids = offsets // self._length
            return found
        table = self._make_table() if self._next is None else self._next
        if self._steps > _MOST_STEPS:
            return np.searchsorted(self.starts[1:], offsets, side="right")
        found = table.take(offsets >> self._shift, mode="wrap")
        if not self._steps:
            found -= 1
        for step in range(self._steps):
            if step:
                found += 1
            # Minus one where the offset lies before the interval, which is faster than to compare and to add the result.
            before = self.starts.take(found, mode="wrap")
            np.subtract(offsets, before, before)
            np.right_shift(before, self._sign, before)
            found += before
        return found
