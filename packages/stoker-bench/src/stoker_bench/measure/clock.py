"""Waiting for a moment, to some ten microseconds: sleep almost up to it, spin for the rest, and count what was spun."""

from __future__ import annotations

import ctypes
import time
from typing import Final

_PR_SET_TIMERSLACK: Final = 29
_SPIN: Final = 80_000
"""Nanoseconds before the moment from which on it spins, at first; each late wake-up raises it, up to :data:`_MOST_SPIN`."""
_MOST_SPIN: Final = 200_000


def fine_timers() -> bool:
    """Ask Linux to wake this thread when it says, not up to 50 µs later; whether it does."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


class BenchClock:
    """Waits until moments of :func:`time.perf_counter_ns`.

    Attributes:
        spun: nanoseconds for which it held a processor while it waited.
    """

    def __init__(self) -> None:
        fine_timers()
        self.spun = 0
        self._margin = _SPIN

    def wait_until(self, moment: int) -> int:
        """Wait; returns the time afterwards, ``moment`` or later."""
        now = time.perf_counter_ns()
        left = moment - now
        if left <= 0:
            return now
        if left > self._margin:
            wake = moment - self._margin
            time.sleep((wake - now) * 1e-9)
            now = time.perf_counter_ns()
            late = now - wake
            # Half of what is missing: one late wake-up on a busy machine is no reason to spin for long ever after.
            if late > self._margin:
                self._margin = min(_MOST_SPIN, self._margin + (late - self._margin) // 2 + 1)
            elif self._margin > _SPIN:
                self._margin -= (self._margin - _SPIN) // 16 + 1
        begun = now
        while now < moment:
            now = time.perf_counter_ns()
        self.spun += now - begun
        return now
