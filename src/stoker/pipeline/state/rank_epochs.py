"""The epochs of one process: which comes next, what its rank has of them, and their states; nothing is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.arguments import at_least
from stoker.cluster import LoaderWorker, World
from stoker.cluster.call_stack import called_from
from stoker.cluster.outer_division import REMEDY, OuterDivision
from stoker.errors import StateError
from stoker.order.sample_order import DataRank, EpochPosition, Plan, SampleOrder
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.state.resume import ResumeState
from stoker.reading.shard_pool import ShardPool

if TYPE_CHECKING:
    from stoker.order.step import StepSamples


class RankEpochs:
    """The epochs of one process.

    ``resume``: where it is in them. ``rank_finder``: finds this process's data rank, each time that iteration starts.
    ``pool``: the shards of its dataset.
    """

    def __init__(self, resume: ResumeState, rank_finder: DataRankFinder, pool: ShardPool) -> None:
        self.pool = pool
        self.resume = resume
        self._rank_finder = rank_finder
        # The wrapper that divides the samples of the iteration that began last, and the one that has asked for the length.
        self._division: OuterDivision | None = None
        self._counted_for: OuterDivision | None = None
        # Whether accelerate iterates, which reads ahead of training.
        self._read_ahead = False

    @property
    def sample_order(self) -> SampleOrder:
        """The sample order of the run."""
        return self.resume.sample_order

    @property
    def begun(self) -> bool:
        """Whether an epoch was begun or named, or a state loaded."""
        upcoming = self.resume.upcoming()
        return bool(self.resume.loads) or upcoming != EpochPosition(0, start=upcoming.start)

    def count(self, batch_size: int) -> int:
        """Samples that are delivered here in the next epoch, if that is delivered from its beginning.

        That is this rank's part, or all samples once a wrapper has asked that divides them: trainers ask for the length of
        their loader, and then for that of the dataset.

        TypeError if accelerate asks, to cut what its ranks gather last, and the dataset has divided its samples itself.
        """
        self._counted_for = division = self._rank_finder.division() or self._counted_for
        if (
            division is None
            and called_from("accelerate.data_loader", "begin")
            and self._rank_finder.world.world_size > 1
        ):
            # accelerate would take this rank's part for the whole, and cut samples off. Without a length it takes all.
            raise TypeError("len() is undefined here: the dataset already shards by rank")
        data_rank = self._rank_finder.data_rank(batch_size, division)
        return self.sample_order.run(self.resume.upcoming().epoch_begin(), data_rank).plan.samples

    def plan(self, point: EpochPosition, batch_size: int) -> Plan:
        """This rank's batches from ``point`` on."""
        return self.sample_order.run(point, self.data_rank(batch_size)).plan

    def step(
        self,
        step: int,
        rank: int | None,
        epoch: int | None,
        batch_size: int,
        world: World | int | None = None,
        *,
        since_resume: bool = False,
    ) -> StepSamples:
        """The samples of a step, which has so many batches before it in the epoch.

        ConfigError if there is no such rank, or no such step. ``rank``: of those that read different samples; ``None``: all,
        one after the other. ``epoch``: its number; see :meth:`~stoker.pipeline.state.resume.ResumeState.latest`.
        ``batch_size``: of a rank. ``world``: of another run: how many ranks read different samples, on nodes of as many as
        here, or a world that says that too; ``None``: this one. ``since_resume``: steps are counted from where the epoch was
        resumed.
        """
        mine = self._data_rank_of(world, batch_size)
        from stoker.order.step import ranks_asked, samples_of_step

        ranks = ranks_asked(rank, mine.world_size)
        point = self.resume.latest(epoch, mine, begun_here=world is None)
        return samples_of_step(
            lambda at, number: self.resume.run(at, replace(mine, rank=number)),
            self.pool.index.table,
            ranks,
            point,
            step,
            since_resume=since_resume,
        )

    def _data_rank_of(self, world: World | int | None, batch_size: int) -> DataRank:
        """Rank 0 of a world that is asked about."""
        mine = self.data_rank(batch_size)
        if world is None:
            return mine
        if isinstance(world, World):
            each, world = world.local_world_size * mine.replication, world.world_size
        else:
            each = min(mine.ranks_per_node, world * mine.replication)
        at_least(1, world_size=world)
        return replace(mine, rank=0, world_size=world, ranks_per_node=each)

    def data_rank(self, batch_size: int) -> DataRank:
        """This process's data rank."""
        return self._rank_finder.data_rank(batch_size)

    def compare_ranks(self, point: EpochPosition, data_rank: DataRank, left: int) -> None:
        """See that all ranks read the same from ``point`` on, after ``left`` batches of the iteration before."""
        self._rank_finder.compare(self.sample_order, point, data_rank, self.resume.loads, left)
        self.resume.pin_quarantine(point.epoch, self._rank_finder.agree)

    def state(
        self, batch_size: int, samples: int | None = None, *, from_beginning: bool = True, ended: bool = False
    ) -> dict[str, Any]:
        """The state after what this object has delivered, or after ``samples`` of the epoch or of this run.

        ``batch_size``: of this rank. ``samples``: over all ranks; ``None``: what this object has delivered.
        ``from_beginning``: whether ``samples`` counts from the epoch's beginning. ``ended``: whether ``samples`` counts from
        the end of the epoch that was begun last.
        """
        worker = LoaderWorker.detect()
        data_rank = self.data_rank(batch_size)
        division = self._rank_finder.division() or self._division
        # torchdata's loader asks for the state between its own batches, and knows which of them training has had.
        asked_by_torchdata = worker.token is not None or called_from("torchdata.stateful_dataloader")
        if samples is None and (division is not None or (self._read_ahead and not asked_by_torchdata)):
            raise StateError(
                "accelerate reads ahead of training, or on rank 0 for all ranks, so that what training has had is not known "
                "here: say how many samples of the epoch all ranks together have had: state_dict(num_samples=...); for "
                f"use_stateful_dataloader=True, {REMEDY}"
            )
        if worker.token is not None:
            return self.resume.worker_state(worker, data_rank)
        if samples is None:
            return self.resume.state(self.resume.here(), data_rank)
        point = self.resume.after(samples, data_rank, from_beginning=from_beginning, ended=ended)
        return self.resume.state(point, data_rank)

    def state_after(
        self, start: EpochPosition, batches: int, batch_size: int, *, ended: bool = False
    ) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``, and has ``ended``."""
        return self.resume.state_after(start, batches, self.data_rank(batch_size), ended=ended)

    def load(self, state: Mapping[str, Any], batch_size: int | None, *, change_streams: bool = False) -> None:
        """Make the next iteration resume where ``state`` was taken, or begin a new epoch with other streams."""
        self._division, self._counted_for, self._read_ahead = None, None, False
        if change_streams:
            self.resume.change(state)
        else:
            size = batch_size or 1
            data_rank = self._rank_finder.early_data_rank(size)
            # What is not known yet is checked when iteration starts.
            check = batch_size is not None and data_rank is not None
            self.resume.load(state, LoaderWorker.detect(), data_rank or DataRank(batch_size=size), check=check)

    def change(self, state: Mapping[str, Any], order: SampleOrder) -> None:
        """Continue where ``state`` was taken, in an order with other weights, as an iteration that runs does, too."""
        self.resume.change(state, order, goes_on=True)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch; see :meth:`stoker.loaders.dataset.StreamingDataset.set_epoch`."""
        # A wrapper calls it at the start of each epoch, on ranks too that are only sent their samples.
        self._division = self._counted_for = self._rank_finder.division()
        self._rank_finder.check_prepared(self._division)
        self.resume.set_epoch(epoch)
