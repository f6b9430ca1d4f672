"""The files of ``steps/``, each with the moments of one rank's epoch; anybody may have made them."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Array

_MOST_BYTES: Final = 1 << 30
"""Of a file's arrays, uncompressed: 2 million steps and more."""
_NAMES: Final = ("asked", "wait", "compute", "barrier", "block")


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps of one rank's epoch; int64 nanoseconds, shape ``(steps,)``, but ``block``.

    Attributes:
        asked: when a batch was asked for, from the first step on.
        wait: until it was there.
        compute: of the step.
        barrier: waited for other ranks after it.
        block: the first step of each block.
    """

    asked: NDArray[np.int64]
    wait: NDArray[np.int64]
    compute: NDArray[np.int64]
    barrier: NDArray[np.int64]
    block: NDArray[np.int64]

    @property
    def end(self) -> int:
        """When the last step was over."""
        if not len(self.asked):
            return 0
        return int(self.asked[-1] + self.wait[-1] + self.compute[-1] + self.barrier[-1])


def steps_path(results: Path, rank: int, kind: str, repeat: int, epoch: int) -> Path:
    """The file of a rank's steps of an epoch."""
    return results / "steps" / f"rank{rank:05d}-{kind}-{repeat}-{epoch}.npz"


def read_arrays(path: Path, names: Sequence[str], most_bytes: int) -> dict[str, Array] | None:
    """Arrays of an NPZ file; ``None`` where it is missing or broken, lacks one, or has more than ``most_bytes``."""
    try:
        with zipfile.ZipFile(path) as archive:  # what is small may say that it is large
            if sum(member.file_size for member in archive.infolist()) > most_bytes:
                return None
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in names}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError, NotImplementedError, MemoryError):
        return None  # MemoryError: of a header that speaks of more than there is


def read_steps(path: Path) -> RankSteps | None:
    """A file of ``steps/``; ``None`` where it is missing, or not what a rank writes."""
    arrays = read_arrays(path, _NAMES, _MOST_BYTES)
    if arrays is None:
        return None
    count = arrays["asked"].size
    for name, array in arrays.items():
        if array.dtype != np.int64 or array.ndim != 1 or (name != "block" and array.size != count):
            return None
        if array.size and (array.min() < 0 or array.max() > 1 << 60):
            return None
    starts, asked = arrays["block"], arrays["asked"]
    if (np.diff(asked) < 0).any() or (np.diff(starts) < 0).any() or (starts.size and starts[-1] > count):
        return None
    return RankSteps(**arrays)


def counted(steps: RankSteps, exclude_start: int, exclude_end: int) -> list[slice]:
    """The steps of each block that count."""
    ends = [*steps.block[1:].tolist(), len(steps.wait)]
    return [
        slice(min(first + exclude_start, last), max(first, last - exclude_end))
        for first, last in zip(steps.block.tolist(), ends, strict=True)
    ]


def counted_waits(steps: RankSteps, exclude_start: int, exclude_end: int) -> NDArray[np.int64]:
    """Nanoseconds waited, of the steps of each block that count."""
    parts = [steps.wait[one] for one in counted(steps, exclude_start, exclude_end)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
