"""Threads that store the files of a writer, a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class UploadPool:
    """Threads that store files.

    Args:
        threads: how many files are stored at once.
        waiting: how many more may wait.
        on_failed: called from a thread that failed, after ``error`` is set.

    Attributes:
        error: what the first file that could not be stored failed with.
    """

    def __init__(self, threads: int, waiting: int, on_failed: Callable[[], None] | None = None) -> None:
        self.error: BaseException | None = None
        self._on_failed = on_failed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-write")
        self._slots = threading.Semaphore(threads + waiting)

    def submit(self, action: Callable[[], None]) -> None:
        """Have a file stored, once no more than so many wait. Does nothing after an error."""
        self._slots.acquire()
        self._pool.submit(self._do, action).add_done_callback(self._done)

    def check(self) -> None:
        """Raise what storing an earlier file failed with."""
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Wait for all files.

        Raises:
            BaseException: what storing one failed with.
        """
        self._pool.shutdown()
        self.check()

    def cancel(self) -> None:
        """Store none that waits, and wait for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _do(self, action: Callable[[], None]) -> None:
        if self.error is None:
            action()

    def _done(self, future: Future[None]) -> None:
        self._slots.release()
        if not future.cancelled() and (error := future.exception()) is not None:
            self.error = self.error or error
            if self._on_failed is not None:
                self._on_failed()
