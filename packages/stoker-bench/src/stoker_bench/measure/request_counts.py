"""Counts of requests for stored bytes: how many, how large, how long each took, by where they were served.

A request adds to histograms of a fixed size, which takes about 2 microseconds. No list grows, and histograms of several
processes add up exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.request_observer import ServedBy, fetched_by_thread
from stoker.concurrency.shared.counters import LogBuckets, SharedRows

LATENCIES: Final = LogBuckets(8, 5, 1024)
"""Of nanoseconds: from 256 ns to 18 minutes, each known to 3.1 %."""
SIZES: Final = LogBuckets(9, 0, 40)
"""Of bytes: powers of two from 512."""

COUNT, BYTES, FETCHED, TIME, LATENCY, SIZE = 0, 1, 2, 3, 4, 4 + LATENCIES.count
"""Places in the counters of one source: requests, bytes that they gave, bytes that the kernel fetched from a device for
them, nanoseconds, and where the histograms begin."""
WIDTH: Final = SIZE + SIZES.count
_SERVED: Final = len(ServedBy) * WIDTH
"""Counters of all sources; those of endpoints come after them."""

# Of both histograms, written out, as each request pays for a call and an attribute.
_LOW, _FINE, _LAST = LATENCIES.lowest, LATENCIES.fine, LATENCIES.count - 1
_DEVICE, _PAGE_CACHE, _COPIED = ServedBy.DEVICE, ServedBy.PAGE_CACHE, ServedBy.CACHE_DIRECTORY
_SMALL, _LARGEST = SIZES.lowest, SIZES.count - 1


class RequestCounts(SharedRows):
    """Requests of an object's process and of those that it has spawned. Threads may add to the same one.

    Args:
        endpoints: of an object store, whose repeated requests are counted apart from those of all others.
    """

    def __init__(self, endpoints: Sequence[str] = ()) -> None:
        self._endpoints = tuple(one.rstrip("/") for one in endpoints)
        super().__init__("stoker-requests", _SERVED + 1 + len(self._endpoints))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "endpoints": self._endpoints}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._endpoints = state.pop("endpoints")
        super().__setstate__(state)

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

    def repeat(self, endpoint: str) -> None:
        """Count a request that an endpoint failed, and that may be made again."""
        named = endpoint.rstrip("/")
        at = self._endpoints.index(named) if named in self._endpoints else len(self._endpoints)
        row = self._mine()
        with self._lock:
            row[_SERVED + at] += 1

    def repeats(self) -> dict[str, int]:
        """Requests that were repeated over all processes, by the endpoint that failed them; of all others under ``""``."""
        return dict(zip((*self._endpoints, ""), self.sums()[_SERVED:].tolist(), strict=True))

    def table(self) -> NDArray[np.int64]:
        """All counters over all processes: shape ``(len(ServedBy), WIDTH)``."""
        found = self.sums()[:_SERVED].reshape(len(ServedBy), WIDTH)
        found[:, COUNT] = found[:, LATENCY : LATENCY + LATENCIES.count].sum(axis=1)
        return found
