"""The regret of a tuner: what its vain trials have cost, and may cost."""

from __future__ import annotations

import math
from typing import Final

from stoker.pipeline.tuning.ticks import Tick

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
