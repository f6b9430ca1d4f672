"""Loaders that tests name as ``bench_loaders:Class``."""

from __future__ import annotations

import mmap
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from bench_time import BenchTime

from stoker.errors import MissingPackageError, StorageError
from stoker_bench.loaders import LoadedBatch, LoaderJob, LoaderReport, get_loader
from stoker_bench.loaders.base import OpenLoader
from stoker_bench.settings.workload import Workload


class _Open:
    def __init__(self, job: LoaderJob, fails: str) -> None:
        self.job, self.fails = job, fails

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        content = 0 if self.fails == "same" else self.job.world.rank
        batch = LoadedBatch(2, 8, np.full(8, content, np.uint8))
        yield from repeat(batch, 6)
        if number == 1 and self.job.world.rank == 1:
            if self.fails == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fails == "raises":
                raise OSError("the disk is gone")
        if self.fails in {"killed", "raises"} and number == 1:
            while True:  # the others would go on for ever
                time.sleep(0.01)
                yield batch

    def release(self) -> None:
        pass

    def report(self) -> LoaderReport:
        return LoaderReport("arrays", "nothing", "none")

    def close(self) -> None:
        pass


class Killed:
    """Rank 1 is killed in epoch 1."""

    name, fails = "killed", "killed"

    def available(self) -> str | None:
        return None

    def open(self, job: LoaderJob) -> OpenLoader:
        return _Open(job, self.fails)


class Raises(Killed):
    """Rank 1 raises in epoch 1."""

    name, fails = "raises", "raises"


class Same(Killed):
    """All ranks get the same."""

    name, fails = "same", "same"


class Missing(Killed):
    """A library is missing."""

    name = "missing"

    def available(self) -> str | None:
        return "nolib is not installed: pip install nolib"


class Lacks(Killed):
    """Rank 1 finds, when it opens the data, that its host has not what others have."""

    name = "lacks"

    def open(self, job: LoaderJob) -> _Open:
        if job.world.rank == 1:
            raise MissingPackageError("nolib is not installed: pip install nolib")
        return _Open(job, self.fails)


class LacksAtOnce(Missing):
    """Rank 1's host, as torchrun has it, lacks a library that others have."""

    name = "lacks-at-once"

    def available(self) -> str | None:
        return super().available() if os.environ["RANK"] == "1" else None


def _wait_for(path: Path) -> None:
    """Until another rank, or the test, has made a file."""
    while not path.exists():
        time.sleep(0.005)


class _Stopping(_Open):
    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        counted = Path(self.job.scratch, "counted")
        for k, batch in enumerate(super().epoch(number)):
            if k == 3:
                counted.touch()  # three steps of this rank have ended
            if k == 1 and self.job.world.rank == 1:
                _wait_for(counted)
                raise StorageError("the disk is gone", url="/nothing")
            yield batch


class Stops(Killed):
    """Rank 1 has one batch, which does not count, and no more; others have steps that count before it fails."""

    name = "stops"

    def open(self, job: LoaderJob) -> _Open:
        return _Stopping(job, "")


class GatedGeneration(Killed):
    """Rank 1 of a launcher makes five files of the data set, and waits in the midst of the sixth until it is killed."""

    name = "gated-generation"

    def available(self) -> str | None:
        if os.environ["RANK"] == "1":
            from stoker_bench.generation.job import _make_one as make

            begun: list[object] = []

            def gated(*given: Any) -> Any:
                spec, store, out, progress, stop = given
                begun.append(out)
                return make(spec, store, out, progress if len(begun) <= 5 else self._wait, stop)

            _replace("stoker_bench.generation.job._make_one", gated)
        return None

    def _wait(self, _: int) -> None:
        Path("gated").touch()
        time.sleep(3600)


class WaitsWhenMade(Killed):
    """Rank 0 waits, when the data is generated, for a file, and the others for it."""

    name = "waits-when-made"

    def prepare(self, workload: Workload, url: str) -> None:
        Path("made").touch()
        _wait_for(Path("go"))


def _replace(target: str, value: object) -> None:
    """Replace an attribute for as long as a rank's process lives."""
    place, _, name = target.rpartition(".")
    setattr(pkgutil.resolve_name(place), name, value)


class _Stalling(_Open):
    def __init__(self, job: LoaderJob) -> None:
        super().__init__(job, "")
        self.clock, self.waited = BenchTime(late=(0, 30_000)), 0
        self.clock.replace(_replace)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        for k in range(80):
            wait = 4_000_000 + 1000 * k
            self.clock.now += wait
            self.waited += wait * (k > 0)  # the first one is left out as warm-up
            yield LoadedBatch(2, 8, np.full(8, self.job.world.rank, np.uint8))

    def report(self) -> LoaderReport:
        return LoaderReport("arrays", "nothing", "none", notes=(str(self.waited),))


class Stalls(Killed):
    """Makes each step wait for 4 ms of a clock that is data, and tells in nanoseconds for how long it did."""

    name = "stalls"

    def open(self, job: LoaderJob) -> _Open:
        return _Stalling(job)


