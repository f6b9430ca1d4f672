"""Runners: they execute the chunks of an iteration, in this thread or in threads or processes ahead of the consumer.

Which sample comes when is settled before a chunk gets here, and results are taken in the order of chunks, so no runner and no
number of workers changes anything that is delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, Protocol, TypeVar

from stoker.concurrency.threads import Threads
from stoker.pipeline.chunks.chunk import Chunk

_T = TypeVar("_T")
_S = TypeVar("_S")
_T_co = TypeVar("_T_co", covariant=True)


class Runner(Protocol[_T_co]):
    """Executes chunks. One thread at a time calls it, the consumer's; :meth:`resize` may be called by any thread."""

    @property
    def workers(self) -> int:
        """Threads or processes that execute chunks at once; 0: the thread that takes the result."""
        ...

    @property
    def reads_here(self) -> bool:
        """Whether this process reads shards, so that those of small files are read ahead in it."""
        ...

    @property
    def in_processes(self) -> bool:
        """Whether processes execute chunks."""
        ...

    @property
    def changing(self) -> bool:
        """Whether other threads or processes execute chunks soon: it is measured which, or some are being started."""
        ...

    @property
    def processor_time(self) -> int:
        """Nanoseconds of processors that this process, and those that execute chunks for it, have had so far."""
        ...

    @property
    def ahead(self) -> int:
        """Chunks to submit beyond the one whose result is taken next."""
        ...

    def submit(self, chunk: Chunk) -> Callable[[], _T_co]:
        """Have a chunk executed.

        Gives a function that gives the result, or raises the error of the execution; it waits where that is not done. It is
        called once, and those of several chunks in the order of the chunks.
        """
        ...

    def done_with(self, shard: int) -> None:
        """Note that no chunk that was submitted and not taken, or comes soon, needs a shard."""
        ...

    def resize(self, workers: int) -> None:
        """Execute so many chunks at once from now on, at least 1. What has begun is finished; nothing waits for it."""
        ...

    def keep_ready(self, chunks: int) -> None:
        """Let so many chunks be done and wait, beyond those that threads work at, so that no thread waits to be asked."""
        ...

    def close(self) -> None:
        """End: what was submitted and not taken is dropped."""
        ...


class InThreads(Generic[_T]):
    """Executes chunks in threads of this process.

    ``execute``: reads a chunk; called by several threads at once. ``workers``: threads; 0: the thread that takes the result
    executes, until it is resized.
    """

    reads_here = True
    in_processes = changing = False

    def __init__(self, execute: Callable[[Chunk], _T], workers: int) -> None:
        self._execute = execute
        # Made when the first of them is: most iterations that may have some need none.
        self._threads = Threads(workers, "read") if workers else None
        self.workers = workers
        self._ready = 1

    @property
    def processor_time(self) -> int:
        """See :class:`Runner`."""
        return time.process_time_ns()

    @property
    def ahead(self) -> int:
        """See :class:`Runner`."""
        return self.workers + self._ready if self.workers else 0

    def submit(self, chunk: Chunk) -> Callable[[], _T]:
        """See :class:`Runner`."""
        if not self.workers:
            return partial(self._execute, chunk)
        return self.run(partial(self._execute, chunk)).result

    def done_with(self, shard: int) -> None:
        """See :class:`Runner`."""

    def run(self, action: Callable[[], _S]) -> Future[_S]:
        """Have something else done by a thread, in its turn. There is one at least."""
        assert self._threads is not None
        return self._threads.submit(action)

    def resize(self, workers: int) -> None:
        """See :class:`Runner`; 0 is as with ``workers=0``."""
        if self._threads is not None:
            self._threads.resize(workers)
        elif workers:
            self._threads = Threads(workers, "read")
        self.workers = workers

    def keep_ready(self, chunks: int) -> None:
        """See :class:`Runner`."""
        self._ready = chunks

    def close(self) -> None:
        """See :class:`Runner`. A thread ends when it has done what it is at."""
        if self._threads is not None:
            self._threads.close(patience=0.0)
