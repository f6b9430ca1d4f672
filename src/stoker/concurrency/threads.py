"""A pool of daemon threads that ends cleanly: pending work is dropped, running work is waited for, at exit too.

``concurrent.futures`` finishes all queued work before the interpreter exits, which for a queue of downloads may take
minutes. Plain daemon threads would be cut off inside native code, which some libraries answer with an abort.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from stoker.concurrency.forks import reset_in_children

_T = TypeVar("_T")
_S = TypeVar("_S")
_PATIENCE = 10.0
# Seconds that an item waits for storage at hand, on average at most, and items after which that is judged.
_AT_HAND = 0.0005
_TRIED = 20

_Queue: TypeAlias = "queue.SimpleQueue[_Work[Any] | None]"


class _Work(Future[_T]):
    """Work and its result. A forked child does what the parent's threads had not done, when it asks for the result."""

    def __init__(self, action: Callable[[], _T]) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._action: Callable[[], _T] | None = action
        self._outcome: tuple[_T | None, BaseException | None] | None = None

    def result(self, timeout: float | None = None) -> _T:
        if self._pid == os.getpid():
            return super().result(timeout)
        # A thread that is not there may hold this future's lock, so it is not touched.
        value, error = self._outcome or self.do()
        if error is not None:
            raise error
        return cast(_T, value)

    def cancel(self) -> bool:
        """See :class:`concurrent.futures.Future`; a child leaves its parent's work alone."""
        return self._pid == os.getpid() and super().cancel()

    def do(self) -> tuple[_T | None, BaseException | None]:
        """Do the work: its result, or its error."""
        assert self._action is not None
        try:
            self._outcome = self._action(), None
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            self._outcome = None, error
        self._action = None  # and what it holds
        return self._outcome


class Threads:
    """Up to ``count`` threads that run work in the order it was given. They start when first needed.

    A process forked from the one that made it gets a pool of its own on first use.
    """

    # Kept here, as the module's own names may be gone when a pool is closed at the interpreter's end.
    _EMPTY: ClassVar = queue.Empty

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._reset()
        reset_in_children(self)

    def after_fork(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queue: _Queue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Threads that were not told to end.
        self._serving = 0
        self._closed = False
        _pools.add(self)

    def widen(self, count: int) -> None:
        """Have up to ``count`` threads from now on, where that is more: at once, as far as work waits for them."""
        with self._lock:
            if count <= self.count or self._closed:
                return
            self.count = count
            for _ in range(min(count - self._serving, self._queue.qsize())):
                self._start()

    def resize(self, count: int) -> None:
        """Have up to ``count`` threads from now on. Of more than that, some end after the work that is in the queue."""
        self.widen(count)
        with self._lock:
            if count >= self.count or self._closed:
                return
            self.count = count
            while self._serving > count:
                self._serving -= 1
                self._queue.put(None)
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _start(self) -> None:
        thread = threading.Thread(target=_serve, args=(self._queue,), name=f"stoker-{self._name}", daemon=True)
        self._threads.append(thread)
        self._serving += 1
        thread.start()
        _started.add(thread)

    def submit(self, action: Callable[[], _T]) -> Future[_T]:
        """Run ``action`` on a thread of the pool, which opens again if it was closed."""
        if self._closed:
            self._reset()
        work = _Work(action)
        with self._lock:
            self._queue.put(work)
            if self._serving < self.count:
                self._start()
        return work

    def close(self, patience: float = _PATIENCE) -> None:
        """Drop what has not begun, wait up to ``patience`` seconds for what has."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            while True:
                try:
                    work = self._queue.get_nowait()
                except self._EMPTY:
                    break
                if work is not None:
                    work.cancel()
            for _ in threads:
                self._queue.put(None)
        for thread in threads:
            # An interrupt of submit() may have left one that does not run yet.
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(patience)

    # Bound as a default: at the interpreter's end a module's names are gone.
    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # The threads hold the queue, not the pool: tell them to end.
        if self._pid == getpid() and not self._closed:
            for _ in self._threads:
                self._queue.put(None)


def map_in_order(function: Callable[[_S], _T], items: Sequence[_S], *, at_hand: bool, most: int, name: str) -> list[_T]:
    """Results of a function that waits for storage, in order; the first error is raised.

    Args:
        function: what is called, by several threads at once.
        items: its arguments.
        at_hand: whether storage is this machine's, or mounted there. Then items are done one by one as long as each waits
            less than 0.5 ms on average: threads would cost more than they save. The processor's time does not count, as
            that of imports by the first item: threads take turns with it.
        most: threads at most.
        name: of the threads.
    """
    done: list[_T] = []
    begun = _waited()
    while at_hand and len(done) < len(items) and _waited() - begun <= _AT_HAND * (_TRIED + len(done)):
        done.append(function(items[len(done)]))
    rest = items[len(done) :]
    if rest:
        with ThreadPoolExecutor(min(most, len(rest)), thread_name_prefix=f"stoker-{name}") as threads:
            done += threads.map(function, rest)
    return done


def _waited() -> float:
    """Seconds that this thread has waited, since some time."""
    return time.monotonic() - time.thread_time()


def _serve(work_queue: _Queue) -> None:
    while (work := work_queue.get()) is not None:
        if work.set_running_or_notify_cancel():
            value, error = work.do()
            if error is None:
                work.set_result(value)
            else:
                work.set_exception(error)
            del value, error  # a thread that waits for work holds no result
        del work


_pools: weakref.WeakSet[Threads] = weakref.WeakSet()
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
    # Those of pools that were closed without patience, or let go.
    deadline = time.monotonic() + _PATIENCE
    for thread in list(_started):
        thread.join(max(0.0, deadline - time.monotonic()))
