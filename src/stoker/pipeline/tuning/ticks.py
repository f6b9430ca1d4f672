"""Observations of a running pipeline, as the tuner's rules need them, and what its vain trials have cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Tick:
    """Observations of a short time.

    Attributes:
        seconds: of it, without pauses of the consumer.
        waited: those in which the consumer waited.
        samples: that were delivered in it.
        shards: the part of the makers' time in which they waited for shards, 0 to 1.
        full: the part of the steps before which the lookahead was full, 0 to 1.
        downloads: the part of the waiting in which all downloads ran that may, 0 to 1.
        width: downloads that may run at once.
        most_width: those that may at most, by the sizes of shards.
        chunk_bytes: bytes of what a step of reading makes.
        computed: seconds of processors that this process, and those that read for it, had in it.
        at_work: the part of the waiting in which the consumer's own thread had a processor, or waited for one, 0 to 1.
    """

    seconds: float
    waited: float
    samples: int
    shards: float = 0.0
    full: float = 0.0
    downloads: float = 0.0
    width: int = 8
    most_width: int = 128
    chunk_bytes: int = 0
    computed: float = 0.0
    at_work: float = 0.0


class Window:
    """Sums over ticks, and how much these differ."""

    def __init__(self) -> None:
        self._ticks: list[Tick] = []

    def add(self, tick: Tick) -> None:
        """Add a tick."""
        self._ticks.append(tick)

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return len(self._ticks)

    @property
    def latest(self) -> Tick:
        """The tick that was added last."""
        return self._ticks[-1]

    @property
    def time(self) -> float:
        """Seconds of a sample."""
        return sum(tick.seconds for tick in self._ticks) / max(1, sum(tick.samples for tick in self._ticks))

    @property
    def waiting(self) -> float:
        """The part of the time that is waiting."""
        return sum(tick.waited for tick in self._ticks) / max(1e-9, sum(tick.seconds for tick in self._ticks))

    @property
    def error(self) -> float:
        """Standard error of the time of a sample."""
        mean, count = self.time, len(self._ticks)
        samples = sum(tick.samples for tick in self._ticks) / count
        off = sum((tick.seconds - mean * tick.samples) ** 2 for tick in self._ticks)
        return math.sqrt(off / max(1, count - 1) / count) / max(1.0, samples)

    @property
    def spread(self) -> float:
        """Standard deviation of the seconds of a tick, for its samples."""
        return self.error * self.samples / math.sqrt(self.ticks)

    def mean(self, part: Callable[[Tick], float]) -> float:
        """The mean of a number that each tick has, weighted by their waiting."""
        weights = [tick.waited + 1e-9 for tick in self._ticks]
        values = (weight * part(tick) for weight, tick in zip(weights, self._ticks, strict=True))
        return sum(values) / sum(weights)

    @property
    def seconds(self) -> float:
        """Seconds of all ticks."""
        return sum(tick.seconds for tick in self._ticks)

    @property
    def samples(self) -> int:
        """Samples of all ticks."""
        return sum(tick.samples for tick in self._ticks)

    @property
    def processors(self) -> float:
        """Processors that were at work, on average."""
        return sum(tick.computed for tick in self._ticks) / max(1e-9, self.seconds)


_FIRST_SHARE: Final = 0.015
_LATER_SHARE: Final = 0.005
_FREE_SECONDS: Final = 1.0
"""Vain trials may cost the first part of the time; where that is more, so many seconds and the second part."""

_STAKE: Final = 0.03
"""Seconds that a trial may cost at least, else it does not begin."""

_LIKELY: Final = 2.0
"""Standard deviations that are taken for noise."""


class Regret:
    """Sums up what vain trials cost.

    A trial costs the time that it takes beyond what the same samples took before it. One that is kept costs nothing.

    Attributes:
        pace: seconds of a sample before the trial.
    """

    def __init__(self) -> None:
        self._seconds = self._lost = 0.0
        self.pace = self._noise = self._trial_seconds = 0.0
        self._trial_samples = self._ticks = 0

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds

    def begin(self, pace: float, noise: float) -> None:
        """Begin a trial; before it a sample took ``pace`` seconds, and ticks had a standard deviation of ``noise``."""
        self.pace, self._noise = pace, noise
        self._trial_seconds, self._trial_samples, self._ticks = 0.0, 0, 0

    def tries(self, tick: Tick) -> None:
        """Add a tick of a trial."""
        self._trial_seconds += tick.seconds
        self._trial_samples += tick.samples
        self._ticks += 1

    def withdrawn(self) -> None:
        """Note that a trial was vain."""
        self._lost += max(0.0, self.cost)

    @property
    def cost(self) -> float:
        """Seconds that the trial has cost; negative: that it has saved."""
        return self._trial_seconds - self._trial_samples * self.pace

    @property
    def gain(self) -> float:
        """The part of the time of a sample that the trial has saved; negative: that it has cost."""
        return 1.0 - self._trial_seconds / max(1, self._trial_samples) / self.pace

    @property
    def left(self) -> float:
        """Seconds that a trial may cost now."""
        return min(_FIRST_SHARE * self._seconds, _FREE_SECONDS + _LATER_SHARE * self._seconds) - self._lost

    @property
    def more(self) -> float:
        """Seconds that the trial may cost more; negative: it has cost too much, by more than noise."""
        return self.left - self.cost + _LIKELY * self._noise * math.sqrt(self._ticks + 1)

    @property
    def until_stake(self) -> float:
        """Seconds until ``_STAKE`` is left."""
        staked = self._lost + _STAKE
        return max(0.0, staked / _FIRST_SHARE - self._seconds, (staked - _FREE_SECONDS) / _LATER_SHARE - self._seconds)
