"""Decisions of the tuners of all processes of a dataset, in memory that they share, so that one process lists them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.concurrency.shared.rows import SharedRows

if TYPE_CHECKING:  # most datasets list nothing
    from stoker.pipeline.tuning.decisions import TuningDecision
    from stoker.pipeline.tuning.knobs import JudgedChange

_KEPT: Final = 32
"""Decisions of a process that are listed: the latest."""

_FIELDS: Final = 9


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
        rows = [row for row in self.rows() if row[0]]
        if not rows:
            return ()
        from stoker.pipeline.tuning.decisions import decision_of

        found: list[TuningDecision] = []
        for row in rows:
            count = int(row[0])
            entries = row[1:].reshape(_KEPT, _FIELDS)
            found += [decision_of(entries[number % _KEPT].tolist()) for number in range(max(0, count - _KEPT), count)]
        return tuple(sorted(found, key=lambda one: (-1 if one.worker is None else one.worker, one.seconds)))
