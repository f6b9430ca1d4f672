"""Tells which trainer takes the batches of a loader, where it takes others than it trains on at that moment.

Both functions look at who asked the iterator that calls them, once an iteration, and only where the trainer is imported. The
trainers have no public names for it; tests with their real packages hold what is looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

__all__ = ["looks_only", "reads_ahead"]


def reads_ahead() -> bool:
    """Whether batches are asked for before the one before is handed out, so that a state of all would leave one out.

    So do Ray Train's ``prepare_data_loader``, and Keras with JAX on an accelerator.
    """
    if "ray.train" in sys.modules and _name(sys._getframe(2)).startswith("ray.train."):
        return True
    return any(frame.f_code.co_name == "_one_batch_ahead_iterator" for frame in _frames_of_keras())


def looks_only() -> bool:
    """Whether Keras asks for a batch to build a model by, and then begins anew: the rest of the epoch would be left out."""
    return any(frame.f_code.co_name == "_symbolic_build" for frame in _frames_of_keras())


def _frames_of_keras() -> Iterator[FrameType]:
    """The functions of Keras by which the iterator is asked, the innermost first."""
    frame: FrameType | None = sys._getframe(3) if "keras" in sys.modules else None
    while frame is not None and _name(frame) != "stoker.loaders.dataloader":
        frame = frame.f_back
    frame = None if frame is None else frame.f_back
    while frame is not None and _name(frame).startswith("keras."):
        yield frame
        frame = frame.f_back


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
