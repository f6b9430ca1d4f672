"""Times of threads that other processes do not disturb: the kernel tells how long each thread waits for a processor."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

_SCHEDULED: Final = "/proc/thread-self/schedstat"
"""Of the thread that opens it: ns on a processor, ns for which it could run and had none, and how often it ran."""
_MOST: Final = 96


def displaced_time() -> int:
    """Nanoseconds for which this thread could run, since it began, and other threads had the processors.

    0 where the system does not tell: the kernel has no ``schedstat``, or ``/proc`` is not there.
    """
    with contextlib.suppress(OSError):
        file = os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _displaced(file)
        finally:
            os.close(file)
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
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        self._computed = self._displaced = 0
        self.ask()

    def ask(self) -> tuple[int, int]:
        """Nanoseconds since it was asked last: on a processor, and for which it could run and had none."""
        computed = time.thread_time_ns()
        displaced = _displaced(self._file) if self._file >= 0 else 0
        found = computed - self._computed, max(0, displaced - self._displaced)
        self._computed, self._displaced = computed, displaced
        return found

    # Bound as a default: at the interpreter's end a module's names are gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file >= 0:
            close(self._file)
