"""Rules of the tuner: what is changed, kept and withdrawn. No clock, no thread and no pipeline: observations come in.

The knob that the consumer's waiting is attributed to is raised for a trial. It is kept where the time of a sample became
less, by more than the noise of the measurements, and withdrawn where not. That is a search of the worst stage as tf.data's
(Murray et al., "tf.data: A Machine Learning Data Processing Framework", VLDB 2021), with measured times instead of a model's,
and with rests between vain trials that double. What can not help is not tried: more of anything while the processors are
taken, threads where the consumer's own thread computes all the time that it waits, fewer threads while each computes.

Regret is bounded. A trial that is withdrawn has cost the time that it took beyond what the same samples took before it.
The sum of that stays below 1.5 % of the time so far, and from 100 s on below 1 s and 0.5 % of it: a trial begins only where
at least 0.03 s are left of that, so not in the first 2 s, and one that uses up what is left is withdrawn at once. What goes
beyond is at most the step of reading that the consumer waits for just then. Trials that win cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from stoker.pipeline.tuning.knobs import Knob, KnobChange, KnobRange, MemoryUse, Regret, Tick, Why, Window
from stoker.policy import LITTLE_WAITING, LOOKAHEAD_FULL, PROCESS_BYTES

# -- what may be tried ---------------------------------------------------------------------------------------------------

_SOME: Final = 0.02
"""Shards are worth a trial where this part of the makers' time is waiting for them, or all downloads run that may."""

_TAKEN: Final = 0.95
"""Where this part of the processors is at work, more of anything does not help."""

_COMPUTES: Final = 0.8
"""Threads that compute for this part of the time: with fewer of them less is done. Where the consumer reads by itself, and
computes for this part of its waiting: threads would take more of the processors to do the same."""

_CHUNKS_TIMES: Final = 4
"""Steps that wait are raised so many times: what they level out is small, and they take memory only."""

_OF_READING: Final = (
    (Knob.READ_PROCESSES, True, Why.READING),
    (Knob.READ_THREADS, True, Why.READING),
    (Knob.CHUNKS_AHEAD, True, Why.READING),
    (Knob.READ_THREADS, False, Why.LESS),
)
_OF_SHARDS: Final = (
    (Knob.DOWNLOAD_THREADS, True, Why.FETCHING),
    (Knob.PREDOWNLOAD, True, Why.LOOKAHEAD),
)
"""Knobs, whether they are raised, and why."""


