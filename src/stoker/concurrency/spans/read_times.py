"""Times of reading in this process, as a tuner needs them: kept per step of reading and per shard, never per sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ReadTimes:
    """Sums of what the threads of a process have spent on reading since this was made.

    Attributes:
        read: nanoseconds that steps of reading took, over all threads.
        samples: that were read in them.
        awaited: those in which a thread waited for a shard, or fetched and opened one that it needed.
    """

    def __init__(self) -> None:
        self.read = self.samples = self.awaited = 0
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
