"""Samples by shard and row, for loaders that deliver them one by one or in batches: from shards, or from arrays in memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.spans.recorder import recorder
from stoker.errors import ConfigError, SampleError
from stoker.order.sample_order import Run
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.chunks.work import ChunkWork
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.execution.executor import Execution
from stoker.pipeline.execution.runner import Runner
from stoker.pipeline.iteration_checks import check_positions
from stoker.pipeline.pipeline import Pipeline
from stoker.pipeline.stages.build import make_work
from stoker.pipeline.stats.trace import note_dataset
from stoker.policy import CHUNKS_OF_PROCESS
from stoker.reading.bad_samples import BadSampleLog, BadSampleNotes, BadSamples
from stoker.reading.chain import as_chain
from stoker.reading.samples import distinct_shards
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids

if TYPE_CHECKING:
    from stoker.pipeline.execution.chunk_process import MakeRun

_Label = TypeVar("_Label")
_Made = TypeVar("_Made")


def in_order(shards: Ids) -> list[int]:
    """The different shards, in the order in which they first come."""
    numbers, first = np.unique(shards, return_index=True)
    found: list[int] = numbers[np.argsort(first)].tolist()
    return found


class EpochRun(NamedTuple):
    """The part of an epoch that is read.

    Attributes:
        run: where the samples lie.
        epoch: its number, for random numbers.
        again: makes the run in another process.
    """

    run: Run
    epoch: int
    again: MakeRun


class ReadPart(NamedTuple):
    """Samples of places that follow each other in a run.

    Attributes:
        values: a list of something for each place: a sample, :class:`~stoker.reading.steps.SeveralSamples`, or
            :data:`~stoker.reading.steps.LEFT_OUT` where nothing comes; or columns of the samples that come.
        places: how many places.
        bad: number of each bad one among the places, rising, and its error.
    """

    values: Any
    places: int
    bad: Sequence[tuple[int, SampleError]] = ()


class SampleSource(ABC):
    """Gives samples by shard and row.

    Attributes:
        counts: the counts of what was read.
        table: where the ids of each shard begin.
        bad_samples: what becomes of bad samples; ``None``: they are errors.
        takes_batch: the step by which only batches can be delivered; empty: there is none.
        leaves_out: the setting by which a batch may have fewer or more samples than places; empty: there is none.
        instead_of_leaving_out: the setting that leaves batches as long as they are, as a part of a list in a message; empty:
            there is none.
    """

    counts: Counts
    table: ShardTable
    bad_samples: BadSamples | None
    takes_batch: str = ""
    leaves_out: str = ""
    instead_of_leaving_out: str = ""

    @abstractmethod
    def bad_sample_log(self) -> BadSampleLog | None:
        """Counts and lists the bad samples of an epoch; ``None`` where they are errors."""

    @abstractmethod
    def reader(self, of: EpochRun, *, batched: bool) -> Callable[[Chunk], Chunk]:
        """A function that reads chunks of a run, each one batch, in the thread that calls it: their columns, or an entry for
        each place, as :class:`ReadPart` has them.
        """

    @abstractmethod
    def chunks(self, of: EpochRun, skip: int, most: int) -> Iterator[ReadPart]:
        """All samples of a run but the first ``skip``, in lists of ``most`` or fewer."""

    @abstractmethod
    def batches(self, of: EpochRun) -> Iterator[ReadPart]:
        """All batches of a run."""

    def read_ahead(self, of: EpochRun, *, batched: bool, most: int | None) -> ChunksAhead | None:  # noqa: ARG002
        """Processes that read samples of a run at any places, where these are asked for; ``None``: they are read here.

        ``of``: the run. ``batched``: whether columns are asked for, and not samples. ``most``: chunks that may be read ahead;
        ``None``: as many as there are processes for.
        """
        return None

    @property
    def execution(self) -> Execution | None:
        """The choice of what runs the functions of samples; ``None``: the thread that reads ahead."""
        return None

    def expect(self, shards: Iterable[int]) -> None:  # noqa: B027 - where all is in memory
        """Begin to fetch shards, and keep them; those that were expected before and are not among these may go."""

    def close(self) -> None:  # noqa: B027
        """Close all files."""


class PoolSource(SampleSource):
    """Samples of shards.

    ``reader``: has opened the shards, and knows how to read them. ``sharers``: processes on this node that read through the
    same cache.
    """

    def __init__(self, reader: EpochReader, sharers: int = 1) -> None:
        self.pool = reader.pool
        self.counts = self.pool.counts
        self.shards = len(self.pool.index)
        self.table = self.pool.index.table
        self._reader = reader
        self._sharers = sharers
        self._settings = reader.settings
        self.bad_samples = reader.settings.bad_samples
        self.takes_batch = as_chain(reader.settings.transform).takes_batch
        self.leaves_out = reader.settings.leaves_out
        self.instead_of_leaving_out = reader.settings.instead_of_leaving_out
        self._amounts = replace(reader.settings.amounts, sharers=sharers)
        self.pool.share(sharers)
        self._expected: dict[int, None] = {}

    @property
    def execution(self) -> Execution | None:
        """See :class:`SampleSource`."""
        return self._reader.executor.execution

    def bad_sample_log(self) -> BadSampleLog | None:
        return self._reader.bad_sample_log()

    def reader(self, of: EpochRun, *, batched: bool) -> Callable[[Chunk], Chunk]:
        check_positions(self._settings.steps, of.run)
        return partial(self._read, make_work(self.pool, of.run, self._settings, of.epoch, as_columns=batched))

    def _read(self, work: ChunkWork, chunk: Chunk) -> Chunk:
        begun = time.perf_counter_ns()
        with self.pool.counted(chunk.shards, distinct_shards(chunk.shards, self.shards)):
            found = work(chunk)
        self.counts.waited(time.perf_counter_ns() - begun)
        return found

    def read_ahead(self, of: EpochRun, *, batched: bool, most: int | None) -> ChunksAhead | None:
        """See :class:`SampleSource`."""
        check_positions(self._settings.steps, of.run)
        if recorder() is not None:
            note_dataset(self.pool, self._settings, ahead=False, by_sample=False)
        executor, worker = self._reader.executor, LoaderWorker.detect()
        threads, asked = self.pool.options.read_threads or 0, self.pool.options.run_in
        run_in = "threads" if asked == "threads" else executor.plan(worker, threads)
        if run_in == "threads":
            return None

        settings = replace(self._settings, amounts=self._amounts)
        work = make_work(self.pool, of.run, settings, of.epoch, as_columns=batched)
        self.pool.share(self._sharers, executor.processes)
        for other in self._reader.others:
            other.share(self._sharers, executor.processes)
        runner: Runner[Any] = executor.runner(
            partial(self._read_chunk, work),
            run_in,
            threads,
            partial(executor.task, settings, of.epoch, as_columns=batched),
            of.again,
        )
        useful = max(CHUNKS_OF_PROCESS * executor.processes, threads + 1)
        return ChunksAhead(self.pool, runner, useful if most is None else min(useful, most))

    def _read_chunk(self, work: ChunkWork, chunk: Chunk) -> Chunk:
        with self.pool.counted(chunk.shards, chunk.distinct):
            return work(chunk)

    def chunks(self, of: EpochRun, skip: int, most: int) -> Iterator[ReadPart]:
        notes = BadSampleNotes()
        done = 0
        pipeline = self._pipeline(of, notes, one_by_one=True)
        for part in pipeline.sample_runs():
            while found := list(islice(part.samples, most)):
                first, done = max(done, skip), done + len(found)
                bad = notes.take(first, done) if notes.waiting else ()
                if first < done:
                    yield ReadPart(found[first - done :], done - first, bad)

    def batches(self, of: EpochRun) -> Iterator[ReadPart]:
        notes = BadSampleNotes()
        done = 0
        for batch, places in self._pipeline(of, notes, one_by_one=False).placed_batches():
            done += places
            yield ReadPart(batch, places, notes.take(done - places, done) if notes.waiting else ())

    def expect(self, shards: Iterable[int]) -> None:
        before, self._expected = self._expected, dict.fromkeys(shards)
        self.pool.expect(self._expected.keys() or ())
        for shard in before:
            if shard not in self._expected:
                self.pool.done_with(shard)
        self.pool.prefetch(list(self._expected)[: self._amounts.most_shards])

    def close(self) -> None:
        self.pool.close()

    def _pipeline(self, of: EpochRun, notes: BadSampleNotes, *, one_by_one: bool) -> Pipeline:
        worker = LoaderWorker.detect()
        if worker.token is not None:
            raise ConfigError(
                "a StreamingShardLoader reads in its own process: do not iterate over it in DataLoader workers"
            )
        threads = self.pool.options.read_threads or 0
        run_in = self._reader.executor.plan(worker, threads)
        return self._reader.pipeline(
            of.run,
            worker,
            sharers=self._sharers,
            epoch=of.epoch,
            run_in=run_in,
            threads=threads,
            one_by_one=one_by_one and not threads and run_in == "threads",
            as_columns=not one_by_one,
            run_again=of.again,
            notes=None if self.bad_samples is None else notes,
            tune_threads=not one_by_one,
        )


class ChunksAhead:
    """Has samples read by a runner, in order.

    ``pool``: the dataset's open shards, which this process fetches. ``runner``: executes chunks. ``most``: chunks that may be
    read ahead of the one whose result is taken.

    ``most``: as given, or fewer where the runner needs no more.
    """

    def __init__(self, pool: ShardPool, runner: Runner[Chunk], most: int) -> None:
        self._pool, self._runner = pool, runner
        self.most = most
        self._needed: Counter[int] = Counter()

    def read(self, chunks: Iterable[tuple[_Label, Chunk]], made: Callable[[_Label, Chunk], _Made]) -> Iterator[_Made]:
        """The results for chunks that are not empty, in order.

        ``chunks``: each with a label; taken as samples are delivered, no more than ``most`` ahead of these. ``made``: called
        with the label and what was made of the chunk.
        """
        running: deque[tuple[_Label, Chunk, Callable[[], Chunk]]] = deque()
        try:
            for one in chain(chunks, repeat(None)):
                if one is not None:
                    label, chunk = one
                    different = distinct_shards(chunk.shards, len(self._pool.index))
                    chunk = replace(chunk, distinct=tuple(different))
                    self._needed.update(chunk.distinct)
                    running.append((label, chunk, self._runner.submit(chunk)))
                elif not running:
                    return
                while running and (one is None or len(running) > min(self.most, self._runner.ahead)):
                    label, chunk, take = running.popleft()
                    begun = time.perf_counter_ns()
                    found = take()
                    self._pool.counts.waited(time.perf_counter_ns() - begun)
                    yield made(label, found)
                    del found, take  # frees their memory for the next chunk
                    self._done(chunk)
        finally:
            for _, chunk, _ in running:
                self._done(chunk)

    def close(self) -> None:
        """End what reads: what was not delivered is dropped."""
        self._runner.close()

    def _done(self, chunk: Chunk) -> None:
        """Let go of shards that no chunk ahead needs; those that this process fetches for later ones stay."""
        for shard in chunk.distinct:
            self._needed[shard] -= 1
            if not self._needed[shard]:
                del self._needed[shard]
                self._runner.done_with(shard)
