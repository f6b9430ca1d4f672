"""Decoded columns as NumPy has them, and rows taken from them as stoker's columns. :mod:`.arrow_values` makes them.

=========================================  =========================================================================
in the file                                in a batch
=========================================  =========================================================================
integers, floats, booleans                 array; with nulls: floats NaN, the others a list with ``None``
timestamps, dates, durations               ``datetime64`` (UTC where there is a time zone), ``timedelta64``; null is NaT
lists of numbers                           array of shape ``(n, k)`` where all rows have k values, else a list of arrays
                                           (``None`` for a null list; where numbers are null, lists with ``None``)
text, bytes                                list of ``str``, ``bytes``
bytes that are declared as arrays          array of shape ``(n, ...)``: see :mod:`stoker.formats.parquet.decode`
tensors of one shape                       array of shape ``(n, ...)``; ``None`` where one is null
decimals, times, structs, maps, all else   list of Python objects as ``pyarrow`` makes them; times that Python's types do not
                                           hold, such as nanoseconds, are NumPy's
=========================================  =========================================================================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.common.checks import decode_fixed, decode_values
from stoker.formats.common.gather import gather_rows, run_of
from stoker.formats.mds.encodings import Encoding
from stoker.formats.unstacked import Unstacked, spread
from stoker.types import Array, Column, Ids

_NO_HOLES: Final[Ids] = np.zeros(0, np.int64)


class ColumnValues(ABC):
    """A decoded column of a row group."""

    nbytes: int

    @abstractmethod
    def take(self, rows: Ids, *, views: bool = False) -> Column:
        """The values of rows, in this order. Arrays are fresh, or with ``views`` may be read-only views."""


class AddressedValues(ColumnValues):
    """Values of one dtype and shape whose addresses in memory are known. ``shape``: of a value; empty for numbers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @abstractmethod
    def addresses(self, rows: Ids) -> Ids:
        """Addresses of the values of rows, checked to be inside; int64. They are valid as long as this object lives."""

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize * math.prod(self.shape)


class Fixed(AddressedValues):
    """Values of one width, end to end. ``array``: shape ``(rows, ...)``, C-contiguous, read-only."""

    def __init__(self, array: Array) -> None:
        self.array = np.ascontiguousarray(array)
        self.nbytes = array.nbytes
        self.dtype, self.shape = array.dtype, array.shape[1:]

    def take(self, rows: Ids, *, views: bool = False) -> Column:
        run = run_of(rows)
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


class Holed(ColumnValues):
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


class RaggedLists(ColumnValues):
    """Lists of numbers, of any lengths.

    ``starts``: where the list of each row begins in them, checked to be inside; int64, shape ``(rows,)``. ``lengths``: of the
    lists, 0 of those that are null. ``null``: which rows are null; ``None``: none. ``holes``: numbers of the values that are
    null, rising. Rows with such are lists.
    """

    def __init__(
        self, values: Array, starts: Ids, lengths: Ids, null: NDArray[np.bool_] | None, holes: Ids = _NO_HOLES
    ) -> None:
        self.values = np.ascontiguousarray(values)
        self.starts, self.lengths = starts, lengths
        self.null, self.holes = null, holes
        self.nbytes = values.nbytes + starts.nbytes + lengths.nbytes + holes.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        starts, lengths = self.starts[rows], self.lengths[rows]
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


class Constant(ColumnValues):
    """One value in all rows: an int, a str or ``None``."""

    nbytes = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        if isinstance(self.value, int):
            return np.full(len(rows), self.value, dtype=np.int64)
        return [self.value] * len(rows)


def gather(columns: Sequence[AddressedValues], which: Ids, rows: Ids) -> Array:
    """Values of rows of several columns of one dtype and shape, in one copy.

    ``which``: for each value, its column's index in ``columns``; int64, shape ``(n,)``. ``rows``: its row there, checked to
    be inside; int64, shape ``(n,)``.
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


def gather_alike(columns: Sequence[ColumnValues], which: Ids, rows: Ids) -> Array | None:
    """As :func:`gather`, of any columns; ``None`` where their values are not of one dtype and shape at known addresses."""
    first, *others = columns
    if not isinstance(first, AddressedValues) or not first.width:
        return None
    alike: list[AddressedValues] = [first]
    for one in others:
        if not isinstance(one, AddressedValues) or one.dtype != first.dtype or one.shape != first.shape:
            return None
        alike.append(one)
    return gather(alike, which, rows)


class EncodedValues(ColumnValues):
    """A column whose stored values are decoded when rows of it are taken. Nulls stay ``None``.

    ``stored``: the values as they are stored.
    """

    def __init__(self, stored: ColumnValues, encoding: Encoding, name: str, where: str) -> None:
        self._stored, self._encoding, self._name, self._where = stored, encoding, name, where
        self.nbytes = stored.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002 - what is decoded is no view
        column, size = self._stored.take(rows), self._encoding.size
        if size is not None:
            if not isinstance(column, np.ndarray) or column.nbytes != len(rows) * size:
                raise CorruptDataError(
                    f"{self._where}, column {self._name!r} is declared {self._encoding.name}, and has nulls, or values that "
                    f"are not of {size} bytes"
                )
            return decode_fixed(self._encoding, column, rows, self._name, self._where)
        there = [place for place, value in enumerate(column) if value is not None]
        data = [value.encode() if isinstance(value, str) else value for value in map(column.__getitem__, there)]
        values = decode_values(self._encoding, data, rows[there], self._name, self._where)
        return values if len(there) == len(column) else spread(values, there, len(column))
