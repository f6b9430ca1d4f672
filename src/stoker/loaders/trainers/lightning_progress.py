"""Keeps Lightning's progress through an epoch and the state of a loader in agreement, in its checkpoints and on resuming.

Lightning's checkpoint holds the states of the loaders and, apart from them, how many batches of the epoch and how many epochs
were done. It loads no states at an epoch's end, or takes an ended epoch for unfinished where ``max_steps`` is given; and it
ends an epoch when its count reaches the loader's length, which another number of ranks changes. All of that would leave
batches out, or repeat them, without a word. Lightning has no public names for it; tests with the real package hold what is
used here.
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


def saved_by_lightning(loader: object) -> tuple[int, bool]:
    """State of the training that Lightning saves now with the state of ``loader``; of any other caller ``(0, False)``.

    Returns:
        The batches that were handed to a step and not trained on yet; whether the epoch has ended, be it before the loader's.
    """
    found = _training_of(loader)
    if found is None:
        return 0, False
    fit_loop, _ = found
    fetcher, batches = fit_loop._data_fetcher, fit_loop.epoch_loop.batch_progress
    untrained = 0
    # A step that is given the iterator itself may take any number of batches; what is read ahead, consumers.py tells.
    if fetcher is not None and not hasattr(fetcher, "iterator_wrapper"):
        untrained = max(0, fetcher.fetched - len(getattr(fetcher, "batches", ())) - batches.current.processed)
    return untrained, not untrained and _is_last(batches)


def load_for_lightning(loader: object) -> None:
    """Load the states of a checkpoint where Lightning, which begins to iterate over ``loader``, has left that out."""
    found = _training_of(loader)
    if found is None:
        return
    fit_loop, combined_loader = found
    states = fit_loop._combined_loader_states_to_load
    if states and not fit_loop.restarting:
        fit_loop._combined_loader_states_to_load = []
        combined_loader._load_state_dicts(states)


def follow_lightning(loader: object, steps: Callable[[], tuple[int, int]]) -> bool:
    """Correct the progress of a Lightning trainer that is resuming and has ``loader`` load its state now, if one is.

    StateError if the trainer reads several loaders at a time, whose batches it counts together. ``loader``: has loaded its
    state. ``steps``: gives the batches of a whole epoch in this world, 0 where that is not known, and those that are left of
    the one that comes next: equally many at its beginning. Gives whether Lightning's next iteration is the rest of an epoch
    of which only the end is to be told: it must be empty.
    """
    found = _training_of(loader)
    if found is None:
        return False
    fit_loop, combined_loader = found
    epochs, batches = fit_loop.epoch_progress.current, fit_loop.epoch_loop.batch_progress
    whole, left = steps()
    if _is_last(batches) and left == whole:
        if epochs.processed < epochs.started and batches.current.completed == batches.current.ready:
            return True  # saved by the validation at its end
        _begin_epoch(fit_loop)
        return False
    if left == whole:
        refuse_ended(loader)
    _go_on_in_epoch(fit_loop)
    _set_batches(batches.current, whole, whole - left, len(combined_loader.flattened))
    return False


def _is_last(batches: Any) -> bool:
    """Whether the batch that was trained on last was the last of Lightning's epoch."""
    return bool(batches.is_last_batch) and batches.current.processed == batches.current.ready > 0


def _begin_epoch(fit_loop: Any) -> None:
    """Make Lightning begin the next epoch, after a checkpoint of one's last batch or end."""
    epoch_loop, epochs, batches = fit_loop.epoch_loop, fit_loop.epoch_progress, fit_loop.epoch_loop.batch_progress.total
    if epochs.current.processed < epochs.current.started:  # saved in the hook after the last batch
        epoch_loop._batches_that_stepped += not epoch_loop._should_accumulate()
    for count in (epochs.total, epochs.current):
        count.ready = count.started = count.processed = count.completed = max(count.started, count.processed)
    batches.started = batches.processed = batches.completed = batches.ready
    fit_loop._restarting = epoch_loop.restarting = False  # its own setter says True wherever there is max_steps


def _go_on_in_epoch(fit_loop: Any) -> None:
    """Make Lightning go on in an epoch in whose middle training stopped, such as by ``max_steps``: it counts it as done."""
    epochs = fit_loop.epoch_progress
    if epochs.current.started and epochs.current.processed >= epochs.current.started:
        for count in (epochs.total, epochs.current):
            count.processed = count.completed = count.started - 1
        fit_loop._restarting = fit_loop.epoch_loop.restarting = True


def _set_batches(count: Any, whole: int, done: int, loaders: int) -> None:
    """Set Lightning's count of the batches that were done of an epoch.

    StateError if it counts those of several loaders together.
    """
    if not whole or count.processed == done or (loaders > 1 and (count.processed - done) % whole == 0):
        return  # of several loaders, one that is shorter begins again
    if loaders > 1:
        raise StateError(
            f"the checkpoint was saved after {count.processed} batches, which in this world are {done} of the {whole} that "
            "the loader has an epoch; Lightning counts the batches of a CombinedLoader together, and would end the epoch "
            "early or late: resume on as many devices as it was saved on, or give fit() a single loader"
        )
    logger.warning(
        "the checkpoint was saved after %d batches of an epoch; in this world that is after %d of %d, from where Lightning "
        "counts on",
        count.processed,
        done,
        whole,
    )
    behind = count.processed - count.completed  # 1 in a checkpoint that was saved at a batch's end
    count.ready = count.started = count.processed = done
    count.completed = done - min(behind, done)


def refuse_ended(loader: object) -> None:
    """Refuse to resume a loader that had ended, next to a longer one: Lightning would begin its next epoch.

    StateError if a trainer is resuming in the middle of its epoch, with ``CombinedLoader(mode="max_size")``. ``loader``: has
    loaded a state of an epoch's beginning.
    """
    found = _training_of(loader)
    if found is None or getattr(found[1], "_mode", None) != "max_size" or len(found[1].flattened) < 2:
        return
    progress = found[0].epoch_loop.batch_progress
    if progress.current.ready and not progress.is_last_batch:
        raise StateError(
            f"the checkpoint was saved after {progress.current.ready} batches, when this loader of a "
            'CombinedLoader(mode="max_size") had ended and a longer one had not; Lightning would begin the next epoch of '
            "this one: resume from a checkpoint of before its end, or of the epoch's end, or use mode='max_size_cycle' or "
            "'min_size'"
        )


def _training_of(loader: object) -> tuple[Any, Any] | None:
    """The fit loop of the trainer that calls ``loader`` for training, and the ``CombinedLoader`` that does it for it."""
    package = next((sys.modules[name] for name in _PACKAGES if name in sys.modules), None)
    kind = getattr(getattr(package, "utilities", None), "CombinedLoader", None)
    if package is None or kind is None:
        return None
    combined_loader: Any = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        one = frame.f_locals.get("self")
        if isinstance(one, kind) and any(other is loader for other in one.flattened):
            combined_loader = one
        trainer = None if combined_loader is None else getattr(one, "trainer", None)
        if isinstance(trainer, package.Trainer):
            fit_loop = trainer.fit_loop
            return (fit_loop, combined_loader) if fit_loop._combined_loader is combined_loader else None
        frame = frame.f_back
    return None
