"""Turns a plan of positions into batches: locates, fetches ahead, reads and transforms samples, in order."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.recorder import Stage, begin_span, end_span
from stoker.errors import CacheError, SampleError, StateError, StokerError, StorageError
from stoker.formats.mds.encodings.images import last_left
from stoker.formats.unstacked import copied
from stoker.order.sample_order import Run
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.by_shard import ShardByShard
from stoker.pipeline.chunks.chunk_reader import ChunkReader
from stoker.pipeline.chunks.located import Chunk, cut_chunk, located_chunks
from stoker.pipeline.execution.executor import Executor
from stoker.pipeline.execution.runner import InThreads, InTurn, Runner
from stoker.pipeline.good_samples import GoodSamples, ImageNotLoadedError, loaded_image
from stoker.pipeline.joins.ahead import OthersAhead
from stoker.pipeline.ranks.outer_plan import OuterRun
from stoker.pipeline.transforms import EpochReaderSettings, Override
from stoker.policy import FIRST_MOST_SHARDS, FIRST_SAMPLES, FIRST_SAMPLES_OF_FEW_SHARDS, FIRST_SHARDS, MADE_AT_ONCE
from stoker.reading.apply_chain import LEFT_OUT
from stoker.reading.bad_samples import BadSampleSink, is_of_sample
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch

if TYPE_CHECKING:  # most iterations need neither
    from stoker.pipeline.execution.chunk_process import ChunkTask, MakeRun, ReadMethod
    from stoker.pipeline.tuning.tuner import TunedRun, Tuner

_T = TypeVar("_T")

# After it, this many times as much is located as is delivered, until the whole lookahead is located.
_GROWTH = 4

_UNKNOWN: Final = object()
"""Stands for nothing that was seen yet. (The pipeline itself would keep itself, and so all that a dataset has open.)"""


class Pipeline:
    """The samples of one run, read by one process: located, fetched ahead, read, transformed, in order.

    Args:
        pool: the dataset's open shards.
        run: the rank's batches, and where their samples lie.
        settings: see :class:`~stoker.pipeline.transforms.EpochReaderSettings`.
        worker: the DataLoader worker that reads; it takes every ``worker.count``-th batch.
        skip: batches of this worker to leave out at the beginning.
        executor: chooses what executes its chunks.
        run_again: makes ``run`` again in a process, where samples may replace others.
        log: lists bad samples; ``None`` where they are errors.
        epoch: number of the epoch, for the random numbers of a chain.
        one_by_one: whether samples are made as they are asked for.
        as_columns: whether batches are asked for, and not samples.
        override: changes samples as they are asked for, given their ids.
        tuner: chooses threads, steps ahead, lookahead and downloads while an iteration runs; ``None``: they stay.
        tune_threads: whether it may choose how many threads there are.

    Attributes:
        runner: executes the chunks while an iteration runs; ``None`` before and after.
    """

    def __init__(
        self,
        pool: ShardPool,
        run: Run | OuterRun,
        settings: EpochReaderSettings,
        worker: LoaderWorker,
        skip: int = 0,
        *,
        executor: Executor,
        run_again: MakeRun | None = None,
        log: BadSampleSink | None = None,
        epoch: int = 0,
        one_by_one: bool = False,
        as_columns: bool = False,
        override: Override | None = None,
        tuner: Tuner | None = None,
        tune_threads: bool = False,
    ) -> None:
        self._pool, self._run = pool, run
        self._settings = settings
        self._worker = worker
        self._skip, self._log = skip, log
        self.runner: Runner[Any] | None = None
        batch_size = run.plan.batch_size
        # A method of a subclass runs in the consumer's thread.
        alone = override is not None and settings.bad_samples is not None
        self._threads = 0 if alone else settings.read_threads or 0
        self._executor, self._epoch, self._as_columns = executor, epoch, as_columns
        self._run_again = run_again
        self._ahead = bool(self._threads) or settings.run_in != "threads"
        self._lookahead = settings.amounts.lookahead(batch_size)
        self._chunk = settings.amounts.chunk(batch_size, one_by_one=one_by_one and not settings.takes_chunks)
        self._tuner = None if settings.by_shard else tuner
        self._tunes_threads = tune_threads and not alone and settings.run_in != "processes"
        # Functions that run in the consumer's thread may draw from generators of it: the same numbers in each run.
        self._cuts = bool(self._ahead or self._tunes_threads or not (settings.calls_functions or override))
        if self._tuner is not None and self._cuts:
            self._chunk = min(self._chunk, self._tuner.most_chunk(settings.amounts, worker))
        if settings.run_in != "threads":
            self._chunk = min(self._chunk, MADE_AT_ONCE)
        self._chunk_bytes = max(self._chunk, batch_size) * settings.amounts.sample_bytes
        self._worker_takes_groups = False
        self._reader = ChunkReader(pool, run, settings, epoch, as_columns=as_columns, override=override)
        self._others = OthersAhead(
            self._reader.sample_reader, settings.amounts.sharers, read_here=settings.run_in == "threads"
        )
        if self._reader.one_batch:
            self._chunk = 1  # one batch is read at a time
        # What stood for the image that was left to load last when a chunk was begun; of none, this.
        self._last_left: object = _UNKNOWN
        self._is_full = False
        # Samples that were delivered since bad ones were told last.
        self._untold = 0

    def sample_runs(self) -> Iterator[SampleRun]:
        """The samples in order, transformed; :data:`~stoker.pipeline.good_samples.LEFT_OUT` for each that is left out."""
        reader = self._reader
        if reader.good is None:
            if not self._ahead:
                return map(itemgetter(1), self._chunks(reader.sample_run))
            return (reader.overridden(chunk, SampleRun.of(made)) for chunk, made in self._chunks(reader.samples))
        if self._ahead:
            return map(self._told_run, self._chunks(reader.good_samples))
        return self._recoverable()

    def batches(self) -> Iterator[Batch]:
        """The batches in order, as columns. With a transform its results are stacked into columns again."""
        return chain.from_iterable(self.batch_lists())

    def batch_lists(self) -> Iterator[list[Batch]]:
        """The same batches, in lists of those that are read in one step."""
        return map(BatchGroup.batches, self._groups())

    def _groups(self) -> Iterator[BatchGroup]:
        if self._reader.good is None:
            return map(itemgetter(1), self._chunks(self._reader.group))
        return map(self._told_group, self._chunks(self._reader.good_batch))

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

    # -- with bad samples --------------------------------------------------------------------------------------------

    def _tell(self, chunk: Chunk, bad: Iterable[tuple[int, SampleError]]) -> None:
        """Count and list the bad samples of a chunk that is delivered now."""
        if self._log is not None:
            self._log.enter(self._untold)
            self._log.enter(len(chunk.rows))
            self._untold = 0
            for number, error in bad:
                self._log.note(number, error)

    def _told_run(self, read: tuple[Chunk, list[Any] | GoodSamples]) -> SampleRun:
        chunk, found = read
        if isinstance(found, GoodSamples):
            self._tell(chunk, ())
            return self._run_of(found, 0)
        self._untold += len(found)
        return SampleRun.of(found)

    def _recoverable(self) -> Iterator[SampleRun]:
        """Samples that are made as they are asked for: lists of small ones would cost more than the samples do."""
        for chunk, run in self._chunks(self._begin):
            if self._log is not None:
                self._log.enter(len(chunk.rows))
            yield self._with_recovery(chunk, 0, run)
            del chunk, run

    def _begin(self, chunk: Chunk) -> SampleRun | list[Any] | GoodSamples:
        """The samples of a chunk, made as they are asked for; or all of them, where one is met before that is bad."""
        reader = self._reader
        before, self._last_left = self._last_left, last_left()
        if before is not _UNKNOWN and before is not self._last_left:
            self._pool.has_images = True
        if self._settings.takes_chunks:  # all samples of a chunk are made at once
            return reader.good_samples(chunk)
        if self._settings.bad_samples is None:
            return self._transformed_lazily(chunk)
        chunk, missing = reader.find_others(chunk)
        if missing:
            return reader.good_samples(chunk)
        # They are opened when samples are asked for: after the first chunk it is known whether there are any.
        images = before is _UNKNOWN or self._pool.has_images
        if images and reader.filters:
            return reader.good_samples(chunk)
        try:
            run = self._transformed_lazily(chunk)
            # One at a time: a whole chunk of pictures would leave the processor's cache before it is delivered.
            return replace(run, samples=map(loaded_image, run.samples)) if images else run
        except Exception as error:
            if not is_of_sample(error):
                raise
        return reader.good_samples(chunk)

    def _transformed_lazily(self, chunk: Chunk) -> SampleRun:
        reader = self._reader
        run = reader.sample_run(chunk)
        if not reader.filters:
            return run
        assert reader.good is not None
        return replace(run, samples=reader.good.settled(chunk.positions, run.samples), gaps=True)

    def _run_of(self, found: GoodSamples, first: int) -> SampleRun:
        """Samples that were made together, which are the ``first`` of their chunk and those after it."""
        run = SampleRun.of(found.values, gaps=self._reader.filters or len(found.kept) < len(found.values))
        return replace(run, samples=self._noted(run.samples, found.bad, first)) if found.bad else run

    def _noted(self, samples: Iterator[Any], bad: Iterable[tuple[int, SampleError]], first: int) -> Iterator[Any]:
        """The samples, where each bad one is counted and listed when its place is reached."""
        assert self._log is not None
        reached = 0
        for number, error in bad:
            yield from islice(samples, number - reached)
            for stands in islice(samples, 1):  # there is none where the iteration was superseded
                self._log.note(first + number, error)
                yield stands
            reached = number + 1
        yield from samples

    def _with_recovery(self, chunk: Chunk, first: int, run: SampleRun | list[Any] | GoodSamples) -> SampleRun:
        """The samples of a chunk from the ``first`` on."""
        if isinstance(run, SampleRun):
            if self._log is None:
                return run
            return SampleRun(run.samples, run.remaining, run.gaps, partial(self._recover, chunk))
        return self._run_of(run, first) if isinstance(run, GoodSamples) else SampleRun.of(run)

    def _recover(self, chunk: Chunk, run: SampleRun, error: Exception) -> SampleRun:
        good = self._reader.good
        assert good is not None
        assert self._log is not None
        if not is_of_sample(error):
            raise error
        number = len(chunk.rows) - operator.length_hint(run.remaining) - 1
        position, shard, row = (int(values[number]) for values in (chunk.positions, chunk.shards, chunk.rows))
        if isinstance(error, ImageNotLoadedError):
            named = good.named(shard, row, error.error)
        else:
            named = good.named(shard, row, error, made=True)
        self._log.note(number, named)
        stands = good.instead(position, named)
        rest = slice(number + 1, None)
        left = replace(
            chunk,
            positions=chunk.positions[rest],
            shards=chunk.shards[rest],
            rows=chunk.rows[rest],
            values=None if chunk.values is None else chunk.values[rest],
            others=None,
        )
        after = SampleRun.of([]) if not len(left.rows) else self._with_recovery(chunk, rest.start, self._begin(left))
        return replace(
            after, samples=chain([stands], after.samples), gaps=self._reader.filters or after.gaps or stands is LEFT_OUT
        )

    def _told_group(self, read: tuple[Chunk, BatchGroup | GoodSamples]) -> BatchGroup:
        chunk, good = read
        if not isinstance(good, GoodSamples):
            self._untold += len(chunk.rows)
            return good
        self._tell(chunk, good.bad)
        return BatchGroup(good.values, self._reader.good_lengths(chunk, good))

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _chunks(self, read: Callable[[Chunk], _T]) -> Iterator[tuple[Chunk, _T]]:
        """All chunks in order with what ``read`` makes of each, in this thread or in others ahead of the consumer."""
        counts = self._pool.counts
        needed: dict[int, int] = {}
        # One chunk is delivered while the next one is read.
        self._pool.expect(needed.keys(), 2 * self._chunk_bytes)
        execute = partial(self._counted, read)
        tuned = self._begin_tuning()
        runner: Runner[_T]
        if self._settings.run_in != "threads":
            task = partial(self._task, cast("ReadMethod", read.__name__))
            runner = self._executor.runner(execute, self._settings.run_in, self._threads, task, self._run_again)
        elif self._threads or (tuned is not None and self._tunes_threads):
            runner = InThreads(execute, self._threads if tuned is None else tuned.threads)
        else:
            runner = InTurn(execute)
        self.runner = runner
        if tuned is not None:
            tuned.runner = runner
            self._tune(tuned, runner)
        running: deque[tuple[Chunk, Callable[[], _T]]] = deque()
        try:
            whole = read in (self._reader.group, self._reader.good_batch) and self._reader.stored
            ready = self._read_by_shard(whole) if self._settings.by_shard else self._fetched_ahead(needed)
            # Groups of workers stay whole, as all of them cut all batches alike.
            if tuned is not None and self._cuts and not (self._worker_takes_groups or self._others.active):
                ready = self._cut(ready, needed, tuned)
            for chunk in chain(ready, repeat(None)):
                if chunk is not None:
                    running.append((chunk, runner.submit(chunk)))
                elif not running:
                    break
                while running and (chunk is None or len(running) > runner.ahead):
                    done, take = running.popleft()
                    begun = time.perf_counter_ns()
                    found = take()
                    waited = time.perf_counter_ns() - begun
                    counts.waited(waited)
                    if tuned is not None and tuned.took(len(done.rows), waited, found, full=self._is_full):
                        self._tune(tuned, runner)
                    yield done, found
                    del found, take  # frees their memory for the next chunk
                    # Shards that no chunk ahead needs may be closed.
                    for shard in done.distinct:
                        needed[shard] -= 1
                        if not needed[shard]:
                            del needed[shard]
                            self._pool.done_with(shard)
                            runner.done_with(shard)
                    self._others.done(done.others)
        finally:
            self.runner = None
            if tuned is not None:
                tuned.end()
                self._executor.tuned = tuned.processes
            runner.close()
            self._others.close()
            self._pool.expect(())

    def _cut(self, chunks: Iterator[Chunk], needed: dict[int, int], tuned: TunedRun) -> Iterator[Chunk]:
        """The chunks, those in parts that would take long to read or to be consumed."""
        for chunk in chunks:
            if len(chunk.rows) <= tuned.step_samples or len(chunk.lengths) == 1:
                yield chunk
                continue
            parts = cut_chunk(chunk, tuned.step_samples, len(self._pool.index))
            for shard in chain.from_iterable(part.distinct for part in parts):
                needed[shard] += 1
            for shard in chunk.distinct:
                needed[shard] -= 1
            yield from parts

    def _begin_tuning(self) -> TunedRun | None:
        if self._tuner is None:
            return None
        settings, worker = self._settings, self._worker
        processes = self._executor.first_processes if settings.run_in != "threads" else 0
        tuned = self._tuner.begin(
            settings.amounts,
            batch_size=self._run.plan.batch_size,
            chunk_bytes=self._chunk_bytes,
            threads=self._threads if settings.run_in != "processes" else 0,
            tune_threads=self._tunes_threads,
            processes=processes,
            # More processes would keep more shards of a limited cache open than was reckoned with.
            tune_processes=bool(processes) and settings.read_processes is None and settings.amounts.limit is None,
            worker=worker,
        )
        self._executor.tuned = tuned.processes
        return tuned

    def _tune(self, tuned: TunedRun, runner: Runner[_T]) -> None:
        self._lookahead = tuned.lookahead
        runner.keep_ready(tuned.chunks_ahead)
        workers = tuned.processes if runner.in_processes else tuned.threads
        if runner.workers != workers and not runner.changing:
            runner.resize(workers)

    def _task(self, method: ReadMethod) -> ChunkTask:
        """The work of a process that reads chunks."""
        return self._executor.task(self._settings, self._epoch, method, as_columns=self._as_columns)

    def _counted(self, read: Callable[[Chunk], _T], chunk: Chunk) -> _T:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return read(chunk)

    def _fetched_ahead(self, needed: dict[int, int]) -> Iterator[Chunk]:
        """Chunks in order, while shards of the next ones are fetched; ``needed`` counts the chunks that need each."""
        most_shards = self._settings.amounts.most_shards
        window: deque[Chunk] = deque()
        ahead, allowed, allowed_shards = 0, FIRST_SAMPLES, FIRST_MOST_SHARDS

        def enough() -> bool:
            if ahead > self._lookahead or len(needed) > min(most_shards, allowed_shards):
                return True
            return ahead > allowed and (len(needed) >= FIRST_SHARDS or ahead > FIRST_SAMPLES_OF_FEW_SHARDS)

        for chunk in self._located():
            window.append(chunk)
            ahead += len(chunk.rows)
            for shard in chunk.distinct:
                needed[shard] = needed.get(shard, 0) + 1
            while len(window) > 1 and enough():
                self._is_full = ahead > self._lookahead
                full = begin_span() if self._is_full or len(needed) > most_shards else 0
                first = window.popleft()
                ahead -= len(first.rows)
                allowed += (_GROWTH - 1) * len(first.rows)
                allowed_shards += (_GROWTH - 1) * len(first.distinct)
                yield first
                end_span(Stage.LOOKAHEAD, full, ahead)
            self._pool.prefetch(chunk.distinct, small_files=self.runner is None or self.runner.reads_here)
            if self._others.active:
                window[-1] = replace(chunk, others=self._others.begin(chunk.shards, chunk.rows))
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
                part = {name: copied(one, here) for name, one in values.items()}
                yield replace(chunk, distinct=(), values=part)

    def _located(self) -> Iterator[Chunk]:
        count, in_groups = len(self._pool.index), self._worker_takes_groups
        return located_chunks(self._run, count, self._chunk, self._worker, self._skip, in_groups=in_groups)
