"""Columns that were read for several batches at once, of which some may be arrays, and others lists.

Whether the column of a batch is an array depends on the values of this batch alone, and not on what was read in the same
step: values that are arrays, or NumPy's numbers, of one dtype and shape become an array, and so do Python's numbers of one
type that functions have made; all others a list. Readers and what stacks samples know values, and not where batches begin and
end. Where not all of the values become one array, they say so by an :class:`Unstacked`, of which each batch then makes its
own column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import FormatError
from stoker.formats.base import ShardReader
from stoker.types import Array, Batch, Column, Ids

_ARRAYS: Final = (np.ndarray, np.generic)
# Kinds of dtypes of which NumPy makes an array of numbers as fast as of Python's.
_PLAIN_KINDS: Final = "biufcmM"
_NUMBERS: Final = "biuf"
# Of Python's numbers, as torch's collation has them.
_DTYPES: Final = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


class Unstacked(list[Any]):
    """Values of a column that are no array together; those of one batch may be. No user sees it.

    ``values``: the values: arrays, NumPy's numbers and anything else; or with ``dtype`` Python's numbers and ``None``.
    ``dtype``: of numbers, which are Python's own in a list. ``own_numbers``: whether NumPy's numbers become Python's own in a
    list. ``made``: whether functions have made the values: Python's numbers of one type become an array.

    >>> ragged = Unstacked([np.zeros(2), np.ones(2), np.zeros(3)])
    >>> ragged.column(0, 2).shape, type(ragged.column())
    ((2, 2), <class 'list'>)
    """

    __slots__ = ("dtype", "made", "own_numbers")

    def __init__(
        self,
        values: Iterable[Any] = (),
        dtype: np.dtype[Any] | None = None,
        *,
        own_numbers: bool = True,
        made: bool = False,
    ) -> None:
        super().__init__(values)
        self.dtype, self.own_numbers, self.made = dtype, own_numbers, made

    def column(self, begin: int = 0, end: int | None = None) -> Column:
        """The column of a batch that has the values ``[begin, end)``."""
        values = self[begin:end]
        if self.dtype is not None:
            return values if None in values else _number_column(values, self.dtype)
        if stacks(values):
            return stacked(values)
        if self.made and (dtype := _dtype_of(set(map(type, values)))) is not None:
            return _number_column(values, dtype)
        return _own_numbers(values) if self.own_numbers else values

    def of(self, values: Iterable[Any]) -> Unstacked:
        """Other values of the same column."""
        return Unstacked(values, self.dtype, own_numbers=self.own_numbers, made=self.made)

    def some(self, rows: Iterable[int]) -> Unstacked:
        """The values of some rows."""
        return self.of(self[row] for row in rows)

    def scalars(self) -> list[Any]:
        """The values, numbers as NumPy's."""
        if self.dtype is None:
            return list(self)
        return [None if value is None else _scalar(value, self.dtype.type) for value in self]


def made_column(values: list[Any]) -> Column:
    """The column of values that functions have made, of which :func:`stacks` is not true, and batches are then made."""
    kinds = set(map(type, values))
    dtype = _dtype_of(kinds)
    if dtype is None and kinds.isdisjoint(_DTYPES) and not any(issubclass(kind, _ARRAYS) for kind in kinds):
        return values
    column = values if dtype is None else _number_column(values, dtype)
    return column if isinstance(column, np.ndarray) else Unstacked(values, own_numbers=False, made=True)


def _dtype_of(kinds: Collection[type]) -> np.dtype[Any] | None:
    """The dtype of values of these types, where all are Python's numbers of one type; else ``None``."""
    return _DTYPES.get(next(iter(kinds))) if len(kinds) == 1 else None


def _number_column(values: list[Any], dtype: np.dtype[Any]) -> Column:
    """Python's numbers as an array; as they are where the dtype does not hold one of them."""
    try:
        return np.array(values, dtype)
    except OverflowError:  # whole numbers of any size, as text has them
        return values


def stacks(values: Sequence[Any]) -> bool:
    """Whether values are arrays or NumPy's numbers of one dtype and shape."""
    first = values[0] if values else None
    if not isinstance(first, _ARRAYS):
        return False
    dtype, shape = first.dtype, first.shape
    return all(isinstance(value, _ARRAYS) and value.dtype == dtype and value.shape == shape for value in values)


def stacked(values: Sequence[Any]) -> Array:
    """The array of values of which :func:`stacks` is true."""
    first = values[0]
    if isinstance(first, np.generic) and first.dtype.kind in _PLAIN_KINDS:
        return np.array(values, first.dtype)
    if first.ndim and set(map(type, values)) == {np.ndarray}:  # as np.stack, without its steps in Python for each
        return np.concatenate(values).reshape(len(values), *first.shape)
    return np.stack(values)


def has_arrays(values: Iterable[Any]) -> bool:
    """Whether arrays or NumPy's numbers are among values."""
    return any(issubclass(kind, _ARRAYS) for kind in set(map(type, values)))


def _scalar(number: Any, kind: type[np.generic]) -> Any:
    try:
        return kind(number)
    except OverflowError:  # as above
        return number


def _own_numbers(values: list[Any]) -> list[Any]:
    return [
        value.item() if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS else value for value in values
    ]


def scalars_of(column: Column) -> list[Any]:
    """The values of a column one by one, numbers as NumPy's."""
    return column.scalars() if isinstance(column, Unstacked) else list(column)


def stackable(column: Column) -> list[Any]:
    """The values of a column one by one, such that samples that have them give a column of the same dtype again.

    Numbers are Python's own where an array of these has that dtype, and NumPy's where not.
    """
    return items_of(column) if number_dtype(column) in _DTYPES.values() else scalars_of(column)


def items_of(column: Column) -> list[Any]:
    """The values of a column one by one, numbers as Python's own; of an array of several dimensions lists."""
    if isinstance(column, np.ndarray):
        found: list[Any] = column.tolist()
        return found
    return _own_numbers(column) if isinstance(column, Unstacked) and column.dtype is None else column


def number_dtype(column: Column) -> np.dtype[Any] | None:
    """The dtype of a column of numbers, of which some may be ``None``; ``None`` of all others."""
    if isinstance(column, np.ndarray):
        return column.dtype if column.ndim == 1 and column.dtype.kind in _NUMBERS else None
    return column.dtype if isinstance(column, Unstacked) else None


def spread(column: Column, at: Iterable[int], length: int) -> Column:
    """A column with values at these places, numbers as Python's own, and ``None`` at all others.

    ``column``: the values that there are. ``at``: the place of each. ``length``: of the column that is made.
    """
    dtype = number_dtype(column)
    values: list[Any] = [None] * length
    for place, value in zip(at, column if dtype is None else items_of(column), strict=True):
        values[place] = value
    if isinstance(column, Unstacked):
        return column.of(values)
    return Unstacked(values, dtype) if isinstance(column, np.ndarray) else values


def rows_of(column: Column, rows: Ids) -> Column:
    """Some rows of a column."""
    if isinstance(column, np.ndarray):
        return column[rows]
    if isinstance(column, Unstacked):
        return column.some(rows.tolist())
    return [column[row] for row in rows.tolist()]


def copied(column: Column, rows: slice) -> Column:
    """A copy of rows of a column that follow each other."""
    if isinstance(column, Unstacked):
        return column.some(range(*rows.indices(len(column))))
    return column[rows].copy()


def as_batch(columns: Batch) -> Batch:
    """Columns that were read for one batch, as it has them."""
    return {name: column.column() if isinstance(column, Unstacked) else column for name, column in columns.items()}


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
