"""Ratios of two things that are measured in turn: their median, the interval that has it, and whether it keeps a bound.

A machine's speed changes while it is measured: by its clock, its caches, and other programs. What is measured within some
milliseconds of each other meets the same speed, so the ratio of such neighbours is exact where each time is not, and the
median of many ratios forgets those that were disturbed. The interval (bootstrap, 95 of 100) says how exact it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_DRAWS = 2000


@dataclass(frozen=True)
class Ratio:
    """The median of ratios.

    Attributes:
        median: the median.
        low, high: the interval that has the true median in 95 of 100 cases.
        pairs: ratios that it is of.
    """

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """The median of some ratios, at least one."""
        values = np.array(ratios)
        drawn = np.random.default_rng(0).choice(values, (_DRAWS, len(values)))
        low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
        return cls(float(np.median(values)), float(low), float(high), len(values))

    def keeps(self, bound: float) -> str:
        """Whether it is below a bound: ``yes`` and ``no`` where the whole interval says so, else ``open``: measure longer."""
        return "yes" if self.high < bound else "no" if self.low >= bound else "open"

    def __str__(self) -> str:
        return f"{self.median - 1:+.2%} ({self.low - 1:+.2%} to {self.high - 1:+.2%})"
