"""The counter of this process's requests for stored bytes: none, unless a benchmark sets one. Imports next to nothing."""

from __future__ import annotations

from enum import IntEnum
from resource import RUSAGE_THREAD, getrusage
from typing import Protocol


class ServedBy(IntEnum):
    """The source of a request's bytes.

    A request for a local file is the device's if the kernel fetched anything from a device for the thread that made it, or
    for the read-ahead of the file; otherwise the page cache's. A request that waits for what another one has begun to
    fetch counts as the page cache's.
    """

    DEVICE = 0
    PAGE_CACHE = 1
    CACHE_DIRECTORY = 2
    NETWORK = 3


class RequestObserver(Protocol):
    """A counter of requests, such as stoker-bench has one."""

    def add(self, served: ServedBy, nanoseconds: int, size: int) -> None:
        """Count a request that took so long, and gave so many bytes."""

    def begin(self) -> tuple[int, int]:
        """The begin of a request for a local file, for :meth:`end` in the same thread."""
        ...

    def end(self, begun: tuple[int, int], size: int, *, ahead: bool = False, copied: bool = False) -> None:
        """Count a request for a local file, which gave so many bytes."""

    def repeat(self, endpoint: str) -> None:
        """Count a request that an endpoint of an object store failed, and that may be made again."""


def fetched_by_thread() -> int:
    """Bytes that the kernel has fetched from devices for this thread: for its reads, page faults and read-ahead."""
    return getrusage(RUSAGE_THREAD).ru_inblock << 9


_observer: RequestObserver | None = None


def observe(counts: RequestObserver | None) -> None:
    """Have all requests of stoker's stores and caches in this process counted, or by ``None`` no more."""
    global _observer
    _observer = counts


def observer() -> RequestObserver | None:
    """The counter of this process's requests; ``None`` where nobody counts."""
    return _observer
