"""Keeps epochs right where Composer's Trainer saves and resumes at the end of one.

Composer counts the samples of its epoch, and asks the training set for ``state_dict(samples)`` after so many. When it has
ended an epoch, it counts 0, although the next one was not begun. A checkpoint that it saves after an epoch's last batch, but
before it ends the epoch, it resumes with an iteration over what is left, which is nothing.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

__all__ = ["ended_by_composer", "nothing_left_for_composer"]


def ended_by_composer(dataset: object) -> bool:
    """Whether Composer, which asks for a state after no sample of its epoch, has ended the epoch that was begun last."""
    state = _caller("composer.core.state", "State", "state_dict")
    return state is not None and _reads(state, dataset) and int(state.timestamp.epoch) > 0


def nothing_left_for_composer(dataset: object) -> bool:
    """Whether Composer, which begins to iterate, is within an epoch whose state it has resumed from."""
    trainer = _caller("composer.trainer.trainer", "Trainer", "_train_loop")
    if trainer is None or not _reads(trainer.state, dataset):
        return False
    return int(trainer.state.timestamp.batch_in_epoch) > 0 and "train" in trainer.state.dataset_resumption


def _reads(state: Any, dataset: object) -> bool:
    """Whether a dataset is the training set, and its loader the one that is read now."""
    loader = state.train_dataloader
    return getattr(loader, "dataset", None) is dataset and state.dataloader in (loader, None)


def _caller(module: str, kind: str, method: str) -> Any:
    """The object of this class whose method is on the call stack; ``None`` where there is none."""
    wanted: Any = getattr(sys.modules.get(module), kind, None)
    frame: FrameType | None = None if wanted is None else sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == method and isinstance(one := frame.f_locals.get("self"), wanted):
            return one
        frame = frame.f_back
    return None
