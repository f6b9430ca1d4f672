"""When to try again. Pure: clock, sleep and randomness are handed in."""

from __future__ import annotations

import logging
import random as _random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from stoker.errors import ConfigError, StorageError

T = TypeVar("T")

logger = logging.getLogger(__name__)

FIRST_CONTACT: Final = 2.0
"""Seconds in which a server is tried again that has never answered: its name may be wrong, or its address."""

STALL_TIMEOUT: Final = 60.0
"""Seconds without a byte after which a request fails, unless a store is told otherwise."""

MOST_ASKED: Final = 600.0
"""Seconds that a server may ask to be left alone."""

# A wait is said that takes so many seconds, and by a process no more often than in so many.
_SAID_AFTER: Final = 1.0
_SAID_EVERY: Final = 10.0


class TransientError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        final: makes the error to raise when there will be no more attempts, from how many there were and
            the seconds they took.
        after: seconds that the server asks to be left alone.
        answered: the server did answer.
        what: failed, in words, for the log.
        odd: it is none that a store makes in the course of things: the log has it in any case.
    """

    def __init__(
        self,
        final: Callable[[int, float], StorageError],
        after: float = 0.0,
        *,
        answered: bool = False,
        what: str = "a request",
        odd: bool = False,
    ) -> None:
        super().__init__()
        self.final = final
        self.after = after
        self.answered = answered
        self.what = what
        self.odd = odd


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Time in which a request is tried again: exponential back-off with full jitter.

    Attributes:
        patience: seconds after the first failure in which attempts begin; 0 never retries.
        base_delay: seconds; the first wait is uniform in ``[0, base_delay)``, the next in twice that, and
            so on.
        max_delay: seconds that no wait exceeds, but for those that a server asks for.
    """

    patience: float = 300.0
    base_delay: float = 0.2
    max_delay: float = 10.0

    def __post_init__(self) -> None:
        for name in ("patience", "base_delay", "max_delay"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"RetryPolicy.{name} is {getattr(self, name)!r}: expected seconds, not negative.")

    def wait(self, failures: int, elapsed: float, random: Callable[[], float], after: float = 0.0) -> float | None:
        """Seconds to wait after the ``failures``-th failure, ``elapsed`` after the first one, or ``None`` to give up.

        ``random`` returns a number in ``[0, 1)``. ``after`` are seconds that the server asks to be left alone: they
        come on top, so that not all who were refused come back at once.
        """
        if elapsed >= self.patience or after > MOST_ASKED:
            return None
        # Doubling stops at 2**62: beyond it the float would overflow, and every max_delay is smaller.
        delay = random() * min(self.max_delay, self.base_delay * 2.0 ** min(failures - 1, 62))
        return after + delay if after else min(delay, self.patience - elapsed)  # so the last attempt is at the end


class Retries:
    """Attempts at requests to one server. Picklable: the copy knows whether the server has answered.

    ``policy``: how long a request is tried again. Of a server that has not answered so far, :data:`FIRST_CONTACT` at most.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self._first = RetryPolicy(min(policy.patience, FIRST_CONTACT), policy.base_delay, policy.max_delay)
        self.answered = False

    def run(
        self,
        operation: Callable[[int], T],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = _random.random,
    ) -> T:
        """Call ``operation(attempt)``, attempt counting from 0, until it returns or fails for good.

        Raises what the last :class:`TransientError` makes, once there is no patience left; anything else that ``operation``
        raises, at once.
        """
        begun, failed = clock(), 0.0
        attempt = 0
        while True:
            try:
                found = operation(attempt)
                self.answered = True
                return found
            except StorageError:
                self.answered = True  # it refused
                raise
            except TransientError as error:
                now = clock()
                failed = failed if attempt else now
                attempt += 1
                self.answered = self.answered or error.answered
                policy = self.policy if self.answered else self._first
                delay = policy.wait(attempt, now - failed, random, error.after)
                if delay is None:
                    raise error.final(attempt, now - begun) from None
                if error.odd or now - failed + delay >= _SAID_AFTER:
                    _say(error.what, now, now - failed, policy.patience)
            sleep(delay)


def _say(what: str, now: float, elapsed: float, patience: float) -> None:
    global _said
    if not _said <= now < _said + _SAID_EVERY:
        _said = now
        logger.warning("%s; trying again for up to %.0f s (%.0f s so far)", what, patience, elapsed)


_said = -float("inf")
