"""Functions on this thread's call stack. What waits in another thread for what this one reads is not on it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType


def called_from(package: str, function: str | None = None) -> bool:
    """Whether a function of this package, or the one of this name, is on this thread's stack."""
    if package not in sys.modules:
        return False
    found = (frame for frame in callers() if f"{module_of(frame)}.".startswith(f"{package}."))
    return any(function in (None, frame.f_code.co_name) for frame in found)


def callers() -> Iterator[FrameType]:
    """The frames of this thread's stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_other_thread() -> bool:
    """Whether this is not the main thread, so that another may wait for what it reads.

    Ray runs a whole training function in a thread: there is its main thread. In a process that another thread has forked,
    that thread is the main one, and what waits for it waits in the parent.
    """
    if _forked_by_other or threading.get_ident() != threading.main_thread().ident:
        return not called_from("ray") or called_from("ray.data")
    return False


_forked_by_other = False
_here = threading.local()
"""Of a thread that forks: whether it is not the main one. Other threads may fork at the same time."""


def _before_fork() -> None:
    _here.other = in_other_thread()


def _in_child() -> None:
    global _forked_by_other
    _forked_by_other = _here.other


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def module_of(frame: FrameType) -> str:
    """Name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__"))
