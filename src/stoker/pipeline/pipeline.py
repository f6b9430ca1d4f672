"""From a plan of positions to batches: locate, fetch ahead, read, transform, in order."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from stoker.concurrency.threads import Threads
from stoker.order.protocols import Order, Plan
from stoker.pipeline.columns import split_batch, stack_samples
from stoker.reading.sample_errors import location_at
from stoker.reading.samples import SampleRun, distinct, iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids, Transform

__all__ = ["Pipeline", "PipelineSettings"]

_T = TypeVar("_T")

_LOCATE_SAMPLES = 4096
# The first batch waits until so much of what lies ahead is located: samples of so many shards, or so many samples.
_FIRST_SAMPLES = 1 << 14
_FIRST_SHARDS = 16
_FIRST_SAMPLES_OF_FEW_SHARDS = 1 << 16
# Then so many times as much is located as is delivered, until the whole lookahead is.
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """How batches are made; nothing here changes which samples come when.

    Attributes:
        columns: columns to read; ``None`` for all.
        transform: applied to each sample, on the reading threads.
        lookahead: samples ahead of the one delivered whose shards are fetched; 0 where shards are at hand.
        most_shards: most distinct shards to fetch ahead, where the cache is small.
        chunk: about how many samples are read in one step, as columns.
        threads: how many steps are read at once, ahead of the consumer; 0 reads in the consumer's thread.
    """

    columns: Sequence[str] | None = None
    transform: Transform | None = None
    lookahead: int = 0
    most_shards: int = sys.maxsize
    chunk: int = 1024
    threads: int = 0


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some batches that are read together: their lengths, and where their samples lie."""

    lengths: list[int]
    shards: Ids
    rows: Ids
    distinct: tuple[int, ...]


