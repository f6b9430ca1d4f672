"""Samples by shard and row, for loaders that deliver them one by one or in batches: from shards, or from arrays in memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.shared_counters import Counts
from stoker.errors import ConfigError
from stoker.image.batch_rows import BatchRows
from stoker.order.sample_order import Run
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.pipeline import Pipeline
from stoker.reading.chain import Chain
from stoker.reading.sample_errors import location_at
from stoker.reading.samples import distinct, iterate_samples, read_samples
from stoker.types import Batch, Ids


def in_order(shards: Ids) -> list[int]:
    """The different shards, in the order in which they first come."""
    numbers, first = np.unique(shards, return_index=True)
    found: list[int] = numbers[np.argsort(first)].tolist()
    return found


class SampleSource(ABC):
    """Gives samples by shard and row.

    Attributes:
        counts: the counts of what was read.
        columns: names of the columns.
        shards: number of shards.
    """

    counts: Counts
    columns: tuple[str, ...]
    shards: int

    @abstractmethod
    def samples(self, shards: Ids, rows: Ids) -> list[Any]:
        """The samples at these shards and rows, transformed."""

    @abstractmethod
    def batch(self, shards: Ids, rows: Ids) -> Batch:
        """The same, as columns."""

    @abstractmethod
    def chunks(self, run: Run, skip: int, most: int) -> Iterator[list[Any]]:
        """All samples of a run but the first ``skip``, in lists of ``most`` or fewer."""

    @abstractmethod
    def batches(self, run: Run) -> Iterator[Batch]:
        """All batches of a run."""

    @abstractmethod
    def chunk(self, batch_size: int) -> int:
        """About how many samples are best read in one step."""

    def expect(self, shards: Iterable[int]) -> None:  # noqa: B027 - where all is in memory
        """Begin to fetch shards, and keep them; those that were expected before and are not among these may go."""

    def close(self) -> None:  # noqa: B027
        """Close all files."""


class PoolSource(SampleSource):
    """Samples of shards.

    Args:
        reader: has opened the shards, and knows how to read them.
        sharers: processes on this node that read through the same cache.
    """

    def __init__(self, reader: EpochReader, sharers: int = 1) -> None:
        self.pool = reader.pool
        self.counts = self.pool.counts
        self.shards = len(self.pool.index)
        self.columns = tuple(reader.settings.columns or self.pool.index.columns)
        self._reader = reader
        self._sharers = sharers
        self._settings = reader.settings
        self._transform = Chain(reader.settings.steps) if reader.settings.steps else None
        self._amounts = replace(reader.settings.amounts, sharers=sharers)
        self.pool.share(sharers)
        self._expected: dict[int, None] = {}

    def samples(self, shards: Ids, rows: Ids) -> list[Any]:
        settings = self._settings
        with self._counted(shards):
            return list(iterate_samples(self.pool, shards, rows, settings.stored, self._transform).samples)

    def batch(self, shards: Ids, rows: Ids) -> Batch:
        if self._transform is not None:
            with BatchRows(len(rows)) as memory:
                samples = self.samples(shards, rows)
            return stack_samples(samples, partial(location_at, self.pool, shards, rows), memory)
        with self._counted(shards):
            return read_samples(self.pool, shards, rows, self._settings.stored)

    def chunks(self, run: Run, skip: int, most: int) -> Iterator[list[Any]]:
        for part in self._pipeline(run, one_by_one=True).sample_runs():
            while True:
                found = list(islice(part.samples, most))
                if not found:
                    break
                if skip:
                    found, skip = found[skip:], max(0, skip - len(found))
                if found:
                    yield found

    def batches(self, run: Run) -> Iterator[Batch]:
        return self._pipeline(run, one_by_one=False).batches()

    def chunk(self, batch_size: int) -> int:
        return self._amounts.chunk(batch_size, one_by_one=False)

    def expect(self, shards: Iterable[int]) -> None:
        before, self._expected = self._expected, dict.fromkeys(shards)
        self.pool.expect(self._expected.keys() or ())
        for shard in before:
            if shard not in self._expected:
                self.pool.done_with(shard)
        self.pool.prefetch(list(self._expected)[: self._amounts.most_shards])

    def close(self) -> None:
        self.pool.close()

    def _pipeline(self, run: Run, *, one_by_one: bool) -> Pipeline:
        worker = LoaderWorker.detect()
        if worker.token is not None:
            raise ConfigError(
                "a StreamingShardLoader reads in its own process: do not iterate over it in DataLoader workers"
            )
        threads = self._settings.read_threads or 0
        return self._reader.pipeline(
            run,
            worker,
            sharers=self._sharers,
            threads=threads,
            one_by_one=one_by_one and not threads,
            as_columns=not one_by_one,
        )

    @contextmanager
    def _counted(self, shards: Ids) -> Iterator[None]:
        begun = time.perf_counter_ns()
        with self.pool.counted(shards, distinct(shards, self.shards)[0].tolist()):
            yield
        self.counts.waited(time.perf_counter_ns() - begun)
