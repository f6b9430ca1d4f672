"""Batches of columns: cut apart, and put together from samples."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from stoker.image.batch_rows import BatchRows
from stoker.reading.sample_errors import SampleLocation, returned_error, transform_error
from stoker.types import Batch, Column

# Values of a long list whose size in memory is looked at.
_LOOKED_AT: Final = 64


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


def batch_length(batch: Batch) -> int:
    """Rows of a batch."""
    return len(next(iter(batch.values()), ()))


def stack_samples(samples: Sequence[Any], origin: Callable[[int], SampleLocation], rows: BatchRows) -> Batch:
    """Columns of samples: arrays where all values are arrays or NumPy scalars of one dtype and shape, else lists.

    Args:
        samples: what a transform returned, n of them.
        origin: where the i-th of these samples comes from.
        rows: memory in which some values may lie already as a batch has them.

    Raises:
        TransformError: one is no dict, or has other columns than the first; names the sample.
    """
    first = samples[0]
    for number, sample in enumerate(samples):
        if not isinstance(sample, dict):
            raise returned_error(sample, origin(number))
        if sample.keys() != first.keys():
            columns, others = (", ".join(map(str, one)) or "none" for one in (sample, first))
            raise transform_error(
                f"returned the columns {columns}, and for sample {origin(0).sample} {others}: a batch needs the same columns "
                "of every sample",
                origin(number),
            )
    return {name: _stack([sample[name] for sample in samples], rows) for name in first}


def _stack(values: list[Any], rows: BatchRows) -> Column:
    first = values[0]
    if isinstance(first, np.ndarray | np.generic) and all(
        isinstance(value, np.ndarray | np.generic) and value.dtype == first.dtype and value.shape == first.shape
        for value in values
    ):
        joined = rows.joined(values)
        return np.stack(values) if joined is None else joined
    return values


def bytes_of(values: object) -> int:
    """Bytes that a value takes in memory, about; of long lists by some of their values."""
    if isinstance(values, np.ndarray) and not values.dtype.hasobject:
        return int(values.nbytes)
    if isinstance(values, dict):
        return sys.getsizeof(values) + sum(map(bytes_of, values.values()))
    if isinstance(values, list | tuple | np.ndarray):
        some = values[:: max(1, len(values) // _LOOKED_AT)]
        return sys.getsizeof(values) + sum(map(bytes_of, some)) * len(values) // max(1, len(some))
    bands = getattr(values, "getbands", None)  # an image of Pillow, which may be decoded by its user
    if bands is not None:
        return math.prod(getattr(values, "size", ())) * len(bands())
    return sys.getsizeof(values)
