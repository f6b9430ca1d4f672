"""Loaders that tests name as ``bench_loaders:Class``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import repeat

import numpy as np

from stoker.bench.loaders import Job, LoadedBatch, LoaderReport


class _Open:
    def __init__(self, job: Job, fails: str) -> None:
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

    def open(self, job: Job) -> _Open:
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


class Wrong:
    """No loader."""