class Candidates:
    """Finds changes that may make the waiting less, within the bounds of knobs and the memory, the most likely to help first.

    ``ranges``: bounds of each knob. ``memory``: what they may take. ``processors``: that this process may have.

    Attributes:
        barred: knobs that would change nothing now.
        vain: knobs that were raised (or not) for nothing.
        raised: values of knobs that a trial has shown to do better than those below.
    """

    def __init__(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse, processors: float) -> None:
        self.barred: frozenset[Knob] = frozenset()
        self.vain: set[tuple[Knob, bool]] = set()
        self.raised: dict[Knob, int] = {}
        self._ranges, self._memory, self._processors = dict(ranges), memory, processors

    def helped(self, change: KnobChange) -> None:
        """Note a change that was kept: others may help again, and lowering this knob again would not."""
        self.vain.clear()
        self.raised[change.knob] = change.after if change.is_raise else -1

    def excess(self, tick: Tick, values: Mapping[Knob, int]) -> KnobChange | None:
        """The change that is needed where values take more memory than there is, by what steps of reading really take."""
        seen = replace(self._memory, chunk_bytes=max(1, tick.chunk_bytes))
        if tick.chunk_bytes:
            self._memory = seen
        if seen.of(values) <= seen.budget:
            return None
        for knob in (Knob.CHUNKS_AHEAD, Knob.READ_THREADS, Knob.READ_PROCESSES, Knob.PREDOWNLOAD):
            value, most = values[knob], max(1, seen.most(values, knob))
            if not self._ranges[knob].fixed and value > most:
                return KnobChange(knob, value, most, Why.MEMORY, kept=True)
        return None

    def found(self, window: Window, values: Mapping[Knob, int]) -> Iterator[tuple[KnobChange, ...]]:
        """Changes to be tried, the most likely to help first; some need another that makes memory for them."""
        width = values[Knob.DOWNLOAD_THREADS] or window.latest.width
        told = {**values, Knob.DOWNLOAD_THREADS: width}
        for knob, up, why in _likely(window):
            if knob in self.barred or (knob, up) in self.vain or not self._may_help(knob, window, told, up=up):
                continue
            after = self._next(knob, window.latest, told, up=up)
            less = told[Knob.PREDOWNLOAD] // 2
            if after is not None:
                yield (KnobChange(knob, told[knob], after, why),)
            elif up and why is Why.READING and less and self._may_lower(Knob.PREDOWNLOAD, told):
                after = self._next(knob, window.latest, {**told, Knob.PREDOWNLOAD: less}, up=up)
                if after is not None:
                    making = KnobChange(Knob.PREDOWNLOAD, told[Knob.PREDOWNLOAD], less, Why.MEMORY)
                    yield (KnobChange(knob, told[knob], after, why), making)

    def _may_lower(self, knob: Knob, values: Mapping[Knob, int]) -> bool:
        """Whether no trial has shown that a knob does better at its value, or at one that memory cut to it, than below."""
        return not self._ranges[knob].fixed and values[knob] > self.raised.get(knob, -1)

    def _may_help(self, knob: Knob, window: Window, values: Mapping[Knob, int], *, up: bool) -> bool:
        """Whether a change may make the time less, by what computes now."""
        at_work, threads = window.processors, values[Knob.READ_THREADS]
        if not up:
            return self._may_lower(knob, values) and (knob is not Knob.READ_THREADS or at_work < _COMPUTES * threads)
        computes = knob is Knob.READ_THREADS and not threads and window.mean(lambda tick: tick.at_work) >= _COMPUTES
        return not computes and at_work < _TAKEN * self._processors

    def _next(self, knob: Knob, tick: Tick, values: Mapping[Knob, int], *, up: bool) -> int | None:
        """The value to be tried beside others; ``None``: there is none."""
        bounds, value = self._ranges[knob], values[knob]
        if bounds.fixed or (knob is Knob.CHUNKS_AHEAD and not values[Knob.READ_THREADS]):
            return None
        if not up:
            return value // 2 or None
        most = min(bounds.most, self._memory.most(values, knob))
        if knob is Knob.DOWNLOAD_THREADS:
            most = min(most, tick.most_width)
        if knob is Knob.READ_PROCESSES:
            most = min(most, max(bounds.start, self._memory.budget // PROCESS_BYTES))
        after = min(max((_CHUNKS_TIMES if knob is Knob.CHUNKS_AHEAD else 2) * value, bounds.step), most)
        return after if after > value else None


def _likely(window: Window) -> Iterator[tuple[Knob, bool, Why]]:
    """Knobs that may make the waiting less, the most likely first, and whether they are raised."""
    shards, downloads = window.mean(lambda tick: tick.shards), window.mean(lambda tick: tick.downloads)
    short = window.mean(lambda tick: tick.full) >= LOOKAHEAD_FULL and downloads <= LOOKAHEAD_FULL
    if shards < 0.5:
        yield from _OF_READING
    if shards >= _SOME or downloads > LOOKAHEAD_FULL:
        yield from _OF_SHARDS[::-1] if short else _OF_SHARDS
        yield (Knob.DOWNLOAD_THREADS, False, Why.LESS)
    if shards >= 0.5:
        yield from _OF_READING


# -- what is tried, kept and withdrawn -----------------------------------------------------------------------------------

_GAIN: Final = 0.02
"""The part of the time of a sample that a change has to save."""

_SURE: Final = 3.0
_LIKELY: Final = 1.5
"""Standard errors by which a gain has to differ from that before it is judged early; those that it has to have in the end."""

_CHANGED: Final = 0.3
"""A change of the waiting, as part of the time, that ends a rest."""

_BESIDE: Final = 0.05
_MOST_CHANGES: Final = 3
"""A change that costs no more than this part of the time may be tried together with others, so many at most."""

_LOSS: Final = -0.05
_LOSS_AHEAD: Final = -0.25
_CLEAR: Final = 3.0
"""A change that costs this part of the time, and so many standard errors more, is withdrawn with the first tick; one of the
lookahead, which has to be filled first, where it costs more."""

_SOON: Final = 2.0
"""Where a trial may begin in so many seconds, the time is measured until then; else the tuner rests."""

_BASE_TICKS: Final = 8
"""Ticks of what a trial is compared with."""

_LEAST_TICKS: Final = 4
_MOST_TICKS: Final = 32
_SETTLE_TICKS: Final = 2
_MOST_SETTLE: Final = 10
"""Ticks of a trial: at least and at most; those that are left out before it, at least and at most."""

_REST_TICKS: Final = 16
_MOST_REST: Final = 1024
"""Ticks after which a vain search is done again: at first, and at most."""

_SHORT, _LONG = 0.1, 1.0
"""Seconds of a tick while there are trials, and while there are none."""

_NEARLY: Final = 0.9
"""A value that memory cuts to this part or more is the same for what is measured."""

_TICK_CHUNKS: Final = 4
"""Steps of reading that a tick has at least, and twice as many as there are threads: they come in bursts."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Changes that are tried together.

    Attributes:
        before: values without them.
        base: what was measured before.
        tried: what was measured with them, where it is measured without them again.
    """

    changes: tuple[KnobChange, ...]
    before: Mapping[Knob, int]
    base: Window
    tried: Window | None = None

    def gain(self, tried: Window, base: Window) -> tuple[float, float]:
        """The part of the time of a sample that was saved, and its standard error."""
        error = math.hypot(tried.error, base.error * tried.time / base.time) / base.time
        return 1.0 - tried.time / base.time, error


class Controller:
    """Chooses values of knobs from what is observed.

    ``ranges``: bounds of each knob. ``memory``: what they may take. ``processors``: that this process may have. ``values``:
    of each knob, now. ``idle``: whether no knob may change.
    """

    def __init__(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse, processors: float = math.inf) -> None:
        self.values: dict[Knob, int] = {knob: ranges[knob].start for knob in Knob}
        self.idle = all(one.fixed for one in ranges.values())
        self._candidates = Candidates(ranges, memory, processors)
        self._regret = Regret()
        self._rest, self._filling = _REST_TICKS, 0
        self._rested_at, self._odd, self._resting = 0.0, 0, 0
        self._trial: _Trial | None = None
        self._window = Window()
        self._settling, self._settling_samples = _SETTLE_TICKS, 0

    def bar(self, *knobs: Knob) -> None:
        """Say which knobs would change nothing now."""
        self._candidates.barred = frozenset(knobs)

    @property
    def rests(self) -> bool:
        """Whether nothing is tried or measured until later: of a tick the time and the waiting matter."""
        return self._resting > 0

    @property
    def confirmed_values(self) -> dict[Knob, int]:
        """Values without those that are on trial."""
        trial = self._trial
        return self.values | ({} if trial is None else {one.knob: trial.before[one.knob] for one in trial.changes})

    @property
    def tick_seconds(self) -> float:
        """The least time of the next tick."""
        return _LONG if self._resting else _SHORT

    @property
    def tick_chunks(self) -> int:
        """The least number of steps of reading in the next tick."""
        return max(_TICK_CHUNKS, 2 * self.values[Knob.READ_THREADS], 2 * self.values[Knob.READ_PROCESSES])

    @property
    def tick_limit(self) -> tuple[float, float]:
        """Seconds that the next tick may take, and those for each of its samples: one that takes longer ends at once."""
        if self._trial is None or self._filling > 0:
            return math.inf, 0.0
        return max(0.0, self._regret.more), self._regret.pace

    def restarted(self, *, goes_on: bool = False, settles: bool = True) -> None:
        """Say that reading has begun anew, from an empty lookahead.

        ``goes_on``: whether it is as before, so that what was measured holds; else a trial is withdrawn. ``settles``: whether
        ticks are left out until the lookahead is filled.
        """
        if not goes_on:
            self._give_up()
            self._forget()
            self._measure()
        if settles:
            self._settling = max(self._settling, _SETTLE_TICKS)
            self._filling = _SETTLE_TICKS

    def observe(self, tick: Tick) -> list[KnobChange]:
        """Take a tick into account, and change ``values``. Returns the changes that were judged with it."""
        self._regret.passes(tick.seconds)
        if self._filling > 0:  # takes longer whatever is on trial
            self._filling -= 1
        elif self._trial is not None:
            self._regret.tries(tick)
            if self._regret.more < 0.0:
                return self._end(self._trial, self._regret.gain, self._window, keep=False)
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
        window = self._window
        window.add(tick)
        if self._trial is not None:
            return self._judge(self._trial, window)
        if window.ticks >= _BASE_TICKS:
            self._search(window)
        return []

    def _shrink(self, tick: Tick) -> KnobChange | None:
        """Take back chunks, or threads, that take more memory than there is, by what steps of reading really take."""
        excess = self._candidates.excess(tick, self.values)
        if excess is None:
            return None
        knob, after = excess.knob, excess.after
        if after < _NEARLY * excess.before:
            self._give_up()
            self.values[knob] = min(self.values[knob], after)
            self._measure()
        else:  # steps of reading are not all alike: a trial goes on, or one at the limit would be begun again and again
            self.values[knob] = after
            if self._trial is not None and self._trial.tried is None:
                changes = (replace(one, after=after) if one.knob is knob else one for one in self._trial.changes)
                self._trial = replace(self._trial, changes=tuple(changes))
        return excess

    # -- between trials ----------------------------------------------------------------------------------------------

    def _measure(self, settle: int = 0) -> None:
        """Measure from here on, with nothing on trial, when some ticks and samples were left out."""
        self._trial, self._window, self._resting = None, Window(), 0
        self._settling, self._settling_samples = _SETTLE_TICKS, settle

    def _forget(self) -> None:
        """Forget what trials said: it holds no more."""
        self._candidates.vain.clear()
        self._candidates.raised.clear()
        self._rest = _REST_TICKS

    def _search(self, window: Window) -> None:
        """Begin a trial of what is the most likely to help, or rest."""
        waits = window.waiting >= LITTLE_WAITING
        changes = next(self._candidates.found(window, self.values), None) if waits else None
        if changes is None:
            rest, self._rest = self._rest if waits else _MOST_REST, min(_MOST_REST, 2 * self._rest)
            self._candidates.vain.clear()
        elif not (wait := self._regret.until_stake):
            self._begin(_Trial(changes, dict(self.values), window), changes)
            return
        else:
            rest = math.ceil(wait / _LONG) if wait > _SOON else 0
        self._rested_at, self._odd = window.waiting, 0
        self._resting, self._window = rest, Window()

    def _look(self, tick: Tick) -> None:
        """Rest, until it is time for another search or the waiting has changed for several ticks."""
        waiting = tick.waited / max(1e-9, tick.seconds)
        by = LITTLE_WAITING if self._rested_at < LITTLE_WAITING else _CHANGED
        self._odd = self._odd + 1 if waiting > self._rested_at + by else 0
        self._resting -= 1
        if self._odd >= _LEAST_TICKS:
            self._forget()
        if not self._resting or self._odd >= _LEAST_TICKS:
            self._measure()

    # -- trials ------------------------------------------------------------------------------------------------------

    def _begin(self, trial: _Trial, changes: tuple[KnobChange, ...]) -> None:
        """Make some changes, which are the last of a trial."""
        self._measure(settle=self.values[Knob.PREDOWNLOAD] if changes[-1].knob is Knob.PREDOWNLOAD else 0)
        if len(changes) == len(trial.changes):
            self._regret.begin(trial.base.time, trial.base.spread)
        self._trial = trial
        self.values.update((one.knob, one.after) for one in changes)

    def _give_up(self) -> None:
        """Withdraw what is on trial, if anything is, as vain."""
        if self._trial is not None:
            self._regret.withdrawn()
        self.values = self.confirmed_values

    def _judge(self, trial: _Trial, window: Window) -> list[KnobChange]:
        if trial.tried is not None:
            return self._judge_again(trial, trial.tried, window)
        base = trial.base
        gain, error = trial.gain(window, base)
        ahead = any(one.knob is Knob.PREDOWNLOAD for one in trial.changes)
        clear = _CLEAR * base.error / base.time * math.sqrt(base.ticks / window.ticks)
        lost = gain < (_LOSS_AHEAD if ahead else _LOSS - clear)
        if window.ticks < _LEAST_TICKS and not lost:
            return []
        # The consumer's own time may change by itself; and what saves waiting may take the consumer's time instead.
        least = min(gain, (base.time * base.waiting - window.time * window.waiting) / base.time)
        if not lost and window.ticks < _MOST_TICKS and abs(least - _GAIN) < _SURE * error:
            return []
        keep = least >= max(_GAIN, _LIKELY * error)
        if keep and trial.changes[0].why is Why.LESS:
            # The machine may have become faster by itself, and what was tried may be slower.
            self.values = self.confirmed_values
            self._measure()
            self._trial = replace(trial, tried=window)
            return []
        if not keep and least > -_BESIDE - error and (changes := self._beside(trial, window)) is not None:
            self._begin(replace(trial, changes=(*trial.changes, *changes), before=self.confirmed_values), changes)
            return []
        return self._end(trial, gain, window, keep=keep)

    def _judge_again(self, trial: _Trial, tried: Window, window: Window) -> list[KnobChange]:
        """Judge a change by what was measured before and after it."""
        if window.ticks < tried.ticks:
            return []
        gain, error = trial.gain(tried, min(window, trial.base, key=lambda one: one.time))
        if keep := gain >= max(_GAIN, _LIKELY * error):
            self.values.update((one.knob, one.after) for one in trial.changes)
        return self._end(trial, gain, tried, keep=keep)

    def _end(self, trial: _Trial, gain: float, window: Window, *, keep: bool) -> list[KnobChange]:
        """End a trial; where it is kept, what was measured goes on: the next one needs no other base."""
        if keep:
            self._rest = _REST_TICKS
            # Of changes that were made together, the first may have helped nothing.
            self._candidates.helped(trial.changes[-1])
        else:
            self._give_up()
            self._candidates.vain.add((trial.changes[0].knob, trial.changes[0].is_raise))
        self._measure()
        if keep:
            self._settling, self._window = 0, window
        return [replace(one, kept=keep, gain=gain) for one in trial.changes]

    def _beside(self, trial: _Trial, window: Window) -> tuple[KnobChange, ...] | None:
        """Changes of other knobs, where the waiting is for something else now: two stages were equally slow."""
        if len(trial.changes) >= _MOST_CHANGES:
            return None
        knobs, whys = {one.knob for one in trial.changes}, {one.why for one in trial.changes} | {Why.LESS}
        for changes in self._candidates.found(window, self.values):
            if not any(one.knob in knobs or one.why in whys for one in changes):
                return changes
        return None
