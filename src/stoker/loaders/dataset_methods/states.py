"""The epochs of a dataset: which comes next, and the states by which a run resumes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from stoker.arguments import at_least, check_argument, checked
from stoker.cluster import World
from stoker.errors import ConfigError, StateError
from stoker.loaders.dataset_methods.opened import BatchSize, DatasetBase
from stoker.loaders.trainers.consumers import ended_by_composer, nothing_left_for_composer
from stoker.order.native import NativeOrder
from stoker.order.sample_order import EpochPosition, Plan
from stoker.types import Ids

logger = logging.getLogger(__name__)

# The dataset whose overridden state_dict() a loader calls, the state that the loader has counted, and the samples it gives.
_counted: ContextVar[tuple[object, Mapping[str, Any], int] | None] = ContextVar("_counted", default=None)


class DatasetStates(DatasetBase):
    """Base of a dataset: its epochs, which comes next, and its states."""

    batch_size = BatchSize()
    _resumed_between = False
    """Whether the state that was loaded last is of the end of an epoch, and so of the beginning of the next."""

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that the next iteration delivers."""
        return self._opened.reader.resume.upcoming().epoch

    @checked
    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """The state of this run, to resume from on any cluster: JSON-serialisable, a few hundred bytes.

        Args:
            num_samples: samples of the current epoch that training has had, over all ranks. Needed where a DataLoader's
                workers iterate, since they run ahead of training;
                :class:`~stoker.loaders.dataloader.StreamingDataLoader` gives it. Default: what this object has delivered.
            from_beginning: whether ``num_samples`` counts from the epoch's start, or from where this run resumed.

        Raises:
            StateError: without ``num_samples``, where DataLoader workers iterate, or two iterations take turns, or this rank
                has ended an epoch of which other ranks have more (``remainder="uneven"``).
        """
        counted = _counted.get()
        if counted is not None and counted[0] is self:
            _, state, samples = counted
            if num_samples != samples:  # samples of the dataset are counted, however collate_fn packs them
                logger.warning(
                    "state_dict() of %s asks for the state after %s samples; the loader has delivered %d, counted before "
                    "collate_fn, and that is where its state is",
                    type(self).__name__,
                    num_samples,
                    samples,
                )
            return dict(state)
        ended = num_samples == 0 and from_beginning and ended_by_composer(self)
        return self._opened.reader.state(self.batch_size or 1, num_samples, from_beginning=from_beginning, ended=ended)

    def state_for_loader(self, state: dict[str, Any], samples: int) -> dict[str, Any]:
        """A state that a loader has counted, as a subclass that overrides :meth:`state_dict` gives it.

        Args:
            state: where all ranks are.
            samples: of all ranks, since this run began or resumed.
        """
        if not self.overrides("state_dict"):
            return state
        token = _counted.set((self, state, samples))
        try:
            return self.state_dict(samples, False)
        finally:
            _counted.reset(token)

    def state_after(self, start: EpochPosition, batches: int, *, ended: bool = False) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``.

        Args:
            start: of :meth:`upcoming`, before the iteration.
            batches: that were delivered.
            ended: whether this rank was then told that there are no more.

        Raises:
            StateError: it has ended, and other ranks have more.
        """
        return self._opened.reader.state_after(start, batches, self.batch_size or 1, ended=ended)

    def plan(self, start: EpochPosition) -> Plan:
        """This rank's batches from ``start`` to the end of its epoch."""
        return self._opened.reader.plan(start, self.batch_size or 1)

    def compare_ranks(self, start: EpochPosition, left: int) -> None:
        """See that all ranks read the same from ``start`` on; see :class:`~stoker.formats.base.ReadOptions`.

        Args:
            start: where an iteration begins.
            left: batches that were delivered in the one before.
        """
        reader = self._opened.reader
        reader.compare_ranks(start, reader.data_rank(self.batch_size or 1), left)

    def upcoming(self) -> EpochPosition:
        """The position at which the next iteration begins."""
        return self._opened.reader.resume.upcoming()

    @property
    def states_loaded(self) -> int:
        """Number of states that were loaded into this object. Each ends the iterations that were running."""
        return self._opened.reader.resume.loads

    @property
    def order_number(self) -> int:
        """A number that rises when a state changes the order of samples, which copies in workers that live on do not take."""
        return self._opened.reader.resume.order_number

    def check_alone(self) -> None:
        """Check that only this object delivers, so that it knows how far it is.

        Raises:
            StateError: copies in other processes, such as workers of a DataLoader, have begun to iterate.
        """
        self._opened.reader.resume.check_alone()

    def load_state_dict(self, state: Mapping[str, Any], *, change_streams: bool = False) -> None:
        """Make the next iteration resume where ``state`` was taken. One that is running ends with a ``StateError``.

        Args:
            state: of :meth:`state_dict`; with an order of mosaicml-streaming, also a state of its dataset or loader.
            change_streams: continue although streams were added or removed, their weights changed, or files were appended
                to them. Each stream continues with the samples that it has not delivered yet; none is repeated before these.

        Raises:
            StateError: it belongs to another dataset, or to other order settings, or this world can not resume from there;
                says what differs.
        """
        change_streams = check_argument(
            f"{type(self).__name__}.load_state_dict", "change_streams", bool, change_streams
        )
        before = self.order_number
        self._opened.reader.load(state, self.batch_size, change_streams=change_streams)
        if self.order_number != before:
            self._record_shares()
        self._resumed_between = self.upcoming() == self.upcoming().epoch_begin()

    @checked
    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the proportions of the streams from the next batch on, also in the middle of an epoch.

        Each stream continues with the samples that it has not delivered yet, and none is repeated before these. Epochs keep
        their length. A loop over this dataset that is running continues with the new weights. States hold them: such a state
        is loaded in a dataset that is made as this one was. Call it on all ranks after the same batch; where workers of a
        DataLoader read, call :meth:`stoker.loaders.dataloader.StreamingDataLoader.set_weights`.

        >>> dataset.set_weights({"web": 0.6, "books": 0.4})  # doctest: +SKIP

        Args:
            weights: the proportion of each stream, by its name; 0: none of it from here on.

        Raises:
            ConfigError: weights that are not numbers from 0 or do not name each stream, or an order whose streams cannot
                change: of mosaicml-streaming, of batches by length, of a ``Schedule``, or with fixed sampling.
            StateError: DataLoader workers read ahead; or samples are divided by a static partition, inside an epoch.
        """
        if user := BatchSize.user(self):
            raise ConfigError(
                f"set_weights(): {user} counts its batches. Call set_weights() of a StreamingDataLoader. The weights of an "
                "LMStream and of a StreamingShardLoader cannot change during an epoch: to mix by tokens and change weights, "
                "use a StreamingParquetLoader with a DatasetSource for each dataset"
            )
        self.change_weights(weights, self._opened.reader.state(self.batch_size or 1))

    def change_weights(self, weights: Mapping[str, float], state: Mapping[str, Any]) -> None:
        """The same, from where a state was taken, for loaders that count what they deliver."""
        reader, order = self._opened.reader, self._opened.reader.sample_order
        if not isinstance(order, NativeOrder):
            raise ConfigError(
                "set_weights() changes the mixture of stoker's own orders, and this dataset has batch_by= or an order of "
                "mosaicml-streaming: make a dataset with the new weights, and load_state_dict(state, change_streams=True), "
                "which begins the next epoch with them"
            )
        reader.change(state, order.with_weights(weights))
        self._record_shares()

    def _record_shares(self) -> None:
        if isinstance(order := self._opened.reader.sample_order, NativeOrder):
            self._opened.streams.record_shares(order.chosen, order.proportions)

    @checked
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver this epoch, from its beginning. Not needed: each iteration is the next epoch.

        Trainers call it with a count of their own, which begins at 0 in each process. A state that was loaded is not undone
        by that: the first call after :meth:`load_state_dict` says how the caller counts the epoch that the state is in, and
        later calls count on from there. Where the two numbers differ, that is logged.

        Args:
            epoch: its number, from 0.

        Raises:
            ConfigError: there is no such epoch.
        """
        self._opened.reader.set_epoch(epoch)

    @checked
    def ids_of(
        self,
        step: int,
        rank: int | None = None,
        epoch: int | None = None,
        *,
        since_resume: bool = False,
        world_size: int | World | None = None,
        batch_size: int | None = None,
    ) -> Ids:
        """The ids of the samples in a batch of any rank, epoch and world, from the order alone: nothing is read.

        They are those that the world delivers with these settings; whether one is bad shows when it is read. What a wrapper
        of a trainer divides once more (``dispatch_batches``), or a sampler or a subclass's own ``__iter__`` changes, is not
        in it.

        >>> dataset.ids_of(340)                # doctest: +SKIP
        >>> dataset.where(dataset.ids_of(340, rank=2)[0])  # doctest: +SKIP

        Args:
            step: number of the batch, from 0, counted from the epoch's beginning in batches of this world, as ``SkipSteps``
                counts.
            rank: of those that read different samples; default: all, one after the other.
            epoch: number of the epoch; default: the one that was begun last, or that the next iteration begins.
            since_resume: count ``step`` from where the iteration of that epoch began: after a resume, where the state was
                taken.
            world_size: how many ranks read different samples, of another run of these settings, which would begin or resume
                where this one did. Where the order depends on nodes, they have as many ranks as here; or give a
                :class:`~stoker.cluster.world.World`, whose ``local_world_size`` says it. Default: this world.
            batch_size: of each rank of it; default: that of this dataset.

        Returns:
            int64, shape ``(batch_size,)``, or ``(ranks * batch_size,)`` without ``rank``; fewer in an epoch's last batch.

        Raises:
            ConfigError: there is no such step, rank or epoch, or no such number after a resume with other global batches.
        """
        at_least(0, step=step, epoch=epoch)
        at_least(1, batch_size=batch_size)
        size = batch_size or self.batch_size or 1
        return self._opened.reader.step(step, rank, epoch, size, world_size, since_resume=since_resume).ids

    def nothing_left(self) -> bool:
        """Whether Composer resumes at the end of an epoch, so that nothing is left to read before the next one."""
        return self._resumed_between and nothing_left_for_composer(self)

    def __getstate__(self) -> dict[str, Any]:
        if self.nothing_left():
            raise StateError(
                "this state is of an epoch's end, so that nothing is left for Composer to read before the next epoch, and "
                "workers that are spawned are not told of that: leave multiprocessing_context out"
            )
        return {**self.__dict__}
