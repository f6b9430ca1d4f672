"""Turns a plan of positions into batches: locates, fetches ahead, reads and transforms samples, in order."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.recorder import Stage, begin_span, end_span
from stoker.errors import StateError
from stoker.formats.mds.encodings.images import last_left
from stoker.order.sample_order import Batches, Run
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.chunk import Chunk, cut_chunk, located_chunks
from stoker.pipeline.chunks.settle import Settle
from stoker.pipeline.execution.executor import Executor
from stoker.pipeline.execution.runner import InThreads, Runner
from stoker.pipeline.stages.build import make_work
from stoker.pipeline.transforms import EpochReaderSettings, Override
from stoker.policy import FIRST_MOST_SHARDS, FIRST_SAMPLES, FIRST_SAMPLES_OF_FEW_SHARDS, FIRST_SHARDS
from stoker.reading.bad_samples import BadSampleSink, is_of_sample
from stoker.reading.row_reader import RowReader
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch

if TYPE_CHECKING:  # most iterations need none of it
    from stoker.pipeline.execution.chunk_process import ChunkTask, MakeRun
    from stoker.pipeline.joins.leading import JoinPrefetch
    from stoker.pipeline.tuning.tuned_run import TunedRun
    from stoker.pipeline.tuning.tuner import Tuner

_T = TypeVar("_T")

_NEVER: Final = sys.maxsize
"""A time (``perf_counter_ns``) that does not come."""

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
        batches: the run's as a wrapper asks for them; ``None``: as the run has them.
        executor: chooses what executes its chunks.
        run_again: makes ``run`` again in a process, where samples may replace others.
        log: lists bad samples; ``None`` where they are errors.
        epoch: number of the epoch, for the random numbers of a chain.
        one_by_one: whether samples are made as they are asked for.
        as_columns: whether batches are asked for, and not samples.
        override: changes samples as they are asked for, given their ids.
        tuner: chooses threads, steps ahead, lookahead and downloads while an iteration runs; ``None``: they stay.
        tune_threads: whether it may choose how many threads there are, if what they run allows it.

    ``runner``: executes the chunks while an iteration runs; ``None`` before and after.
    """

    def __init__(
        self,
        pool: ShardPool,
        run: Run,
        settings: EpochReaderSettings,
        worker: LoaderWorker,
        skip: int = 0,
        *,
        batches: Batches | None = None,
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
        self._pool, self._order = pool, run.order
        self._batches = run.plan if batches is None else batches
        self._settings = settings
        self._worker = worker
        self._skip = skip
        self.runner: Runner[Any] | None = None
        batch_size = self._batches.batch_size
        # A method of a subclass runs in the consumer's thread.
        alone = override is not None and (as_columns or settings.bad_samples is not None)
        self._threads = 0 if alone else settings.read_threads
        self._executor, self._epoch, self._as_columns = executor, epoch, as_columns
        self._run_again = run_again
        self._ahead = bool(self._threads) or settings.run_in != "threads"
        self._lookahead = settings.amounts.lookahead(batch_size)
        # A method of a subclass finds bad samples where it is a stage; otherwise samples come to it one by one.
        self._work = make_work(pool, run, settings, epoch, as_columns=as_columns, override=override if alone else None)
        self._settle = Settle(self._work, log, None if alone else override, pool.counts)
        self._one_by_one = one_by_one and self._work.lazily is not None
        self._chunk = settings.amounts.chunk(batch_size, one_by_one=self._one_by_one)
        self._tuner = None if settings.by_shard else tuner
        self._step_samples = sys.maxsize
        self._tunes_threads = tune_threads and not alone and settings.run_in != "processes"
        # Functions that run in the consumer's thread may draw from generators of it: the same numbers in each run.
        self._cuts = self._ahead or not (settings.calls_functions or override)
        # Of files of this machine that this thread reads as columns, no more than one step is in memory.
        one_step = settings.amounts.near and not (self._ahead or self._one_by_one) and pool.options.tune_memory is None
        if self._tuner is not None and self._cuts and not one_step:
            self._chunk = min(self._chunk, self._tuner.most_chunk(settings.amounts, worker))
        if settings.run_in != "threads" or (one_by_one and not self._one_by_one):
            calls = settings.calls_functions or override is not None
            self._chunk = min(self._chunk, settings.amounts.made_at_once(calls_functions=calls))
        self._chunk_bytes = max(self._chunk, batch_size) * settings.amounts.sample_bytes
        self._worker_takes_groups = False
        self._others: JoinPrefetch | None = None
        if self._work.leading is not None:
            from stoker.pipeline.joins.leading import join_prefetch

            self._others = join_prefetch(
                self._work.leading, settings.amounts.sharers, read_here=settings.run_in == "threads"
            )
        if self._work.one_batch:
            self._chunk = 1  # one batch is read at a time
        self._is_full = False

    def sample_runs(self, *, present: bool = False) -> Iterator[SampleRun]:
        """The samples in order; :data:`~stoker.reading.steps.LEFT_OUT` for each that is left out.

        With ``present`` nothing stands for these, but in runs with gaps.
        """
        if self._one_by_one:
            return map(partial(self._settle.lazily, present=present), self._chunks(self._iterate))
        return map(self._settle.samples, self._chunks(self._work))

    def _iterate(self, chunk: Chunk) -> SampleRun | Chunk:
        """The samples of a chunk, each made when it is asked for; all at once where one of them must be bad, or may."""
        work = self._work
        assert work.lazily is not None
        try:
            if work.strict or last_left() is None:
                run = work.lazily(chunk)
                if run is not None:
                    return run
        except Exception as error:
            if work.strict or not is_of_sample(error):
                raise
        return work(chunk)

    def batches(self) -> Iterator[Batch]:
        """The batches in order, as columns. With a transform its results are stacked into columns again."""
        return chain.from_iterable(self.batch_lists())

    def batch_lists(self) -> Iterator[list[Batch]]:
        """The same batches, in lists of those that are read in one step."""
        return map(BatchGroup.batches, map(self._settle.group, self._chunks(self._work)))

    def placed_batches(self) -> Iterator[tuple[Batch, int]]:
        """The same batches, each with the number of its places."""
        return chain.from_iterable(map(self._placed, self._chunks(self._work)))

    def _placed(self, read: tuple[Chunk, Chunk]) -> list[tuple[Batch, int]]:
        return list(zip(self._settle.group(read).batches(), read[0].lengths, strict=True))

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
        return map(self._settle.group, self._chunks(self._work))

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _chunks(self, read: Callable[[Chunk], _T]) -> Iterator[tuple[Chunk, _T]]:
        """All chunks in order with what ``read`` makes of each, in this thread or in others ahead of the consumer."""
        counts = self._pool.counts
        needed: dict[int, int] = {}
        # One chunk is delivered while the next one is read.
        self._pool.expect(needed.keys(), 2 * self._chunk_bytes)
        execute = partial(self._hold_and_read, read)
        tuner, tuned, due = self._tuner, None, _NEVER
        if tuner is not None:
            if tuner.sleeps(self._settings.amounts, ahead=self._ahead):
                due = tuner.due
            else:
                tuned = self._begin_tuning(tuner)
        runner: Runner[_T]
        if self._settings.run_in != "threads":
            runner = self._executor.runner(execute, self._settings.run_in, self._threads, self._task, self._run_again)
        else:
            runner = InThreads(execute, self._threads if tuned is None else tuned.threads)
        self.runner = runner
        if tuned is not None:
            self._tune(tuned, runner)
            due = tuned.due
        running: deque[tuple[Chunk, Callable[[], _T]]] = deque()
        try:
            located = located_chunks(
                self._order,
                self._batches,
                len(self._pool.index),
                self._chunk,
                self._worker,
                self._skip,
                in_groups=self._worker_takes_groups,
            )
            ready = self._read_by_shard(located) if self._settings.by_shard else self._fetched_ahead(located, needed)
            # Groups of workers stay whole, as all of them cut all batches alike.
            if tuner is not None and self._cuts and not (self._worker_takes_groups or self._others):
                ready = self._split_long(ready, needed)
            for chunk in chain(ready, repeat(None)):
                if chunk is not None:
                    running.append((chunk, runner.submit(chunk)))
                elif not running:
                    break
                while running and (chunk is None or len(running) > runner.ahead):
                    done, take = running.popleft()
                    begun = time.perf_counter_ns()
                    if begun >= due and tuned is not None:
                        tuned.takes()
                    found = take()
                    now = time.perf_counter_ns()
                    waited = now - begun
                    counts.waited(waited)
                    if now >= due:
                        if tuned is not None:
                            if tuned.took(len(done.rows), waited, found, full=self._is_full):
                                self._tune(tuned, runner)
                            due, self._step_samples = tuned.due, tuned.step_samples
                        elif tuner is not None:
                            if tuner.wakes():
                                tuned = self._begin_tuning(tuner)
                                self._tune(tuned, runner)
                            due = tuner.due if tuned is None else tuned.due
                    elif tuned is not None:
                        tuned.samples += len(done.rows)
                        tuned.waited += waited
                        tuned.last = now
                    yield done, found
                    del found, take  # frees their memory for the next chunk
                    # Shards that no chunk ahead needs may be closed.
                    for shard in done.distinct:
                        needed[shard] -= 1
                        if not needed[shard]:
                            del needed[shard]
                            self._pool.done_with(shard)
                            runner.done_with(shard)
                    if done.others is not None and self._others is not None:
                        self._others.done(done.others)
        finally:
            self.runner = None
            if tuned is not None:
                tuned.end()
                self._executor.tuned = tuned.processes
            runner.close()
            if self._others is not None:
                self._others.close()
            self._pool.expect(())

    def _split_long(self, chunks: Iterator[Chunk], needed: dict[int, int]) -> Iterator[Chunk]:
        """The chunks, those in parts that would take long to read or to be consumed."""
        for chunk in chunks:
            if len(chunk.rows) <= self._step_samples or len(chunk.lengths) == 1:
                yield chunk
                continue
            parts = cut_chunk(chunk, self._step_samples, len(self._pool.index))
            for shard in chain.from_iterable(part.distinct for part in parts):
                needed[shard] += 1
            for shard in chunk.distinct:
                needed[shard] -= 1
            yield from parts

    def _begin_tuning(self, tuner: Tuner) -> TunedRun:
        settings, worker = self._settings, self._worker
        processes = self._executor.first_processes if settings.run_in != "threads" else 0
        tuned = tuner.begin(
            settings.amounts,
            batch_size=self._batches.batch_size,
            chunk_bytes=self._chunk_bytes,
            threads=self._threads if settings.run_in != "processes" else 0,
            tune_threads=self._tunes_threads and self._executor.may_tune_threads(self._threads),
            processes=processes,
            # More processes would keep more shards of a limited cache open than was reckoned with.
            tune_processes=bool(processes) and not self._pool.options.read_processes and settings.amounts.limit is None,
            worker=worker,
        )
        self._executor.tuned = tuned.processes
        return tuned

    def _tune(self, tuned: TunedRun, runner: Runner[_T]) -> None:
        tuned.runner = runner
        self._lookahead, self._step_samples = tuned.lookahead, tuned.step_samples
        runner.keep_ready(tuned.chunks_ahead)
        workers = tuned.processes if runner.in_processes else tuned.threads
        if runner.workers != workers and not runner.changing:
            runner.resize(workers)
        self._executor.resized(runner.workers)

    def _task(self) -> ChunkTask:
        """The work of a process that reads chunks."""
        return self._executor.task(self._settings, self._epoch, as_columns=self._as_columns)

    def _hold_and_read(self, read: Callable[[Chunk], _T], chunk: Chunk) -> _T:
        with self._pool.counted(chunk.shards, chunk.distinct):
            return read(chunk)

    def _fetched_ahead(self, located: Iterator[Chunk], needed: dict[int, int]) -> Iterator[Chunk]:
        """The chunks, while shards of the next ones are fetched; ``needed`` counts the chunks that need each."""
        most_shards = self._settings.amounts.most_shards
        window: deque[Chunk] = deque()
        ahead, allowed, allowed_shards = 0, FIRST_SAMPLES, FIRST_MOST_SHARDS

        def enough() -> bool:
            if ahead > self._lookahead or len(needed) > min(most_shards, allowed_shards):
                return True
            return ahead > allowed and (len(needed) >= FIRST_SHARDS or ahead > FIRST_SAMPLES_OF_FEW_SHARDS)

        for chunk in located:
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
            if self._others is not None:
                window[-1] = replace(chunk, others=self._others.begin(chunk.shards, chunk.rows))
        while window:
            yield window.popleft()

    def _read_by_shard(self, located: Iterator[Chunk]) -> Iterator[Chunk]:
        """The chunks, read already: many together, shard by shard."""
        from stoker.pipeline.chunks.by_shard import ShardByShard, read_chunks

        amounts = self._settings.amounts
        assert isinstance(self._work.rows, RowReader)
        reader = ShardByShard(
            self._pool,
            self._work.rows.columns,
            whole=self._work.whole,
            most_shards=amounts.most_shards,
            most_bytes=amounts.group_bytes,
            sample_bytes=amounts.sample_bytes,
        )
        return read_chunks(self._pool, reader, located)
