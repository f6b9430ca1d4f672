"""Epochs that trainers and packages around a dataset name by counts of their own."""

from __future__ import annotations

import logging
import sys
import weakref
from types import FrameType
from typing import Any

from stoker.cluster.datasets_package import NamedEpoch
from stoker.errors import ConfigError, StateError
from stoker.pipeline.state.epoch_counter import EpochClock

logger = logging.getLogger(__name__)


class AccelerateEpochs:
    """Keeps accelerate's count of epochs right after ``skip_first_batches``.

    Each loader that accelerate prepares counts epochs by itself, and names the next one to the dataset when it is iterated.
    ``skip_first_batches`` makes another loader, for the rest of an epoch. The first one is not told when that has ended: it
    would name the same epoch once more, and training would have it twice.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        # Whether it has come to its end is asked of it when the next epoch is named; until then it must not be gone.
        self._latest: tuple[Any, int] | None = None

    def __reduce__(self) -> tuple[type[AccelerateEpochs], tuple[()]]:
        return AccelerateEpochs, ()  # a copy is another dataset's

    def advance_if_finished(self, epoch: int) -> bool:
        """Have a loader read the next epoch, if another loader has finished the one that it names.

        Args:
            epoch: the one that it names.

        Returns:
            Whether it reads the next one.
        """
        loader, iterates = _naming_loader()
        if loader is None or not iterates:
            self._latest = None  # a user names it, who may want it again
            if loader is not None:
                self._known.add(loader)
            return False
        latest, self._latest = self._latest, (loader, epoch)
        first = loader not in self._known
        self._known.add(loader)
        if latest is None or latest[0] is loader or latest[1] != epoch or not latest[0].end_of_dataloader:
            return False
        if first and not latest[0].skip_batches:
            return False  # a training run that begins anew
        self._latest = None
        loader.set_epoch(epoch + 1)  # which names that
        return True


def _naming_loader() -> tuple[Any, bool]:
    """The loader of accelerate that names an epoch now, if one does, and whether that is because it is iterated."""
    kinds = tuple(
        kind
        for name in ("DataLoaderShard", "DataLoaderDispatcher")
        if isinstance(kind := getattr(sys.modules.get("accelerate.data_loader"), name, None), type)
    )
    loader: Any = None
    frame: FrameType | None = sys._getframe(1) if kinds else None
    while frame is not None:
        one = frame.f_locals.get("self")
        if isinstance(one, kinds) and loader in (None, one):
            loader = one
            if frame.f_code.co_name == "__iter__":
                return loader, True
        frame = frame.f_back
    return loader, False


class NamedEpochs:
    """Sets a clock to the epochs that a caller names.

    Args:
        clock: counts the epochs of the dataset.
    """

    def __init__(self, clock: EpochClock) -> None:
        self._clock = clock
        self._named = False
        self._accelerate = AccelerateEpochs()

    def name(self, epoch: int) -> bool:
        """Make the next iteration begin an epoch; see :meth:`stoker.loaders.dataset.StreamingDataset.set_epoch`.

        Returns:
            Whether that is another position than where it would have begun.

        Raises:
            ConfigError: there is no such epoch.
        """
        if epoch < 0:
            raise ConfigError(f"set_epoch({epoch}): epochs count from 0")
        if self._accelerate.advance_if_finished(epoch):
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
