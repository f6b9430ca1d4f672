"""Rules of the tuner: what is changed, kept and withdrawn. No clock, no thread and no pipeline: observations come in.

The knob that the consumer's waiting is attributed to is raised for a trial. It is kept where the time of a sample became
less, by more than the noise of the measurements, and withdrawn where not. That is a search of the worst stage as tf.data's
(Murray et al., "tf.data: A Machine Learning Data Processing Framework", VLDB 2021), with measured times instead of a model's,
and with rests between vain trials that double.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from stoker.pipeline.tuning.knobs import Knob, KnobRange, MemoryUse

_LITTLE: Final = 0.03
"""A consumer that waits for less than this part of its time is the bottleneck: nothing is changed."""

_GAIN: Final = 0.02
"""The part of the time of a sample that a change has to save."""

_SURE: Final = 3.0
_LIKELY: Final = 1.5
"""Standard errors by which a gain has to differ from that before it is judged early; those that it has to have in the end."""

_FULL: Final = 0.5
"""The lookahead is too short where it is full in this part of the waiting, and in no more of it all downloads run."""

_SOME: Final = 0.02
"""Shards are worth a trial where this part of the makers' time is waiting for them, or all downloads run that may."""

_CHANGED: Final = 0.3
"""A change of the waiting, as part of the time, that ends a rest."""

_BESIDE: Final = 0.05
_MOST_STEPS: Final = 3
"""A change that costs no more than this part of the time may be tried together with others, so many at most."""

_LOSS: Final = -0.25
"""A change that costs this part of the time is withdrawn with the first tick."""

_BASE_TICKS: Final = 4
_LEAST_TICKS: Final = 4
_MOST_TICKS: Final = 16
_SETTLE_TICKS: Final = 2
_MOST_SETTLE: Final = 10
"""Ticks of a base, and of a trial: at least and at most; those that are left out before it, at least and at most."""

_REST_TICKS: Final = 16
_MOST_REST: Final = 1024
"""Ticks after which a vain search is done again: at first, and at most."""

_SHORT, _LONG = 0.1, 1.0
"""Seconds of a tick while there are trials, and while there are none."""

_TICK_CHUNKS: Final = 4
"""Steps of reading that a tick has at least, and twice as many as there are threads: they come in bursts."""

_ROOM: Final = 1.2
"""A value that memory or a bound cuts is tried where it is so many times the one before."""


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


class Why(IntEnum):
    """Reasons of a change."""

    READING = 0
    """The consumer waits for reading, decoding and functions."""
    FETCHING = 1
    """It waits for shards, and all downloads run that may."""
    LOOKAHEAD = 2
    """It waits for shards, and no more are asked for."""
    LESS = 3
    """More gained nothing, so that less is tried."""
    MEMORY = 4
    """Steps of reading turned out larger than there is memory for."""