class Pipeline:
    """One rank's (or loader worker's) way through an epoch.

    Args:
        pool: the dataset's open shards.
        order: the epoch's order.
        plan: the rank's batches.
        settings: see :class:`PipelineSettings`.
        worker: number of the loader worker.
        workers: number of loader workers.
        skip: batches of this worker to leave out at the beginning.
    """

    def __init__(
        self,
        pool: ShardPool,
        order: Order,
        plan: Plan,
        settings: PipelineSettings,
        worker: int = 0,
        workers: int = 1,
        skip: int = 0,
    ) -> None:
        self._pool = pool
        self._order = order
        self._plan = plan
        self._settings = settings
        self._worker = worker
        self._workers = workers
        self._skip = skip

    def sample_runs(self) -> Iterator[SampleRun]:
        """The samples in order, transformed."""
        if self._settings.threads:
            return self._run(self._sample_list)
        return self._run(self._sample_run)

    def batches(self) -> Iterator[Batch]:
        """The batches in order, as columns. With a transform its results are stacked into columns again."""
        for batches in self._run(self._read_batches):
            yield from batches

    def _sample_run(self, chunk: _Chunk) -> SampleRun:
        settings = self._settings
        return iterate_samples(self._pool, chunk.shards, chunk.rows, settings.columns, settings.transform)

    def _sample_list(self, chunk: _Chunk) -> SampleRun:
        return SampleRun.of(list(self._sample_run(chunk).samples))

    def _read_batches(self, chunk: _Chunk) -> list[Batch]:
        if self._settings.transform is not None:
            batch = stack_samples(
                list(self._sample_run(chunk).samples), partial(location_at, self._pool, chunk.shards, chunk.rows)
            )
        else:
            batch = read_samples(self._pool, chunk.shards, chunk.rows, self._settings.columns)
        return split_batch(batch, chunk.lengths)

    def _counted(self, read: Callable[[_Chunk], _T], chunk: _Chunk) -> _T:
        """Read a chunk, and count what that took."""
        pool, begun = self._pool, time.perf_counter_ns()
        ready = pool.ready(chunk.distinct)
        found = read(chunk)
        remote = 0 if pool.fetched is None else int(np.count_nonzero(pool.fetched[chunk.shards]))
        took = time.perf_counter_ns() - begun
        pool.counts.read_step(len(chunk.rows), remote, ready, len(chunk.distinct) - ready, took)
        return found

    def _run(self, read: Callable[[_Chunk], _T]) -> Iterator[_T]:
        settings, counts = self._settings, self._pool.counts
        read = partial(self._counted, read)
        needed: dict[int, int] = {}
        self._pool.expect(needed.keys())
        threads = Threads(settings.threads, "read") if settings.threads else None
        running: deque[tuple[_Chunk, Future[_T]]] = deque()
        try:
            for chunk in self._fetched_ahead(needed):
                if threads is None:
                    begun = time.perf_counter_ns()
                    found = read(chunk)
                    counts.waited(time.perf_counter_ns() - begun)
                    yield found
                    self._let_go(chunk, needed)
                    continue
                running.append((chunk, threads.submit(partial(read, chunk))))
                # One more than there are threads, so that none waits for the consumer to ask.
                if len(running) > settings.threads + 1:
                    yield from self._finish(running, needed)
            while running:
                yield from self._finish(running, needed)
        finally:
            if threads is not None:
                threads.close(patience=0.0)
            self._pool.expect(())

    def _finish(self, running: deque[tuple[_Chunk, Future[_T]]], needed: dict[int, int]) -> Iterator[_T]:
        chunk, future = running.popleft()
        begun = time.perf_counter_ns()
        found = future.result()
        self._pool.counts.waited(time.perf_counter_ns() - begun)
        yield found
        self._let_go(chunk, needed)

    def _let_go(self, chunk: _Chunk, needed: dict[int, int]) -> None:
        """A chunk has been read and delivered: shards that no chunk ahead needs may be closed."""
        for shard in chunk.distinct:
            needed[shard] -= 1
            if not needed[shard]:
                del needed[shard]
                self._pool.done_with(shard)

    def _fetched_ahead(self, needed: dict[int, int]) -> Iterator[_Chunk]:
        """Chunks in order, the shards of those ahead being fetched meanwhile and counted in ``needed``."""
        lookahead = self._settings.lookahead
        source = self._located()
        if not lookahead:
            yield from source
            return
        window: deque[_Chunk] = deque()
        ahead, allowed = 0, _FIRST_SAMPLES

        def enough() -> bool:
            if ahead > lookahead or len(needed) > self._settings.most_shards:
                return True
            return ahead > allowed and (len(needed) >= _FIRST_SHARDS or ahead > _FIRST_SAMPLES_OF_FEW_SHARDS)

        for chunk in source:
            window.append(chunk)
            ahead += len(chunk.rows)
            for shard in chunk.distinct:
                needed[shard] = needed.get(shard, 0) + 1
            while len(window) > 1 and enough():
                first = window.popleft()
                ahead -= len(first.rows)
                allowed += (_GROWTH - 1) * len(first.rows)
                yield first
            self._pool.prefetch(chunk.distinct)
        while window:
            yield window.popleft()

    def _located(self) -> Iterator[_Chunk]:
        settings = self._settings
        # Chunks begin with one batch and double, so that the first batch waits for few shards and the rest is efficient.
        most = max(1, settings.chunk // self._plan.batch_size)
        together = 1
        # Locating has a cost a call as well as a cost a sample, so it is done for many chunks at once.
        count = len(self._pool.index)
        together_located = max(settings.chunk, _LOCATE_SAMPLES)
        for batches in self._plan.chunks(together_located, self._worker, self._workers, self._skip):
            positions = batches[0] if len(batches) == 1 else np.concatenate(batches)
            shards, rows = self._order.locate(positions)
            start = first = 0
            while first < len(batches):
                lengths = [len(batch) for batch in batches[first : first + together]]
                first += together
                here = slice(start, start + sum(lengths))
                start = here.stop
                numbers = tuple(distinct(shards[here], count)[0].tolist()) if settings.lookahead else ()
                yield _Chunk(lengths, shards[here], rows[here], numbers)
                together = min(2 * together, most)
