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

# Of both histograms, written out, as each request pays for a call and an attribute.
_LOW, _FINE, _LAST = LATENCIES.lowest, LATENCIES.fine, LATENCIES.count - 1
_DEVICE, _PAGE_CACHE, _COPIED = ServedBy.DEVICE, ServedBy.PAGE_CACHE, ServedBy.CACHE_DIRECTORY
_SMALL, _LARGEST = SIZES.lowest, SIZES.count - 1


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
        at, octave, power = served * WIDTH, nanoseconds.bit_length() - 1, size.bit_length() - _SMALL
        bucket = (octave - _LOW << _FINE) + (nanoseconds >> octave - _FINE) - (1 << _FINE) + 1 if octave >= _LOW else 0
        latency = at + LATENCY + (bucket if bucket < _LAST else _LAST)  # noqa: FURB136 - min() takes longer
        power = at + SIZE + (0 if power < 0 else power if power < _LARGEST else _LARGEST)  # noqa: FURB136
        row = self._mine()
        with self._lock:
            row[at + BYTES] += size
            row[at + TIME] += nanoseconds
            row[latency] += 1
            row[power] += 1
            if fetched:
                row[at + FETCHED] += fetched

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
        self.add(_COPIED if copied else _DEVICE if fetched or ahead else _PAGE_CACHE, took, size, fetched)

    def table(self) -> NDArray[np.int64]:
        """All counters over all processes: shape ``(len(ServedBy), WIDTH)``."""
        found = self.sums().reshape(len(ServedBy), WIDTH)
        found[:, COUNT] = found[:, LATENCY : LATENCY + LATENCIES.count].sum(axis=1)
        return found
