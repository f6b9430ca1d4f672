"""Counts of requests for stored bytes: how many, how large, how long each took, by where they were served.

A request adds to histograms of a fixed size, which takes about 2 microseconds. No list grows, and histograms of several
processes add up exactly.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.log_buckets import LogBuckets
from stoker.concurrency.request_observer import ServedBy, fetched_by_thread
from stoker.concurrency.shared_rows import SharedRows

LATENCIES: Final = LogBuckets(8, 5, 1024)
"""Of nanoseconds: from 256 ns to 18 minutes, each known to 3.1 %."""
SIZES: Final = LogBuckets(9, 0, 40)
"""Of bytes: powers of two from 512."""

COUNT, BYTES, FETCHED, TIME, LATENCY, SIZE = 0, 1, 2, 3, 4, 4 + LATENCIES.count
"""Places in the counters of one source: requests, bytes that they gave, bytes that the kernel fetched from a device for
them, nanoseconds, and where the histograms begin."""
WIDTH: Final = SIZE + SIZES.count


class RequestCounts(SharedRows):
    """Requests of an object's process and of those that it has spawned. Threads may add to the same one."""

    def __init__(self) -> None:
        super().__init__("stoker-requests", len(ServedBy) * WIDTH)

    def add(self, served: ServedBy, nanoseconds: int, size: int, fetched: int = 0) -> None:
        """Count a request.

        Args:
            served: by what.
            nanoseconds: from its begin until its last byte was there.
            size: bytes that it gave.
            fetched: bytes that the kernel fetched from a device for it.
        """
        at = served * WIDTH
        latency, power = at + LATENCY + LATENCIES.of(nanoseconds), at + SIZE + SIZES.of(size)
        row = self._mine()
        with self._lock:
            row[at] += 1
            row[at + BYTES] += size
            row[at + FETCHED] += fetched
            row[at + TIME] += nanoseconds
            row[latency] += 1
            row[power] += 1

    @staticmethod
    def begin() -> tuple[int, int]:
        """The begin of a request for a local file, for :meth:`end` in the same thread."""
        return fetched_by_thread(), time.perf_counter_ns()

    def end(self, begun: tuple[int, int], size: int, *, ahead: bool = False, copied: bool = False) -> None:
        """Count a request for a local file.

        Args:
            begun: of :meth:`begin`.
            size: bytes that it gave.
            ahead: whether the file's read-ahead had the kernel fetch anything from a device.
            copied: whether it is a copy in a cache of stoker's.
        """
        took, fetched = time.perf_counter_ns() - begun[1], fetched_by_thread() - begun[0]
        local = ServedBy.DEVICE if fetched or ahead else ServedBy.PAGE_CACHE
        self.add(ServedBy.CACHE_DIRECTORY if copied else local, took, size, fetched)

    def table(self) -> NDArray[np.int64]:
        """All counters over all processes: shape ``(len(ServedBy), WIDTH)``."""
        return self.sums().reshape(len(ServedBy), WIDTH)
