"""Turns a plan of positions into batches: locates, fetches ahead, reads and transforms samples, in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeAlias, TypeVar

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.threads import Threads
from stoker.errors import CacheError, StateError, StokerError, StorageError
from stoker.order.sample_order import Run
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.by_shard import ShardByShard
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.outer_plan import OuterRun
from stoker.pipeline.reader_settings import EpochReaderSettings
from stoker.reading.sample_errors import apply_transform, location_at
from stoker.reading.samples import SampleRun, distinct, iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids

Override: TypeAlias = Callable[[Sequence[int], Iterator[Any]], Iterator[Any]]
"""A function from samples and their ids to samples, applied lazily."""

_T = TypeVar("_T")

_LOCATE_SAMPLES = 4096
# The first batch waits until this much is located: samples of so many shards, or so many samples.
_FIRST_SAMPLES = 1 << 14
_FIRST_SHARDS = 16
_FIRST_SAMPLES_OF_FEW_SHARDS = 1 << 16
# After it, this many times as much is located as is delivered, until the whole lookahead is located.
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Batches that are read together: their lengths, and shards and rows of their samples.

    Attributes:
        values: the samples, where they were read already, as columns or one by one. Then ``distinct`` is empty.
    """

    lengths: list[int]
    shards: Ids
    rows: Ids
    distinct: tuple[int, ...]
    values: Any = None


