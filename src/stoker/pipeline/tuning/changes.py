"""Changes of a tuner's settings: for what they are tried, and what became of them."""

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
