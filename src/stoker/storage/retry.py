"""When to try again. Pure: clock, sleep and randomness are handed in."""

from __future__ import annotations

import random as _random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stoker.errors import ConfigError, StorageError

T = TypeVar("T")


class TransientError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        final: makes the error to raise when there will be no more attempts, from how many there were and
            the seconds they took.
        after: seconds that the server asks to be left alone.
    """

    def __init__(self, final: Callable[[int, float], StorageError], after: float = 0.0) -> None:
        super().__init__()
        self.final = final
        self.after = after


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number and duration of attempts: exponential back-off with full jitter, bounded in number and in time.

    Attributes:
        attempts: tries in all, at least 1; 1 never retries.
        base_delay: seconds; the first wait is uniform in ``[0, base_delay)``, the next in twice that, and
            so on.
        max_delay: seconds that no wait exceeds, but for those that a server asks for.
        deadline: seconds from the first attempt after which none begins, or ``None``.
    """

    attempts: int = 6
    base_delay: float = 0.2
    max_delay: float = 10.0
    deadline: float | None = 300.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"RetryPolicy.attempts is {self.attempts!r}: at least 1 is needed.")
        for name in ("base_delay", "max_delay"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"RetryPolicy.{name} is {getattr(self, name)!r}: seconds, not negative.")
        if self.deadline is not None and not self.deadline >= 0:
            raise ConfigError(f"RetryPolicy.deadline is {self.deadline!r}: seconds, not negative, or None.")

    def wait(self, failures: int, elapsed: float, random: Callable[[], float], after: float = 0.0) -> float | None:
        """Seconds to wait after the ``failures``-th failure at ``elapsed`` seconds, or ``None`` to give up.

        ``random`` returns a number in ``[0, 1)``. ``after`` are seconds that the server asks to be left alone: they
        come on top, so that not all who were refused come back at once.
        """
        if failures >= self.attempts:
            return None
        # Doubling stops at 2**62: beyond it the float would overflow, and every max_delay is smaller.
        delay = after + random() * min(self.max_delay, self.base_delay * 2.0 ** min(failures - 1, 62))
        if self.deadline is not None and elapsed + delay >= self.deadline:
            return None
        return delay


def run(
    operation: Callable[[int], T],
    policy: RetryPolicy,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    random: Callable[[], float] = _random.random,
) -> T:
    """Call ``operation(attempt)``, attempt counting from 0, until it returns or fails for good.

    Raises:
        StorageError: what the last :class:`TransientError` makes, once the policy gives up.
        Exception: anything else that ``operation`` raises, at once.
    """
    start = clock()
    attempt = 0
    while True:
        try:
            return operation(attempt)
        except TransientError as error:
            attempt += 1
            elapsed = clock() - start
            delay = policy.wait(attempt, elapsed, random, error.after)
            if delay is None:
                raise error.final(attempt, elapsed) from None
        sleep(delay)
