"""Turns a plan of positions into batches: locates, fetches ahead, reads and transforms samples, in order."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.recorder import Stage, begin_span, end_span, span
from stoker.concurrency.threads import Threads
from stoker.errors import CacheError, StateError, StokerError, StorageError
from stoker.formats.mds.encodings.images import left_to_load
from stoker.image.batch_rows import BatchRows
from stoker.order.sample_order import Run
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.by_shard import ShardByShard
from stoker.pipeline.chunks.located import Chunk, located_chunks
from stoker.pipeline.columns import batch_length, stack_samples
from stoker.pipeline.good_samples import GoodSampleReader, GoodSamples, ImageNotLoadedError, loaded_image
from stoker.pipeline.outer_plan import OuterRun
from stoker.pipeline.transforms import EpochReaderSettings, Override, bind_batch_steps, make_transforms
from stoker.policy import FIRST_MOST_SHARDS, FIRST_SAMPLES, FIRST_SAMPLES_OF_FEW_SHARDS, FIRST_SHARDS
from stoker.reading.apply_chain import LEFT_OUT
from stoker.reading.bad_samples import BadSampleLog, is_of_sample
from stoker.reading.chain import split_steps, stored_names
from stoker.reading.sample_errors import apply_transform, location_at
from stoker.reading.samples import SampleRun, iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch

_T = TypeVar("_T")

# After it, this many times as much is located as is delivered, until the whole lookahead is located.
_GROWTH = 4


class Pipeline:
    """The samples of one run, read by one process: located, fetched ahead, read, transformed, in order.

    Args:
        pool: the dataset's open shards.
        run: the rank's batches, and where their samples lie.
        settings: see :class:`~stoker.pipeline.transforms.EpochReaderSettings`.
        worker: the DataLoader worker that reads; it takes every ``worker.count``-th batch.
        skip: batches of this worker to leave out at the beginning.
        log: lists bad samples; ``None`` where they are errors.
        epoch: number of the epoch, for the random numbers of a chain.
        one_by_one: whether samples are made as they are asked for.
        as_columns: whether batches are asked for, and not samples.
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
        log: BadSampleLog | None = None,
        epoch: int = 0,
        one_by_one: bool = False,
        as_columns: bool = False,
        override: Override | None = None,
    ) -> None:
        self._pool = pool
        self._run = run
        self._settings = settings
        self._worker = worker
        self._skip, self._log = skip, log
        self._override = override
        batch_size = run.plan.batch_size
        # A method of a subclass runs in the consumer's thread.
        alone = override is not None and settings.bad_samples is not None
        self._threads = 0 if alone else settings.read_threads or 0
        self._lookahead = settings.amounts.lookahead(batch_size)
        self._chunk = settings.amounts.chunk(batch_size, one_by_one=one_by_one)
        self._chunk_bytes = max(self._chunk, batch_size) * settings.amounts.sample_bytes
        self._worker_takes_groups = False
        steps, batch_steps = split_steps(settings.steps) if as_columns else (settings.steps, ())
        self._transform_of = make_transforms(pool.index.table, settings.identity, steps, epoch)
        self._batch_steps = bind_batch_steps(pool, batch_steps)
        self._one_batch = any(step.kind == "batch_map" for step in batch_steps)
        if self._one_batch:
            self._chunk = 1  # one batch is read at a time
        self._filters = any(step.kind in ("filter", "flat_map") for step in steps)
        self._first = True
        self._good: GoodSampleReader | None = None
        bad = settings.bad_samples
        if bad is not None or self._filters:
            read = (*(settings.stored or pool.index.columns), *(() if pool.ids is None else (pool.ids,)))
            self._good = GoodSampleReader(
                pool,
                run,
                settings.stored,
                self._transform_of,
                self._batch_steps,
                override,
                on_bad_sample="raise" if bad is None else bad.on_bad_sample,
                filters=self._filters,
                as_stored=stored_names(steps, read) if self._filters else {},
            )

    def sample_runs(self) -> Iterator[SampleRun]:
        """The samples in order, transformed; :data:`~stoker.pipeline.good_samples.LEFT_OUT` for each that is left out."""
        if self._good is None:
            return self._chunks(self._sample_list if self._threads else self._sample_run)
        if self._threads:
            told = self._told(self._chunks(self._good_samples))
            return map(self._run_of, map(operator.itemgetter(1), told))
        return self._recoverable()

    def batches(self) -> Iterator[Batch]:
        """The batches in order, as columns. With a transform its results are stacked into columns again."""
        return chain.from_iterable(group.batches() for group in self._groups())

    def _groups(self) -> Iterator[BatchGroup]:
        if self._good is None:
            return self._chunks(self._read_group)
        return map(self._group_of, self._told(self._chunks(self._good_batches)))

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
        return self._groups()

    def _sample_run(self, chunk: Chunk) -> SampleRun:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return self._overridden(chunk, self._transformed(chunk))

    def _sample_list(self, chunk: Chunk) -> SampleRun:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return self._overridden(chunk, SampleRun.of(list(self._transformed(chunk).samples)))

    def _transformed(self, chunk: Chunk) -> SampleRun:
        shards, rows = chunk.shards, chunk.rows
        transform = None if self._transform_of is None else self._transform_of(chunk.positions, shards, rows)
        if chunk.values is None:
            return iterate_samples(self._pool, shards, rows, self._settings.stored, transform)
        run = SampleRun.of(chunk.values)
        if transform is None:
            return run
        made = apply_transform(transform, run.samples, run.remaining, partial(location_at, self._pool, shards, rows))
        return SampleRun(made, run.remaining)

    def _overridden(self, chunk: Chunk, run: SampleRun) -> SampleRun:
        if self._override is None:
            return run
        ids = self._pool.index.table.starts[chunk.shards] + chunk.rows
        return SampleRun(self._override(ids.tolist(), run.samples), run.remaining)

    def _read_group(self, chunk: Chunk) -> BatchGroup:
        pool, shards, rows = self._pool, chunk.shards, chunk.rows
        with pool.counted(shards, chunk.distinct):
            if self._transform_of is None:
                batch = chunk.values or read_samples(pool, shards, rows, self._settings.stored)
            else:
                with BatchRows(len(rows)) as memory:
                    samples = list(self._transformed(chunk).samples)
                with span(Stage.COLLATE, len(samples)):
                    batch = stack_samples(samples, partial(location_at, pool, shards, rows), memory)
            if self._batch_steps is not None:
                batch = self._batch_steps(batch, chunk.positions, shards, rows)
                if self._one_batch:
                    return BatchGroup(batch, [batch_length(batch)])
            return BatchGroup(batch, chunk.lengths)

    # -- with bad samples --------------------------------------------------------------------------------------------

    def _good_samples(self, chunk: Chunk) -> tuple[Chunk, GoodSamples]:
        assert self._good is not None
        with self._pool.counted(chunk.shards, chunk.distinct):
            return chunk, self._good.samples(chunk.positions, chunk.shards, chunk.rows, chunk.values)

    def _good_batches(self, chunk: Chunk) -> tuple[Chunk, GoodSamples]:
        assert self._good is not None
        with self._pool.counted(chunk.shards, chunk.distinct):
            return chunk, self._good.batch(chunk.positions, chunk.shards, chunk.rows, chunk.values)

    def _told(self, read: Iterator[tuple[Chunk, GoodSamples]]) -> Iterator[tuple[Chunk, GoodSamples]]:
        """The same, with bad samples counted and listed as they would be delivered."""
        for chunk, found in read:
            if self._log is not None:
                self._log.enter(len(chunk.rows))
                for number, error in found.bad:
                    self._log.note(number, error)
            yield chunk, found
            del chunk, found  # frees their memory for the next chunk

    def _recoverable(self) -> Iterator[SampleRun]:
        """Samples that are made as they are asked for: lists of small ones would cost more than the samples do."""
        for chunk, run in self._chunks(self._begun):
            if self._log is not None:
                self._log.enter(len(chunk.rows))
            yield self._with_recovery(chunk, 0, run)
            del chunk, run

    def _begun(self, chunk: Chunk) -> tuple[Chunk, SampleRun | GoodSamples]:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return chunk, self._begin(chunk)

    def _begin(self, chunk: Chunk) -> SampleRun | GoodSamples:
        """The samples of a chunk, made as they are asked for; or all of them, where one is met before that is bad."""
        assert self._good is not None
        first, self._first = self._first, False
        if self._settings.bad_samples is None:
            return self._transformed_lazily(chunk)
        images = first or left_to_load()  # after the first ones it is known whether there are any
        if images and self._filters:
            return self._good.samples(chunk.positions, chunk.shards, chunk.rows, chunk.values)
        try:
            run = self._transformed_lazily(chunk)
            # One at a time: a whole chunk of pictures would leave the processor's cache before it is delivered.
            return replace(run, samples=map(loaded_image, run.samples)) if images else run
        except Exception as error:
            if not is_of_sample(error):
                raise
        return self._good.samples(chunk.positions, chunk.shards, chunk.rows, chunk.values)

    def _transformed_lazily(self, chunk: Chunk) -> SampleRun:
        assert self._good is not None
        run = self._overridden(chunk, self._transformed(chunk))
        if not self._filters:
            return run
        return replace(run, samples=self._good.settled(chunk.positions, run.samples), gaps=True)

    def _run_of(self, found: GoodSamples) -> SampleRun:
        return SampleRun.of(found.values, gaps=self._filters or len(found.kept) < len(found.values))

    def _with_recovery(self, chunk: Chunk, first: int, run: SampleRun | GoodSamples) -> SampleRun:
        """The samples of a chunk from the ``first`` on."""
        if isinstance(run, SampleRun):
            return run if self._log is None else replace(run, recover=partial(self._recover, chunk))
        for number, error in run.bad:
            assert self._log is not None
            self._log.note(first + number, error)
        return self._run_of(run)

    def _recover(self, chunk: Chunk, run: SampleRun, error: Exception) -> SampleRun:
        assert self._good is not None
        assert self._log is not None
        if not is_of_sample(error):
            raise error
        number = len(chunk.rows) - operator.length_hint(run.remaining) - 1
        position, shard, row = (int(values[number]) for values in (chunk.positions, chunk.shards, chunk.rows))
        if isinstance(error, ImageNotLoadedError):
            named = self._good.named(shard, row, error.error)
        else:
            named = self._good.named(shard, row, error, made=True)
        self._log.note(number, named)
        stands = self._good.instead(position, named)
        rest = slice(number + 1, None)
        left = replace(
            chunk,
            positions=chunk.positions[rest],
            shards=chunk.shards[rest],
            rows=chunk.rows[rest],
            values=None if chunk.values is None else chunk.values[rest],
        )
        after = SampleRun.of([]) if not len(left.rows) else self._with_recovery(chunk, rest.start, self._begin(left))
        return replace(
            after, samples=chain([stands], after.samples), gaps=self._filters or after.gaps or stands is LEFT_OUT
        )

    def _group_of(self, found: tuple[Chunk, GoodSamples]) -> BatchGroup:
        chunk, good = found
        if self._one_batch:
            return BatchGroup(good.values, [batch_length(good.values)])
        ends = np.searchsorted(good.kept, np.cumsum(chunk.lengths))
        return BatchGroup(good.values, np.diff(ends, prepend=0).tolist())

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _chunks(self, read: Callable[[Chunk], _T]) -> Iterator[_T]:
        """All chunks in order, read by ``read`` in this thread, or in threads ahead of the consumer."""
        counts = self._pool.counts
        needed: dict[int, int] = {}
        # One chunk is delivered while the next one is read.
        self._pool.expect(needed.keys(), 2 * self._chunk_bytes)
        threads = Threads(self._threads, "read") if self._threads else None
        # One more than there are threads, so that none waits for the consumer to ask.
        ahead = self._threads + 1 if threads else 0
        running: deque[tuple[Chunk, Callable[[], _T]]] = deque()
        try:
            whole = read in (self._read_group, self._good_batches) and self._transform_of is None
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

    def _fetched_ahead(self, needed: dict[int, int]) -> Iterator[Chunk]:
        """Chunks in order, while shards of the next ones are fetched; ``needed`` counts the chunks that need each."""
        lookahead, most_shards = self._lookahead, self._settings.amounts.most_shards
        window: deque[Chunk] = deque()
        ahead, allowed, allowed_shards = 0, FIRST_SAMPLES, FIRST_MOST_SHARDS

        def enough() -> bool:
            if ahead > lookahead or len(needed) > min(most_shards, allowed_shards):
                return True
            return ahead > allowed and (len(needed) >= FIRST_SHARDS or ahead > FIRST_SAMPLES_OF_FEW_SHARDS)

        for chunk in self._located():
            window.append(chunk)
            ahead += len(chunk.rows)
            for shard in chunk.distinct:
                needed[shard] = needed.get(shard, 0) + 1
            while len(window) > 1 and enough():
                full = begin_span() if ahead > lookahead or len(needed) > most_shards else 0
                first = window.popleft()
                ahead -= len(first.rows)
                allowed += (_GROWTH - 1) * len(first.rows)
                allowed_shards += (_GROWTH - 1) * len(first.distinct)
                yield first
                end_span(Stage.LOOKAHEAD, full, ahead)
            self._pool.prefetch(chunk.distinct)
        while window:
            yield window.popleft()

    def _read_by_shard(self, whole: bool) -> Iterator[Chunk]:
        """Chunks in order, read already: many together, shard by shard."""
        settings = self._settings
        reader = ShardByShard(
            self._pool,
            settings.stored,
            whole=whole,
            most_shards=settings.amounts.most_shards,
            most_bytes=settings.amounts.group_bytes,
            sample_bytes=settings.amounts.sample_bytes,
        )
        chunks = self._located()
        following = next(chunks, None)
        while following is not None:
            group, size = [following], len(following.rows)
            while (following := next(chunks, None)) is not None and size + len(following.rows) <= reader.next_samples:
                group.append(following)
                size += len(following.rows)
            yield from self._read_together(reader, group)

    def _read_together(self, reader: ShardByShard, group: Sequence[Chunk]) -> Iterator[Chunk]:
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

    def _located(self) -> Iterator[Chunk]:
        count, in_groups = len(self._pool.index), self._worker_takes_groups
        return located_chunks(self._run, count, self._chunk, self._worker, self._skip, in_groups=in_groups)
