"""A buffer between reading and its consumer: a thread fills it. Items that were not taken do not count as delivered."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from stoker.concurrency.forks import alive
from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.spans.recorder import Stage, recorder

END: Final = object()
"""Returned by a worker's ``next`` at the end of an epoch. ``None`` may be a sample: a transform may return it."""
_T = TypeVar("_T")
_PATIENCE = 10.0


class NothingYet(Exception):  # noqa: N818 - it is no error, but an answer
    """Raised where no item came in time; there may be one later."""


class _Shared(Generic[_T]):
    """State shared by the thread and the consumer. The thread refers to nothing else, so a forgotten buffer ends it."""

    def __init__(self, capacity: int) -> None:
        self.changed = threading.Condition()
        self.items: deque[tuple[_T, int, int]] = deque()
        self.samples = self.filled = 0
        self.capacity = capacity
        self.closed = self.done = False
        self.error: BaseException | None = None

    @property
    def resting(self) -> bool:
        return self.done or self.closed or self.filled >= self.capacity


class PrefetchBuffer(Generic[_T]):
    """Takes items from an iterator ahead of need, in a thread of its own.

    Args:
        items: made in the thread. It is closed there, too.
        size: samples in an item.
        capacity: samples that the buffer holds; an item goes in whole where there is space for a part of it.
            0: no thread, an item is made when it is requested.
        counts: where hits, misses and waiting are counted.
        cost: the part of the capacity that an item takes; default: its number of samples.
        closing: set when the buffer is closed or forgotten, for an iterator that may wait.

    A process that is forked has no such thread: the owner of a buffer drops it there and makes another.
    """

    def __init__(
        self,
        items: Iterator[_T],
        size: Callable[[_T], int],
        capacity: int,
        counts: Counts,
        cost: Callable[[_T], int] | None = None,
        closing: threading.Event | None = None,
    ) -> None:
        self._counts = counts
        self._size = size
        self._items = items
        self._closing = closing or threading.Event()
        self._pid = os.getpid()
        self._shared: _Shared[_T] = _Shared(capacity)
        self._thread: threading.Thread | None = None
        if capacity:
            self._thread = threading.Thread(
                target=_fill, args=(self._shared, items, size, cost or size), name="stoker-ahead", daemon=True
            )
            _open.add(self)
            self._thread.start()

    @property
    def resting(self) -> bool:
        """Whether the thread adds nothing now: the buffer is full, or the iterator has ended."""
        return self._shared.resting

    def take(self, timeout: float | None = None) -> _T | None:
        """The next item; ``None`` at the end.

        NothingYet if none came in time. BaseException if the iterator raised it; afterwards the buffer is at its end.
        """
        if self._thread is None:
            return self._make()
        shared = self._shared
        with shared.changed:
            begun = 0
            if not shared.items and not shared.done:
                begun = time.perf_counter_ns()
                shared.changed.wait_for(lambda: bool(shared.items) or shared.done or shared.closed, timeout)
                self._waited(begun)
            if shared.items:
                item, samples, cost = shared.items.popleft()
                shared.samples -= samples
                shared.filled -= cost
                shared.changed.notify_all()
                if begun:
                    self._counts.add(Count.BUFFER_MISSES, 1)
                self._counts.add(Count.BUFFER_HITS, samples - (begun > 0))
                return item
            if shared.error is not None:
                error, shared.error = shared.error, None
                raise error
            if shared.done or shared.closed:
                return None
        raise NothingYet

    def wait_for(self, samples: int, timeout: float | None = None) -> int:
        """Wait until so many samples are in the buffer, or as many as fit or are left. Returns how many there are."""
        shared = self._shared
        with shared.changed:
            shared.changed.wait_for(lambda: shared.resting or shared.samples >= samples, timeout)
            return shared.samples

    def close(self) -> None:
        """End the thread and drop all items."""
        if self._pid != os.getpid():
            return  # the thread, and perhaps the lock, are the parent's
        shared = self._shared
        self._closing.set()
        with shared.changed:
            shared.closed = True
            shared.items.clear()
            shared.samples = shared.filled = 0
            shared.changed.notify_all()
        _open.discard(self)
        if self._thread is None:
            _end(self._items)
        elif self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _make(self) -> _T | None:
        begun = time.perf_counter_ns()
        item = next(self._items, None)
        self._waited(begun)
        if item is not None:
            self._counts.add(Count.BUFFER_MISSES, self._size(item))
        return item

    def _waited(self, begun: int) -> None:
        now, recording = time.perf_counter_ns(), recorder()
        self._counts.add(Count.BUFFER_WAIT, now - begun)
        if recording is not None:
            recording.add(Stage.WAIT, begun, now)

    def __del__(self) -> None:
        shared = self.__dict__.get("_shared")
        if shared is not None:
            # No lock: the thread looks again soon, and a finaliser may run while this very thread holds it.
            shared.closed = True
            self._closing.set()


def _fill(shared: _Shared[_T], items: Iterator[_T], size: Callable[[_T], int], cost: Callable[[_T], int]) -> None:
    try:
        while True:
            with shared.changed:
                while shared.filled >= shared.capacity and not shared.closed:
                    shared.changed.wait(1.0)
                if shared.closed:
                    return
            item = next(items, None)
            with shared.changed:
                if item is None or shared.closed:
                    return
                entry = (item, size(item), cost(item))
                shared.items.append(entry)
                shared.samples += entry[1]
                shared.filled += entry[2]
                shared.changed.notify_all()
            del item, entry
    except BaseException as error:  # noqa: BLE001 - it belongs to the consumer
        with shared.changed:
            shared.error = error
    finally:
        _end(items)
        with shared.changed:
            shared.done = True
            shared.changed.notify_all()


def _end(items: Iterator[object]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()


_open: weakref.WeakSet[PrefetchBuffer[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for one in alive(_open):
        one.close()
