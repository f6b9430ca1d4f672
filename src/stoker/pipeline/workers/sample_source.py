"""Samples by shard and row, for loaders that deliver them one by one or in batches: from shards, or from arrays in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.shared_counters import Counts
from stoker.errors import ConfigError
from stoker.order.sample_order import Run
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.pipeline import Pipeline
from stoker.reading.sample_errors import location_at
from stoker.reading.samples import distinct, iterate_samples, read_samples
from stoker.types import Batch, Ids

__all__ = ["PoolSource", "SampleSource", "in_order"]


def in_order(shards: Ids) -> list[int]:
    """The different shards, in the order in which they first come."""
    numbers, first = np.unique(shards, return_index=True)
    found: list[int] = numbers[np.argsort(first)].tolist()
    return found


class SampleSource(Protocol):
    """Gives samples by shard and row."""

    @property
    def counts(self) -> Counts:
        """The counts of what was read."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    @property
    def shards(self) -> int:
        """Number of shards."""
        ...

    def samples(self, shards: Ids, rows: Ids) -> list[Any]:
        """The samples at these shards and rows."""
        ...

    def batch(self, shards: Ids, rows: Ids) -> Batch:
        """The same, as columns."""
        ...

    def chunks(self, run: Run, skip: int, most: int) -> Iterator[list[Any]]:
        """All samples of a run but the first ``skip``, in lists of ``most`` or fewer."""
        ...

    def batches(self, run: Run) -> Iterator[Batch]:
        """All batches of a run."""
        ...

    def chunk(self, batch_size: int) -> int:
        """About how many samples are best read in one step."""
        ...

    def expect(self, shards: Iterable[int]) -> None:
        """Begin to fetch shards, and keep them; those that were expected before and are not among these may go."""
        ...

    def close(self) -> None:
        """Close all files."""
        ...


class PoolSource:
    """Samples of shards.

    Args:
        reader: has opened the shards, and knows how to read them.
        sharers: processes on this node that read through the same cache.
    """

    def __init__(self, reader: EpochReader, sharers: int = 1) -> None:
        self.pool = reader.pool
        self._reader = reader
        self._sharers = sharers
        self._settings = replace(reader.settings, sharers=sharers)
        self._expected: dict[int, None] = {}

    @property
    def counts(self) -> Counts:
        """The counts of what was read."""
        return self.pool.counts

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        chosen = self._settings.columns
        return tuple(self.pool.index.columns if chosen is None else chosen)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.pool.index)

    def samples(self, shards: Ids, rows: Ids) -> list[Any]:
        """The samples at these shards and rows, transformed."""
        begun = time.perf_counter_ns()
        numbers, ready = self._ready(shards)
        settings = self._settings
        found = list(iterate_samples(self.pool, shards, rows, settings.columns, settings.transform).samples)
        self._count(shards, len(numbers), ready, begun)
        return found

    def batch(self, shards: Ids, rows: Ids) -> Batch:
        """The same, as columns."""
        if self._settings.transform is not None:
            return stack_samples(self.samples(shards, rows), partial(location_at, self.pool, shards, rows))
        begun = time.perf_counter_ns()
        numbers, ready = self._ready(shards)
        found = read_samples(self.pool, shards, rows, self._settings.columns)
        self._count(shards, len(numbers), ready, begun)
        return found

    def chunks(self, run: Run, skip: int, most: int) -> Iterator[list[Any]]:
        """All samples of a run but the first ``skip``, in lists of ``most`` or fewer."""
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
        """All batches of a run."""
        return self._pipeline(run, one_by_one=False).batches()

    def chunk(self, batch_size: int) -> int:
        """About how many samples are best read in one step."""
        return self._settings.chunk(batch_size, one_by_one=False)

    def expect(self, shards: Iterable[int]) -> None:
        """Begin to fetch shards, and keep them; those that were expected before and are not among these may go."""
        before, self._expected = self._expected, dict.fromkeys(shards)
        self.pool.expect(self._expected.keys() or ())
        for shard in before:
            if shard not in self._expected:
                self.pool.done_with(shard)
        self.pool.prefetch(list(self._expected)[: self._settings.most_shards])

    def close(self) -> None:
        """Close all files."""
        self.pool.close()

    def _pipeline(self, run: Run, *, one_by_one: bool) -> Pipeline:
        worker = LoaderWorker.detect()
        if worker.token is not None:
            raise ConfigError(
                "a StreamingShardLoader reads in its own process: do not iterate over it in DataLoader workers"
            )
        threads = self._settings.read_threads or 0
        return self._reader.pipeline(
            run, worker, sharers=self._sharers, threads=threads, one_by_one=one_by_one and not threads
        )

    def _ready(self, shards: Ids) -> tuple[Sequence[int], int]:
        numbers = distinct(shards, self.shards)[0].tolist()
        return numbers, self.pool.ready(numbers)

    def _count(self, shards: Ids, distinct_shards: int, ready: int, begun: int) -> None:
        fetched = self.pool.fetched
        remote = 0 if fetched is None else int(np.count_nonzero(fetched[shards]))
        took = time.perf_counter_ns() - begun
        self.counts.read_step(len(shards), remote, ready, distinct_shards - ready, took)
        self.counts.waited(took)
