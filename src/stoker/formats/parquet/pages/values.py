"""Decoded columns as NumPy has them, and rows taken from them as stoker's columns.

=========================================  =========================================================================
in the file                                in a batch
=========================================  =========================================================================
integers, floats, booleans                 array; with nulls: floats NaN, the others a list with ``None``
timestamps, dates, durations               ``datetime64`` (UTC where there is a time zone), ``timedelta64``; null is NaT
lists of numbers                           array of shape ``(n, k)`` where all rows have k values, else a list of arrays
                                           (``None`` for a null list; where numbers are null, lists with ``None``)
text, bytes                                list of ``str``, ``bytes``
bytes that are declared as arrays          array of shape ``(n, ...)``: see :mod:`stoker.formats.parquet.pages.fixed`
decimals, times, structs, maps, all else   list of Python objects as ``pyarrow`` makes them
=========================================  =========================================================================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.common.rows.gather import gather_rows
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.unstacked import Unstacked
from stoker.types import Array, Column, Ids

_NO_HOLES: Final[Ids] = np.zeros(0, np.int64)


class ColumnValues(ABC):
    """A decoded column of a row group."""

    nbytes: int

    @abstractmethod
    def take(self, rows: Ids, *, views: bool = False) -> Column:
        """The values of rows, in this order. Arrays are fresh, or with ``views`` may be read-only views."""


class AddressedValues(ColumnValues):
    """Values of one dtype and shape whose addresses in memory are known.

    Attributes:
        dtype: of a value.
        shape: of a value; empty for numbers.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Number of values."""

    @abstractmethod
    def addresses(self, rows: Ids) -> Ids:
        """Addresses of the values of rows, checked to be inside; int64. They are valid as long as this object lives."""

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize * math.prod(self.shape)


class Fixed(AddressedValues):
    """Values of one width, end to end.

    Attributes:
        array: shape ``(rows, ...)``, C-contiguous, read-only.
    """

    def __init__(self, array: Array) -> None:
        self.array = np.ascontiguousarray(array)
        self.nbytes = array.nbytes
        self.dtype, self.shape = array.dtype, array.shape[1:]

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: Ids, *, views: bool = False) -> Column:
        run = _run(rows)
        if run is None:
            taken: Array = self.array[rows]
            return taken
        return self.array[run] if views else self.array[run].copy()

    @property
    def address(self) -> int:
        """Address of the first value."""
        return int(self.array.ctypes.data)

    def addresses(self, rows: Ids) -> Ids:
        return self.address + rows * self.width


class _Holed(ColumnValues):
    """Numbers of which some are null."""

    def __init__(self, array: Array, null: NDArray[np.bool_]) -> None:
        self.array = array
        self.null = null
        self.nbytes = array.nbytes + null.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        values, null = self.array[rows], np.flatnonzero(self.null[rows])
        if not null.size:
            return values
        out = Unstacked(values.tolist(), values.dtype)
        for index in null.tolist():
            out[index] = None
        return out


class _Ragged(ColumnValues):
    """Lists of numbers, of any lengths.

    Args:
        values: of all rows, end to end.
        offsets: int64, shape ``(rows + 1,)``.
        null: which rows are null; ``None``: none.
        holes: numbers of the values that are null, rising. Rows with such are lists.
    """

    def __init__(self, values: Array, offsets: Ids, null: NDArray[np.bool_] | None, holes: Ids = _NO_HOLES) -> None:
        self.values = np.ascontiguousarray(values)
        self.offsets = offsets
        self.null, self.holes = null, holes
        self.nbytes = values.nbytes + offsets.nbytes + holes.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        null = None if self.null is None else np.flatnonzero(self.null[rows])
        holed = self._holed(starts, lengths) if self.holes.size else []
        whole = (null is None or not null.size) and not holed
        if whole and lengths.size and int(lengths.min()) == int(lengths.max()):
            return self._equal(starts, int(lengths[0]))
        rows_alone: Iterable[Any] = (
            self.values[start : start + length].copy()
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        )
        out = Unstacked(rows_alone, own_numbers=False)  # there are none
        for index, values in holed:
            out[index] = values
        for index in () if null is None else null.tolist():
            out[index] = None
        return out

    def _holed(self, starts: Ids, lengths: Ids) -> list[tuple[int, list[Any]]]:
        """Number and values of each of some rows that has nulls among its values."""
        found: list[tuple[int, list[Any]]] = []
        begins, ends = np.searchsorted(self.holes, starts), np.searchsorted(self.holes, starts + lengths)
        for number in np.flatnonzero(begins < ends).tolist():
            start = int(starts[number])
            values: list[Any] = self.values[start : start + int(lengths[number])].tolist()
            for hole in self.holes[begins[number] : ends[number]].tolist():
                values[hole - start] = None
            found.append((number, values))
        return found

    def _equal(self, starts: Ids, length: int) -> Array:
        values = self.values
        if not length:
            return np.empty((len(starts), 0), dtype=values.dtype)
        # The lists were checked to lie inside the values when the column was decoded.
        size = values.itemsize
        taken = gather_rows(starts * size + int(values.ctypes.data), length * size)
        return taken.view(values.dtype).reshape(len(starts), length)


class _Objects(ColumnValues):
    """Values that are Python objects once they are taken."""

    def __init__(self, array: Any) -> None:
        pa = pyarrow()
        self.array = array
        self.nbytes = array.nbytes
        # The way that is several times as fast, where it makes the same objects.
        self._plain = any(
            test(array.type)
            for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
        )

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        run = _run(rows)
        array = self.array
        taken = array.take(pyarrow().array(rows)) if run is None else array.slice(run.start, run.stop - run.start)
        values: list[Any] = taken.to_numpy(zero_copy_only=False).tolist() if self._plain else taken.to_pylist()
        return values


class Constant(ColumnValues):
    """One value in all rows: an int, a str or ``None``."""

    nbytes = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        if isinstance(self.value, int):
            return np.full(len(rows), self.value, dtype=np.int64)
        return [self.value] * len(rows)


def as_values(array: Any) -> ColumnValues:
    """A decoded column, ready for rows to be taken from it.

    Args:
        array: a ``pyarrow.Array``.
    """
    pa = pyarrow()
    types, kind = pa.types, array.type
    if isinstance(kind, pa.BaseExtensionType):
        return as_values(array.storage)
    if types.is_dictionary(kind):
        return as_values(array.dictionary_decode())
    if types.is_floating(kind) or types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return Fixed(array.to_numpy(zero_copy_only=False))  # null becomes NaN or NaT
    if types.is_integer(kind) or types.is_boolean(kind):
        if not array.null_count:
            return Fixed(array.to_numpy(zero_copy_only=False))
        filled = array.fill_null(False if types.is_boolean(kind) else 0)
        return _Holed(filled.to_numpy(zero_copy_only=False), array.is_null().to_numpy(zero_copy_only=False))
    if is_list(kind) and _is_number(kind.value_type):
        values, offsets, null = flat_list(array)
        if not values.null_count or types.is_floating(values.type):
            return _lists(values.to_numpy(zero_copy_only=False), offsets, null)
        filled = values.fill_null(False if types.is_boolean(values.type) else 0).to_numpy(zero_copy_only=False)
        return _Ragged(filled, offsets, null, np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return as_values(array.cast(pa.large_list(kind.value_field)))
    if types.is_string_view(kind):
        return as_values(array.cast(pa.large_string()))
    if types.is_binary_view(kind):
        return as_values(array.cast(pa.large_binary()))
    return _Objects(array)


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list whose rows' values lie one after the other."""
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def flat_list(array: Any) -> tuple[Any, Ids, NDArray[np.bool_] | None]:
    """A list array's values end to end, each row's first and end, and which rows are null.

    Args:
        array: a ``pyarrow`` list array of one of the layouts of :func:`is_list`, or of list views.

    Returns:
        An Arrow array of all rows' values and nothing else, without a copy where the layout allows; int64 offsets of shape
        ``(rows + 1,)`` that begin at 0; ``None`` if no row is null. A null row is empty.
    """
    pa = pyarrow()
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        lengths = pyarrow("compute").list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        return array.flatten(), _offsets(lengths), null  # flatten() leaves out the values in null rows
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    if null is not None and (np.diff(offsets)[null] != 0).any():
        lengths = np.where(null, 0, np.diff(offsets))
        return array.flatten(), _offsets(lengths), null
    first, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    values = array.values
    if first or end != len(values):
        values = values.slice(first, end - first)
        offsets -= first
    return values, offsets, null


