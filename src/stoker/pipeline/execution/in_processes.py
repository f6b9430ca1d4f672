"""Executes chunks in processes of stoker's own, for functions that hold Python's lock."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from stoker.concurrency.processes import WorkerProcess, stop_workers
from stoker.errors import ConfigError, StokerError
from stoker.pipeline.batch_ring import Ring
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.chunk_process import ChunkAnswer, ChunkTask, MakeRun, PickledTask, Request, serve_chunks
from stoker.pipeline.execution.hand_over import unpack, unpack_error
from stoker.policy import CHUNKS_OF_PROCESS
from stoker.reading.sample_errors import location_at
from stoker.reading.shard_pool import ShardPool

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_PATIENCE: Final = 1.0
"""Seconds for which a process may finish its chunk when it is told to end."""
_BEGINS_WITHIN: Final = 120.0
"""Seconds within which a copy of this process, which imports nothing, must have begun."""


class _Pending:
    """A chunk that a process was sent, and its answer."""

    __slots__ = ("answer", "chunk", "data")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.answer: ChunkAnswer | None = None
        self.data: bytes | None = None


class ChunkProcess:
    """A process that reads chunks, as the process that it serves sees it."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        # Its answers come in the order of the chunks; the first says that it is there.
        self.pending: deque[_Pending] = deque()
        self.done: list[int] = []
        self.ready = self.retired = False

    @property
    def begun(self) -> bool:
        """True once it can read chunks. StokerError if it can not; says why."""
        if not self.ready and self.worker.has_sent():
            self._begin()
        return self.ready

    def look(self) -> None:
        """Take the answers that are there."""
        while self.pending and self.begun and self.worker.has_sent() and self._receive():
            pass

    def send(self, chunk: Chunk) -> _Pending:
        """Have it read a chunk."""
        request: Request = (chunk, tuple(self.done))
        self.done.clear()
        pending = _Pending(chunk)
        self.pending.append(pending)
        self.worker.send(pickle.dumps(request, 5))
        return pending

    def await_answer(self, pending: _Pending) -> ChunkAnswer:
        """Wait for an answer. StokerError if the process has ended."""
        while pending.answer is None:
            if not self.ready:
                self._begin()
            elif not self._receive():
                raise self._ended(pending.chunk)
        return pending.answer

    def _begin(self) -> None:
        if self.worker.start_method == "fork" and not self.worker.await_sign(_BEGINS_WITHIN):
            raise StokerError(
                f"{self._named()} is a copy of this one and has not begun after {_BEGINS_WITHIN:.0f} s: it waits, perhaps, "
                "for a lock that a thread of this process held when it was copied. Use ReadOptions(start_method='spawn')"
            )
        message = self.worker.receive_bytes()
        if message is None:
            raise StokerError(
                f"{self._named()} {_end_of(self.worker)} before it could read samples. A fresh process imports the script, "
                "which needs `if __name__ == \"__main__\":` around what it runs; or use ReadOptions(run_in='threads')"
            )
        answer: ChunkAnswer = pickle.loads(message)  # noqa: S301 - of our own process
        if answer.error is not None:
            raise unpack_error(answer.error)
        self.ready = True

    def _receive(self) -> bool:
        """Receive the next answer; whether there is one."""
        message = self.worker.receive_bytes()
        if message is None:
            return False
        answer: ChunkAnswer = pickle.loads(message)  # noqa: S301 - of our own process
        data = None
        if answer.parcel is not None and answer.parcel.block is None:
            data = self.worker.receive_bytes()
            if data is None:
                return False
        pending = self.pending.popleft()
        pending.answer, pending.data = answer, data
        return True

    def _named(self) -> str:
        return f"process {self.worker.name} (pid {self.worker.pid})"

    def _ended(self, chunk: Chunk) -> StokerError:
        return StokerError(f"{self._named()} {_end_of(self.worker)} while it read {len(chunk.rows)} samples")


def _end_of(worker: WorkerProcess) -> str:
    code = worker.join()
    if code is None:
        return "does not answer"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (", perhaps because memory ran out" if -code == signal.SIGKILL else "")


