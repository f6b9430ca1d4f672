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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from stoker.pipeline.tuning.candidates import Candidates
from stoker.pipeline.tuning.knobs import JudgedChange, Knob, KnobChange, KnobRange, MemoryUse, TrialOutcome, Why
from stoker.pipeline.tuning.ticks import Regret, Tick, Window
from stoker.policy import LITTLE_WAITING

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

_BASE_TICKS: Final = 4
_MOST_BASE: Final = 8
_EXACT: Final = 0.03
"""Ticks of a base: at least and at most, and the part of the time that its standard error may be before that."""

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
    """Changes that are tried together; what was measured before, and with them where it is measured without them again."""

    changes: tuple[KnobChange, ...]
    base: Window
    tried: Window | None = None

    @property
    def is_less(self) -> bool:
        return self.changes[0].why is Why.LESS


class Controller:
    """Chooses values of knobs from what is observed.

    Args:
        ranges: bounds of each knob.
        memory: what they may take.
        processors: that this process may have.

    Attributes:
        values: of each knob, now.
    """

    def __init__(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse, processors: float = math.inf) -> None:
        self.values: dict[Knob, int] = {knob: ranges[knob].start for knob in Knob}
        self._candidates = Candidates(ranges, memory, processors)
        self._trial: _Trial | None = None
        self._window = Window()
        self._settling = _SETTLE_TICKS
        self._settling_samples = 0
        self._resting = 0
        self._rest = _REST_TICKS
        self._rested_at = 0.0
        self._odd = 0
        self._regret = Regret()
        self._filling = 0
        self._is_saving = False

    @property
    def barred(self) -> frozenset[Knob]:
        """Knobs that would change nothing now."""
        return self._candidates.barred

    @barred.setter
    def barred(self, knobs: frozenset[Knob]) -> None:
        self._candidates.barred = knobs

    @property
    def idle(self) -> bool:
        """Whether no knob may change."""
        return self._candidates.all_fixed

    @property
    def rests(self) -> bool:
        """Whether nothing is tried or measured until later."""
        return self._resting > 0

    @property
    def settled(self) -> dict[Knob, int]:
        """Values without those that are on trial."""
        on_trial = {} if self._trial is None else {one.knob: one.before for one in self._trial.changes}
        return {**self.values, **on_trial}

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

        Args:
            goes_on: whether it is as before, so that what was measured holds; else a trial is withdrawn.
            settles: whether ticks are left out until the lookahead is filled.
        """
        if not goes_on:
            self._give_up()
            self._forget()
            self._measure()
        if settles:
            self._settling = max(self._settling, _SETTLE_TICKS)
            self._filling = _SETTLE_TICKS

    def observe(self, tick: Tick) -> list[JudgedChange]:
        """Take a tick into account, and change ``values``. Returns the changes that were judged with it."""
        regret = self._regret
        regret.passes(tick.seconds)
        if self._filling > 0:  # takes longer whatever is on trial
            self._filling -= 1
        elif self._trial is not None:
            regret.tries(tick)
            if regret.more < 0.0:
                return self._end(self._trial, regret.gain, keep=False)
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
        window = self._window
        if window.ticks >= _MOST_BASE or (window.ticks >= _BASE_TICKS and window.error <= _EXACT * window.time):
            self._search()
        return []

    # -- memory ------------------------------------------------------------------------------------------------------

    def _shrink(self, tick: Tick) -> JudgedChange | None:
        """Take back chunks, or threads, that take more memory than there is, by what steps of reading really take."""
        if (excess := self._candidates.excess(tick, self.values)) is None:
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
        return excess.judged(TrialOutcome.KEPT, 0.0)

    # -- trials ------------------------------------------------------------------------------------------------------

    def _measure(self, settle: int = 0) -> None:
        self._trial, self._window = None, Window()
        self._settling, self._settling_samples = _SETTLE_TICKS, settle
        self._resting = 0

    def _forget(self) -> None:
        """Forget what trials said: it holds no more."""
        self._candidates.forget()
        self._rest = _REST_TICKS

    def _search(self) -> None:
        window = self._window
        if window.waiting < LITTLE_WAITING:
            self._begin_rest(window, _MOST_REST)
            return
        changes = next(self._candidates.found(window, self.values), None)
        if changes is None:
            self._begin_rest(window, self._rest)
            self._rest = min(_MOST_REST, 2 * self._rest)
        elif not (wait := self._regret.until_stake):
            self._begin(_Trial(changes, window), changes)
        else:
            self._window = Window()
            if wait > _SOON:
                self._begin_rest(window, math.ceil(wait / _LONG))
                self._is_saving = True

    def _begin_rest(self, window: Window, ticks: int) -> None:
        self._rested_at, self._odd, self._is_saving = window.waiting, 0, False
        self._resting, self._window = ticks, Window()

    def _look(self, tick: Tick) -> None:
        """Rest, until it is time for another search or the waiting has changed for several ticks."""
        waiting = tick.waited / max(1e-9, tick.seconds)
        by = LITTLE_WAITING if self._rested_at < LITTLE_WAITING else _CHANGED
        self._odd = self._odd + 1 if waiting > self._rested_at + by else 0
        self._resting -= 1
        if self._odd >= _LEAST_TICKS:
            self._forget()
        if not self._resting or self._odd >= _LEAST_TICKS:
            if not self._is_saving:  # else the search goes on where it was
                self._candidates.retry()
            self._measure()

    def _begin(self, trial: _Trial, changes: tuple[KnobChange, ...]) -> None:
        """Make some changes, which are the last of a trial."""
        self._measure(settle=self.values[Knob.PREDOWNLOAD] if changes[-1].knob is Knob.PREDOWNLOAD else 0)
        if len(changes) == len(trial.changes):
            self._regret.begin(trial.base.time, trial.base.spread)
        self._trial = trial
        for change in changes:
            self.values[change.knob] = change.after

    def _withdraw(self) -> None:
        self.values = self.settled

    def _give_up(self) -> None:
        """Withdraw what is on trial, if anything is, as vain."""
        if self._trial is not None:
            self._regret.withdrawn()
        self._withdraw()

    def _judge(self, trial: _Trial) -> list[JudgedChange]:
        if trial.tried is not None:
            return self._judge_again(trial, trial.tried)
        window, base = self._window, trial.base
        gain = 1.0 - window.time / base.time
        error = math.hypot(window.error, base.error * window.time / base.time) / base.time
        ahead = any(one.knob is Knob.PREDOWNLOAD for one in trial.changes)
        clear = _CLEAR * base.error / base.time * math.sqrt(base.ticks / window.ticks)
        lost = gain < (_LOSS_AHEAD if ahead else _LOSS - clear)
        if window.ticks < _LEAST_TICKS and not lost:
            return []
        saved = (base.time * base.waiting - window.time * window.waiting) / base.time
        # The consumer's own time may change by itself; and what saves waiting may take the consumer's time instead.
        least = min(gain, saved)
        if not lost and window.ticks < _MOST_TICKS and abs(least - _GAIN) < _SURE * error:
            return []
        keep = least >= max(_GAIN, _LIKELY * error)
        if keep and trial.is_less:
            # The machine may have become faster by itself, and what was tried may be slower.
            self._withdraw()
            self._measure()
            self._trial = replace(trial, tried=window)
            return []
        if not keep and least > -_BESIDE - error and (changes := self._beside(trial, window)) is not None:
            self._begin(_Trial((*trial.changes, *changes), base), changes)
            return []
        return self._end(trial, gain, keep=keep)

    def _judge_again(self, trial: _Trial, tried: Window) -> list[JudgedChange]:
        """Judge a change by what was measured before and after it."""
        window, base = self._window, trial.base
        if window.ticks < tried.ticks:
            return []
        base = min(window, base, key=lambda one: one.time)
        gain = 1.0 - tried.time / base.time
        error = math.hypot(tried.error, base.error * tried.time / base.time) / base.time
        if keep := gain >= max(_GAIN, _LIKELY * error):
            self.values.update((one.knob, one.after) for one in trial.changes)
        return self._end(replace(trial, base=base), gain, keep=keep, window=tried)

    def _end(self, trial: _Trial, gain: float, *, keep: bool, window: Window | None = None) -> list[JudgedChange]:
        """End a trial."""
        window = window or self._window
        if keep:
            self._rest = _REST_TICKS
            # Of changes that were made together, the first may have helped nothing.
            self._candidates.helped(trial.changes[-1])
        else:
            self._regret.withdrawn()
            self._withdraw()
            self._candidates.failed(trial.changes[0])
        self._measure()
        outcome = TrialOutcome.KEPT if keep else TrialOutcome.WITHDRAWN
        if keep:  # what was measured goes on: the next trial needs no other base
            self._settling, self._window = 0, window
        return [one.judged(outcome, gain) for one in trial.changes]

    def _beside(self, trial: _Trial, window: Window) -> tuple[KnobChange, ...] | None:
        """Changes of other knobs, where the waiting is for something else now: two stages were equally slow."""
        if len(trial.changes) >= _MOST_CHANGES:
            return None
        knobs, whys = {one.knob for one in trial.changes}, {one.why for one in trial.changes} | {Why.LESS}
        for changes in self._candidates.found(window, self.values):
            if not any(one.knob in knobs or one.why in whys for one in changes):
                return changes
        return None
