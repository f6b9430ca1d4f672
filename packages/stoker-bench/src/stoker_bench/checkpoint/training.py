"""Checkpoints in training: after so many steps, each of which ends a block, or after epochs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stoker_bench.checkpoint.saver import Saver
from stoker_bench.settings.workload import CheckpointSettings


class InEpoch:
    """The checkpoints of one epoch.

    Args:
        saver: saves them.
        settings: when.
        repeat, epoch: which epoch this is.

    Attributes:
        seconds: all of them took, with waiting for other ranks.
    """

    def __init__(self, saver: Saver, settings: CheckpointSettings, repeat: int, epoch: int) -> None:
        self._saver, self._settings = saver, settings
        self._where = {"place": "train", "repeat": repeat, "epoch": epoch}
        self._epoch, self._last, self._saved = epoch, 0, 0
        self.seconds = 0.0

    def at_step(self, steps: int) -> None:
        """Save one after ``steps`` steps of the epoch."""
        self._last = steps
        self._save(steps)

    def at_end(self, steps: int) -> None:
        """Save one after the epoch, of ``steps`` steps, if there is to be one."""
        settings = self._settings
        if settings.every_steps is not None:
            if steps and not steps % settings.every_steps and steps != self._last:
                self._save(steps)
            return
        after = self._epoch + 1 - settings.after_epoch
        if after >= 0 and not after % settings.every_epochs:
            self._save(steps)

    def _save(self, steps: int) -> None:
        begun = time.perf_counter()
        self._saver.save({**self._where, "step": steps})
        self._saved += 1
        self.seconds += time.perf_counter() - begun

    def parts(self, blocks: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
        """The parts of the time of blocks and checkpoints together, which add up to 1; ``None`` where none was saved."""
        total = sum(block["seconds"] for block in blocks) + self.seconds
        if not self._saved or total <= 0:
            return None
        names = {"au": "compute", "stall_part": "stall", "barrier_part": "barrier", "overhead_part": "overhead"}
        made = {name: sum(block[own] for block in blocks) / total for name, own in names.items()}
        return made | {"checkpoint_part": self.seconds / total}
