"""A storage of known speed that all ranks of a host share: a loader that tests name as ``throttled_loader:Throttled``."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stoker.bench.loaders import LoadedBatch, LoaderJob, LoaderReport


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        self.job = job
        self.seconds = float(os.environ["THROTTLED_SECONDS"])
        self.path = Path(job.scratch) / "free-at"
        samples = job.workload.dataset.files * job.workload.dataset.samples_per_file
        self.count = samples // (job.batch_size * job.world.world_size)

    def _served(self) -> int:
        """Wait in line: each batch takes the storage ``seconds``, and it serves one at a time. Its moment, in nanoseconds."""
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            free = max(int(file.read() or b"0"), time.monotonic_ns()) + int(self.seconds * 1e9)
            file.truncate(0)
            file.write(b"%d" % free)
        return free

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        data = np.full(8, self.job.world.rank, np.uint8)
        due = self._served()
        for k in range(self.count):
            time.sleep(max(0, due - time.monotonic_ns()) * 1e-9)
            if k + 1 < self.count:
                due = self._served()  # one batch ahead, while the accelerator computes
            yield LoadedBatch(self.job.batch_size, 8 * self.job.batch_size, data)

    def release(self) -> None:
        pass

    def report(self) -> LoaderReport:
        return LoaderReport("arrays", "one batch ahead", "all alike")

    def close(self) -> None:
        pass


class Throttled:
    """Serves a batch every ``THROTTLED_SECONDS`` seconds to all ranks together."""

    name = "throttled"

    def available(self) -> str | None:
        return None

    def open(self, job: LoaderJob) -> _Open:
        return _Open(job)
