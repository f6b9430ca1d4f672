"""Batches of columns: cut apart, and put together from samples."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.formats.unstacked import Unstacked, as_batch, made_column, stacked, stacks
from stoker.image.batch_rows import BatchRows
from stoker.reading.sample_errors import SampleLocation, returned_error, transform_error
from stoker.types import Batch, Column

# Values of a long list whose size in memory is looked at.
_LOOKED_AT: Final = 64


class CutColumn(tuple[Column, ...]):
    """The columns of consecutive batches, which are no views of one array, nor parts of one list."""

    __slots__ = ()


GroupColumn: TypeAlias = Column | CutColumn
"""A column of consecutive batches: of all their samples, or of each batch."""


def cut_columns(
    batch: Batch, lengths: Sequence[int], empty: Callable[[], Batch] | None = None
) -> dict[str, GroupColumn]:
    """Columns that were read for consecutive batches, of which each is an array or a list by its own values alone.

    ``batch``: the columns of all their samples. ``lengths``: samples of each batch. ``empty``: gives the columns of a batch
    without samples; ``None``: there is none.
    """
    if len(lengths) == 1:
        return dict(as_batch(batch))
    none = empty() if empty is not None and 0 in lengths else {}
    return {name: _cut(column, lengths, none.get(name)) for name, column in batch.items()}


def _cut(column: Column, lengths: Sequence[int], none: Column | None) -> GroupColumn:
    if none is None and not isinstance(column, Unstacked):
        return column
    cuts: list[Column] = []
    start = 0
    for length in lengths:
        end = start + length
        if not length and none is not None:
            cuts.append(none.copy())  # each batch is its consumer's own
        else:
            cuts.append(column.column(start, end) if isinstance(column, Unstacked) else column[start:end])
        start = end
    return CutColumn(cuts)


def batch_length(batch: Batch) -> int:
    """Rows of a batch."""
    return len(next(iter(batch.values()), ()))


def stack_samples(samples: Sequence[Any], origin: Callable[[int], SampleLocation], rows: BatchRows | None) -> Batch:
    """Columns of samples: arrays where all values are arrays or numbers of one dtype and shape, else lists.

    Lists of which those of some of the samples may be arrays are :class:`~stoker.formats.unstacked.Unstacked`. TransformError
    if one is no dict, or has other columns than the first; names the sample. ``samples``: what a transform returned, n of
    them. ``origin``: where the i-th of these samples comes from. ``rows``: memory in which some values may lie already as a
    batch has them; ``None``: there is none.
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


def _stack(values: list[Any], rows: BatchRows | None) -> Column:
    if not stacks(values):
        return made_column(values)
    joined = None if rows is None else rows.joined(values)
    return stacked(values) if joined is None else joined


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
