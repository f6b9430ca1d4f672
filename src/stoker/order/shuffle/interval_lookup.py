"""Runs laid end to end: which one a place lies in, found through a table of buckets instead of by bisection."""

from __future__ import annotations

from typing import Final

import numpy as np

from stoker.types import Ids

__all__ = ["IntervalLookup"]

_BUCKETS_PER_RUN: Final = 4
_MOST_STEPS: Final = 6


class IntervalLookup:
    """Some runs, none of them empty, that together cover ``[0, total)``.

    The line is cut into buckets of ``2**shift`` places, two to four for each run, each of which knows the run that its first
    place lies in. From there a place is a few steps away: as many as runs may begin in one bucket, one where lengths are
    alike. Where a bucket has many runs, places are found by bisection. 8 bytes a bucket and a run.

    Attributes:
        starts: first place of each run and, last, the total; int64, shape ``(runs + 1,)``.
    """

    __slots__ = ("_next", "_shift", "_sign", "_steps", "starts")

    def __init__(self, lengths: Ids) -> None:
        starts = np.zeros(lengths.size + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        self.starts: Ids = starts
        total = int(starts[-1])
        shift = max(0, (total // max(1, _BUCKETS_PER_RUN * lengths.size)).bit_length())
        self._shift = np.asarray(shift, dtype=np.int64)
        buckets = ((total - 1) >> shift) + 1
        # Run i begins at or before the first place of all buckets from `at` on.
        at = (starts[1:-1] + ((1 << shift) - 1)) >> shift
        begins = np.bincount(at[at < buckets], minlength=max(1, buckets))
        # One more than the run: what comes next is to see whether a place lies before it.
        begins[0] += 1
        self._next = np.cumsum(begins, dtype=np.int64)
        # Runs that begin inside the bucket; one that begins at its first place does no harm.
        self._steps = int(np.bincount(starts[1:-1] >> shift, minlength=1).max())
        self._sign = np.asarray(63, dtype=np.int64)

    def find(self, places: Ids) -> Ids:
        """The run of each place in ``[0, total)``; int64 of the shape of ``places``."""
        if self._steps > _MOST_STEPS:
            return np.searchsorted(self.starts[1:], places, side="right")
        runs = self._next.take(places >> self._shift, mode="wrap")
        if not self._steps:
            runs -= 1
        for step in range(self._steps):
            if step:
                runs += 1
            # Minus one where the place lies before the run, which is faster than to compare and to add what comes of it.
            before = self.starts.take(runs, mode="wrap")
            np.subtract(places, before, before)
            np.right_shift(before, self._sign, before)
            runs += before
        return runs
