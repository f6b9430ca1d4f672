"""Samples by shard and row, for loaders that deliver them one by one or in batches: from shards, or from arrays in memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.shared.counters import Counts
from stoker.errors import ConfigError, SampleError
from stoker.formats.unstacked import as_batch
from stoker.image.batch_rows import BatchRows
from stoker.order.sample_order import Run
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.chunks.chunk_reader import ChunkReader
from stoker.pipeline.chunks.located import Chunk
from stoker.pipeline.columns import batch_length, stack_samples
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.execution.choice import Execution
from stoker.pipeline.execution.runner import Runner
from stoker.pipeline.joins.sample_steps import make_reader, make_steps
from stoker.pipeline.pipeline import Pipeline
from stoker.pipeline.recovery.good_batch_reader import GoodBatchReader
from stoker.pipeline.recovery.good_sample_reader import GoodSampleReader
from stoker.pipeline.recovery.good_samples import GoodSamples
from stoker.pipeline.stats.loader_settings import note_dataset
from stoker.pipeline.workers.chunks_ahead import ChunksAhead
from stoker.policy import CHUNKS_OF_PROCESS
from stoker.reading.bad_samples import BadSampleLog, BadSampleNotes, BadSamples
from stoker.reading.sample_errors import location_at
from stoker.reading.sample_reader import SampleRows
from stoker.reading.samples import SampleRun, distinct_shards
from stoker.types import Batch, Ids

if TYPE_CHECKING:
    from stoker.pipeline.execution.chunk_process import MakeRun, ReadMethod
    from stoker.pipeline.tuning.decision_log import DecisionLog


def in_order(shards: Ids) -> list[int]:
    """The different shards, in the order in which they first come."""
    numbers, first = np.unique(shards, return_index=True)
    found: list[int] = numbers[np.argsort(first)].tolist()
    return found


class ReadSamples(NamedTuple):
    """Samples of places that follow each other in a run.

    Attributes:
        values: a list of something for each place, :data:`~stoker.reading.apply_chain.LEFT_OUT` where nothing comes; or
            columns of the samples that come.
        places: how many places.
        bad: number of each bad one among the places, rising, and its error.
    """

    values: Any
    places: int
    bad: Sequence[tuple[int, SampleError]] = ()


class GoodReader(Protocol):
    """Reads samples of a run at positions, shards and rows, int64 of shape ``(n,)``, where bad ones are no errors.

    Where none is bad, the samples or columns come alone.
    """

    def samples(self, positions: Ids, shards: Ids, rows: Ids) -> list[Any] | GoodSamples:
        """A list of something for each, :data:`~stoker.reading.apply_chain.LEFT_OUT` where nothing comes."""
        ...

    def batch(self, positions: Ids, shards: Ids, rows: Ids) -> Batch | GoodSamples:
        """Columns of those that come."""
        ...


class SampleSource(ABC):
    """Gives samples by shard and row.

    Attributes:
        counts: the counts of what was read.
        columns: names of the columns.
        shards: number of shards.
        table: where the ids of each shard begin.
        bad_samples: what becomes of bad samples; ``None``: they are errors.
    """

    counts: Counts
    columns: tuple[str, ...]
    shards: int
    table: ShardTable
    bad_samples: BadSamples | None

    @abstractmethod
    def bad_sample_log(self) -> BadSampleLog | None:
        """Counts and lists the bad samples of an epoch; ``None`` where they are errors."""

    @abstractmethod
    def good_reader(self, run: Run) -> GoodReader | None:
        """Reads a run's samples where some are bad; ``None`` where these are errors."""

    @abstractmethod
    def samples(self, shards: Ids, rows: Ids) -> list[Any]:
        """The samples at these shards and rows, transformed; a bad one is an error."""

    @abstractmethod
    def batch(self, shards: Ids, rows: Ids) -> Batch:
        """The same, as columns."""

    @abstractmethod
    def chunks(self, run: Run, again: MakeRun, skip: int, most: int) -> Iterator[ReadSamples]:
        """All samples of a run, which ``again`` makes in another process, but the first ``skip``: in lists of ``most`` or
        fewer."""

    @abstractmethod
    def batches(self, run: Run, again: MakeRun) -> Iterator[ReadSamples]:
        """All batches of a run, which ``again`` makes in another process."""

    def read_ahead(self, run: Run, again: MakeRun, *, batched: bool, most: int | None) -> ChunksAhead | None:  # noqa: ARG002
        """Processes that read samples of a run at any places, where these are asked for; ``None``: they are read here.

        Args:
            run: the run.
            again: makes it in another process.
            batched: whether columns are asked for, and not samples.
            most: chunks that may be read ahead; ``None``: as many as there are processes for.
        """
        return None

    @abstractmethod
    def chunk(self, batch_size: int) -> int:
        """About how many samples are best read in one step."""

    @property
    def decisions(self) -> DecisionLog | None:
        """Those of the tuner; ``None``: nothing is tuned."""
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

    Args:
        reader: has opened the shards, and knows how to read them.
        sharers: processes on this node that read through the same cache.
    """

    def __init__(self, reader: EpochReader, sharers: int = 1) -> None:
        self.pool = reader.pool
        self.counts = self.pool.counts
        self.shards = len(self.pool.index)
        self.table = self.pool.index.table
        self.columns = tuple(reader.settings.columns or self.pool.index.columns)
        self._reader = reader
        self._sharers = sharers
        self._settings = reader.settings
        self.bad_samples = reader.settings.bad_samples
        settings = reader.settings
        self._samples = make_reader(self.pool, settings, 0)
        self._steps = make_steps(self.pool, settings, settings.steps, 0, as_columns=False)
        self._amounts = replace(reader.settings.amounts, sharers=sharers)
        self.pool.share(sharers)
        self._expected: dict[int, None] = {}

    @property
    def decisions(self) -> DecisionLog | None:
        """See :class:`SampleSource`."""
        return self._reader.decisions

    @property
    def execution(self) -> Execution | None:
        """See :class:`SampleSource`."""
        return self._reader.executor.execution

    def samples(self, shards: Ids, rows: Ids) -> list[Any]:
        with self._counted(shards):
            if self._steps is None:
                return self._samples.samples(SampleRows(shards, rows))
            return self._steps.samples(self._samples, np.zeros_like(rows), SampleRows(shards, rows))

    def batch(self, shards: Ids, rows: Ids) -> Batch:
        if self._steps is not None:
            with BatchRows(len(rows)) as memory:
                samples = self.samples(shards, rows)
            return as_batch(stack_samples(samples, partial(location_at, self.pool, shards, rows), memory))
        with self._counted(shards):
            return as_batch(self._samples.batch(SampleRows(shards, rows)))

    def bad_sample_log(self) -> BadSampleLog | None:
        return self._reader.bad_sample_log()

    def good_reader(self, run: Run) -> GoodReader | None:
        if self.bad_samples is None:
            return None
        reader = GoodSampleReader(
            self._samples,
            run,
            self._steps,
            None,
            on_bad_sample=self.bad_samples.on_bad_sample,
            filters=False,
        )
        return _CountingReader(reader, self._counted)

    def read_ahead(self, run: Run, again: MakeRun, *, batched: bool, most: int | None) -> ChunksAhead | None:
        """See :class:`SampleSource`."""
        note_dataset(self.pool, self._settings, ahead=False, by_sample=False)
        executor, worker = self._reader.executor, LoaderWorker.detect()
        threads = self._settings.read_threads or 0
        run_in = "threads" if self._settings.run_in == "threads" else executor.plan(worker, threads)
        if run_in == "threads":
            return None

        settings = replace(self._settings, amounts=self._amounts)
        method: ReadMethod = "group" if batched else "samples"
        if settings.bad_samples is not None:
            method = "good_batch" if batched else "good_samples"
        reader = ChunkReader(self.pool, run, settings, 0, as_columns=batched)
        self.pool.share(self._sharers, executor.processes)
        for other in self._reader.others:
            other.share(self._sharers, executor.processes)
        runner: Runner[Any] = executor.runner(
            partial(self._read_chunk, getattr(reader, method)),
            run_in,
            threads,
            partial(executor.task, settings, 0, method, as_columns=batched),
            again if settings.replaces else None,
        )
        useful = max(CHUNKS_OF_PROCESS * executor.processes, threads + 1)
        return ChunksAhead(self.pool, runner, useful if most is None else min(useful, most))

    def _read_chunk(self, read: Callable[[Chunk], Any], chunk: Chunk) -> Any:
        with self.pool.counted(chunk.shards, chunk.distinct):
            return read(chunk)

    def chunks(self, run: Run, again: MakeRun, skip: int, most: int) -> Iterator[ReadSamples]:
        notes = BadSampleNotes()
        done = 0
        pipeline = self._pipeline(run, again, notes, one_by_one=True)
        for part in pipeline.sample_runs():
            while True:
                found, part = _take(pipeline, part, most)  # noqa: PLW2901
                if not found:
                    break
                first, done = max(done, skip), done + len(found)
                bad = notes.take(first, done) if notes.waiting else ()
                if first < done:
                    yield ReadSamples(found[first - done :], done - first, bad)

    def batches(self, run: Run, again: MakeRun) -> Iterator[ReadSamples]:
        notes = BadSampleNotes()
        skips = self.bad_samples is not None and self.bad_samples.on_bad_sample == "skip"
        size = run.plan.batch_size
        for number, batch in enumerate(self._pipeline(run, again, notes, one_by_one=False).batches()):
            if not notes.waiting:
                yield ReadSamples(batch, batch_length(batch))
                continue
            bad = notes.take(number * size, (number + 1) * size)
            yield ReadSamples(batch, batch_length(batch) + (len(bad) if skips else 0), bad)

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

    def _pipeline(self, run: Run, again: MakeRun, notes: BadSampleNotes, *, one_by_one: bool) -> Pipeline:
        worker = LoaderWorker.detect()
        if worker.token is not None:
            raise ConfigError(
                "a StreamingShardLoader reads in its own process: do not iterate over it in DataLoader workers"
            )
        threads = self._settings.read_threads or 0
        run_in = self._reader.executor.plan(worker, threads)
        return self._reader.pipeline(
            run,
            worker,
            sharers=self._sharers,
            run_in=run_in,
            threads=threads,
            one_by_one=one_by_one and not threads and run_in == "threads",
            as_columns=not one_by_one,
            run_again=again,
            notes=None if self.bad_samples is None else notes,
            tune_threads=not one_by_one and self._reader.threads.may_tune(threads),
        )

    @contextmanager
    def _counted(self, shards: Ids) -> Iterator[None]:
        begun = time.perf_counter_ns()
        with self.pool.counted(shards, distinct_shards(shards, self.shards)):
            yield
        self.counts.waited(time.perf_counter_ns() - begun)


class _CountingReader:
    """A reader of a pool's samples whose reading is counted."""

    def __init__(self, reader: GoodSampleReader, counted: Callable[[Ids], AbstractContextManager[None]]) -> None:
        self._reader, self._batches, self._counted = reader, GoodBatchReader(reader, None, {}), counted

    def samples(self, positions: Ids, shards: Ids, rows: Ids) -> list[Any] | GoodSamples:
        """See :class:`GoodReader`."""
        with self._counted(shards):
            return self._reader.samples(positions, SampleRows(shards, rows))

    def batch(self, positions: Ids, shards: Ids, rows: Ids) -> Batch | GoodSamples:
        """See :class:`GoodReader`."""
        with self._counted(shards):
            found = self._batches.batch(positions, SampleRows(shards, rows))
        return found._replace(values=as_batch(found.values)) if isinstance(found, GoodSamples) else as_batch(found)


def _take(pipeline: Pipeline, part: SampleRun, most: int) -> tuple[list[Any], SampleRun]:
    """The next samples of a run of a pipeline, ``most`` or fewer, and what is left of it."""
    found: list[Any] = []
    while True:
        try:
            found.extend(islice(part.samples, most - len(found)))  # what comes before an error is kept
        except Exception as error:  # noqa: BLE001 - raised again where it is final
            part = pipeline.recover(part, error)
        else:
            return found, part
