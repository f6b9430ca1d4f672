"""Keeps Lightning's count of an epoch's batches right where a state is resumed in another world.

Lightning's checkpoint holds how many batches of the epoch were done, and it ends the epoch when that count reaches the
loader's length. With another number of ranks an epoch has another number of batches, so that Lightning would end it early,
without a word, or go on beyond its end.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from stoker.errors import StateError

logger = logging.getLogger(__name__)

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def follow_lightning(loader: object, steps: Callable[[], tuple[int, int]]) -> None:
    """Correct the count of a Lightning trainer that is resuming and has ``loader`` load its state now, if one is.

    Args:
        loader: has loaded its state.
        steps: gives the batches of a whole epoch in this world, and those that are left of the one that comes next.

    Raises:
        StateError: the trainer reads several loaders at a time, whose batches it counts together.
    """
    found = _trainer_of(loader)
    if found is None:
        return
    (trainer, combined), (whole, left) = found, steps()
    count, loaders = trainer.fit_loop.epoch_loop.batch_progress.current, len(combined.flattened)
    done = whole - left
    if not done:
        refuse_ended(loader)
    if count.ready == done or ((not whole or (count.ready - done) % whole == 0) and (loaders > 1 or not done)):
        return  # of several loaders, one that is shorter begins again
    if loaders > 1:
        raise StateError(
            f"the checkpoint was saved after {count.ready} batches, which in this world are {done} of the {whole} that the "
            "loader has an epoch; Lightning counts the batches of a CombinedLoader together, and would end the epoch early "
            "or late: resume on as many devices as it was saved on, or give fit() a single loader"
        )
    logger.warning(
        "the checkpoint was saved after %d batches of an epoch; in this world that is after %d of %d, from where Lightning "
        "counts on",
        count.ready,
        done,
        whole,
    )
    behind = count.ready - count.completed  # 1 in a checkpoint that was saved at a batch's end
    count.ready = count.started = count.processed = done
    count.completed = done - min(behind, done)


def refuse_ended(loader: object) -> None:
    """Refuse to resume a loader that had ended, next to a longer one: Lightning would begin its next epoch.

    Args:
        loader: has loaded a state of an epoch's beginning.

    Raises:
        StateError: a trainer is resuming in the middle of its epoch, with ``CombinedLoader(mode="max_size")``.
    """
    found = _trainer_of(loader)
    if found is None or getattr(found[1], "_mode", None) != "max_size" or len(found[1].flattened) < 2:
        return
    progress = found[0].fit_loop.epoch_loop.batch_progress
    if progress.current.ready and not progress.is_last_batch:
        raise StateError(
            f"the checkpoint was saved after {progress.current.ready} batches, when this loader of a "
            'CombinedLoader(mode="max_size") had ended and a longer one had not; Lightning would begin the next epoch of '
            "this one: resume from a checkpoint of before its end, or of the epoch's end, or use mode='max_size_cycle' or "
            "'min_size'"
        )


def _trainer_of(loader: object) -> tuple[Any, Any] | None:
    """The trainer which has ``loader`` load its state, and the ``CombinedLoader`` by which it does."""
    package = next((sys.modules[name] for name in _PACKAGES if name in sys.modules), None)
    combined_loader = getattr(getattr(package, "utilities", None), "CombinedLoader", None)
    if package is None or combined_loader is None:
        return None
    combined: Any = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        one = frame.f_locals.get("self")
        if isinstance(one, combined_loader) and any(other is loader for other in one.flattened):
            combined = one
        trainer = getattr(one, "trainer", None) if combined is not None else None
        if isinstance(trainer, package.Trainer):
            return trainer, combined
        frame = frame.f_back
    return None
