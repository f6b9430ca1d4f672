"""Observations of a running pipeline, as the tuner's rules need them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


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
