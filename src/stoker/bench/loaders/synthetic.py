"""Batches that are there at once: what is left of a step is the harness's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from stoker.bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport

__all__ = ["SyntheticLoader"]


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        dataset = job.workload.dataset
        files = dataset.files if job.split == "train" else dataset.files_eval
        size = dataset.resize_bytes or dataset.used_bytes
        count = files * dataset.samples_per_file // (job.batch_size * job.world.world_size)
        random = np.random.default_rng((job.workload.train.seed & 0xFFFFFFFF, job.world.rank))
        # A small array stands for a batch of any size; its bytes are counted in full.
        data = random.integers(0, 256, min(job.batch_size * size, 1 << 16), np.uint8)
        self._batch = LoadedBatch(job.batch_size, job.batch_size * size, data)
        self._count = count

    def epoch(self, number: int) -> Iterator[LoadedBatch]:  # noqa: ARG002 - all alike
        return repeat(self._batch, self._count)

    def release(self) -> None:
        pass

    def report(self) -> LoaderReport:
        return LoaderReport("none", "nothing", "one batch, again and again", 0)

    def close(self) -> None:
        pass


class SyntheticLoader:
    """One batch of random bytes, again and again. Nothing is read."""

    name = "synthetic"

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return None

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
