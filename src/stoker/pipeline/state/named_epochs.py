"""Epochs that trainers and packages around a dataset name by counts of their own."""

from __future__ import annotations

import logging

from stoker.cluster.datasets_package import NamedEpoch
from stoker.errors import ConfigError, StateError
from stoker.pipeline.state.epoch_counter import EpochClock
from stoker.pipeline.state.prepared_loaders import PreparedLoaders

logger = logging.getLogger(__name__)


class NamedEpochs:
    """Sets a clock to the epochs that a caller names.

    Args:
        clock: counts the epochs of the dataset.
    """

    def __init__(self, clock: EpochClock) -> None:
        self._clock = clock
        self._named = False
        self._loaders = PreparedLoaders()

    def name(self, epoch: int) -> bool:
        """Make the next iteration begin an epoch; see :meth:`stoker.loaders.dataset.StreamingDataset.set_epoch`.

        Returns:
            Whether that is another position than where it would have begun.

        Raises:
            ConfigError: there is no such epoch.
        """
        if epoch < 0:
            raise ConfigError(f"set_epoch({epoch}): epochs count from 0")
        if self._loaders.go_on(epoch):
            return False
        before = self._clock.peek()
        ahead = self._clock.name_epoch(epoch)
        moved = self._clock.peek() != before
        if ahead and not moved and not self._named:
            logger.warning(
                "set_epoch(%d) after a state of epoch %d was loaded: the state holds, and epochs of this count are %d later",
                epoch,
                before.epoch,
                ahead,
            )
        self._named = True
        return moved

    def follow(self, epoch: NamedEpoch | None) -> bool:
        """The same for the epoch that the ``datasets`` package around the dataset reads, where it was named.

        Raises:
            StateError: the package leaves out the beginning of an epoch that nobody has named.
        """
        if epoch is not None and epoch.number:
            return self.name(epoch.number)
        if epoch is not None and epoch.resumes and not self._named:
            upcoming = self._clock.peek().epoch
            said = (
                "the datasets package leaves out the samples of an epoch that came before its state, and does not say which "
                "epoch: call set_epoch(epoch) of its IterableDataset before each epoch"
                + ("" if epoch.number is not None else ", and of the StreamingDataset, which it reads in a thread")
            )
            if upcoming:
                raise StateError(f"{said}. This would be epoch {upcoming}")
            logger.warning("%s. Taken for epoch 0", said)
        return False
