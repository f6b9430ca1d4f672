"""Functions that wait for what this thread does: those on its call stack, and those of other threads that it reads for.

Libraries read in threads: the ``datasets`` package where it shuffles or interleaves, loaders that read ahead. The function
that gets the samples is then not on the reading thread's stack. A generator that rests between two items is on no stack.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any, Final

__all__ = ["called_from", "callers", "module_of"]

# Nothing leads from these to what an iteration reads; or, as from a module, to everything.
_NO_WAY: Final = ModuleType, type, CodeType, FrameType, TracebackType


def called_from(package: str, function: str | None = None) -> bool:
    """Whether a function of this package, or the one of this name, waits for this thread."""
    if package not in sys.modules:
        return False

    def belongs(frame: FrameType) -> bool:
        return f"{module_of(frame)}.".startswith(f"{package}.")

    return any(belongs(frame) and function in (None, frame.f_code.co_name) for frame in callers(belongs))


def callers(wanted: Callable[[FrameType], bool]) -> Iterator[FrameType]:
    """The frames of this thread's stack, the innermost first; then the ``wanted`` ones of others, for which it reads."""
    yield from _stack(sys._getframe(1))
    if threading.get_ident() != threading.main_thread().ident:
        yield from _read_for(wanted)


def module_of(frame: FrameType) -> str:
    """Name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__"))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _read_for(wanted: Callable[[FrameType], bool]) -> list[FrameType]:
    """Frames beyond this thread's stack that are ``wanted``, and from which references lead to what this thread runs.

    References lead from an iteration to the generators that it takes items from and to the data set below. Those of what
    only stands beside it, such as another loader in the same process, do not.
    """
    targets: set[int] = set()
    for frame in _stack(sys._getframe(2)):
        targets.add(id(frame))
        if _is_ours(one := frame.f_locals.get("self")):
            targets.add(id(one))
    waiting: dict[int, tuple[FrameType, Any]] = {}
    for ident, top in sys._current_frames().items():
        if ident != threading.get_ident():
            waiting |= {id(frame): (frame, frame.f_locals) for frame in _stack(top) if wanted(frame)}
    for one in gc.get_objects():
        if type(one) is GeneratorType and (resting := one.gi_frame) is not None and wanted(resting):
            waiting[id(resting)] = resting, one
    found: list[FrameType] = []
    grown = True
    while grown:
        grown = False
        for number, (frame, root) in list(waiting.items()):
            if number in targets or _leads_to(root, targets):
                del waiting[number]
                if number not in targets:
                    found.append(frame)
                # An iteration may be known only by its object: in a worker the one around it was copied with the process.
                targets |= {number, id(frame.f_locals.get("self", frame))}
                grown = True
    return found


def _leads_to(root: Any, targets: set[int]) -> bool:
    """Whether references lead from ``root`` to an object in ``targets``, or to the generator of a frame in it."""
    seen: dict[int, Any] = {}
    todo = deque(root.values() if isinstance(root, dict) else gc.get_referents(root))
    while todo:
        one = todo.popleft()
        if id(one) in targets or (type(one) is GeneratorType and id(one.gi_frame) in targets):
            return True
        if id(one) not in seen and gc.is_tracked(one):
            seen[id(one)] = one
            todo.extend(_referents(one))
    return False


def _referents(one: Any) -> Iterable[Any]:
    if issubclass(type(one), _NO_WAY) or type(one).__module__ == "accelerate.state":  # which knows of all loaders
        return ()
    if type(one) is FunctionType:
        return [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
    if _is_ours(one):  # not to data sets that its transform reads
        return [other for other in getattr(one, "__dict__", {}).values() if _is_ours(other)]
    return gc.get_referents(one)


def _is_ours(one: Any) -> bool:
    return any(str(kind.__module__).startswith("stoker.") for kind in type(one).__mro__)
