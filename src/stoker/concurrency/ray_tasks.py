"""Runs tasks on a Ray cluster; Ray Core repeats those whose worker died."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar

from stoker.concurrency.processes import sendable
from stoker.errors import ConfigError, StokerError, import_option

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")

logger = logging.getLogger(__name__)

_RETRIES: Final = 20
_STOPPING_SECONDS: Final = 10.0
_NAMESPACE: Final = "stoker"
# Tasks handed to Ray for each processor at a time.
_AHEAD: Final = 4

_shared: dict[str, Any] = {}


def on_ray(
    function: Callable[[S, A], R], shared: S, arguments: Iterable[A], processes: int | None, *, in_order: bool = False
) -> Generator[tuple[A, R]]:
    """Arguments and what a function returns for them, found by tasks of a Ray cluster.

    A cluster that is running is used (``RAY_ADDRESS``); otherwise one is started on this machine, and ended with the
    generator. When the generator is closed, tasks that have not begun are left out, and those that run have 10 s to end.

    MissingPackageError if Ray is not installed. ConfigError if ``shared`` can not be sent. StokerError if no cluster
    answers, the function raised something that is not stoker's, or a task's worker died again and again. ``function``: of a
    module; called with ``shared`` and an argument. ``shared``: lies once in Ray's object store. ``arguments``: taken as the
    cluster gets to them. ``processes``: most tasks at once; default a few for each processor of the cluster. ``in_order``:
    give results in the order of the arguments, not as they are found.
    """
    ray = import_option("ray", "engine='ray' needs Ray", "stoker[ray]")
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise StokerError(
                f"no Ray cluster answers, and none can be started here ({error}): see RAY_ADDRESS, or leave engine='ray' away"
            ) from error
    try:
        try:
            given = ray.put(shared)
        except TypeError as error:
            raise ConfigError(f"the work can not be sent to the cluster: {error}") from error
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_do)
        resources: Any = ray.cluster_resources  # untyped
        processors = int(resources().get("CPU", 0))
        if not processors:
            logger.warning("the Ray cluster has no processor: tasks wait until it has one (ray start --num-cpus)")
        most = processes or _AHEAD * max(1, processors)
        waiting = iter(arguments)
        running: dict[Any, A] = {}  # in the order in which they began
        more = True
        try:
            while True:
                while more and len(running) < most:
                    try:
                        argument = next(waiting)
                    except StopIteration:
                        more = False
                        break
                    running[remote.remote([given], given.hex(), function, argument, list(sys.path))] = argument
                if not running:
                    break
                for ready in [next(iter(running))] if in_order else _ended(ray, list(running)):
                    result = _result(ray, ready)
                    yield running.pop(ready), result
        finally:
            # Not by ray.cancel(): where a task begins or ends in the same moment, Ray 2.60 ends the process that cancels it.
            if running and ray.is_initialized():
                stopped = ray.remote(num_cpus=0)(_Stopped).options(name=given.hex(), namespace=_NAMESPACE).remote()
                ray.wait(list(running), num_returns=len(running), timeout=_STOPPING_SECONDS)
                del stopped
    finally:
        if started:
            ray.shutdown()


class _Stopped:
    """An actor with the name of the work, which is there as soon as tasks of it that have not begun are to be left out."""


def _ended(ray: Any, running: list[Any]) -> list[Any]:
    """All tasks that have ended, at least one: looking at all of them once for each would be quadratic."""
    ray.wait(running, num_returns=1)
    ended: list[Any] = ray.wait(running, num_returns=len(running), timeout=0)[0]
    return ended


def _result(ray: Any, reference: Any) -> Any:
    try:
        well, value = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise StokerError(f"a task could not be done on the cluster: {error}") from error
    if not well:
        raise value
    return value


def _do(given: list[Any], name: str, function: Callable[[Any, Any], Any], argument: Any, path: list[str]) -> Any:
    """A task, on a worker of the cluster."""
    # A module of the caller's is found as it is there.
    sys.path.extend(entry for entry in path if entry not in sys.path)
    import ray

    with contextlib.suppress(Exception):  # there is none, or it is not known: then the task is done
        ray.get_actor(name, namespace=_NAMESPACE)
        return True, None  # nobody asks for it
    try:
        if name not in _shared:
            _shared.clear()
            _shared[name] = ray.get(given[0])
        return True, function(_shared[name], argument)
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return False, sendable(error)
