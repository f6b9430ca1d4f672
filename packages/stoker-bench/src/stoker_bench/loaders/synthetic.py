"""Batches that are there at once: what is left of a step is the harness's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Literal

import numpy as np

from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.rank_loader import RankLoader


class SyntheticLoader(RankLoader):
    """One batch of random bytes, again and again. Nothing is read."""

    name = "synthetic"
    heeds = frozenset({"reader.decode", "dataset.resize_bytes"})

    def __init__(self, job: LoaderJob) -> None:
        super().__init__(job)
        dataset = job.workload.dataset
        size = dataset.resize_bytes or dataset.used_bytes
        random = np.random.default_rng((job.workload.train.seed & 0xFFFFFFFF, job.world.rank))
        # A small array stands for a batch of any size; its bytes are counted in full.
        data = random.integers(0, 256, min(job.batch_size * size, 1 << 16), np.uint8)
        self._batch = LoadedBatch(job.batch_size, job.batch_size * size, data)
        self._count = job.files * dataset.samples_per_file // (job.batch_size * job.world.world_size)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:  # noqa: ARG002 - all alike
        return repeat(self._batch, self._count)

    def _decoded(self) -> Literal["none"]:
        return "none"

    def _parallel(self) -> str:
        return "nothing"

    def _order(self) -> str:
        return "one batch, again and again"

    def _fetched(self) -> int:
        return 0
