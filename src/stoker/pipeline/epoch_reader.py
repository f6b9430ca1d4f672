"""Reads the batches and samples of one process, epoch after epoch, and keeps its state."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from stoker.cluster import LoaderWorker, World
from stoker.cluster.call_stack import called_from
from stoker.cluster.outer_division import OuterDivision, may_read_ahead
from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.spans.recorder import WaitClock, recorder
from stoker.errors import ConfigError
from stoker.formats.base import RunIn
from stoker.formats.mds.encodings.images import load_at_once
from stoker.order.capabilities import makes_batches, shards_at_once
from stoker.order.sample_order import Batches, DataRank, EpochPosition, Plan, Run, SampleOrder
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.batch_ring import Ring
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.chunks.work import ChunkWork
from stoker.pipeline.execution.executor import Executor
from stoker.pipeline.iteration_checks import (
    check_as_begun,
    check_by_id,
    check_division,
    check_override,
    check_positions,
    check_sample_steps,
    check_skipped,
    tell_of_counting,
    tell_of_padding,
    tell_of_skipping,
    warn_wrapper_dispatches,
    warn_wrapper_pads,
)
from stoker.pipeline.pipeline import Pipeline
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.stages.build import make_work
from stoker.pipeline.state.rank_epochs import RankEpochs
from stoker.pipeline.state.resume import Progress, ResumeState
from stoker.pipeline.stats.trace import note_dataset
from stoker.pipeline.transforms import EpochReaderSettings, Override, loading_override, loading_steps, with_steps
from stoker.pipeline.tuning.tuner import Tuner
from stoker.reading.bad_samples import BadSampleLog, BadSampleSink
from stoker.reading.chain import Chain
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids

if TYPE_CHECKING:  # most datasets need none of it
    from stoker.pipeline.execution.chunk_process import MakeRun
    from stoker.pipeline.joins.other_dataset import OtherDataset
    from stoker.streams.quarantine import Quarantine

_Columns = TypeVar("_Columns", Batch, BatchGroup)

# Matters that are told once, not in each epoch by each worker of a DataLoader.
_SENDS, _FILLS, _PADS, _COUNTS, _SKIPS = range(5)

_LOOK_AGAIN: Final = 2
"""Batch before which it is looked again for a wrapper that divides, as before each power of two; an epoch that has fewer
looks at its end. A thread may have read some batches ahead by then."""


class EpochReader(RankEpochs):
    """Reads the batches and samples of one process, epoch after epoch.

    Args:
        pool: the open shards.
        sample_order: which sample comes when.
        settings: how they are read.
        rank_finder: finds this process's data rank, each time that iteration starts.
        quarantine: names samples that are left out.

    Attributes:
        executor: chooses what executes the chunks of its iterations.
    """

    def __init__(
        self,
        pool: ShardPool,
        sample_order: SampleOrder,
        settings: EpochReaderSettings,
        rank_finder: DataRankFinder,
        quarantine: Quarantine | None = None,
    ) -> None:
        pool.reads_cut = settings.bad_samples is not None
        if settings.transform is None:
            settings = replace(settings, stored=settings.columns)
        else:
            settings = with_steps(settings, pool.index, pool.ids)
        self.settings = settings
        self.quarantine = quarantine
        steps = settings.transform.steps if isinstance(settings.transform, Chain) else ()
        # Zips and joins, and those that come with their datasets.
        self.others = [cast("OtherDataset", step.other) for step in steps if step.other is not None]
        for other in self.others:
            other.reads_cut(settings.bad_samples is not None)
        resume = ResumeState(
            sample_order,
            chain=[step.told for step in steps if not step.own],
            others={step.name: step.other.about for step in steps if step.other is not None},
            quarantine=None if quarantine is None else (quarantine, pool),
        )
        super().__init__(resume, rank_finder, pool)
        self._ring = Ring()
        self.executor = Executor(settings, pool, self.others, self._ring)
        self._tuner = Tuner(pool) if pool.options.tune == "auto" else None
        self._bad_counts = None if settings.bad_samples is None else Counts()
        self._warned: set[bytes] = set()
        self._ranks = 1
        self._by_id: tuple[int, ChunkWork] | None = None
        if settings.amounts.limit is not None or self.others:
            # Readers opened by random access must not pin more of a size-limited cache than iteration may; how many processes
            # share it may not be known before iteration.
            self._limit_open((rank_finder.launched() or World()).local_world_size)

    def with_settings(self, settings: EpochReaderSettings) -> EpochReader:
        """Another reader of the same shards in the same order, from the beginning."""
        return EpochReader(self.pool, self.sample_order, settings, self._rank_finder, self.quarantine)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_by_id(self, shards: Ids, rows: Ids) -> list[Any]:
        """Samples as the chain makes them, outside of an order.

        Random numbers are those of the epoch that was begun last, or that the next iteration begins. ConfigError if the chain
        does not make one sample of each, or needs a position.
        """
        settings, epoch = self.settings, self.resume.current_epoch
        check_by_id(settings)
        if self._by_id is None or self._by_id[0] != epoch:
            strict = replace(settings, bad_samples=None)
            self._by_id = epoch, make_work(self.pool, None, strict, epoch, as_columns=False)
        samples: list[Any] = self._by_id[1](Chunk.at(shards, rows)).check().values
        return samples

    def samples(self, batch_size: int, override: Override | None = None, *, keep_places: bool = False) -> Iterator[Any]:
        """This rank's (and loader worker's) samples of the next epoch, changed by ``override`` where there is one.

        ``batch_size``: of this rank. ``override``: changes samples as they are made, given their ids. ``keep_places``:
        whether :data:`~stoker.reading.steps.LEFT_OUT` stands for each bad sample that is left out.
        """
        if makes_batches(self.sample_order):
            raise ConfigError(
                "batch_by= makes whole batches, and these are single samples: iterate over batches() or a StreamingDataLoader"
            )
        changed = True
        while changed:
            skip, progress, pipeline = self._start(batch_size, by_sample=True, override=override)
            division, ranks, number = self._division, self._ranks, 0
            alone = LoaderWorker.detect().token is None and ranks == 1 and division is None
            check_sample_steps(self.settings, override, alone=alone, keeps_places=keep_places and division is None)
            leaves_out = bool(self.settings.leaves_out) and not keep_places
            if division is not None and division.kept is not None:
                from stoker.pipeline.ranks.outer_plan import keep_own_slice

                samples = chain.from_iterable(part.samples for part in pipeline.sample_runs())
                yield from keep_own_slice(samples, progress.plan, division, LoaderWorker.detect())
                return
            waits = WaitClock()
            waits.begin()
            # Samples that were delivered are counted by their places, so that all of these must come.
            for part in pipeline.sample_runs(present=leaves_out and not skip):
                waits.end(operator.length_hint(part.remaining))
                number += 1
                if number >= _LOOK_AGAIN and not number & (number - 1):
                    check_as_begun(self._rank_finder, division, ranks, batch_size)
                progress.enter(part)
                try:
                    # The state was taken inside the first batch: skip the samples of it that were delivered.
                    for _ in islice(part.samples, skip) if skip else ():
                        skip -= 1
                    # `yield from` costs nothing a sample; the run counts how many the consumer took.
                    yield from progress.present(part.samples) if leaves_out and part.gaps else part.samples
                except Exception:
                    progress.failed()
                    raise
                if changed := self.resume.is_changed(progress):
                    break
                progress.check()
                waits.begin()
            else:
                changed = False
            if number < _LOOK_AGAIN:
                check_as_begun(self._rank_finder, division, ranks, batch_size)
            waits.flush()
            progress.finished = not changed
            changed = changed and self.resume.continues(progress)

    def batches(self, batch_size: int, override: Override | None = None) -> Iterator[Batch]:
        """This rank's (and loader worker's) batches of the next epoch, as dicts of columns; see :meth:`samples`."""
        return self._columns(batch_size, Pipeline.batch_lists, override)

    def groups(self, batch_size: int, override: Override | None = None) -> Iterator[BatchGroup]:
        """The same batches in groups; see :meth:`~stoker.pipeline.pipeline.Pipeline.groups`."""
        return self._columns(batch_size, lambda pipeline: ([group] for group in pipeline.groups()), override)

    def _columns(
        self, batch_size: int, read: Callable[[Pipeline], Iterator[list[_Columns]]], override: Override | None
    ) -> Iterator[_Columns]:
        if override is not None:
            check_override(self.settings)
        while (progress := (yield from self._columns_of_run(batch_size, read, override))) is not None:
            if not self.resume.continues(progress):
                return

    def _columns_of_run(
        self, batch_size: int, read: Callable[[Pipeline], Iterator[list[_Columns]]], override: Override | None
    ) -> Generator[_Columns, None, Progress | None]:
        """The same until the end, or until the order is changed: then gives how far the iteration was."""
        _, progress, pipeline = self._start(batch_size, by_sample=False, override=override)
        division, ranks, number, look = self._division, self._ranks, 0, 0
        waits = WaitClock()
        waits.begin()
        for together in read(pipeline):
            waits.end(batch_size * len(together))
            for found in together:
                number += 1
                if number >= _LOOK_AGAIN and not number & (number - 1):
                    check_as_begun(self._rank_finder, division, ranks, batch_size)
                progress.batch(len(found.lengths) if isinstance(found, BatchGroup) else 1)
                yield found
                if self.resume.is_changed(progress):
                    return progress
                progress.check()
                if number >= look:
                    look = number + waits.at_hand()
                del found
            del together  # frees its memory for the next ones
            waits.begin()
        if number < _LOOK_AGAIN:
            check_as_begun(self._rank_finder, division, ranks, batch_size)
        waits.at_hand()
        waits.flush()
        progress.finished = True
        return None

    def _start(
        self, batch_size: int, *, by_sample: bool, override: Override | None = None
    ) -> tuple[int, Progress, Pipeline]:
        """Begin the next epoch: samples of its first batch that were delivered before, its progress, and what reads it."""
        worker, world = LoaderWorker.detect(), self._rank_finder.world
        self._division = self._counted_for = None
        self._read_ahead = False
        if worker.token is not None or self._rank_finder.may_be_divided:
            self._look_around(worker, world, by_sample=by_sample)
        division = self._division
        data_rank = self._rank_finder.data_rank(batch_size, division, world)
        self._ranks = data_rank.world_size
        recording = recorder()
        if recording is not None and worker.token is not None:
            recording.note(worker=worker.number)
        sharers = worker.count * world.local_world_size
        if worker.token is not None:
            from stoker.pipeline.collate import speed_up_worker

            speed_up_worker(self._ring)
            if override is None and not any(step.calls for step in self.settings.steps):
                load_at_once()
        point, begun, inside = self.resume.begin(worker, data_rank)
        if (point.partial or inside) and not by_sample:
            raise ConfigError("the state was taken inside a batch: iterate over samples for the rest of this epoch")
        if point.partial and (worker.token is not None or division is not None):
            raise ConfigError("the state was taken inside a batch: resume without DataLoader workers for this epoch")
        if inside and division is not None:
            raise ConfigError("the worker's state was taken inside a batch: resume without accelerate for this epoch")
        if worker.token is None and (world.world_size > 1 or self.quarantine is not None):
            self.compare_ranks(point, data_rank, self.resume.batches_before)
        run = self._run(point, data_rank, division)
        threads = self.executor.read_threads(worker, sharers, None if by_sample else run.plan)
        run_in = self.executor.plan(worker, threads, override, as_columns=not by_sample)
        self._limit_open(sharers, 0 if run_in == "threads" else self.executor.processes)
        pipeline = self.pipeline(
            run,
            worker,
            batches=None if division is None else _divided(run.plan, division),
            sharers=sharers,
            run_in=run_in,
            threads=threads,
            skip=begun,
            passed=point.partial or inside,
            epoch=point.epoch,
            one_by_one=by_sample and not threads and run_in == "threads",
            as_columns=not by_sample,
            override=override,
            run_again=partial(self.resume.run, point, data_rank),
            # Samples that are made as they are asked for are made in the consumer's thread.
            tune_threads=worker.token is None and bool(threads or not by_sample),
        )
        return point.partial or inside, self.resume.deliver(point, run.plan, begun), pipeline

    def _look_around(self, worker: LoaderWorker, world: World, *, by_sample: bool) -> None:
        """Note the division by a wrapper around this iteration, and the epoch that it names.

        ConfigError where the wrapper would lose samples, or it is not known who divides.
        """
        from stoker.cluster.datasets_package import named_epoch  # most iterations have no wrapper

        division = self._rank_finder.division()
        if division is not None and not by_sample:
            # What the wrapper divides are batches of this size, not samples.
            division = replace(division, batch_size=None, requests=division.ranks, kept=None)
        self._division = self._counted_for = division
        named = named_epoch(division, world.world_size)
        counts = named is not None and named.number is None
        self._rank_finder.check_thread(division, of_datasets=counts)
        self._rank_finder.check_prepared(division)
        self.resume.follow(named)
        if counts and self.resume.claim_warning(_COUNTS):
            tell_of_counting()
        # With world=World() a wrapper divides; where the dataset is given one of several ranks, none is around it.
        unseen = world.world_size == 1 and may_read_ahead()
        self._read_ahead = unseen or called_from("accelerate.data_loader")
        if division is not None and division.sends and not division.direct and worker.count > 1:
            raise ConfigError(
                f"{division.wrapper} loses samples of DataLoader workers whose batches are not equally long before the "
                "epoch's end, and the iterable between it and the dataset may make them so: use num_workers=1 or 0, or "
                "dispatch_batches=False, with which each rank reads for itself"
            )

    def _run(self, point: EpochPosition, data_rank: DataRank, division: OuterDivision | None) -> Run:
        if division is not None:
            check_division(self.sample_order, division)
            if division.sends and division.ranks > 1 and self.resume.claim_warning(_SENDS):
                warn_wrapper_dispatches(division)
        if self.quarantine is not None:
            self.resume.pin_quarantine(point.epoch)
        run = self.resume.run(point, data_rank)
        if self._read_ahead:
            check_skipped(point, run.plan, division)
            if point.position and not called_from("accelerate.data_loader") and self.resume.claim_warning(_SKIPS):
                tell_of_skipping(point)
        if division is not None and not self._rank_finder.world.rank:
            from stoker.pipeline.ranks.outer_plan import repeated_by_wrapper

            again = repeated_by_wrapper(run.plan, division)
            if again and self.resume.claim_warning(_FILLS):
                warn_wrapper_pads(point.epoch, division, again)
        if run.plan.rank == 0 and run.plan.padding and self.resume.claim_warning(_PADS):
            tell_of_padding(point.epoch, run.plan, self.sample_order)
        return run

    def pipeline(
        self,
        run: Run,
        worker: LoaderWorker,
        *,
        sharers: int,
        threads: int,
        batches: Batches | None = None,
        run_in: RunIn = "threads",
        skip: int = 0,
        passed: int = 0,
        epoch: int = 0,
        one_by_one: bool = False,
        as_columns: bool = False,
        override: Override | None = None,
        run_again: MakeRun | None = None,
        notes: BadSampleSink | None = None,
        tune: bool = True,
        tune_threads: bool = False,
    ) -> Pipeline:
        """The samples of a run, as one process or DataLoader worker reads them.

        Args:
            run: the rank's batches.
            worker: this process.
            sharers: processes on this node that read through the same cache.
            threads: threads that read ahead.
            batches: see :class:`~stoker.pipeline.pipeline.Pipeline`.
            run_in: threads or processes; see :meth:`~stoker.pipeline.execution.executor.Executor.plan`.
            skip: batches of this worker to leave out at the beginning.
            passed: samples of the first batch that were delivered before.
            epoch: number of the epoch, for random numbers.
            one_by_one: whether samples are made one at a time, on request.
            as_columns: whether batches are asked for, and not samples.
            override: changes samples as they are made, given their ids.
            run_again: makes the run again in another process, where samples may replace others.
            notes: takes note of bad samples as they are read, in place of a log.
            tune: whether a tuner may change how it is read, where there is one.
            tune_threads: whether it may change how many threads read ahead, if what they run allows it.
        """
        if recorder() is not None:
            by_sample = not as_columns and override is None and worker.token is None
            note_dataset(self.pool, self.settings, ahead=True, by_sample=by_sample)
        steps = self.settings.steps
        if steps:
            check_positions(steps, run)
        if worker.token is not None:
            steps, override = loading_steps(steps), loading_override(override)
        lines = as_columns and worker.token is None and self.executor.parse_text and not self.settings.calls_functions
        amounts = replace(self.settings.amounts, sharers=sharers, lines=lines)
        by_shard = amounts.limit is not None and self._is_wide(amounts.limit)
        settings = replace(
            self.settings, steps=steps, amounts=amounts, read_threads=threads, run_in=run_in, by_shard=by_shard
        )
        log = notes
        if notes is None and settings.bad_samples is not None:
            log = self.bad_sample_log(passed)
        return Pipeline(
            self.pool,
            run,
            settings,
            worker,
            skip,
            batches=batches,
            executor=self.executor,
            run_again=run_again,
            log=log,
            epoch=epoch,
            one_by_one=one_by_one,
            as_columns=as_columns,
            override=override,
            tuner=self._tuner if tune else None,
            tune_threads=tune_threads,
        )

    def bad_sample_log(self, passed: int = 0) -> BadSampleLog | None:
        """Counts and lists the bad samples of one iteration; ``None`` where they are errors.

        ``passed``: samples at its beginning that were delivered before.
        """
        if self.settings.bad_samples is None:
            return None
        counts, own = self.pool.counts, self._bad_counts
        return BadSampleLog(self.settings.bad_samples, counts, own, passed=passed, warned=self._warned)

    def _is_wide(self, limit: int) -> bool:
        """Whether the order reads more shards at once than a cache of so many bytes holds."""
        if self.pool.options.views:  # a view would keep its shard
            return False
        at_once = min(shards_at_once(self.sample_order), len(self.pool.index))
        return at_once * self.settings.amounts.shard_bytes > limit

    def _limit_open(self, sharers: int, readers: int = 0) -> None:
        self.pool.share(sharers, readers)
        for other in self.others:
            other.share(sharers, readers)
        self.pool.most_open = min(self.pool.most_open, replace(self.settings.amounts, sharers=sharers).most_shards)

    def close(self) -> None:
        """Stop fetching and close all files."""
        self.pool.close()
        for other in self.others:
            other.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_id": None}


def _divided(plan: Plan, division: OuterDivision) -> Batches:
    from stoker.pipeline.ranks.outer_plan import OuterPlan  # most iterations have no wrapper

    return OuterPlan(plan, division)
