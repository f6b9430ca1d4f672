"""Runners whose threads or processes are numbers: a pipeline is real, and its tuner sees how long they would take."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from stoker.concurrency.spans import thread_times
from stoker.pipeline import pipeline
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.executor import Executor
from stoker.pipeline.tuning import tuned_run
from stoker.reading import shard_pool

_T = TypeVar("_T")


class SimulatedRunners:
    """In place of all runners of pipelines, which read samples that only wait, and of the clock that they are measured by.

    Args:
        each: nanoseconds of a sample.
        monkeypatch: puts them there.

    Attributes:
        now: the time, in nanoseconds. It goes on while the consumer waits for a step of reading.
    """

    def __init__(self, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.each, self.now = each, 0

        def made(execute: Callable[[Chunk], Any], workers: int) -> SimulatedRunner[Any]:
            return SimulatedRunner(self, execute, workers, in_processes=False)

        def made_of_processes(executor: Executor, execute: Callable[[Chunk], Any], *_: object) -> SimulatedRunner[Any]:
            return SimulatedRunner(self, execute, executor.processes, in_processes=True)

        monkeypatch.setattr(pipeline, "InThreads", made)
        monkeypatch.setattr(Executor, "_in_processes", made_of_processes)
        clocks: dict[str, Callable[[], Any]] = dict.fromkeys(
            ("perf_counter_ns", "thread_time_ns", "process_time_ns"), lambda: self.now
        )
        own = SimpleNamespace(**clocks, monotonic=time.monotonic)
        for module in (pipeline, tuned_run, thread_times, shard_pool):
            monkeypatch.setattr(module, "time", own)
        monkeypatch.setattr(tuned_run, "displaced_time", lambda: 0)


class SimulatedRunner(Generic[_T]):
    """Executes a chunk when its result is taken, at the time at which one of some workers would have done so.

    Args:
        runners: have the clock.
        execute: reads a chunk.
        workers: threads or processes that there would be.
        in_processes: whether they would be processes.
    """

    reads_here, changing, processor_time = True, False, 0

    def __init__(
        self, runners: SimulatedRunners, execute: Callable[[Chunk], _T], workers: int, *, in_processes: bool
    ) -> None:
        self._runners, self._execute, self.in_processes = runners, execute, in_processes
        self._free: list[int] = []
        self._ready = 1
        self.workers = 0
        self.resize(workers)

    @property
    def ahead(self) -> int:
        return self.workers + self._ready

    def submit(self, chunk: Chunk) -> Callable[[], _T]:
        done = max(self._runners.now, self._free[0]) + len(chunk.rows) * self._runners.each
        heapq.heapreplace(self._free, done)
        return partial(self._take, chunk, done)

    def _take(self, chunk: Chunk, done: int) -> _T:
        self._runners.now = max(self._runners.now, done)
        return self._execute(chunk)

    def resize(self, workers: int) -> None:
        self._free = sorted([*self._free, *[self._runners.now] * max(0, workers - self.workers)])[:workers]
        self.workers = workers

    def keep_ready(self, chunks: int) -> None:
        self._ready = chunks

    def done_with(self, shard: int) -> None:
        pass

    def close(self) -> None:
        pass