def _lists(values: Array, offsets: Ids, null: NDArray[np.bool_] | None) -> ColumnValues:
    rows = len(offsets) - 1
    if null is None and rows:
        length = int(offsets[1])
        if length and (np.diff(offsets) == length).all():
            return Fixed(values.reshape(rows, length))
    return _Ragged(values, offsets, null)


def _offsets(lengths: Ids) -> Ids:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _run(rows: Ids) -> slice | None:
    """Rows that follow each other, as a slice."""
    count = len(rows)
    if not count or int(rows[-1]) - int(rows[0]) != count - 1 or (count > 2 and (np.diff(rows) != 1).any()):
        return None
    return slice(int(rows[0]), int(rows[0]) + count)


def gather(columns: Sequence[AddressedValues], which: Ids, rows: Ids) -> Array:
    """Values of rows of several columns of one dtype and shape, in one copy.

    Args:
        columns: the columns.
        which: for each value, its column's index in ``columns``; int64, shape ``(n,)``.
        rows: its row there, checked to be inside; int64, shape ``(n,)``.
    """
    first = columns[0]
    starts = [column.address for column in columns if isinstance(column, Fixed)]
    if len(starts) == len(columns):
        addresses = np.array(starts, dtype=np.int64)[which] + rows * first.width
    else:
        addresses = np.empty(len(rows), dtype=np.int64)
        for number in np.unique(which).tolist():
            here = np.flatnonzero(which == number)
            addresses[here] = columns[number].addresses(rows[here])
    taken = gather_rows(addresses, first.width)
    return taken.view(first.dtype).reshape(len(rows), *first.shape)
