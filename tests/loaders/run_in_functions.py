"""Functions of samples for processes, in a module that they import in no time."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.types import Batch


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["id"])


def larger(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "big": np.full((40, 30), number_of(sample), np.int64), "none": None}


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random(4)}


def odd_ones(sample: dict[str, Any]) -> bool:
    return number_of(sample) % 3 != 1


def some(sample: dict[str, Any]) -> bool:
    return number_of(sample) % 20 == 3


def copies(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for turn in range(number_of(sample) % 3):
        yield {**sample, "turn": np.int64(turn)}


def summed(batch: Batch) -> Batch:
    return {**batch, "sum": np.asarray(batch["x"]).sum(1)}


def bad_ones(sample: dict[str, Any]) -> dict[str, Any]:
    if number_of(sample) % 11 == 4:
        raise ValueError(f"bad {number_of(sample)}")
    return sample


class UnpicklableError(Exception):
    """An error that does not survive the way to another process."""

    def __init__(self, number: int, _: Any) -> None:
        super().__init__(f"number {number}")
        self.stream = io.StringIO()


def refuse(sample: dict[str, Any]) -> dict[str, Any]:
    if number_of(sample) == 77:
        raise UnpicklableError(77, None)
    return sample


def file_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "file": threading.Lock() if number_of(sample) == 77 else None}


def as_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.arange(number_of(sample) % 9 + 1, dtype=np.int32)}