class _Hanging(_Open):
    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        for k, batch in enumerate(super().epoch(number)):
            if (number, k, self.job.world.rank) == (1, 3, int(self.fails)):
                self.read()
            yield batch

    def read(self) -> None:
        subprocess.run(["sleep", "3600"], check=True)  # which must not outlive the run


class Hangs(Killed):
    """Rank 1 never gets batch 3 of epoch 1, for which it waits for a process of its own."""

    name, hanging = "hangs", "1"

    def open(self, job: LoaderJob) -> OpenLoader:
        return _Hanging(job, self.hanging)


class _StoppingItself(_Hanging):
    def read(self) -> None:
        Path(self.job.url, "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


class StopsItself(Hangs):
    """Rank 1 is stopped at batch 3 of epoch 1, and leaves the number of its process in the folder of the data."""

    name = "stops itself"

    def open(self, job: LoaderJob) -> OpenLoader:
        return _StoppingItself(job, self.hanging)


class Hangs0(Hangs):
    """Rank 0 does."""

    name, hanging = "hangs0", "0"


class _Collating(_Open):
    """torch's ``DataLoader`` with two worker processes, as a loader of one's own has it."""

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        from torch.utils.data import DataLoader

        samples = [(number, k, self.job.world.rank) for k in range(6)]
        for _ in DataLoader(samples, batch_size=2, num_workers=2, collate_fn=_collate):  # type: ignore[arg-type]
            yield LoadedBatch(2, 8, np.full(8, self.job.world.rank, np.uint8))


def _collate(samples: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    while samples[0] == (1, 2, 1):
        time.sleep(1)
    return samples


class HangsInWorker(Killed):
    """The collate function of rank 1 never returns, in one of two worker processes, in epoch 1."""

    name, packages = "hangs-in-worker", (("torch", "torch"),)  # which is imported before anything is timed

    def open(self, job: LoaderJob) -> OpenLoader:
        return _Collating(job, "")


class _OnTime:
    """The clock of a loop whose accelerator computes from the moment that the loop notes for exactly as long as was drawn."""

    def __init__(self) -> None:
        self.read = 0

    def perf_counter_ns(self) -> int:
        self.read = time.perf_counter_ns()
        return self.read

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def begun(self) -> int:
        return self.read


def _on_time(_: object, moment: int) -> int:
    """Wait until a moment, and have waited until then however late this host woke up."""
    time.sleep(max(0, moment - time.perf_counter_ns()) * 1e-9)
    return moment


class OnTime(Killed):
    """The loader stoker, beside an accelerator that is not late where its host is."""

    name = "on-time"

    def open(self, job: LoaderJob) -> OpenLoader:
        clock = _OnTime()
        _replace("stoker_bench.measure.steps.time", clock)
        _replace("stoker_bench.measure.compute.time", SimpleNamespace(perf_counter_ns=clock.begun))
        _replace("stoker_bench.measure.compute.BenchClock.wait_until", _on_time)
        return get_loader("stoker").open(job)


_STOPS: Final = """
import os, select, signal, sys, time
rank = os.getppid()
print(flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:  # until it is closed
    os.kill(rank, signal.SIGSTOP)
    time.sleep(0.02)
    os.kill(rank, signal.SIGCONT)
"""


class Stopped(Killed):
    """The loader stoker, in a process that has a processor for 5 of 25 ms."""

    name = "stopped"

    def open(self, job: LoaderJob) -> OpenLoader:
        stopping = subprocess.Popen([sys.executable, "-c", _STOPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert stopping.stdin is not None
        assert stopping.stdout is not None
        stopping.stdout.readline()
        opened = get_loader("stoker").open(job)
        close = opened.close

        def closed() -> None:
            stopping.communicate()
            close()

        opened.close = closed  # type: ignore[method-assign]
        return opened


class _UntilFull(_Open):
    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        if number == 2:
            _wait_for(Path("full"))
        yield from super().epoch(number)


class UntilFull(Killed):
    """The third epoch waits for a file in the folder of the run."""

    name = "until-full"

    def open(self, job: LoaderJob) -> OpenLoader:
        return _UntilFull(job, "")


class _Telling(_Open):
    def report(self) -> LoaderReport:
        child = subprocess.run(["nproc"], capture_output=True, text=True, check=True)
        return LoaderReport("arrays", "", "", notes=(str(sorted(os.sched_getaffinity(0))), child.stdout.strip()))


class Affinity(Killed):
    """Tells the processors of its process, and how many a process that it starts has."""

    name = "affinity"

    def open(self, job: LoaderJob) -> _Open:
        return _Telling(job, "")


class Wrong:
    """No loader."""


class _Peeking(_Open):
    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        for path in sorted(Path(self.job.split_url).glob("*.npz")):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield LoadedBatch(1, path.stat().st_size, np.frombuffer(mapped[:100], np.uint8))


class Peeks(Killed):
    """Maps each file, touches its begin, and calls that a sample."""

    name = "peeks"

    def open(self, job: LoaderJob) -> _Open:
        return _Peeking(job, "")
