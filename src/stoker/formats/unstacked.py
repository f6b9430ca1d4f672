"""Columns that were read for several batches at once, of which some may be arrays, and others lists.

Whether the column of a batch is an array depends on the values of this batch alone, and not on what was read in the same
step: values that are arrays, or NumPy's numbers, of one dtype and shape become an array, all others a list. Readers and what
stacks samples know values, and not where batches begin and end. Where not all of the values become one array, they say so by
an :class:`Unstacked`, of which each batch then makes its own column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from stoker.types import Array, Batch, Column, Ids

_ARRAYS: Final = (np.ndarray, np.generic)
# Kinds of dtypes of which NumPy makes an array of numbers as fast as of Python's.
_PLAIN_KINDS: Final = "biufcmM"
_NUMBERS: Final = "biuf"


class Unstacked(list[Any]):
    """Values of a column that are no array together; those of one batch may be. No user sees it.

    Args:
        values: the values: arrays, NumPy's numbers and anything else; or with ``dtype`` Python's numbers and ``None``.
        dtype: of numbers, which are Python's own in a list.
        own_numbers: whether NumPy's numbers become Python's own in a list.

    >>> ragged = Unstacked([np.zeros(2), np.ones(2), np.zeros(3)])
    >>> ragged.column(0, 2).shape, type(ragged.column())
    ((2, 2), <class 'list'>)
    """

    __slots__ = ("dtype", "own_numbers")

    def __init__(
        self, values: Iterable[Any] = (), dtype: np.dtype[Any] | None = None, *, own_numbers: bool = True
    ) -> None:
        super().__init__(values)
        self.dtype, self.own_numbers = dtype, own_numbers

    def column(self, begin: int = 0, end: int | None = None) -> Column:
        """The column of a batch that has the values ``[begin, end)``."""
        values = self[begin:end]
        if self.dtype is None:
            return stack(values, own_numbers=self.own_numbers)
        if None in values:
            return values
        try:
            return np.array(values, self.dtype)
        except OverflowError:  # whole numbers of any size, as text has them
            return values

    def some(self, rows: Iterable[int]) -> Unstacked:
        """The values of some rows."""
        return Unstacked([self[row] for row in rows], self.dtype, own_numbers=self.own_numbers)

    def scalars(self) -> list[Any]:
        """The values, numbers as NumPy's."""
        if self.dtype is None:
            return list(self)
        return [None if value is None else _scalar(value, self.dtype.type) for value in self]


def stack(values: list[Any], *, own_numbers: bool) -> Column:
    """The column of a batch: an array where all values are arrays or NumPy's numbers of one dtype and shape, else a list.

    Args:
        values: of the batch.
        own_numbers: whether NumPy's numbers become Python's own in a list.
    """
    if stacks(values):
        return stacked(values)
    return _own_numbers(values) if own_numbers else values


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

    Args:
        column: the values that there are.
        at: the place of each.
        length: of the column that is made.
    """
    dtype = number_dtype(column)
    values: list[Any] = [None] * length
    for place, value in zip(at, column if dtype is None else items_of(column), strict=True):
        values[place] = value
    if isinstance(column, Unstacked):
        return Unstacked(values, dtype, own_numbers=column.own_numbers)
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
