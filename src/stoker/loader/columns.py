"""Batches of columns: cut apart, and put together from samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.errors import ConfigError
from stoker.types import Batch, Column

__all__ = ["split_batch", "stack_samples"]


def split_batch(batch: Batch, lengths: Sequence[int]) -> list[Batch]:
    """Cut a batch into consecutive batches of the given lengths. Arrays are views."""
    if len(lengths) == 1:
        return [batch]
    batches: list[Batch] = []
    start = 0
    for length in lengths:
        batches.append({name: column[start : start + length] for name, column in batch.items()})
        start += length
    return batches


def stack_samples(samples: Sequence[Any]) -> Batch:
    """Columns of samples: arrays where all values are arrays or NumPy scalars of one dtype and shape, else lists.

    Raises:
        ConfigError: a transform returned something that is no dict, or dicts of different columns.
    """
    first = samples[0]
    if not isinstance(first, dict):
        raise ConfigError(
            f"transform returned {type(first).__name__}: batches() needs a dict of columns; iterate over samples instead"
        )
    for sample in samples:
        if not isinstance(sample, dict) or sample.keys() != first.keys():
            raise ConfigError("transform must return a dict of the same columns for every sample, for batches()")
    return {name: _stack([sample[name] for sample in samples]) for name in first}


def _stack(values: list[Any]) -> Column:
    first = values[0]
    if isinstance(first, np.ndarray | np.generic) and all(
        isinstance(value, np.ndarray | np.generic) and value.dtype == first.dtype and value.shape == first.shape
        for value in values
    ):
        return np.stack(values)
    return values
