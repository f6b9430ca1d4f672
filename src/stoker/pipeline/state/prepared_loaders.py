"""Keeps accelerate's count of epochs right after ``skip_first_batches``.

Each loader that accelerate prepares counts epochs by itself, and names the next one to the dataset when it is iterated.
``skip_first_batches`` makes another loader, for the rest of an epoch. The first one is not told when that has ended: it would
name the same epoch once more, and training would have it twice.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any


class PreparedLoaders:
    """The loaders of accelerate that have named epochs to one dataset."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        # Whether it has come to its end is asked of it when the next epoch is named; until then it must not be gone.
        self._latest: tuple[Any, int] | None = None

    def __reduce__(self) -> tuple[type[PreparedLoaders], tuple[()]]:
        return PreparedLoaders, ()  # a copy is another dataset's

    def go_on(self, epoch: int) -> bool:
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
