"""Runners of a conversion's tasks: this process, others of this machine, and the tasks of a Ray cluster.

A process that is killed is noticed, and its task begun again by another.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing import connection
from typing import Any, Final

from stoker.concurrency.processes import WorkerProcess, sendable, stop_workers
from stoker.concurrency.ray_tasks import on_ray
from stoker.conversion.job import ConversionJob
from stoker.errors import ConfigError, StokerError

_ATTEMPTS: Final = 3
_STOPPING_SECONDS: Final = 5.0

Done = tuple[int, dict[str, Any]]
"""A task and its note."""


def run_here(job: ConversionJob, tasks: Sequence[int], advance: Callable[[int], None]) -> Generator[Done]:
    """Tasks one after the other, in this process."""
    from stoker.conversion.task import run_task

    try:
        for number in tasks:
            yield number, run_task(job, number, advance)
    finally:
        job.source.close()


def run_on_ray(
    job: ConversionJob, tasks: Sequence[int], processes: int | None, advance: Callable[[int], None]
) -> Generator[Done]:
    """Tasks of a Ray cluster, as they are done; see :func:`~stoker.concurrency.ray_tasks.on_ray`."""
    with contextlib.closing(on_ray(_on_cluster, job, tasks, processes)) as running:
        for number, note in running:
            advance(note["read"])
            yield number, note


def _on_cluster(job: ConversionJob, number: int) -> dict[str, Any]:
    from stoker.conversion.task import run_task

    return run_task(job, number, lambda _: None)


class Processes:
    """Processes that can be started before there is work for them: they take a moment to begin.

    A count of 1 is for none but this one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._workers: list[_Converter] = []

    def start(self) -> None:
        """Start them, if they are not."""
        while self.count > 1 and len(self._workers) < self.count:
            self._workers.append(_Converter())

    def taken(self, most: int) -> list[_Converter]:
        """The processes, no more than needed, which are the caller's from now on."""
        self.count = min(self.count, most)
        self.start()
        self._workers, spare = [], self._workers
        taken, spare = spare[: self.count], spare[self.count :]
        stop_workers(spare)
        return taken

    def close(self) -> None:
        """End those that nobody took."""
        stop_workers(self._workers)
        self._workers = []


def run_processes(
    job: ConversionJob,
    tasks: Sequence[int],
    processes: Processes,
    advance: Callable[[int], None],
    killed: Callable[[], None],
) -> Generator[Done]:
    """Tasks on several processes, as they are done.

    ``advance`` is told of samples read; of fewer than none, where a task begins again. ``killed`` is told of each process
    that ended before its task did; three for one task are an error.
    """
    try:
        data = pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the transform can not be sent to another process ({error}): define it at the top of a module, or work in one "
            "process with processes=1"
        ) from error
    waiting = deque(tasks)
    attempts: Counter[int] = Counter()
    workers = processes.taken(len(tasks))
    done = 0
    try:
        while done < len(tasks):
            for worker in workers:
                if worker.task is None and waiting:
                    worker.begin(waiting.popleft(), data)
            ready = set(connection.wait([end for worker in workers for end in worker.ends]))
            for turn, worker in enumerate(workers):
                if ready.isdisjoint(worker.ends):
                    continue
                message = worker.receive()
                if message is None:
                    killed()
                    advance(-worker.read)
                    if worker.task is not None:
                        attempts[worker.task] += 1
                        _check_attempts(job, worker, attempts[worker.task])
                        waiting.appendleft(worker.task)
                    worker.stop()
                    workers[turn] = _Converter()
                elif message[0] == "read":
                    worker.read += message[1]
                    advance(message[1])
                elif message[0] == "failed":
                    raise message[1]
                else:
                    assert worker.task is not None
                    number, worker.task, worker.read = worker.task, None, 0
                    done += 1
                    yield number, message[1]
    finally:
        stop_workers(workers)


class _Converter(WorkerProcess):
    """A process, and what it is at."""

    def __init__(self) -> None:
        super().__init__("stoker-convert", _work)
        self._ready = False
        self.task: int | None = None
        self.read = 0

    def begin(self, task: int, data: bytes) -> None:
        """Give it a task, before the first one the job."""
        self.task, self.read = task, 0
        if not self._ready:
            self.send(data)
            self._ready = True
        self.send(pickle.dumps(task))


def _check_attempts(job: ConversionJob, worker: _Converter, attempts: int) -> None:
    code = worker.join()
    if code is not None and code >= 0:  # not killed: it could not even begin
        raise StokerError(
            f"a process that converts ended with code {code}: does the script that calls convert() lack "
            '`if __name__ == "__main__"`? See what it wrote on stderr'
        )
    if attempts >= _ATTEMPTS:
        assert worker.task is not None
        first, stop = job.bounds[worker.task], job.bounds[worker.task + 1]
        raise StokerError(
            f"{attempts} processes were killed at samples {first} to {stop - 1}, the last by signal {-(code or 0)}: perhaps "
            "memory was short. Use fewer processes, or a smaller size_limit; what is done stays done"
        )


def _work(pipe: Any) -> None:
    """Main loop of a process: does tasks of the job until it is ended."""
    from stoker.conversion.task import run_task

    try:
        job: ConversionJob = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of our own parent
    except (ImportError, AttributeError) as error:
        pipe.send(("failed", ConfigError(f"the transform can not be loaded in another process: {error}")))
        return
    while True:
        number = pipe.recv()
        try:
            answer = "done", run_task(job, number, lambda samples: pipe.send(("read", samples)))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            pipe.send(("failed", sendable(error)))
        else:
            pipe.send(answer)
