"""The numbers that the tuner may set, the memory that they take, and what is seen of a pipeline while they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from stoker.policy import CHUNKS_OF_PROCESS


class Knob(IntEnum):
    """A number that the tuner may set."""

    READ_THREADS = 0
    """Threads that read, decode and transform ahead of the consumer; 0: its own thread does."""
    CHUNKS_AHEAD = 1
    """Steps of reading that may be done and wait for the consumer, beyond those that a thread works at."""
    PREDOWNLOAD = 2
    """Samples ahead whose shards are fetched or opened."""
    DOWNLOAD_THREADS = 3
    """Shards fetched at once; 0: as :class:`~stoker.reading.fetch_width.FetchWidth` chooses."""
    READ_PROCESSES = 4
    """Processes that read, decode and transform ahead of the consumer; 0: threads do."""


@dataclass(frozen=True, slots=True)
class KnobRange:
    """Bounds of a knob.

    Attributes:
        step: the least value above ``start`` that makes a difference.
        fixed: whether it stays as it is, as the user set it or as it would change nothing.
    """

    start: int
    most: int
    step: int = 1
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that knobs take.

    Attributes:
        budget: bytes that they may take together.
        chunk_bytes: of what one step of reading makes.
        sample_bytes: of a sample whose shard is fetched, where that is held in this process's memory; else 0.
    """

    budget: int
    chunk_bytes: int
    sample_bytes: int

    def of(self, values: Mapping[Knob, int]) -> int:
        """Bytes that some values take: shards ahead, and steps of reading ahead."""
        threads, processes = values[Knob.READ_THREADS], values[Knob.READ_PROCESSES]
        chunks = threads + values[Knob.CHUNKS_AHEAD] if threads else CHUNKS_OF_PROCESS * processes or 1
        return chunks * self.chunk_bytes + values[Knob.PREDOWNLOAD] * self.sample_bytes

    def most(self, values: Mapping[Knob, int], knob: Knob) -> int:
        """The greatest value of a knob for which there is memory, while the others stay."""
        one, two = (self.of({**values, knob: value}) for value in (1, 2))
        return max(0, 1 + (self.budget - one) // (two - one)) if two > one else 1 << 62


class Why(Enum):
    """Reasons of a change."""

    READING = "the consumer waits for reading, decoding and functions"
    FETCHING = "the consumer waits for shards while all downloads run that may"
    LOOKAHEAD = "the consumer waits for shards that were not asked for in time"
    LESS = "more gained nothing"
    MEMORY = "what is read ahead took more memory than tune_memory allows"


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A change of a knob: one that may be tried, or that was made and judged.

    Attributes:
        knob: what is changed.
        before: its value before; of a knob that is left to others to choose, what they have chosen.
        after: its value in the trial.
        why: what it is for.
        kept: whether it stays.
        gain: the part of the time of a sample that it saved; negative: that it cost.
    """

    knob: Knob
    before: int
    after: int
    why: Why
    kept: bool = False
    gain: float = 0.0

    @property
    def is_raise(self) -> bool:
        """Whether the knob is raised."""
        return self.after > self.before


# -- what is seen ------------------------------------------------------------------------------------------------------


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
    """Sums over ticks, and how much these differ.

    Attributes:
        seconds, waited, samples, computed: sums over them.
        latest: the one that was added last.
    """

    latest: Tick

    def __init__(self) -> None:
        self._all: list[Tick] = []
        self.ticks = self.samples = 0
        self.seconds = self.waited = self.computed = 0.0

    def add(self, tick: Tick) -> None:
        """Add a tick."""
        self._all.append(tick)
        self.latest = tick
        self.ticks += 1
        self.samples += tick.samples
        self.seconds += tick.seconds
        self.waited += tick.waited
        self.computed += tick.computed

    @property
    def time(self) -> float:
        """Seconds of a sample."""
        return self.seconds / max(1, self.samples)

    @property
    def waiting(self) -> float:
        """The part of the time that is waiting."""
        return self.waited / max(1e-9, self.seconds)

    @property
    def spread(self) -> float:
        """Standard deviation of the seconds of a tick, for its samples."""
        mean = self.time
        off = sum((tick.seconds - mean * tick.samples) ** 2 for tick in self._all)
        return math.sqrt(off / max(1, self.ticks - 1))

    @property
    def error(self) -> float:
        """Standard error of the time of a sample."""
        return self.spread * math.sqrt(self.ticks) / max(self.ticks, self.samples)

    @property
    def processors(self) -> float:
        """Processors that were at work, on average."""
        return self.computed / max(1e-9, self.seconds)

    def mean(self, part: Callable[[Tick], float]) -> float:
        """The mean of a number that each tick has, weighted by their waiting."""
        return sum((tick.waited + 1e-9) * part(tick) for tick in self._all) / (self.waited + 1e-9 * self.ticks)


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
    ``pace``: seconds of a sample before the trial.
    """

    def __init__(self) -> None:
        self._seconds = self._lost = 0.0
        self.begin(0.0, 0.0)

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds

    def begin(self, pace: float, noise: float) -> None:
        """Begin a trial; before it a sample took ``pace`` seconds, and ticks had a standard deviation of ``noise``."""
        self.pace, self._noise, self._trial = pace, noise, Window()

    def tries(self, tick: Tick) -> None:
        """Add a tick of a trial."""
        self._trial.add(tick)

    def withdrawn(self) -> None:
        """Note that a trial was vain."""
        self._lost += max(0.0, self.cost)

    @property
    def cost(self) -> float:
        """Seconds that the trial has cost; negative: that it has saved."""
        return self._trial.seconds - self._trial.samples * self.pace

    @property
    def gain(self) -> float:
        """The part of the time of a sample that the trial has saved; negative: that it has cost."""
        return 1.0 - self._trial.time / self.pace

    @property
    def left(self) -> float:
        """Seconds that a trial may cost now."""
        return min(_FIRST_SHARE * self._seconds, _FREE_SECONDS + _LATER_SHARE * self._seconds) - self._lost

    @property
    def more(self) -> float:
        """Seconds that the trial may cost more; negative: it has cost too much, by more than noise."""
        return self.left - self.cost + _LIKELY * self._noise * math.sqrt(self._trial.ticks + 1)

    @property
    def until_stake(self) -> float:
        """Seconds until ``_STAKE`` is left."""
        staked = self._lost + _STAKE
        return max(0.0, staked / _FIRST_SHARE - self._seconds, (staked - _FREE_SECONDS) / _LATER_SHARE - self._seconds)
