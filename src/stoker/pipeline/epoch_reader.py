"""Reads the batches and samples of one process, epoch after epoch, and keeps its state."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final, TypeVar

import numpy as np

from stoker.cluster import LoaderWorker, World
from stoker.cluster.call_stack import called_from
from stoker.cluster.outer_division import REMEDY, OuterDivision, skipped_batches
from stoker.errors import ConfigError, StateError
from stoker.formats.mds.encodings.images import load_at_once, loaded
from stoker.order.capabilities import shards_at_once
from stoker.order.native import NativeOrder
from stoker.order.protocols import Plan
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.batch_ring import Ring
from stoker.pipeline.collate import speed_up_worker
from stoker.pipeline.data_rank import DataRankFinder
from stoker.pipeline.outer_plan import OuterPlan, OuterRun, deliver_kept, repeated_by_wrapper
from stoker.pipeline.pipeline import Override, Pipeline
from stoker.pipeline.reader_settings import EpochReaderSettings
from stoker.pipeline.state.resume import Progress, ResumeState
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Transform

logger = logging.getLogger(__name__)

_Columns = TypeVar("_Columns", Batch, BatchGroup)

# Matters that are told once, not in each epoch by each worker of a DataLoader.
_SENDS, _FILLS, _PADS = range(3)

_LOOK_AGAIN: Final = 2
"""Batch before which it is looked again for a wrapper that divides, as before each power of two; an epoch that has fewer
looks at its end. A thread may have read some batches ahead by then."""

_FETCHED_FIRST: Final = 8
"""Shards that the main process fetches for each DataLoader worker; by then these have connections of their own."""


class EpochReader:
    """Reads the batches and samples of one process, epoch after epoch.

    Args:
        pool: the open shards.
        sample_order: which sample comes when.
        settings: how they are read.
        rank_finder: finds this process's data rank, each time that iteration starts.
    """

    def __init__(
        self,
        pool: ShardPool,
        sample_order: SampleOrder,
        settings: EpochReaderSettings,
        rank_finder: DataRankFinder,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self._rank_finder = rank_finder
        self._resume = ResumeState(sample_order)
        self._ring = Ring()
        self._division: OuterDivision | None = None
        self._ranks = 1
        self._counted_for: OuterDivision | None = None
        self._read_ahead = False
        # Readers opened by random access must not pin more of a size-limited cache than iteration may; how many processes
        # share it may not be known before iteration.
        self._limit_open((rank_finder.launched() or World()).local_world_size)

    @property
    def sample_order(self) -> SampleOrder:
        """The sample order of the run."""
        return self._resume.sample_order

    # -- reading ---------------------------------------------------------------------------------------------------

    def samples(self, batch_size: int, override: Override | None = None) -> Iterator[Any]:
        """This rank's (and loader worker's) samples of the next epoch, changed by ``override`` where there is one."""
        skip, delivery, pipeline = self._start(batch_size, by_sample=True, override=override)
        if self._division is not None and self._division.kept is not None:
            samples = chain.from_iterable(part.samples for part in pipeline.sample_runs())
            yield from deliver_kept(samples, delivery.plan, self._division, LoaderWorker.detect())
            return
        division, ranks, number = self._division, self._ranks, 0
        for part in pipeline.sample_runs():
            number += 1
            if number >= _LOOK_AGAIN and not number & (number - 1):
                self._check_as_begun(division, ranks, batch_size)
            delivery.enter(part)
            if skip:
                # The state was taken inside the first batch: skip the samples of it that were delivered.
                for _ in islice(part.samples, skip):
                    pass
                skip = 0
            # `yield from` costs nothing a sample; the run counts how many the consumer took.
            try:
                yield from part.samples
            except Exception:
                delivery.failed()
                raise
            delivery.check()
        if number < _LOOK_AGAIN:
            self._check_as_begun(division, ranks, batch_size)
        delivery.finished = True

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """This rank's (and loader worker's) batches of the next epoch, as dicts of columns."""
        return self._columns(batch_size, Pipeline.batches)

    def groups(self, batch_size: int) -> Iterator[BatchGroup]:
        """The same batches in groups; see :meth:`~stoker.pipeline.pipeline.Pipeline.groups`."""
        return self._columns(batch_size, Pipeline.groups)

    def _columns(self, batch_size: int, read: Callable[[Pipeline], Iterator[_Columns]]) -> Iterator[_Columns]:
        _, delivery, pipeline = self._start(batch_size, by_sample=False)
        division, ranks, number = self._division, self._ranks, 0
        for found in read(pipeline):
            number += 1
            if number >= _LOOK_AGAIN and not number & (number - 1):
                self._check_as_begun(division, ranks, batch_size)
            delivery.batch(len(found.lengths) if isinstance(found, BatchGroup) else 1)
            yield found
            delivery.check()
        if number < _LOOK_AGAIN:
            self._check_as_begun(division, ranks, batch_size)
        delivery.finished = True

    def _check_as_begun(self, division: OuterDivision | None, ranks: int, batch_size: int) -> None:
        """See that no wrapper has come around an iteration that began without one, and no other ranks beside it.

        Raises:
            ConfigError: one has, and would divide samples that the dataset has divided; or there are other ranks, which read
                the same samples.
        """
        if division is not None:
            return
        if (now := self._rank_finder.division()) is not None:
            raise ConfigError(
                f"this iteration began, and gave its first sample, before {now.wrapper} was around it: the dataset has "
                f"divided its samples among the ranks, and {now.wrapper} divides once more. Begin the iteration where the "
                "loader asks for samples, such as in __iter__ of an iterable between"
            )
        joined = self._rank_finder.data_rank(batch_size).world_size
        if joined > ranks:
            raise ConfigError(
                f"this iteration began as that of 1 rank of {ranks}, and this process has become 1 of {joined} since, so "
                "that samples would come more than once: begin iterations after init_process_group"
            )

    def count(self, batch_size: int) -> int:
        """Samples that are delivered here in the next epoch, if that is delivered from its beginning.

        That is this rank's part, or all samples once a wrapper has asked that divides them: trainers ask for the length of
        their loader, and then for that of the dataset.

        Raises:
            TypeError: accelerate asks, to cut what its ranks gather last, and the dataset has divided its samples itself.
        """
        self._counted_for = division = self._rank_finder.division() or self._counted_for
        if (
            division is None
            and called_from("accelerate.data_loader", "begin")
            and self._rank_finder.world.world_size > 1
        ):
            # accelerate would take this rank's part for the whole, and cut samples off. Without a length it takes all.
            raise TypeError("nothing is to be cut: the dataset has divided its samples itself")
        data_rank = self._rank_finder.data_rank(batch_size, division)
        return self.sample_order.run(self.upcoming().epoch_begin(), data_rank).plan.samples

    def plan(self, point: EpochPosition, batch_size: int) -> Plan:
        """This rank's batches from ``point`` on."""
        return self.sample_order.run(point, self.data_rank(batch_size)).plan

    def data_rank(self, batch_size: int) -> DataRank:
        """This process's data rank."""
        return self._rank_finder.data_rank(batch_size)

    def _start(
        self, batch_size: int, *, by_sample: bool, override: Override | None = None
    ) -> tuple[int, Progress, Pipeline]:
        """Begin the next epoch: samples of its first batch that were delivered before, its progress, and what reads it."""
        worker, division = LoaderWorker.detect(), self._rank_finder.division()
        if division is not None and not by_sample:
            # What the wrapper divides are batches of this size, not samples.
            division = replace(division, batch_size=None, requests=division.ranks, kept=None)
        self._division = self._counted_for = division
        self._rank_finder.check_prepared(division)
        self._resume.follow(self._rank_finder.named_epoch(division))
        self._read_ahead = called_from("accelerate.data_loader")
        if division is not None and division.sends and not division.direct and worker.count > 1:
            raise ConfigError(
                f"{division.wrapper} loses samples of DataLoader workers whose batches are not equally long before the "
                "epoch's end, and the iterable between it and the dataset may make them so: use num_workers=1 or 0, or "
                "dispatch_batches=False, with which each rank reads for itself"
            )
        data_rank = self._rank_finder.data_rank(batch_size, division)
        self._ranks = data_rank.world_size
        sharers = self._sharers(worker)
        self._limit_open(sharers)
        threads = self._threads(worker)
        if worker.token is not None:
            speed_up_worker(self._ring)
            if self.settings.transform is None and override is None:
                load_at_once()
        point, begun, inside = self._resume.begin(worker, data_rank)
        if (point.partial or inside) and not by_sample:
            raise ConfigError("the state was taken inside a batch: iterate over samples for the rest of this epoch")
        if point.partial and (worker.token is not None or division is not None):
            raise ConfigError("the state was taken inside a batch: resume without DataLoader workers for this epoch")
        if inside and division is not None:
            raise ConfigError("the worker's state was taken inside a batch: resume without accelerate for this epoch")
        if worker.token is None:
            self.compare_ranks(point, batch_size, self._resume.batches_before)
        run = self._run(point, data_rank, division)
        pipeline = self.pipeline(
            run if division is None else OuterRun(run.order, OuterPlan(run.plan, division)),
            worker,
            sharers=sharers,
            threads=threads,
            skip=begun,
            one_by_one=by_sample and not threads,
            override=override,
        )
        return point.partial or inside, self._resume.deliver(point, run.plan, begun), pipeline

    def compare_ranks(self, point: EpochPosition, batch_size: int, left: int) -> None:
        """See that all ranks read the same from ``point`` on, after ``left`` batches of the iteration before."""
        self._rank_finder.compare(self.sample_order, point, batch_size, self._resume.loads, left)

    def fetch_first(self, point: EpochPosition, batch_size: int, workers: int) -> None:
        """Begin to fetch the first batches of DataLoader workers, which have no connection to the store before they run."""
        fetched = all(cache.store is not None and cache.keeps for cache in self.pool.caches)
        if not fetched or self.settings.limit is not None or not isinstance(self.sample_order, NativeOrder):
            return
        run = self.sample_order.run(point, self.data_rank(batch_size))
        for batches in run.plan.chunks(workers * batch_size, 0, 1, 0):
            shards = dict.fromkeys(run.order.locate(np.concatenate(batches[:workers]))[0].tolist())
            self.pool.fetch(list(shards)[: _FETCHED_FIRST * workers])
            return

    def _run(self, point: EpochPosition, data_rank: DataRank, division: OuterDivision | None) -> Run:
        if division is not None:
            self._check_division(division)
            if division.sends and division.ranks > 1 and self._resume.first_to_tell(_SENDS):
                logger.warning(
                    "%s of accelerate: rank 0 reads for all %d ranks, and sends them their samples. dispatch_batches=False "
                    "lets each rank read its own",
                    division.wrapper,
                    division.ranks,
                )
        run = self._resume.run(point, data_rank)
        if self._read_ahead:
            self._check_skipped(point, run.plan, division)
        again = 0 if division is None or self._rank_finder.world.rank else repeated_by_wrapper(run.plan, division)
        if again and division is not None and self._resume.first_to_tell(_FILLS):
            logger.warning(
                "epoch %d: %s of accelerate repeats %d samples to fill its last batch, as in all epochs like this "
                '(drop_last=True of the loader, or remainder="drop" of the dataset, repeats none)',
                point.epoch,
                division.wrapper,
                again,
            )
        if run.plan.padding and run.plan.rank == 0 and self._resume.first_to_tell(_PADS):
            native = "like" not in self.sample_order.as_dict()["order"]  # mosaicml orders always repeat some
            logger.warning(
                "epoch %d: %d samples come twice, so that all %d ranks take the same number of steps, as in all epochs like "
                "this%s",
                point.epoch,
                run.plan.padding,
                run.plan.world_size,
                ' (remainder="uneven" or "drop" repeats none)'
                if native
                else ", and all canonical nodes, as in mosaicml-streaming (fewer num_canonical_nodes= repeat fewer)",
            )
        return run

    @staticmethod
    def _check_skipped(point: EpochPosition, plan: Plan, division: OuterDivision | None) -> None:
        """See that accelerate leaves out nothing but what training has had of this epoch.

        Raises:
            ConfigError: a state is left out once more, or there is less than accelerate leaves out.
        """
        skipped = skipped_batches()
        if skipped and point.position:
            raise ConfigError(
                f"accelerate leaves out {skipped} batches, and the dataset resumes from a state at position {point.position} "
                f"of epoch {point.epoch}, which leaves them out already: do one of the two. transformers.Trainer skips none "
                "with ignore_data_skip=True"
            )
        steps = 0 if division is None else -(-plan.samples // (division.batch_size or plan.batch_size))
        if division is None or not skipped > steps > 0:
            return
        said = (
            f"accelerate leaves out {skipped} batches, and epoch {point.epoch} has {steps}. transformers.Trainer counts so "
            "where it does not know the length of an epoch, and then trains on the next one from its beginning: call "
            "dataset.set_epoch(...) with the epoch to resume in, then "
            "dataset.load_state_dict(dataset.state_dict(num_samples=...)) with the samples of it that all ranks had, and set "
            "ignore_data_skip=True"
        )
        if division.direct:
            raise ConfigError(said)
        logger.warning("%s. (An iterable between may make more batches of them.)", said)

    def _check_division(self, division: OuterDivision) -> None:
        """See that the order leaves it to a wrapper which rank gets which samples of a global batch.

        Raises:
            ConfigError: it does not.
        """
        order = self.sample_order.as_dict()["order"]
        partition = order.get("partition")
        if isinstance(partition, Mapping) and partition.get("name") != "elastic":
            said = f"partition={partition.get('name')!r}"
        elif order.get("batching_method") == "device_per_stream":
            said = "batching_method='device_per_stream'"
        else:
            return
        raise ConfigError(
            f"{said} says which rank gets which samples, and {division.wrapper} divides them itself: {REMEDY}"
        )

    def _threads(self, worker: LoaderWorker) -> int:
        if self.settings.read_threads is not None:
            return self.settings.read_threads
        # Gathering takes less time than handing its result over from a thread; a transform may take any time.
        return min(8, os.cpu_count() or 1) if self.settings.transform is not None and worker.token is None else 0

    def pipeline(
        self,
        run: Run | OuterRun,
        worker: LoaderWorker,
        *,
        sharers: int,
        threads: int,
        skip: int = 0,
        one_by_one: bool = False,
        override: Override | None = None,
    ) -> Pipeline:
        """The samples of a run, as one process or DataLoader worker reads them.

        Args:
            run: the rank's batches.
            worker: this process.
            sharers: processes on this node that read through the same cache.
            threads: threads that read ahead.
            skip: batches of this worker to leave out at the beginning.
            one_by_one: whether samples are made one at a time, on request.
            override: changes samples as they are made, given their ids.
        """
        transform = self.settings.transform
        if worker.token is not None:
            transform, override = _and_load(transform), _then_load(override)
        settings = replace(
            self.settings, transform=transform, sharers=sharers, read_threads=threads, by_shard=self._is_wide()
        )
        return Pipeline(self.pool, run, settings, worker, skip, one_by_one=one_by_one, override=override)

    def _is_wide(self) -> bool:
        """Whether the order reads more shards at once than a limited cache holds."""
        settings = self.settings
        if settings.limit is None or self.pool.options.views:  # a view would keep its shard
            return False
        return min(shards_at_once(self.sample_order), len(self.pool.index)) * settings.shard_bytes > settings.limit

    def _limit_open(self, sharers: int) -> None:
        self.pool.width.sharers = sharers
        self.pool.most_open = min(self.pool.most_open, replace(self.settings, sharers=sharers).most_shards)

    def _sharers(self, worker: LoaderWorker) -> int:
        return worker.count * self._rank_finder.world.local_world_size

    # -- state -----------------------------------------------------------------------------------------------------

    def upcoming(self) -> EpochPosition:
        """The position at which the next iteration begins."""
        return self._resume.upcoming()

    @property
    def loads(self) -> int:
        """Number of states that were loaded. Each ends the iterations that were running."""
        return self._resume.loads

    def check_alone(self) -> None:
        """Check that no copy of this in another process has begun to iterate."""
        self._resume.check_alone()

    def state(
        self, batch_size: int, samples: int | None = None, *, from_beginning: bool = True, ended: bool = False
    ) -> dict[str, Any]:
        """The state after what this object has delivered, or after ``samples`` of the epoch or of this run.

        Args:
            batch_size: of this rank.
            samples: over all ranks; ``None``: what this object has delivered.
            from_beginning: whether ``samples`` counts from the epoch's beginning.
            ended: whether ``samples`` counts from the end of the epoch that was begun last.
        """
        worker = LoaderWorker.detect()
        data_rank = self.data_rank(batch_size)
        division = self._rank_finder.division() or self._division
        if samples is None and (division is not None or self._is_read_ahead(worker)):
            raise StateError(
                "accelerate reads ahead of training, or on rank 0 for all ranks, so that what training has had is not known "
                "here: say how many samples of the epoch all ranks together have had: state_dict(num_samples=...); for "
                f"use_stateful_dataloader=True, {REMEDY}"
            )
        if worker.token is not None:
            return self._resume.worker_state(worker, data_rank)
        if samples is None:
            return self._resume.state(self._resume.here(), data_rank)
        point = self._resume.after(samples, data_rank, from_beginning=from_beginning, ended=ended)
        return self._resume.state(point, data_rank)

    def _is_read_ahead(self, worker: LoaderWorker) -> bool:
        # torchdata's loader asks for the state between its own batches, and knows which of them training has had.
        return self._read_ahead and worker.token is None and not called_from("torchdata.stateful_dataloader")

    def state_after(
        self, start: EpochPosition, batches: int, batch_size: int, *, ended: bool = False
    ) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``, and has ``ended``."""
        return self._resume.state_after(start, batches, self.data_rank(batch_size), ended=ended)

    def load(self, state: Mapping[str, Any], batch_size: int | None, *, change_streams: bool = False) -> None:
        """Make the next iteration resume where ``state`` was taken, or begin a new epoch with other streams."""
        self._division, self._counted_for, self._read_ahead = None, None, False
        if change_streams:
            self._resume.change(state)
        else:
            size = batch_size or 1
            data_rank = self._rank_finder.early_data_rank(size)
            # What is not known yet is checked when iteration starts.
            check = batch_size is not None and data_rank is not None
            self._resume.load(state, LoaderWorker.detect(), data_rank or DataRank(batch_size=size), check=check)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch; see :meth:`stoker.loaders.dataset.StreamingDataset.set_epoch`."""
        # A wrapper calls it at the start of each epoch, on ranks too that are only sent their samples.
        self._division = self._counted_for = self._rank_finder.division()
        self._rank_finder.check_prepared(self._division)
        self._resume.set_epoch(epoch)

    def close(self) -> None:
        """Stop fetching and close all files."""
        self.pool.close()


def _and_load(transform: Transform | None) -> Transform | None:
    """A transform whose images are loaded, for a DataLoader worker."""
    return None if transform is None else lambda sample: loaded(transform(sample))


def _then_load(override: Override | None) -> Override | None:
    """An override whose images are loaded, for a DataLoader worker."""
    return None if override is None else lambda ids, samples: map(loaded, override(ids, samples))
