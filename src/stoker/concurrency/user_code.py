"""Functions of the user, such as a transform: whether one is running, and what it raised."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeVar

from stoker.errors import TransformError

_F = TypeVar("_F", bound=Callable[..., Any])
_CALLERS: Final[set[CodeType]] = set()
_RUNNERS: Final[set[CodeType]] = set()


def calls_user_code(function: _F) -> _F:
    """Mark a function that calls functions of the user; a decorator. The call itself costs nothing for it."""
    _CALLERS.add(function.__code__)
    return function


def in_user_code() -> bool:
    """Whether a function that is marked by :func:`calls_user_code` is on the stack of this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _CALLERS:
            return True
        frame = frame.f_back
    return False


def runs_steps(function: _F) -> _F:
    """Mark a function whose local ``step`` is that of a chain whose function it calls; a decorator."""
    _RUNNERS.add(function.__code__)
    return function


def step_of(error: BaseException) -> Any | None:
    """The step of a chain in which an error was raised, by its traceback; ``None`` where no chain ran."""
    at: TracebackType | None = error.__traceback__
    while at is not None:
        step = at.tb_frame.f_locals.get("step") if at.tb_frame.f_code in _RUNNERS else None
        if step is not None:
            return step
        at = at.tb_next
    return None


class UserFunction:
    """A function of the user that another library calls in an iteration. Its ``StopIteration`` does not end the iteration.

    TransformError if the function raised ``StopIteration``. ``function``: the function. ``name``: the name of the argument
    that took it.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        try:
            return self._function(*arguments)
        except StopIteration as error:
            raise TransformError(f"{self._name} raised StopIteration, as next() does where nothing is left") from error


def pass_exits(error: BaseException) -> None:
    """Raise Ctrl-C and :func:`sys.exit` again; do nothing for all else that a function of the user raised.

    Callers catch ``BaseException``: ``StopIteration`` and ``GeneratorExit`` would end an iteration of ours as if there were
    no more samples, and a panic of a Rust library (pyo3's ``PanicException``) is no ``Exception``.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
