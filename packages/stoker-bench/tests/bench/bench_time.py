"""Time that is data: what stands for the module ``time`` in code under test, so that no test depends on a machine's speed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

LOOP: Final = tuple(f"stoker_bench.measure.{name}" for name in ("steps", "compute", "clock"))
"""The modules of the measured loop."""
READING: Final = 100
"""Nanoseconds that it takes to read a clock."""


class BenchTime:
    """Clocks of each thread, which stand still but for what is read and slept.

    Args:
        late: nanoseconds by which it wakes late from sleeping, in turn.
    """

    def __init__(self, late: Iterable[int] = (0,)) -> None:
        self._late = itertools.cycle(late)
        self._own = threading.local()

    @property
    def now(self) -> int:
        """This thread's time, in nanoseconds."""
        return getattr(self._own, "now", 10**9)

    @now.setter
    def now(self, now: int) -> None:
        self._own.now = now

    def perf_counter_ns(self) -> int:
        self.now += READING
        return self.now

    def monotonic_ns(self) -> int:
        """A clock that began at another moment."""
        return self.perf_counter_ns() - 123_456_789

    def perf_counter(self) -> float:
        return self.perf_counter_ns() * 1e-9

    def monotonic(self) -> float:
        return self.monotonic_ns() * 1e-9

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9) + next(self._late)

    def replace(self, setattr_: Callable[[str, Any], object], *modules: str) -> None:
        """Be the module ``time`` of some modules; default, of the measured loop.

        Args:
            setattr_: ``MonkeyPatch.setattr``, or what else replaces attributes.
        """
        for module in modules or LOOP:
            setattr_(f"{module}.time", self)
