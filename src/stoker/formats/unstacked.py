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

from stoker.types import Array, Batch, Column, Ids

_ARRAYS: Final = (np.ndarray, np.generic)
# Kinds of dtypes of which NumPy makes an array of numbers as fast as of Python's.
_PLAIN_KINDS: Final = "biufcmM"
_NUMBERS: Final = "biuf"
# Of Python's numbers, as torch's collation has them.
_DTYPES: Final = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


class Unstacked(list[Any]):
    """Values of a column that are no array together; those of one batch may be. No user sees it.

    Args:
        values: the values: arrays, NumPy's numbers and anything else; or with ``dtype`` Python's numbers and ``None``.
        dtype: of numbers, which are Python's own in a list.
        own_numbers: whether NumPy's numbers become Python's own in a list.
        made: whether functions have made the values: Python's numbers of one type become an array.

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
