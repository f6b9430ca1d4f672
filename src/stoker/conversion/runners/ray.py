"""Tasks on a cluster, by Ray Core, which schedules them and does those again whose worker died."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from stoker.conversion.job import ConversionJob
from stoker.conversion.runners.local import Done
from stoker.errors import StokerError, import_option

_RETRIES: Final = 20
# Tasks handed to Ray for each processor at a time.
_AHEAD: Final = 4

_jobs: dict[str, ConversionJob] = {}


def run_on_ray(
    job: ConversionJob, tasks: Sequence[int], processes: int | None, advance: Callable[[int], None]
) -> Generator[Done]:
    """Tasks as they are done.

    Args:
        job: the work; lies once in Ray's object store. Source and destination are reached from all nodes by the same names.
        tasks: numbers of the tasks.
        processes: most of them at once; default all processors of the cluster. A cluster that is running is used
            (``RAY_ADDRESS``); otherwise one is started on this machine.
        advance: told of samples of tasks that are done.

    Raises:
        MissingPackageError: Ray is not installed.
        StokerError: a task failed, or its worker died again and again.
    """
    ray = import_option("ray", "engine='ray' needs Ray", "stoker[ray]")
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, configure_logging=False)
    try:
        given = ray.put(job)
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_task)
        resources: Any = ray.cluster_resources  # untyped
        most = processes or _AHEAD * max(1, int(resources().get("CPU", 1)))
        waiting = deque(tasks)
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    number = waiting.popleft()
                    running[remote.remote([given], job.identity, number, list(sys.path))] = number
                ready, _ = ray.wait(list(running), num_returns=1)
                for reference in ready:
                    number = running.pop(reference)
                    note = _result(ray, reference, number)
                    advance(note["read"])
                    yield number, note
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
    finally:
        if started:
            ray.shutdown()


def _result(ray: Any, reference: Any, number: int) -> dict[str, Any]:
    try:
        note: dict[str, Any] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, StokerError):
            raise cause from error
        raise StokerError(f"task {number} failed: {type(cause).__name__}: {cause}") from error
    except ray.exceptions.RayError as error:
        raise StokerError(f"task {number} could not be done on the cluster: {error}") from error
    return note


def _task(given: list[Any], identity: str, number: int, path: list[str]) -> dict[str, Any]:
    """A task, on a worker of the cluster."""
    from stoker.conversion.task import run_task

    if identity not in _jobs:
        sys.path.extend(
            entry for entry in path if entry not in sys.path
        )  # a transform's module is found as at the caller's
        import ray

        _jobs.clear()
        _jobs[identity] = ray.get(given[0])
    return run_task(_jobs[identity], number, lambda _: None)
