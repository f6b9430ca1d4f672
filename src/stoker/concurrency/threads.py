"""A pool of daemon threads that ends cleanly: pending work is dropped, running work is waited for, at exit too.

``concurrent.futures`` finishes all queued work before the interpreter exits, which for a queue of downloads may take
minutes. Plain daemon threads would be cut off inside native code, which some libraries answer with an abort.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

from stoker.concurrency.forks import ProcessLocal, alive
from stoker.concurrency.spans.thread_times import displaced_time
from stoker.errors import StokerError

_T = TypeVar("_T")
_S = TypeVar("_S")
_R = TypeVar("_R")
_AnyWork = TypeVar("_AnyWork", bound="_Work[Any]")
_PATIENCE = 10.0
# Seconds that an item waits for storage at hand, on average at most, and items after which that is judged.
_AT_HAND = 0.0005
_TRIED = 20


class _Queue(queue.SimpleQueue[Any]):
    """Work for threads; ``None`` wakes one that waits, so that it sees whether it is to end."""

    def __init__(self) -> None:
        self.ended = False
        self._surplus = 0
        self._lock = threading.Lock()

    def dismiss(self, threads: int) -> None:
        """Have so many threads end: those that do so first, before they begin anything else."""
        with self._lock:
            self._surplus += threads
        for _ in range(threads):
            self.put(None)

    def retain(self, threads: int) -> int:
        """Have up to so many threads not end that were told to, and have not yet. Returns how many stay."""
        with self._lock:
            stay = min(threads, self._surplus)
            self._surplus -= stay
            return stay

    def ends_one(self, *, woken: bool) -> bool:
        """Whether the thread that asks is to end. It was woken, or has done some work: then it ends if there are too many."""
        if self._surplus:
            with self._lock:
                if self._surplus:
                    self._surplus -= 1
                    return True
        return woken and self.ended


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

    def serve(self) -> None:
        """Do the work on a thread of the pool, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        value, error = self.do()
        if error is None:
            self.set_result(cast(_T, value))
        else:
            self.set_exception(error)

    def drop(self) -> None:
        """Say that the pool does not do it any more."""
        self.cancel()


class _Items(_Work[_T], Generic[_S, _R, _T]):
    """Work on several items, each on a thread of its own. The thread that is the last to be done ends it.

    Its place in the queue is taken once for each item. Once one has begun it can not be cancelled; a pool that closes leaves
    out those items that have not begun.
    """

    def __init__(self, items: Sequence[_S], each: Callable[[_S], _R], end: Callable[[list[_R]], _T]) -> None:
        super().__init__(
            partial(_do_all, items, each, end)
        )  # in a forked child; no circle, which would keep the results
        self._each, self._end = each, end
        self._results: list[_R] = []
        self._failed: BaseException | None = None
        self._waiting = deque(items)  # which threads may take from at once, of an iterator they may not
        self._left = len(items)
        self._lock = threading.Lock()
        # Whether it runs, and can not be cancelled any more; ``None``: nothing has begun.
        self._runs: bool | None = None

    def _begin(self) -> bool:
        """Whether items are to be done. The first thread that asks settles it before any other does one."""
        with self._lock:
            if self._runs is None:
                self._runs = self.set_running_or_notify_cancel()
            return self._runs

    def serve(self) -> None:
        if not (self._runs or self._begin()):
            return
        try:
            self._results.append(self._each(self._waiting.popleft()))
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            self._failed = error
        self._one_less()

    def drop(self) -> None:
        if not self.cancel():
            self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._left -= 1
            last = not self._left
        if not last:
            return
        if self._failed is not None:
            self.set_exception(self._failed)
            return
        results, self._results = self._results, []
        try:
            found = self._end(results)
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            self.set_exception(error)
        else:
            self.set_result(found)


def _do_all(items: Sequence[_S], each: Callable[[_S], _R], end: Callable[[list[_R]], _T]) -> _T:
    return end(list(map(each, items)))


