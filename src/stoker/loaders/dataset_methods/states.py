"""The epochs of a dataset: which comes next, and the states by which a run resumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.arguments import check_argument, checked
from stoker.loaders.dataset_methods.overrides import asked_by_loader, loader_state
from stoker.loaders.trainers.composer_progress import ended_by_composer
from stoker.order.protocols import Plan
from stoker.order.sample_order import EpochPosition
from stoker.pipeline.epoch_reader import EpochReader


class DatasetStates:
    """Base of a dataset: its states, and the epoch that comes next."""

    _epoch_reader: EpochReader
    batch_size: int | None
    """Samples in a batch of a rank; ``None`` counts as 1."""
    _resumed_between = False
    """Whether the state that was loaded last is of the end of an epoch, and so of the beginning of the next."""

    def overrides(self, *names: str) -> tuple[str, ...]:
        """Those of the methods ``names`` that the class of this object has from a subclass."""
        raise NotImplementedError

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that the next iteration delivers."""
        return self._epoch_reader.upcoming().epoch

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
        counted = loader_state(self, num_samples)
        if counted is not None:
            return counted
        ended = num_samples == 0 and from_beginning and ended_by_composer(self)
        return self._epoch_reader.state(self.batch_size or 1, num_samples, from_beginning=from_beginning, ended=ended)

    def state_for_loader(self, state: dict[str, Any], samples: int) -> dict[str, Any]:
        """A state that a loader has counted, as a subclass that overrides :meth:`state_dict` gives it.

        Args:
            state: where all ranks are.
            samples: of all ranks, since this run began or resumed.
        """
        if not self.overrides("state_dict"):
            return state
        with asked_by_loader(self, state, samples):
            return self.state_dict(samples, False)

    def state_after(self, start: EpochPosition, batches: int, *, ended: bool = False) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``.

        Args:
            start: of :meth:`upcoming`, before the iteration.
            batches: that were delivered.
            ended: whether this rank was then told that there are no more.

        Raises:
            StateError: it has ended, and other ranks have more.
        """
        return self._epoch_reader.state_after(start, batches, self.batch_size or 1, ended=ended)

    def plan(self, start: EpochPosition) -> Plan:
        """This rank's batches from ``start`` to the end of its epoch."""
        return self._epoch_reader.plan(start, self.batch_size or 1)

    def compare_ranks(self, start: EpochPosition, left: int) -> None:
        """See that all ranks read the same from ``start`` on; see :class:`~stoker.formats.base.ReadOptions`.

        Args:
            start: where an iteration begins.
            left: batches that were delivered in the one before.
        """
        reader = self._epoch_reader
        reader.compare_ranks(start, reader.data_rank(self.batch_size or 1), left)

    def upcoming(self) -> EpochPosition:
        """The position at which the next iteration begins."""
        return self._epoch_reader.upcoming()

    @property
    def states_loaded(self) -> int:
        """Number of states that were loaded into this object. Each ends the iterations that were running."""
        return self._epoch_reader.loads

    def check_alone(self) -> None:
        """Check that only this object delivers, so that it knows how far it is.

        Raises:
            StateError: copies in other processes, such as workers of a DataLoader, have begun to iterate.
        """
        self._epoch_reader.check_alone()

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
        self._epoch_reader.load(state, self.batch_size, change_streams=change_streams)
        self._resumed_between = self.upcoming() == self.upcoming().epoch_begin()

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
        self._epoch_reader.set_epoch(epoch)
