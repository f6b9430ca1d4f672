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
from inspect import CO_GENERATOR
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any, Final

from stoker.concurrency.global_lock import has_global_lock
from stoker.concurrency.user_code import in_user_code
from stoker.errors import ConfigError

__all__ = ["called_from", "callers", "module_of"]

_SCANS: Final = 20
"""Scans at most. One scan finds all callers, unless the code of a wrapper runs during its milliseconds."""
# Nothing leads from these to what an iteration reads; or, as from a module, to everything.
_NO_WAY: Final = ModuleType, type, CodeType, FrameType, TracebackType


def called_from(package: str, function: str | None = None) -> bool:
    """Whether a function of this package, or the one of this name, waits for this thread."""
    if package not in sys.modules:
        return False

    def belongs(module: str) -> bool:
        return f"{module}.".startswith(f"{package}.")

    found = (frame for frame in callers(belongs) if belongs(module_of(frame)))
    return any(function in (None, frame.f_code.co_name) for frame in found)


def callers(wanted: Callable[[str], bool]) -> Iterator[FrameType]:
    """The frames of this thread's stack, the innermost first; then those of others, for which it reads.

    Args:
        wanted: of the others only those of modules with such names.

    Raises:
        ConfigError: this is not the main thread, such a module is loaded, and this Python has no global lock: the variables
            of functions that other threads run can not be looked at.
    """
    yield from _stack(sys._getframe(1))
    if threading.get_ident() != threading.main_thread().ident:
        if not has_global_lock():
            loaded = [name for name in list(sys.modules) if wanted(name)]
            if not loaded or in_user_code():  # what a function of the user reads is for that function
                return
            raise ConfigError(
                f"a dataset is read in the thread {threading.current_thread().name!r}, {loaded[0]} is imported, and this "
                "Python has no global lock: whether that package divides or numbers what is read here can not be seen. "
                "Read in the main thread, or run with PYTHON_GIL=1"
            )
        yield from _read_for(wanted)


def module_of(frame: FrameType) -> str:
    """Name of the module whose code a frame runs."""
    # The frame of another thread has no globals when it ends.
    return str((frame.f_globals or {}).get("__name__"))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _read_for(wanted: Callable[[str], bool]) -> list[FrameType]:
    """Frames beyond this thread's stack, of ``wanted`` modules, from which references lead to what this thread runs.

    References lead from an iteration to the generators that it takes items from and to the data set below. Those of what
    only stands beside it, such as another loader in the same process, do not.
    """
    targets: set[int] = set()
    for frame in _stack(sys._getframe(2)):
        targets.add(id(frame))
        if _is_ours(one := frame.f_locals.get("self")):
            targets.add(id(one))
    found: list[FrameType] = []
    for _ in range(_SCANS):
        scan = _Scan(wanted, targets)
        found += scan.found
        if scan.complete:
            break
    return found


class _Scan:
    """One look at the other threads and at the generators that rest, while they go on.

    Args:
        wanted: of which modules frames are looked for.
        targets: the ``id()`` of frames and objects that are read here; what is found is added.

    Attributes:
        found: the wanted frames from which references lead to a target.
        complete: whether all references were seen. A loop has no variable for its iterator: it is seen as what a waiting
            function has called, and in a generator that rests, but not in a function that runs. Another scan has to look.
    """

    def __init__(self, wanted: Callable[[str], bool], targets: set[int]) -> None:
        self.complete = True
        self.found: list[FrameType] = []
        self._targets = targets
        self._running: set[int] = set()
        waiting = self._waiting(wanted)
        grown = True
        while grown:
            grown = False
            for number, (frame, roots) in list(waiting.items()):
                if number in targets or self._leads_to_target(roots):
                    del waiting[number]
                    if number not in targets:
                        self.found.append(frame)
                    # An iteration may be known only by its object: in a worker the one around it was copied with the
                    # process.
                    targets |= {number, id(frame.f_locals.get("self", frame))}
                    grown = True

    def _waiting(self, wanted: Callable[[str], bool]) -> dict[int, tuple[FrameType, list[Any]]]:
        """The wanted frames, by their ``id()``, and that to which references lead from each."""
        waiting: dict[int, tuple[FrameType, list[Any]]] = {}
        for ident, top in sys._current_frames().items():
            called: list[Any] = []
            for frame in _stack(top):
                self._running.add(id(frame))
                if ident == threading.get_ident():
                    continue
                module = module_of(frame)
                if module.partition(".")[0] == "stoker":
                    called = []  # what a dataset calls, such as a transform, may read others for itself
                    continue
                called = [*called, *frame.f_locals.values()]
                if wanted(module):
                    waiting[id(frame)] = frame, called
                    self.complete = self.complete and frame is not top
        for one in _generators(wanted):
            if (resting := one.gi_frame) is not None:
                waiting.setdefault(id(resting), (resting, self._held_by(one)))
        return waiting

    def _leads_to_target(self, roots: Iterable[Any]) -> bool:
        """Whether references lead from ``roots`` to an object in the targets, or to the generator of a frame in them."""
        seen: dict[int, Any] = {}
        todo = deque(roots)
        while todo:
            one = todo.popleft()
            if id(one) in self._targets or (type(one) is GeneratorType and id(one.gi_frame) in self._targets):
                return True
            if id(one) not in seen and gc.is_tracked(one):
                seen[id(one)] = one
                todo.extend(self._held_by(one) if type(one) is GeneratorType else _referents(one))
        return False

    def _held_by(self, one: GeneratorType[Any, Any, Any]) -> list[Any]:
        frame = one.gi_frame
        if frame is None:
            return []
        held = [*frame.f_locals.values(), *gc.get_referents(one)]
        # Looked at after the references: it may have begun to run meanwhile.
        if one.gi_running and id(frame) not in self._running:
            self.complete = False
        return held


def _generators(wanted: Callable[[str], bool]) -> list[GeneratorType[Any, Any, Any]]:
    """The generators of modules. No other objects are held meanwhile: a tuple that another thread makes must not be."""
    modules = [module for name, module in list(sys.modules.items()) if wanted(name) and isinstance(module, ModuleType)]
    codes = {code for module in modules for code in _generator_codes(module)}
    return [one for one in gc.get_referrers(*codes) if type(one) is GeneratorType] if codes else []


def _generator_codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of the generator functions that a module defines, also of those in classes, functions and decorators."""
    todo: list[Any] = [one for one in list(vars(module).values()) if _defined_in(one, module)]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, type):
            todo += [
                inside
                for inside in list(vars(one).values())
                if not isinstance(inside, type) or _defined_in(inside, module)
            ]
        elif isinstance(one, CodeType):
            if one.co_flags & CO_GENERATOR:
                yield one
            todo += one.co_consts
        elif isinstance(one, FunctionType):
            todo += [one.__code__, vars(one).get("__wrapped__")]
        elif isinstance(one, staticmethod | classmethod):
            todo.append(one.__func__)


def _defined_in(one: Any, module: ModuleType) -> bool:
    return isinstance(one, type | FunctionType) and one.__module__ == module.__name__


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