class _Running(ProcessLocal):
    """The threads of a pool that one process has, and their work. ``serving``: how many of them were not told to end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queue = _Queue()
        self.threads: list[threading.Thread] = []
        self.serving = 0


class Threads:
    """Up to ``count`` threads that run work in the order it was given. They start when first needed.

    A forked child, and a copy, has threads of its own.
    """

    # Kept here, as the module's own names may be gone when a pool is closed at the interpreter's end.
    _EMPTY: ClassVar = queue.Empty

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._running = _Running()

    def resize(self, count: int, *, fewer: bool = True) -> None:
        """Have up to ``count`` threads from now on, at least 1: work may be waiting for one.

        More begin at once, as far as work waits for them. Of more than that, those end that first have done what they are at.
        ``fewer``: whether there may be fewer than before.
        """
        count, running = max(1, count), self._running
        with running.lock:
            if running.queue.ended or (count < self.count and not fewer):
                return
            before, self.count = self.count, count
            if count > before:
                running.serving += running.queue.retain(count - running.serving)
                for _ in range(min(count - running.serving, running.queue.qsize())):
                    self._start()
            elif count < before:
                running.queue.dismiss(max(0, running.serving - count))
                running.serving = min(running.serving, count)
                running.threads = [thread for thread in running.threads if thread.is_alive()]

    @property
    def waits(self) -> bool:
        """Whether work waits for a thread."""
        return not self._running.queue.empty()

    def _start(self) -> None:
        """Start a thread, or where the system allows no more of them, leave the work to those that are there.

        StokerError if there is none.
        """
        running = self._running
        thread = threading.Thread(target=_serve, args=(running.queue,), name=f"stoker-{self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if running.serving:
                return
            raise StokerError(
                f"this process can start no thread for {self._name!r} ({error}): start fewer processes and threads, or raise "
                "their limit (`ulimit -u`, or pids.max of the control group)"
            ) from error
        running.threads.append(thread)
        running.serving += 1
        _started.add(thread)
        _pools.add(self)

    def submit(self, action: Callable[[], _T]) -> Future[_T]:
        """Run ``action`` on a thread of the pool, which opens again if it was closed."""
        return self._put(_Work(action), 1)

    def submit_each(self, items: Sequence[_S], each: Callable[[_S], _R], end: Callable[[list[_R]], _T]) -> Future[_T]:
        """Run ``each`` for each item on the threads of the pool, then ``end`` on the one that is done last.

        This costs a future for all of them, and not one for each. ``items``: at least one. ``each``: called with an item.
        ``end``: called with all results, as they came; without those of items that a closed pool has left out. What it
        returns is the future's result.
        """
        return self._put(_Items(items, each, end), len(items))

    def _put(self, work: _AnyWork, times: int) -> _AnyWork:
        running = self._running
        with running.lock:
            if running.queue.ended:  # its threads were let go of when it was closed
                running.queue, running.serving = _Queue(), 0
            for _ in range(times):
                if running.serving < self.count:
                    self._start()
                running.queue.put(work)
        return work

    def close(self, patience: float = _PATIENCE) -> None:
        """Drop what has not begun, wait up to ``patience`` seconds for what has."""
        dropped = []
        running = self._running
        with running.lock:
            running.queue.ended = True
            threads, running.threads = running.threads, []
            while True:
                try:
                    work = running.queue.get_nowait()
                except self._EMPTY:
                    break
                if work is not None:
                    dropped.append(work)
            for _ in threads:
                running.queue.put(None)
        for work in dropped:
            work.drop()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(patience)

    def __del__(self) -> None:
        # The threads hold the queue, not the pool: tell them to end.
        running = self._running
        running.queue.ended = True
        for _ in running.threads:
            running.queue.put(None)


def map_in_order(function: Callable[[_S], _T], items: Sequence[_S], *, at_hand: bool, most: int, name: str) -> list[_T]:
    """Results of a function that waits for storage, in order; the first error is raised.

    ``function``: called by several threads at once, ``most`` at most. ``at_hand``: whether storage is this machine's, or
    mounted there. Then items are done one by one as long as each waits less than 0.5 ms on average: threads would cost more
    than they save. The processor's time does not count, as that of imports by the first item: threads take turns with it;
    nor does that which others have the processor.
    """
    done: list[_T] = []
    begun, displaced = _waited(), displaced_time() if at_hand else 0
    while at_hand and len(done) < len(items):
        # On a busy machine a thread waits for a processor: that is asked for only where it matters.
        allowed = _AT_HAND * (_TRIED + len(done))
        if (waited := _waited() - begun) > allowed and waited - (displaced_time() - displaced) / 1e9 > allowed:
            break
        done.append(function(items[len(done)]))
    rest = items[len(done) :]
    if rest:
        with ThreadPoolExecutor(min(most, len(rest)), thread_name_prefix=f"stoker-{name}") as threads:
            done += threads.map(function, rest)
    return done


def _waited() -> float:
    """Seconds for which this thread had no processor, since some time."""
    return time.monotonic() - time.thread_time()


def _serve(work_queue: _Queue) -> None:
    while True:
        work = work_queue.get()
        woken = work is None
        if not woken:
            work.serve()
        del work  # a thread that waits for work holds no result
        if work_queue.ends_one(woken=woken):
            return


_pools: weakref.WeakSet[Threads] = weakref.WeakSet()
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


_running: weakref.WeakSet[Any] = weakref.WeakSet()
_at_end: list[Callable[[], None]] = []


def close_at_exit(running: Iterator[_T]) -> Iterator[_T]:
    """Have a generator closed at the interpreter's exit: later on, names of modules that its end needs are gone."""
    _running.add(running)
    return running


def call_at_end(action: Callable[[], None]) -> None:
    """Have something called at the interpreter's exit, when the threads of all pools have ended."""
    _at_end.append(action)


@atexit.register
def _close_all() -> None:
    for running in alive(_running):
        with contextlib.suppress(Exception):  # as where it is one of another thread's
            running.close()
    for pool in alive(_pools):
        pool.close()
    # Those of pools that were closed without patience, or let go.
    deadline = time.monotonic() + _PATIENCE
    for thread in alive(_started):
        thread.join(max(0.0, deadline - time.monotonic()))
    for action in _at_end:
        action()


def has_global_lock() -> bool:
    """Whether threads take turns at Python code.

    A free-threaded Python has no lock, unless ``PYTHON_GIL=1``, ``-X gil=1`` or an extension module switched it on.
    """
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
    return enabled is None or enabled()
