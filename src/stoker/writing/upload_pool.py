"""Storing files behind a writer's back, a few at a time, and what writers share that do so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from stoker.writing.finishing import Finishing
from stoker.writing.progress import ProgressLine

__all__ = ["UploadPool", "StoringWriter"]


class UploadPool:
    """Threads that store files.

    Args:
        threads: how many files are stored at once.
        waiting: how many more may wait.

    Attributes:
        error: what the first file that could not be stored failed with.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self.error: BaseException | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-write")
        self._room = threading.Semaphore(threads + waiting)

    def submit(self, action: Callable[[], None]) -> None:
        """Have a file stored, once no more than so many wait. Does nothing after an error."""
        self._room.acquire()
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
        self._room.release()
        if not future.cancelled() and (error := future.exception()) is not None:
            self.error = self.error or error


class StoringWriter(Finishing):
    """A writer whose files are stored on threads; has ``_storing`` and ``_progress``, which is ``None`` if nobody looks."""

    _storing: UploadPool
    _progress: ProgressLine | None

    def abort(self) -> None:
        """Stop. Files that are stored stay, and do not count, for a writer with ``resume=True``."""
        if self._closed is None:
            self._storing.cancel()
            self._close("aborted")

    def _check_open(self) -> None:
        """
        Raises:
            ConfigError: the writer is closed.
            BaseException: what storing an earlier file failed with.
        """
        if self._closed is None:
            self._storing.check()
        self._check_unclosed()

    def _close(self, how: str) -> None:
        self._closed = how
        if self._progress is not None:
            self._progress.stop()
