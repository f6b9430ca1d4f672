"""Decisions of the tuners of all processes of a dataset, in memory that they share, so that one process lists them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.concurrency.shared.rows import SharedRows

if TYPE_CHECKING:  # most datasets list nothing
    from stoker.pipeline.tuning.knobs import KnobChange

_KEPT: Final = 32
"""Decisions of a process that are listed: the latest."""

_FIELDS: Final = 9


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

    def add(self, change: KnobChange, *, samples: int, seconds: float, worker: int | None) -> None:
        """Note a decision of this process."""
        why = [*type(change.why)].index(change.why)
        row = self._mine()
        with self._lock:
            number = int(row[0])
            at = 1 + number % _KEPT * _FIELDS
            told = (change.knob, change.before, change.after, change.kept, why, round(1e6 * change.gain), samples)
            for cell, value in enumerate((*told, round(1e6 * seconds), -1 if worker is None else worker), at):
                row[cell] = int(value)
            row[0] = number + 1

    def decisions(self) -> tuple[TuningDecision, ...]:
        """Those of all processes, each one's in their order, DataLoader workers last."""
        rows = [row for row in self.rows() if row[0]]
        if not rows:
            return ()
        from stoker.pipeline.tuning.knobs import Knob, Why

        found: list[TuningDecision] = []
        reasons = [why.value for why in Why]
        for row in rows:
            count, entries = int(row[0]), row[1:].reshape(_KEPT, _FIELDS).tolist()
            for number in range(max(0, count - _KEPT), count):
                knob, before, after, kept, why, gain, samples, seconds, worker = entries[number % _KEPT]
                setting, by = Knob(knob).name.lower(), None if worker < 0 else worker
                found.append(
                    TuningDecision(
                        setting, before, after, bool(kept), reasons[why], gain / 1e6, samples, seconds / 1e6, by
                    )
                )
        return tuple(sorted(found, key=lambda one: (-1 if one.worker is None else one.worker, one.seconds)))
