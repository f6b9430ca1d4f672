"""Notices a rank that makes no step any more, and says where it hangs: in a read, in a collate function, in a computation."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Self

from stoker_bench.ranks.control.client import Link
from stoker_bench.ranks.control.silence import poll_seconds
from stoker_bench.ranks.worker_stacks import StackFrame, tell_stacks, worker_stacks

_FRAMES: Final = 2
"""Functions outside of Python's own library that are named, beside the innermost one."""
_PYTHONS: Final = sysconfig.get_path("stdlib")
_OPENING: Final = 10
"""Multiple of a step's limit for what is no step: listing and opening the data take long where it is large."""


@dataclass(slots=True)
class _Phase:
    name: str
    limit: float
    progress: Callable[[], int] = lambda: 0
    computing: object = None


class StepWatch:
    """Looks on from a thread of its own while the thread that made it runs epochs, which does nothing for it.

    What counts is the time without another step in which the rank itself is busy: not while it waits for other ranks, and not
    while its process stands still.

    Args:
        link: says whether the rank waits for others.
        seconds: for which a step may take; 0 for as long as it likes.
        on_hang: called once in the watch's thread, with what was found; does not return where the process is to end.
    """

    def __init__(self, link: Link, seconds: float, on_hang: Callable[[str], object]) -> None:
        self._link, self._seconds, self._on_hang = link, seconds, on_hang
        self._phases: list[_Phase] = []
        self._thread = threading.get_ident()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._seconds > 0:
            tell_stacks()
            threading.Thread(target=self._look, daemon=True, name="stoker-bench-watch").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def steps(
        self, name: str, progress: Callable[[], int], computing: object
    ) -> contextlib.AbstractContextManager[None]:
        """Watch the steps of the block.

        Args:
            name: of the epoch.
            progress: the number of steps so far.
            computing: the accelerator, whose calls are then told from the loader's.
        """
        return self._phase(_Phase(name, self._seconds, progress, computing))

    def work(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Watch a block that is no step, for ten times as long."""
        return self._phase(_Phase(name, self._seconds * _OPENING))

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Watch nothing in the block."""
        return self._phase(_Phase("", float("inf")))

    @contextlib.contextmanager
    def _phase(self, phase: _Phase) -> Iterator[None]:
        self._phases.append(phase)
        try:
            yield
        finally:
            self._phases.pop()

    def _look(self) -> None:
        poll = poll_seconds(self._seconds)
        last: tuple[_Phase | None, int] = None, 0
        busy, before = 0.0, time.monotonic()
        while not self._ended.wait(poll):
            now = time.monotonic()
            phases = self._phases[-1:]
            seen = (phases[0], phases[0].progress()) if phases else (None, 0)
            if seen[0] is None or seen[0] is not last[0] or seen[1] != last[1] or self._link.waiting:
                busy = 0.0
            else:
                busy += min(now - before, 2 * poll)
                if busy > seen[0].limit:
                    self._on_hang(self._said(seen[0], busy))
                    return
            last, before = seen, now

    def _said(self, phase: _Phase, seconds: float) -> str:
        frames = self._frames()
        doing = ""
        if phase.computing is not None:
            computes = any(frame.f_locals.get("self") is phase.computing for frame in frames)
            doing = f", step {phase.progress()}, {'computing' if computes else 'waiting for a batch'}"
        inner = _chain([StackFrame(one.f_code.co_filename, one.f_lineno, one.f_code.co_qualname) for one in frames])
        # A worker that waits for work has called little beside Python's own library.
        workers = worker_stacks().items()
        busiest = max(workers, key=lambda one: sum(not _is_pythons(frame) for frame in one[1]), default=None)
        worker = "" if busiest is None else f"; its worker process {busiest[0]} in {_chain(busiest[1])}"
        return (
            f"hangs: no progress for {seconds:.4g} s in {phase.name}{doing}: in {inner}{worker}. Where the storage is "
            "that slow, raise train.step_timeout"
        )

    def _frames(self) -> list[FrameType]:
        """The frames of the thread that is watched, the innermost first."""
        found: list[FrameType] = []
        frame: Any = sys._current_frames().get(self._thread)
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found


def _chain(frames: list[StackFrame]) -> str:
    """The innermost function, and those that called it, as far as they are not of Python's own library."""
    named = [*frames[:1], *[frame for frame in frames[1:] if not _is_pythons(frame)][:_FRAMES]]
    return ", called by ".join(f"{one.name} ({os.path.basename(one.path)}:{one.line})" for one in named)


def _is_pythons(frame: StackFrame) -> bool:
    return frame.path.startswith((_PYTHONS, "<frozen")) and "site-packages" not in frame.path
