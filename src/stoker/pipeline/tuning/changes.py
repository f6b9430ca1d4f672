"""Changes of a tuner's knobs: why they are tried, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stoker.pipeline.tuning.knobs import Knob


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
class KnobChange:
    """A change of a knob that may be tried.

    Attributes:
        knob: what is changed.
        before: its value before.
        told_before: the same; of a knob that is left to others to choose, what they have chosen.
        after: its value in the trial.
        why: what it is for.
    """

    knob: Knob
    before: int
    told_before: int
    after: int
    why: Why

    @property
    def is_raise(self) -> bool:
        """Whether the knob is raised."""
        return self.after > self.told_before

    def judged(self, outcome: TrialOutcome, gain: float) -> JudgedChange:
        """The change after its trial."""
        return JudgedChange(self.knob, self.told_before, self.after, self.why, outcome, gain)


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