class Pipeline:
    """The samples of one run, read by one process: located, fetched ahead, read, transformed, in order.

    Args:
        pool: the dataset's open shards.
        run: the rank's batches, and where their samples lie.
        settings: see :class:`~stoker.pipeline.reader_settings.EpochReaderSettings`.
        worker: the DataLoader worker that reads; it takes every ``worker.count``-th batch.
        skip: batches of this worker to leave out at the beginning.
        one_by_one: whether samples are made as they are asked for.
        override: changes samples as they are asked for, given their ids.
    """

    def __init__(
        self,
        pool: ShardPool,
        run: Run | OuterRun,
        settings: EpochReaderSettings,
        worker: LoaderWorker,
        skip: int = 0,
        *,
        one_by_one: bool = False,
        override: Override | None = None,
    ) -> None:
        self._pool = pool
        self._run = run
        self._settings = settings
        self._worker = worker
        self._skip = skip
        self._override = override
        self._starts = None if override is None else np.concatenate(([0], np.cumsum(pool.index.sizes)))
        batch_size = run.plan.batch_size
        self._threads = settings.read_threads or 0
        self._lookahead = settings.lookahead(batch_size)
        self._chunk = settings.chunk(batch_size, one_by_one=one_by_one)
        self._worker_takes_groups = False

    def sample_runs(self) -> Iterator[SampleRun]:
        """The samples in order, transformed."""
        return self._chunks(self._sample_list if self._threads else self._sample_run)

    def batches(self) -> Iterator[Batch]:
        """The batches in order, as columns. With a transform its results are stacked into columns again."""
        return chain.from_iterable(group.batches() for group in self._chunks(self._read_group))

    def groups(self) -> Iterator[BatchGroup]:
        """The same batches, those together that are read in one step; of several workers each takes every n-th group.

        The rows of a shard lie near each other in the order, so that a shard is opened by one worker or two, not by all.
        """
        if self._skip:
            raise StateError(
                f"this worker has delivered {self._skip} batches of the epoch, and with columnar=True workers take groups of "
                "batches: save and load the state of the StreamingDataLoader, not that of one worker"
            )
        self._worker_takes_groups = True
        return self._chunks(self._read_group)

    def _sample_run(self, chunk: _Chunk) -> SampleRun:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return self._overridden(chunk, self._transformed(chunk))

    def _sample_list(self, chunk: _Chunk) -> SampleRun:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return self._overridden(chunk, SampleRun.of(list(self._transformed(chunk).samples)))

    def _transformed(self, chunk: _Chunk) -> SampleRun:
        settings = self._settings
        if chunk.values is not None:
            run, origin = SampleRun.of(chunk.values), partial(location_at, self._pool, chunk.shards, chunk.rows)
            if settings.transform is None:
                return run
            made = apply_transform(settings.transform, run.samples, run.remaining, origin)
            return SampleRun(made, run.remaining)
        return iterate_samples(self._pool, chunk.shards, chunk.rows, settings.columns, settings.transform)

    def _overridden(self, chunk: _Chunk, run: SampleRun) -> SampleRun:
        if self._override is None or self._starts is None:
            return run
        ids = self._starts[chunk.shards] + chunk.rows
        return SampleRun(self._override(ids.tolist(), run.samples), run.remaining)

    def _read_group(self, chunk: _Chunk) -> BatchGroup:
        pool, shards, rows = self._pool, chunk.shards, chunk.rows
        with pool.counted(shards, chunk.distinct):
            if self._settings.transform is None:
                batch = chunk.values or read_samples(pool, shards, rows, self._settings.columns)
            else:
                batch = stack_samples(list(self._transformed(chunk).samples), partial(location_at, pool, shards, rows))
            return BatchGroup(batch, chunk.lengths)

    def _chunks(self, read: Callable[[_Chunk], _T]) -> Iterator[_T]:
        """All chunks in order, read by ``read`` in this thread, or in threads ahead of the consumer."""
        counts = self._pool.counts
        needed: dict[int, int] = {}
        self._pool.expect(needed.keys())
        threads = Threads(self._threads, "read") if self._threads else None
        # One more than there are threads, so that none waits for the consumer to ask.
        ahead = self._threads + 1 if threads else 0
        running: deque[tuple[_Chunk, Callable[[], _T]]] = deque()
        try:
            whole = read == self._read_group and self._settings.transform is None
            ready = self._read_by_shard(whole) if self._settings.by_shard else self._fetched_ahead(needed)
            for chunk in chain(ready, repeat(None)):
                if chunk is not None:
                    work = partial(read, chunk)
                    running.append((chunk, work if threads is None else threads.submit(work).result))
                    if len(running) <= ahead:
                        continue
                elif not running:
                    break
                done, take = running.popleft()
                begun = time.perf_counter_ns()
                found = take()
                counts.waited(time.perf_counter_ns() - begun)
                yield found
                del found, take  # frees their memory for the next chunk
                # Shards that no chunk ahead needs may be closed.
                for shard in done.distinct:
                    needed[shard] -= 1
                    if not needed[shard]:
                        del needed[shard]
                        self._pool.done_with(shard)
        finally:
            if threads is not None:
                threads.close(patience=0.0)
            self._pool.expect(())

    def _fetched_ahead(self, needed: dict[int, int]) -> Iterator[_Chunk]:
        """Chunks in order, while shards of the next ones are fetched; ``needed`` counts the chunks that need each."""
        lookahead, most_shards = self._lookahead, self._settings.most_shards
        window: deque[_Chunk] = deque()
        ahead, allowed = 0, _FIRST_SAMPLES

        def enough() -> bool:
            if ahead > lookahead or len(needed) > most_shards:
                return True
            return ahead > allowed and (len(needed) >= _FIRST_SHARDS or ahead > _FIRST_SAMPLES_OF_FEW_SHARDS)

        for chunk in self._located():
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

    def _read_by_shard(self, whole: bool) -> Iterator[_Chunk]:
        """Chunks in order, read already: many together, shard by shard."""
        settings = self._settings
        reader = ShardByShard(
            self._pool,
            settings.columns,
            whole=whole,
            most_shards=settings.most_shards,
            most_bytes=settings.group_bytes,
            sample_bytes=settings.sample_bytes,
        )
        chunks = self._located()
        following = next(chunks, None)
        while following is not None:
            group, size = [following], len(following.rows)
            while (following := next(chunks, None)) is not None and size + len(following.rows) <= reader.next_samples:
                group.append(following)
                size += len(following.rows)
            yield from self._read_together(reader, group)

    def _read_together(self, reader: ShardByShard, group: Sequence[_Chunk]) -> Iterator[_Chunk]:
        """Chunks with their samples. One of which a sample can not be read goes without them, and those before it with."""
        begun, values = time.perf_counter_ns(), None
        try:
            values = reader.read(
                np.concatenate([chunk.shards for chunk in group]), np.concatenate([chunk.rows for chunk in group])
            )
        except (CacheError, StorageError):  # may have taken a timeout: not once more for each part of the group
            raise
        except StokerError:  # is raised again where the chunk is read alone
            pass
        self._pool.counts.waited(time.perf_counter_ns() - begun)
        if values is None and len(group) == 1:
            self._pool.expect(())
            yield replace(group[0], distinct=())
            return
        if values is None:
            half = len(group) // 2
            yield from self._read_together(reader, group[:half])
            yield from self._read_together(reader, group[half:])
            return
        start = 0
        for chunk in group:
            here = slice(start, start + len(chunk.rows))
            start = here.stop
            if isinstance(values, list):
                yield replace(chunk, distinct=(), values=values[here])
            else:  # copies: a batch that is kept must not keep all of them
                part = {name: one[here].copy() for name, one in values.items()}
                yield replace(chunk, distinct=(), values=part)

    def _located(self) -> Iterator[_Chunk]:
        count = len(self._pool.index)
        for groups in self._position_groups():
            positions = np.concatenate([batch for group in groups for batch in group])
            shards, rows = self._run.order.locate(positions)
            start = 0
            for group in groups:
                lengths = [len(batch) for batch in group]
                here = slice(start, start + sum(lengths))
                start = here.stop
                numbers = tuple(distinct(shards[here], count)[0].tolist())
                yield _Chunk(lengths, shards[here], rows[here], numbers)

    def _position_groups(self) -> Iterator[list[list[Ids]]]:
        """Positions of the batches of each chunk, in lists of chunks that are located together."""
        plan, worker, in_groups = self._run.plan, self._worker, self._worker_takes_groups
        # Locating has a cost a call as well as a cost a sample, so it is done for many chunks at once.
        together_located = max(self._chunk, _LOCATE_SAMPLES)
        if in_groups:  # all workers cut all batches alike
            lists = plan.chunks(together_located * worker.count)
        else:
            lists = plan.chunks(together_located, worker.number, worker.count, self._skip)
        turns, turn = (worker.count, worker.number) if in_groups else (1, 0)
        # Chunks begin with one batch and double, so that the first batch waits for few shards and the rest is efficient.
        most = max(1, self._chunk // plan.batch_size)
        together, number = 1, 0
        for batches in lists:
            groups: list[list[Ids]] = []
            first = 0
            while first < len(batches):
                if number % turns == turn:
                    groups.append(batches[first : first + together])
                first += together
                number += 1
                if number % turns == 0:
                    together = min(2 * together, most)
            if groups:
                yield groups
