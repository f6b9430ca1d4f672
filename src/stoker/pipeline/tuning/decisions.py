"""Decisions of a tuner, as they are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.pipeline.tuning.knobs import Knob, TrialOutcome, Why

_WHY: Final = {
    Why.READING: "the consumer waits for reading, decoding and functions",
    Why.FETCHING: "the consumer waits for shards while all downloads run that may",
    Why.LOOKAHEAD: "the consumer waits for shards that were not asked for in time",
    Why.LESS: "more gained nothing",
    Why.MEMORY: "what is read ahead took more memory than tune_memory allows",
}


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """A value that a tuner tried, and kept or withdrew.

    Attributes:
        setting: ``"read_threads"``, ``"read_processes"``, ``"chunks_ahead"``, ``"predownload"`` or ``"download_threads"``.
        before: its value before.
        after: its value in the trial.
        kept: whether it stays.
        why: what the trial was for.
        gain: the part of the time of a sample that it saved; negative: that it cost.
        samples: that the process had read before.
        seconds: since its tuner began.
        worker: the DataLoader worker whose tuner it is; ``None``: that of the process that has the dataset.
    """

    setting: str
    before: int
    after: int
    kept: bool
    why: str
    gain: float
    samples: int
    seconds: float
    worker: int | None


def decision_of(cells: list[int]) -> TuningDecision:
    """The decision of the cells of a :class:`~stoker.pipeline.tuning.decision_log.DecisionLog`."""
    knob, before, after, why, outcome, gain, samples, seconds, worker = cells
    return TuningDecision(
        setting=Knob(knob).argument,
        before=before,
        after=after,
        kept=outcome == TrialOutcome.KEPT,
        why=_WHY[Why(why)],
        gain=gain / 1e6,
        samples=samples,
        seconds=seconds / 1e6,
        worker=None if worker < 0 else worker,
    )
