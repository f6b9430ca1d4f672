"""Decisions of the tuners of all processes of a dataset, in memory that they share, so that one process lists them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stoker.concurrency.shared.rows import SharedRows
from stoker.pipeline.tuning.changes import JudgedChange, TrialOutcome, Why
from stoker.pipeline.tuning.knobs import Knob

_KEPT: Final = 32
"""Decisions of a process that are listed: the latest."""

_FIELDS: Final = 9

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


class DecisionLog(SharedRows):
    """Decisions of all processes that share a dataset object, the latest of each."""

    adds_up = False

    def __init__(self) -> None:
        super().__init__("stoker-tuning", 1 + _KEPT * _FIELDS)

    def add(self, change: JudgedChange, *, samples: int, seconds: float, worker: int | None) -> None:
        """Note a decision of this process."""
        row = self._mine()
        with self._lock:
            number = int(row[0])
            at = 1 + number % _KEPT * _FIELDS
            values = (change.knob, change.before, change.after, change.why, change.outcome, round(1e6 * change.gain))
            for cell, value in enumerate(
                (*values, samples, round(1e6 * seconds), -1 if worker is None else worker), at
            ):
                row[cell] = int(value)
            row[0] = number + 1

    def decisions(self) -> tuple[TuningDecision, ...]:
        """Those of all processes, each one's in their order, DataLoader workers last."""
        found: list[TuningDecision] = []
        for row in self.rows():
            count = int(row[0])
            entries = row[1:].reshape(_KEPT, _FIELDS)
            found += [_decision(entries[number % _KEPT].tolist()) for number in range(max(0, count - _KEPT), count)]
        return tuple(sorted(found, key=lambda one: (-1 if one.worker is None else one.worker, one.seconds)))


def _decision(cells: list[int]) -> TuningDecision:
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
