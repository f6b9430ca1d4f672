"""The time for which another process has given no sign, by a clock that stands still while this process does."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import Final

_LEAST_POLL: Final = 0.05
_MOST_POLL: Final = 5.0


def poll_seconds(limit: float) -> float:
    """Seconds between two looks, where something is to be noticed after ``limit`` seconds.

    Example:
        >>> poll_seconds(600), poll_seconds(2)
        (5.0, 0.2)
    """
    return min(_MOST_POLL, max(_LEAST_POLL, limit / 10))


class SilenceClock:
    """Counts seconds without a sign, of any number of others.

    A process that was stopped, or did not get a processor for long, would find all others silent: no look counts for more
    than twice the time between two.

    Args:
        limit: seconds.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._poll = poll_seconds(limit)
        self._lock = threading.Lock()
        self._silent: dict[Hashable, float] = {}
        self._before = time.monotonic()

    def heard(self, who: Hashable) -> None:
        """Note a sign of one."""
        with self._lock:
            self._silent[who] = 0.0

    def left(self, who: Hashable) -> None:
        """Forget one, which gives no more signs."""
        with self._lock:
            self._silent.pop(who, None)

    def look(self) -> Hashable | None:
        """One that was silent for too long, if there is any; to be called every :func:`poll_seconds`."""
        now = time.monotonic()
        with self._lock:
            passed = min(now - self._before, 2 * self._poll)
            self._before = now
            for who in self._silent:
                self._silent[who] += passed
            return next((who for who, seconds in self._silent.items() if seconds > self.limit), None)
