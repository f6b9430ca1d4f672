"""Times of threads, without those for which they waited for a processor, and sums of what a process reads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stoker.concurrency.forks import OpenFile


class ReadTimes:
    """Sums of what the threads of a process have spent on reading since this was made.

    Attributes:
        read: nanoseconds that steps of reading took, over all threads.
        samples: that were read in them.
        awaited: those in which a thread waited for a shard, or fetched and opened one that it needed.
        each, steps: nanoseconds of a sample that takes less than 4 µs, found in one step of reading for a trace, and for how
            many of the next ones that holds.
    """

    def __init__(self) -> None:
        self.read = self.samples = self.awaited = self.each = self.steps = 0
        self._lock = threading.Lock()

    def step(self, samples: int, nanoseconds: int, awaited: int = 0) -> None:
        """Note a step of reading; of another process also the nanoseconds for which it waited for shards."""
        with self._lock:
            self.samples += samples
            self.read += nanoseconds
            self.awaited += awaited

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """A block in which a thread waits for a shard."""
        begun = time.perf_counter_ns()
        try:
            yield
        finally:
            took = time.perf_counter_ns() - begun
            with self._lock:
                self.awaited += took


_SCHEDULED: Final = "/proc/thread-self/schedstat"
"""Of the thread that opens it: ns on a processor, ns for which it could run and had none, and how often it ran."""
_MOST: Final = 96


def displaced_time() -> int:
    """Nanoseconds for which this thread could run, since it began, and other threads had the processors.

    0 where the system does not tell: the kernel has no ``schedstat``, or ``/proc`` is not there.
    """
    with contextlib.suppress(OSError), open(_SCHEDULED, "rb", buffering=0) as file:
        return _displaced(file.fileno())
    return 0


def _displaced(file: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(os.pread(file, _MOST, 0).split()[1])
    return 0


def own_time() -> int:
    """Nanoseconds of a clock that stands still while this thread could run and others have the processors.

    So what is measured by it is not disturbed by other processes of the machine. It goes on while the thread waits for
    storage, or for Python's lock. Where the system does not tell, it never stands still.
    """
    return time.perf_counter_ns() - displaced_time()


class ThreadTimes:
    """Times of the thread that made this, which alone may ask: cheaper than :func:`displaced_time` where that is often."""

    __slots__ = ("_computed", "_displaced", "_file")

    def __init__(self) -> None:
        self._file = OpenFile()
        with contextlib.suppress(OSError):
            self._file = OpenFile(os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC))
        self._computed = self._displaced = 0
        self.ask()

    def ask(self) -> tuple[int, int]:
        """Nanoseconds since it was asked last: on a processor, and for which it could run and had none."""
        computed = time.thread_time_ns()
        displaced = _displaced(self._file.number)
        found = computed - self._computed, max(0, displaced - self._displaced)
        self._computed, self._displaced = computed, displaced
        return found
