"""A storage of known speed that all ranks share, in time that is data: a loader ``throttled_loader:Throttled``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import numpy as np
from bench_time import BenchTime

from stoker_bench.loaders import LoadedBatch, LoaderJob, LoaderReport

CLOCK: Final = BenchTime()
"""Of each rank, which is a thread; the test has it replace the measured loop's."""


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        self.job = job
        self.share = round(float(os.environ["THROTTLED_SECONDS"]) * 1e9) * job.world.world_size
        samples = job.workload.dataset.files * job.workload.dataset.samples_per_file
        self.count = samples // (job.batch_size * job.world.world_size)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        data = np.full(8, self.job.world.rank, np.uint8)
        due = CLOCK.now + self.share
        for _ in range(self.count):
            CLOCK.now = max(CLOCK.now, due)
            due = CLOCK.now + self.share  # one batch ahead, while the accelerator computes
            yield LoadedBatch(self.job.batch_size, 8 * self.job.batch_size, data)

    def release(self) -> None:
        pass

    def report(self) -> LoaderReport:
        return LoaderReport("arrays", "one batch ahead", "all alike")

    def close(self) -> None:
        pass


class Throttled:
    """Serves a batch every ``THROTTLED_SECONDS`` seconds to all ranks together, one after the other."""

    name = "throttled"

    def available(self) -> str | None:
        return None

    def open(self, job: LoaderJob) -> _Open:
        return _Open(job)