class TrialOutcome(IntEnum):
    """Ends of a trial."""

    KEPT = 0
    WITHDRAWN = 1


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change that was made and judged.

    Attributes:
        knob: what was changed.
        before: its value before.
        after: its value in the trial.
        why: what it was for.
        outcome: whether it stays.
        gain: the part of the time of a sample that it saved; negative: that it cost.
    """

    knob: Knob
    before: int
    after: int
    why: Why
    outcome: TrialOutcome
    gain: float


class _Window:
    """Sums over ticks, and how much these differ."""

    def __init__(self) -> None:
        self._ticks: list[Tick] = []

    def add(self, tick: Tick) -> None:
        self._ticks.append(tick)

    @property
    def ticks(self) -> int:
        return len(self._ticks)

    @property
    def latest(self) -> Tick:
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

    def mean(self, name: str) -> float:
        """The mean of a number of ticks, weighted by their waiting."""
        weights = [tick.waited + 1e-9 for tick in self._ticks]
        values = (weight * float(getattr(tick, name)) for weight, tick in zip(weights, self._ticks, strict=True))
        return sum(values) / sum(weights)


@dataclass(frozen=True, slots=True)
class _Step:
    knob: Knob
    before: int
    told_before: int
    after: int
    why: Why


@dataclass(frozen=True, slots=True)
class _Trial:
    """Changes that are tried together, and what was measured before them."""

    steps: tuple[_Step, ...]
    base: _Window


class Controller:
    """Chooses values of knobs from what is observed.

    Args:
        ranges: bounds of each knob.
        memory: what they may take.

    Attributes:
        values: of each knob, now.
    """

    def __init__(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> None:
        self.values: dict[Knob, int] = {knob: ranges[knob].start for knob in Knob}
        self._ranges = dict(ranges)
        self._memory = memory
        self._trial: _Trial | None = None
        self._window = _Window()
        self._settling = _SETTLE_TICKS
        self._settling_samples = 0
        self._vain: set[tuple[Knob, bool]] = set()
        self._resting = 0
        self._rest = _REST_TICKS
        self._rested_at = 0.0
        self._odd = 0

    @property
    def idle(self) -> bool:
        """Whether no knob may change."""
        return all(one.fixed for one in self._ranges.values())

    @property
    def settled(self) -> dict[Knob, int]:
        """Values without those that are on trial."""
        on_trial = {} if self._trial is None else {step.knob: step.before for step in self._trial.steps}
        return {**self.values, **on_trial}

    @property
    def tick_seconds(self) -> float:
        """The least time of the next tick."""
        return _LONG if self._resting else _SHORT

    @property
    def tick_chunks(self) -> int:
        """The least number of steps of reading in the next tick."""
        return max(_TICK_CHUNKS, 2 * self.values[Knob.READ_THREADS])

    def restarted(self) -> None:
        """Say that reading has begun anew, from an empty lookahead: what was measured does not go on."""
        self._withdraw()
        self._measure()

    def observe(self, tick: Tick) -> list[JudgedChange]:
        """Take a tick into account, and change ``values``. Returns the changes that were judged with it."""
        if (shrunk := self._shrink(tick)) is not None:
            return [shrunk]
        if self._settling > 0 or self._settling_samples > 0:
            self._settling -= 1
            self._settling_samples -= tick.samples
            if self._settling <= _SETTLE_TICKS - _MOST_SETTLE:
                self._settling_samples = 0
            return []
        if self._resting:
            self._look(tick)
            return []
        self._window.add(tick)
        if self._trial is not None:
            return self._judge(self._trial)
        if self._window.ticks >= _BASE_TICKS:
            self._search()
        return []

    # -- memory ------------------------------------------------------------------------------------------------------

    def _shrink(self, tick: Tick) -> JudgedChange | None:
        """Take back chunks, or threads, that take more memory than there is, by what steps of reading really take."""
        memory = MemoryUse(self._memory.budget, max(1, tick.chunk_bytes), self._memory.sample_bytes)
        if tick.chunk_bytes:
            self._memory = memory
        if memory.of(self.values) <= memory.budget:
            return None
        for knob, least in ((Knob.CHUNKS_AHEAD, 1), (Knob.READ_THREADS, 1), (Knob.PREDOWNLOAD, 1)):
            value, most = self.values[knob], max(least, memory.most(self.values, knob))
            if self._ranges[knob].fixed or value <= most:
                continue
            self._withdraw()
            self.values[knob] = min(self.values[knob], most)
            self._measure()
            return JudgedChange(knob, value, most, Why.MEMORY, TrialOutcome.KEPT, 0.0)
        return None

    # -- trials ------------------------------------------------------------------------------------------------------

    def _measure(self, settle: int = 0) -> None:
        self._trial, self._window = None, _Window()
        self._settling, self._settling_samples = _SETTLE_TICKS, settle
        self._resting = 0

    def _search(self) -> None:
        window = self._window
        if window.waiting >= _LITTLE:
            steps = next(self._choices(window), None)
            if steps is not None:
                self._begin(_Trial(steps, window), steps)
                return
            self._begin_rest(window, self._rest)
            self._rest = min(_MOST_REST, 2 * self._rest)
        else:
            self._begin_rest(window, _MOST_REST)

    def _choices(self, window: _Window) -> Iterator[tuple[_Step, ...]]:
        """Changes to be tried, the most likely to help first; some need another that makes memory for them."""
        for knob, up, why in _candidates(window):
            if (knob, up) in self._vain:
                continue
            after = self._next(knob, window.latest, self.values, up=up)
            if after is not None:
                yield (self._step(knob, after, why, window.latest),)
            elif up and why is Why.READING and not self._ranges[Knob.PREDOWNLOAD].fixed:
                less = self.values[Knob.PREDOWNLOAD] // 2
                after = self._next(knob, window.latest, {**self.values, Knob.PREDOWNLOAD: less}, up=up)
                if less and after is not None:
                    making = self._step(Knob.PREDOWNLOAD, less, Why.MEMORY, window.latest)
                    yield (self._step(knob, after, why, window.latest), making)

    def _step(self, knob: Knob, after: int, why: Why, tick: Tick) -> _Step:
        return _Step(knob, self.values[knob], self._told(knob, tick), after, why)

    def _begin_rest(self, window: _Window, ticks: int) -> None:
        self._rested_at, self._odd = window.waiting, 0
        self._resting, self._window = ticks, _Window()

    def _look(self, tick: Tick) -> None:
        """Rest, until it is time for another search or the waiting has changed for several ticks."""
        waiting = tick.waited / max(1e-9, tick.seconds)
        by = _LITTLE if self._rested_at < _LITTLE else _CHANGED
        self._odd = self._odd + 1 if waiting > self._rested_at + by else 0
        self._resting -= 1
        if self._odd >= _LEAST_TICKS:
            self._rest = _REST_TICKS
        if not self._resting or self._odd >= _LEAST_TICKS:
            self._vain.clear()
            self._measure()

    def _next(self, knob: Knob, tick: Tick, values: Mapping[Knob, int], *, up: bool) -> int | None:
        """The value to be tried beside others; ``None``: there is none."""
        bounds = self._ranges[knob]
        if bounds.fixed:
            return None
        value = self._told(knob, tick)
        if not up:
            less = value // 2
            return less if less >= 1 else None
        most = min(bounds.most, self._memory.most(values, knob))
        if knob is Knob.DOWNLOAD_THREADS:
            most = min(most, tick.most_width)
        after = min(max(2 * value, bounds.step), most)
        if knob is Knob.CHUNKS_AHEAD and not self.values[Knob.READ_THREADS]:
            return None
        return after if after >= value * _ROOM and after > value else None

    def _told(self, knob: Knob, tick: Tick) -> int:
        """The value of a knob; of one that is chosen elsewhere, what that is."""
        value = self.values[knob]
        return value or tick.width if knob is Knob.DOWNLOAD_THREADS else value

    def _begin(self, trial: _Trial, steps: tuple[_Step, ...]) -> None:
        """Make some changes, which are the last of a trial."""
        self._measure(settle=self.values[Knob.PREDOWNLOAD] if steps[-1].knob is Knob.PREDOWNLOAD else 0)
        self._trial = trial
        for step in steps:
            self.values[step.knob] = step.after

    def _withdraw(self) -> None:
        self.values = self.settled

    def _judge(self, trial: _Trial) -> list[JudgedChange]:
        window, base = self._window, trial.base
        gain = 1.0 - window.time / base.time
        if window.ticks < _LEAST_TICKS and gain > _LOSS:
            return []
        saved = (base.time * base.waiting - window.time * window.waiting) / base.time
        error = math.hypot(window.error, base.error * window.time / base.time) / base.time
        # The consumer's own time may change by itself; and what saves waiting may take the consumer's time instead.
        least = min(gain, saved)
        if gain > _LOSS and window.ticks < _MOST_TICKS and abs(least - _GAIN) < _SURE * error:
            return []
        keep = least >= max(_GAIN, _LIKELY * error)
        if not keep and least > -_BESIDE - error and (steps := self._beside(trial, window)) is not None:
            self._begin(_Trial((*trial.steps, *steps), base), steps)
            return []
        if keep:
            self._vain.clear()
            self._rest = _REST_TICKS
        else:
            self._withdraw()
            self._vain.update((step.knob, step.after > step.told_before) for step in trial.steps[:1])
        self._measure()
        outcome = TrialOutcome.KEPT if keep else TrialOutcome.WITHDRAWN
        if keep:  # what was measured goes on: the next trial needs no other base
            self._settling, self._window = 0, window
        return [JudgedChange(one.knob, one.told_before, one.after, one.why, outcome, gain) for one in trial.steps]

    def _beside(self, trial: _Trial, window: _Window) -> tuple[_Step, ...] | None:
        """Changes of other knobs, where the waiting is for something else now: two stages were equally slow."""
        if len(trial.steps) >= _MOST_STEPS:
            return None
        knobs, whys = {one.knob for one in trial.steps}, {one.why for one in trial.steps} | {Why.LESS}
        for steps in self._choices(window):
            if not any(one.knob in knobs or one.why in whys for one in steps):
                return steps
        return None


def _candidates(window: _Window) -> Iterator[tuple[Knob, bool, Why]]:
    """Knobs that may make the waiting less, the most likely first, and whether they are raised."""
    shards, downloads = window.mean("shards"), window.mean("downloads")
    short = window.mean("full") >= _FULL and downloads <= _FULL
    if shards < 0.5:
        yield from _OF_READING
    if shards >= _SOME or downloads > _FULL:
        yield from _OF_SHARDS[::-1] if short else _OF_SHARDS
        yield (Knob.DOWNLOAD_THREADS, False, Why.LESS)
    if shards >= 0.5:
        yield from _OF_READING


_OF_READING: Final = (
    (Knob.READ_THREADS, True, Why.READING),
    (Knob.CHUNKS_AHEAD, True, Why.READING),
    (Knob.READ_THREADS, False, Why.LESS),
)
_OF_SHARDS: Final = (
    (Knob.DOWNLOAD_THREADS, True, Why.FETCHING),
    (Knob.PREDOWNLOAD, True, Why.LOOKAHEAD),
)