class InProcesses(Generic[_T]):
    """Executes chunks in processes, which locate nothing: they are sent the places of samples, and read and transform them.

    A process is started when all others have work. This process fetches shards ahead for all of them.

    Args:
        execute: reads a chunk in this process, for a child that was forked from it in the middle of an iteration.
        run: makes the rank's batches, where samples may replace others.

    Attributes:
        chunks, rows, busy: chunks and samples that processes have read, and the nanoseconds that they took, all together.

    Raises:
        ConfigError: processes can not be started here, or not be sent what they need.
    """

    reads_here = False
    in_processes = True

    def __init__(
        self,
        execute: Callable[[Chunk], _T],
        workers: int,
        task: ChunkTask,
        pool: ShardPool,
        run: MakeRun | None,
        ring: Ring,
    ) -> None:
        check_may_start()
        self._execute, self._pool, self._run, self._ring = execute, pool, run, ring
        self._task: PickledTask | ChunkTask = task if pool.options.start_method == "fork" else pickled_task(task)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._processes: list[ChunkProcess] = []
        self._retired: list[ChunkProcess] = []
        # Those beyond the first, which get no chunk before they can read.
        self._coming: list[ChunkProcess] = []
        self._started = 0
        self._spent: dict[str, int] = {}
        self.workers = workers
        self.chunks = self.rows = self.busy = 0

    @property
    def ahead(self) -> int:
        """See :class:`~stoker.pipeline.execution.runner.Runner`; some for each process."""
        return CHUNKS_OF_PROCESS * (self.workers - len(self._coming))

    @property
    def changing(self) -> bool:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        return len(self._processes) < self.workers or not all(process.ready for process in self._processes)

    @property
    def processor_time(self) -> int:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        if self._pid != os.getpid():
            return time.process_time_ns()
        with self._lock:
            for process in (*self._processes, *self._coming, *self._retired):
                spent = process.worker.processor_time
                if spent is not None:
                    self._spent[process.worker.name] = spent
            return time.process_time_ns() + sum(self._spent.values())

    @property
    def ready(self) -> bool:
        """Whether all processes can read chunks by now, of which those that are missing are started.

        StokerError if one can not; says why.
        """
        if self._pid != os.getpid():
            return False
        with self._lock:
            while len(self._processes) + len(self._coming) < self.workers:
                self._processes.append(self._start())
            begun = [process.begun for process in self._processes]
            return all(begun)

    def submit(self, chunk: Chunk) -> Callable[[], _T]:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        if self._pid != os.getpid():
            return partial(self._execute, chunk)
        with self._lock:
            for process in self._processes:
                process.look()
            if self._coming:
                self._take_up()
            least = min(self._processes, key=lambda process: len(process.pending), default=None)
            if least is None or (least.pending and len(self._processes) + len(self._coming) < self.workers):
                least = self._start()
                self._processes.append(least)
            return partial(self._take, least, least.send(chunk))

    def _start(self) -> ChunkProcess:
        try:
            worker = WorkerProcess(
                f"stoker-read-{self._started}",
                serve_chunks,
                self._ring,
                self._pool,
                self._run,
                self._task,
                start_method=self._pool.options.start_method,
            )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the dataset can not be sent to a process ({error}): use ReadOptions(start_method='fork') or "
                "run_in='threads'"
            ) from error
        self._started += 1
        return ChunkProcess(worker)

    def _take_up(self) -> None:
        """Give chunks to those further processes that can read by now, and do without those that can not be had."""
        for process in list(self._coming):
            try:
                if not process.begun:
                    continue
            except StokerError as error:
                logger.warning("no further process reads samples: %s", error)
                self._dismiss(process)
                self.workers -= 1
            else:
                self._processes.append(process)
            self._coming.remove(process)

    def _dismiss(self, process: ChunkProcess) -> None:
        """End a process that was given no chunk."""
        process.worker.stop(wait=False)
        self._retired.append(process)

    def _take(self, process: ChunkProcess, pending: _Pending) -> _T:
        chunk = pending.chunk
        if self._pid != os.getpid():  # the processes serve the parent
            return self._execute(chunk)
        try:
            answer = process.await_answer(pending)
        except StokerError as error:
            if pending.answer is None and process.ready:
                error.add_note(
                    f"the first of them: {location_at(self._pool, chunk.shards, chunk.rows, 0)}. Use fewer processes "
                    "(ReadOptions(read_processes=)), or run_in='threads'"
                )
            raise
        if process.retired and not process.pending:
            process.worker.finish()
        if answer.error is not None:
            raise unpack_error(answer.error)
        self.chunks += 1
        self.rows, self.busy = self.rows + len(chunk.rows), self.busy + answer.busy
        if answer.fetched:
            self._pool.note_fetched(answer.fetched)
        self._pool.count(chunk.shards, chunk.distinct, answer.ready, answer.took)  # as if it had been read here
        self._pool.times.step(len(chunk.rows), answer.took, answer.awaited)
        assert answer.parcel is not None
        found: _T = unpack(answer.parcel, pending.data)
        return found

    def done_with(self, shard: int) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        with self._lock:
            for process in self._processes:
                process.done.append(shard)

    def resize(self, workers: int) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`. A process that is not needed ends after its chunks.

        Where some read by now, a further one gets chunks when it is there, so that none waits for its start.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if any(process.ready for process in self._processes):
                while len(self._processes) + len(self._coming) < workers:
                    self._coming.append(self._start())
            while self._coming and len(self._processes) + len(self._coming) > workers:
                self._dismiss(self._coming.pop())
            self.workers = workers
            extra, self._processes = self._processes[workers:], self._processes[:workers]
            self._retired += extra
            for process in extra:
                process.retired = True
                if not process.pending:
                    process.worker.finish()

    def keep_ready(self, chunks: int) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`. Processes have the next chunk in any case."""

    def close(self) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`. Processes that do not end in a second are terminated."""
        if self._pid != os.getpid():
            return
        with self._lock:
            processes = [*self._processes, *self._coming, *self._retired]
            self._processes, self._coming, self._retired = [], [], []
        ending = [process.worker for process in processes]
        for process in processes:
            if process.ready:
                process.worker.finish()
            else:  # it imports, and has begun nothing
                process.worker.stop(wait=False)
        until = time.monotonic() + _PATIENCE
        for worker in ending:
            worker.join(max(0.0, until - time.monotonic()))
        stop_workers(ending)


def pickled_task(task: ChunkTask) -> PickledTask:
    """The work as it is sent to a fresh process. ConfigError if a function can not be pickled."""
    try:
        return PickledTask.of(task)
    except Exception as error:
        raise ConfigError(
            f"the functions of the dataset can not be sent to a process ({error}): define them at the top of a module, and "
            "not inside of others; or use ReadOptions(start_method='fork') or run_in='threads'"
        ) from error


def check_may_start() -> None:
    """See that this process may start others. ConfigError if it may not."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise ConfigError(
            'the script that reads lacks `if __name__ == "__main__":` around what it runs: a process that was started to '
            "read samples imports it, and would begin to read as well"
        )
    if process.daemon:
        raise ConfigError(
            f"process {process.name} is daemonic, and may start no others: use ReadOptions(run_in='threads') in it"
        )
