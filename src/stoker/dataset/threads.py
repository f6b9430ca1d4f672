"""A pool of daemon threads that ends cleanly: pending work is dropped, running work is waited for, at exit too.

``concurrent.futures`` finishes all queued work before the interpreter exits, which for a queue of downloads may take
minutes. Plain daemon threads would be cut off inside native code, which some libraries answer with an abort.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["Threads"]

_T = TypeVar("_T")
_PATIENCE = 10.0

_Queue: TypeAlias = "queue.SimpleQueue[_Work[Any] | None]"


class _Work(Generic[_T]):
    __slots__ = ("action", "future")

    def __init__(self, action: Callable[[], _T]) -> None:
        self.action = action
        self.future: Future[_T] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.action())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self.future.set_exception(error)


class Threads:
    """Up to ``count`` threads that run work in the order it was given. They start when first needed.

    A process forked from the one that made it gets a pool of its own on first use.
    """

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._queue: _Queue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._closed = False
        _pools.add(self)

    def submit(self, action: Callable[[], _T]) -> Future[_T]:
        """Run ``action`` on a thread of the pool, which opens again if it was closed."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._reset()
        elif self._closed:
            self._reset()
        work = _Work(action)
        with self._lock:
            self._queue.put(work)
            if len(self._threads) < self.count:
                thread = threading.Thread(target=_serve, args=(self._queue,), name=f"stoker-{self._name}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return work.future

    def close(self, patience: float = _PATIENCE) -> None:
        """Drop what has not begun, wait up to ``patience`` seconds for what has."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            while True:
                try:
                    work = self._queue.get_nowait()
                except queue.Empty:
                    break
                if work is not None:
                    work.future.cancel()
            for _ in threads:
                self._queue.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(patience)

    def __del__(self) -> None:
        # The threads hold the queue, not the pool: tell them to end.
        if self._pid == os.getpid() and not self._closed:
            for _ in self._threads:
                self._queue.put(None)


def _serve(work_queue: _Queue) -> None:
    while (work := work_queue.get()) is not None:
        work.run()
        del work


_pools: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
