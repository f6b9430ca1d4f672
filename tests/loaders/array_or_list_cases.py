"""Samples that are uniform in some batches and ragged in others, and the columns that batches of them have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker import MDSWriter, StreamingDataset

SAMPLES, BATCH = 203, 4
BAD = frozenset({5, *range(40, 52), 77, 150, 151, 152, 153})
"""Samples that the transform refuses; all of some batches, where samples come in their own order."""


def write(folder: Path) -> None:
    with MDSWriter({"n": "int", "any": "ndarray"}, folder, size_limit=600, hashes=[]) as out:
        for number in range(SAMPLES):
            out.write({"n": number, "any": np.full(2, number, np.int16)})


class Made:
    """A transform that makes columns of each kind, by the number of a sample; mostly alike for neighbours.

    Args:
        seed: of the choices.
        bad: whether samples of :data:`BAD` are errors.
    """

    def __init__(self, seed: int, *, bad: bool = False) -> None:
        self._seed, self._bad = seed, bad

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        number = int(sample["n"])
        if self._bad and number in BAD:
            raise ValueError("a bad one")
        return {"n": np.int64(number), "any": sample["any"], **self._columns(number)}

    def _columns(self, number: int) -> dict[str, Any]:
        draw = random.Random(f"{self._seed} {number // 7}").random
        odd = random.Random(f"{self._seed} {number}").random() < 0.02
        length, dtype = 3 + (draw() < 0.4) + 2 * odd, (np.float32, np.float64, np.int8)[int(3 * draw())]
        return {
            "ragged": np.arange(number, number + length, dtype=np.int32),
            "dtypes": np.full((2, 2), number % 100, dtype),
            "scalar": dtype(number % 100),
            "some": None if draw() < 0.3 else np.float32(number),
            "mixed": number if draw() < 0.3 else np.int64(number),
            "plain": number,
            "wide": number if draw() < 0.7 else number << 60,
            "share": None if draw() < 0.3 else number / 3,
            "even": number % 2 == 0 if draw() < 0.7 else number % 2,
            "text": f"{number}",
            "empty": np.zeros(0 if odd else 2, np.uint8),
            "zero": np.array(number) if odd else np.int64(number),
            "when": np.datetime64(number, "s" if draw() < 0.7 else "ms"),
            "lists": [np.zeros(2)],
        }


def kept(sample: dict[str, Any]) -> bool:
    """A filter that leaves nothing of some batches."""
    return int(sample["n"]) // 8 % 3 != 1 or int(sample["n"]) % 50 == 0


def twice(batch: dict[str, Any]) -> dict[str, Any]:
    """A function of batches that sees what they are."""
    assert all(type(column) in (list, np.ndarray) for column in batch.values())
    return {**batch, "kinds": [",".join(type(column).__name__ for column in batch.values())] * len(batch["n"])}


def column_of(values: Sequence[Any]) -> Any:
    """The column of a batch: what the documentation says, and nothing else."""
    kinds = {
        (value.dtype, value.shape) if isinstance(value, np.ndarray | np.generic) else type(value) for value in values
    }
    if len(kinds) > 1 or not kinds:
        return list(values)
    kind = kinds.pop()
    if isinstance(kind, tuple):
        return np.stack(values)
    if kind not in (bool, int, float) or (kind is int and not all(-(1 << 63) <= value < 1 << 63 for value in values)):
        return list(values)
    return np.array(values, {bool: np.bool_, int: np.int64, float: np.float64}[kind])


def batch_of(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The columns of a batch of samples."""
    return {name: column_of([sample[name] for sample in samples]) for name in samples[0]}


def told(value: Any) -> Any:
    """All that there is to compare of a value: types, dtypes, shapes, bytes."""
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return [type(value).__name__, *map(told, value)]
    if isinstance(value, np.ndarray | np.generic):
        return type(value).__name__, value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "numpy"):  # a tensor, as the array that it was made of
        return told(value.numpy())
    return type(value).__name__, value


def all_told(batches: Any) -> list[Any]:
    return [told(batch) for batch in batches]


def alone(dataset: StreamingDataset, again: StreamingDataset) -> list[Any]:
    """Each batch of an epoch as a run has it that is resumed there, and so reads it in a step of its own.

    Args:
        dataset: is iterated over.
        again: opened alike; is resumed.
    """
    state, found = dataset.state_dict(), []
    for _ in dataset.batches():
        again.load_state_dict(state)
        batches = again.batches()
        found.append(told(next(batches)))
        del batches
        state = dataset.state_dict()
    return found
