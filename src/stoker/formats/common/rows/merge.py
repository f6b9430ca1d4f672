"""Put parts of a batch together in a given order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import FormatError
from stoker.formats.base import ShardReader
from stoker.formats.unstacked import Unstacked, items_of, number_dtype
from stoker.types import Array, Batch, Column, Ids


def read_each(shards: Sequence[ShardReader], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
    """``read_many`` for formats that read shard by shard."""
    if len(shards) == 1:
        return shards[0].read(rows, columns)
    parts: list[tuple[Ids, Batch]] = []
    for number, shard in enumerate(shards):
        here = np.flatnonzero(which == number)
        if here.size or not rows.size:
            parts.append((here, shard.read(rows[here], columns)))
    return scatter(parts, len(rows))


def iterate_each(batch: Batch) -> dict[str, Iterable[Any]]:
    """The values of each column one by one, numbers as Python's own."""
    return {name: items_of(column) for name, column in batch.items()}


def iterate_rows(batch: Batch) -> dict[str, Iterable[Any]]:
    """As :func:`iterate_each`, where rows of array columns stay arrays."""
    return {name: _rows(column) for name, column in batch.items()}


def _rows(column: Column) -> Iterable[Any]:
    if not isinstance(column, np.ndarray):
        return items_of(column)
    # datetime64 would become integers where Python's own types are too coarse.
    return column.tolist() if column.ndim == 1 and column.dtype.kind not in "mM" else list(column)


def scatter(parts: Sequence[tuple[Ids, Batch]], length: int) -> Batch:
    """Put each part's values at its indices in a batch of ``length``.

    Columns that are arrays of one dtype and row shape in all parts stay arrays; the others become lists, and where some part
    may be an array, an :class:`~stoker.formats.unstacked.Unstacked`. FormatError if the parts do not have the same columns.
    """
    names = list(parts[0][1])
    for _, part in parts:
        if set(part) != set(names):
            raise FormatError(
                f"shards of this dataset have different columns ({', '.join(sorted(names))} and {', '.join(sorted(part))}): "
                "read those that they share with columns="
            )
    return {name: _scatter_column([(indices, part[name]) for indices, part in parts], length) for name in names}


def check_types(parts: Sequence[Batch], shards: Sequence[str]) -> None:
    """Check that a column holds values of one type in all parts, where no index tells the types.

    FormatError if it does not; names the column, shards and types. ``parts``: the columns of each part. ``shards``: a shard
    of each part, for the message.
    """
    for name, first in parts[0].items():
        one = _type_name(first)
        for shard, part in zip(shards[1:], parts[1:], strict=True):
            two = _type_name(part[name]) if name in part else one
            if one != two and one and two and not two.startswith(f"{one} ") and not one.startswith(f"{two} "):
                raise FormatError(
                    f"column {name!r} is {one} in {shards[0]} and {two} in {shard}: read only columns of one type with "
                    "columns=, or write them alike"
                )


def _type_name(column: Column) -> str:
    """The type of a column's values, by the first that is not null; empty where all are.

    Numbers in lists, as where some are null, are of a kind (``integer``); in arrays also of a data type (``integer int32``).
    """
    if isinstance(column, np.ndarray):
        return f"{'arrays of ' if column.ndim > 1 else ''}{_KINDS.get(column.dtype.kind, '')} {column.dtype}"
    first = next((value for value in column if value is not None), None)
    if isinstance(first, np.ndarray) and first.ndim:
        return f"arrays of {_KINDS.get(first.dtype.kind, '')} {first.dtype}"
    return next((name for kind, name in _TYPES if isinstance(first, kind)), "")


_KINDS: Final = {"b": "truth", "i": "integer", "u": "integer", "f": "float"}
_TYPES: Final = (
    (str, "text"),
    ((bytes, memoryview), "bytes"),
    ((bool, np.bool_), "truth"),
    ((int, np.integer), "integer"),
    ((float, np.floating), "float"),
)


def _scatter_column(parts: Sequence[tuple[Ids, Column]], length: int) -> Column:
    first = parts[0][1]
    if isinstance(first, np.ndarray) and all(
        isinstance(column, np.ndarray) and column.dtype == first.dtype and column.shape[1:] == first.shape[1:]
        for _, column in parts
    ):
        out: Array = np.empty((length, *first.shape[1:]), dtype=first.dtype)
        for indices, column in parts:
            out[indices] = column
        return out
    values: list[Any] = [None] * length
    columns = [column for _, column in parts]
    dtypes = [number_dtype(column) for column in columns]
    # Lists of nulls alone are of any type.
    known = {
        dtype
        for dtype, column in zip(dtypes, columns, strict=True)
        if dtype is not None or any(one is not None for one in column)
    }
    numbers = len(known) == 1 and None not in known
    for indices, column in parts:
        some: Iterable[Any] = column
        if numbers:  # they are Python's own beside nulls
            some = items_of(column)
        elif isinstance(column, Unstacked):
            some = column.scalars()
        for index, value in zip(indices.tolist(), some, strict=True):
            values[index] = value
    if numbers:
        return Unstacked(values, known.pop())
    return Unstacked(values) if any(isinstance(column, np.ndarray | Unstacked) for column in columns) else values
