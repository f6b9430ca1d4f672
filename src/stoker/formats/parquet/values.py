"""Decoded columns, of Arrow arrays of any type and layout among others, and rows taken from them as stoker's columns.

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

Numbers, and lists of them, are NumPy's. All else is a tree of parts: rows of a list or a struct lead to rows of what is in
it, by numbers alone, and Python's objects are made at the leaves. So rows in any order are read where they lie, whatever the
layout (views, dictionaries, runs), and only those that are asked for are made.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.common.checks import decode_fixed, decode_values
from stoker.formats.common.gather import cut, gather_rows, run_of
from stoker.formats.mds.encodings import Encoding
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.schema import kind_of, tensor_order
from stoker.formats.unstacked import Unstacked, scatter, spread
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


class SlicedBytes(ColumnValues):
    """Bytes that lie in a buffer. ``begins``, ``ends``: where each row's value begins and ends in it, checked; int64."""

    def __init__(self, data: memoryview, begins: Ids, ends: Ids) -> None:
        self._data, self._begins, self._ends = data, begins, ends
        self.nbytes = begins.nbytes + ends.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:
        values = cut(self._data, self._begins[rows], self._ends[rows])
        return values if views else list(map(bytes, values))


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


def take_each(columns: Sequence[ColumnValues], which: Ids, rows: Ids, *, views: bool = False) -> Column:
    """As :func:`gather`, of columns of any values; there is at least one."""
    if len(columns) == 1 or not len(rows):
        return columns[0].take(rows, views=views)
    if (found := gather_alike(columns, which, rows)) is not None:
        return found
    parts = [(np.flatnonzero(which == turn), column) for turn, column in enumerate(columns)]
    taken = [(at, {"": column.take(rows[at], views=views)}) for at, column in parts if at.size]
    return scatter(taken, len(rows))[""]


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


# Lists may share values, and lists of lists do so once more at each level: a small file could tell of any number. So many
# that are taken at once, or 16 times as many as there are, are no mistake.
_MOST_SHARED: Final = 1 << 25

Make = Callable[[Ids], Column]
"""A function that makes the values of rows, none of which is null."""


def as_values(array: Any) -> ColumnValues:
    """A column, ready for rows to be taken from it.

    ``array``: a ``pyarrow.Array``, whose offsets were checked. ValueError if it can not be read: lists leave their values, or
    a struct has two fields of one name.
    """
    types, kind = pyarrow().types, array.type
    if _is_tensor(kind):
        return _tensor(array)
    if _is_extension(kind):
        return as_values(_stored(array))
    if types.is_dictionary(kind) and (_is_number(kind.value_type) or _is_date(kind.value_type)):
        return as_values(array.dictionary_decode())
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _picked(array, as_values)
    if types.is_floating(kind) or _is_date(kind):
        return Fixed(array.to_numpy(zero_copy_only=False))  # null becomes NaN or NaT
    if _is_number(kind):
        return Holed(_filled(array), null) if (null := _nulls(array)) is not None else Fixed(_filled(array))
    if is_lists(kind) and _is_number(kind.value_type):
        return _number_lists(array)
    return _objects(array)


def _is_extension(kind: Any) -> bool:
    """Return whether an Arrow type is an extension type."""
    return isinstance(kind, pyarrow().BaseExtensionType)


def _is_tensor(kind: Any) -> bool:
    """Return whether an Arrow type is the one of tensors that all have one shape."""
    return isinstance(kind, pyarrow().FixedShapeTensorType)


def flat_list(array: Any) -> tuple[Any, Ids]:
    """The values of lists, end to end, and where each row's begin. ``array``: a ``pyarrow`` array of lists of any layout.

    Gives an Arrow array of all rows' values and nothing else, without a copy where the layout allows; int64 offsets of shape
    ``(rows + 1,)`` that begin at 0. A null row is empty.
    """
    starts, lengths = _list_rows(array)
    offsets = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    filled = np.flatnonzero(lengths)
    first = int(starts[filled[0]]) if filled.size else 0
    if (starts[filled] == first + offsets[filled]).all():
        return array.values.slice(first, int(offsets[-1])), offsets
    inner = np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths)
    return array.values.take(pyarrow().array(inner)), offsets


def is_lists(kind: Any) -> bool:
    """Return whether an Arrow type is a list type, of any layout. A map is not."""
    types = pyarrow().types
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(views or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_date(kind: Any) -> bool:
    """Return whether an Arrow type is a date, a time stamp or a duration, which NumPy has, too."""
    types = pyarrow().types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind))


def _nulls(array: Any) -> NDArray[np.bool_] | None:
    """A mask of the rows that are null; ``None``: none is."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _filled(array: Any) -> Any:
    """Numbers as NumPy's, with any value where they are null; of floats NaN."""
    if array.null_count and not pyarrow().types.is_floating(array.type):
        array = array.fill_null(False if pyarrow().types.is_boolean(array.type) else 0)
    return array.to_numpy(zero_copy_only=False)


def _stored(array: Any) -> Any:
    """The values of an extension type: truth values of those in bytes, of all others as they are stored."""
    if isinstance(array.type, pyarrow().Bool8Type):
        return pyarrow("compute").not_equal(array.storage, 0)
    return array.storage


def _list_rows(array: Any) -> tuple[Ids, Ids]:
    """Begin and length of each row's list in ``array.values``, of a map in its keys; int64, checked."""
    types, kind, rows = pyarrow().types, array.type, len(array)
    if types.is_fixed_size_list(kind):
        starts = (array.offset + np.arange(rows, dtype=np.int64)) * kind.list_size
        lengths = np.full(rows, kind.list_size, np.int64)
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts, lengths = (one.to_numpy().astype(np.int64) for one in (array.offsets, array.sizes))
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
    if (null := _nulls(array)) is not None:
        lengths[null] = 0
    held = len(array.keys if types.is_map(kind) else array.values)
    if (lengths < 0).any() or ((starts < 0) | (starts > held - lengths))[lengths > 0].any():
        raise ValueError("a list leaves the values that there are")
    return starts, lengths


def _number_lists(array: Any) -> ColumnValues:
    starts, lengths = _list_rows(array)
    null, inside, values = _nulls(array), _nulls(array.values), _filled(array.values)
    if inside is not None and not pyarrow().types.is_floating(array.values.type):
        return RaggedLists(values, starts, lengths, null, np.flatnonzero(inside))
    rows = len(starts)
    if null is None and rows and (length := int(lengths[0])):
        first = int(starts[0])
        if (lengths == length).all() and (starts == first + length * np.arange(rows)).all():
            return Fixed(values[first : first + rows * length].reshape(rows, length))
    return RaggedLists(values, starts, lengths, null)


class _Made(ColumnValues):
    """Values that a function makes, of which some may be null: these are ``None``.

    ``make``: makes the values of rows that are not null. ``null``: which are null; ``None``: none.
    """

    def __init__(self, array: Any, make: Make, null: NDArray[np.bool_] | None) -> None:
        self.nbytes = array.nbytes
        self._make, self._null = make, null

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        there = None if self._null is None else np.flatnonzero(~self._null[rows])
        if there is None or len(there) == len(rows):
            return self._make(rows)
        return spread(self._make(rows[there]), there.tolist(), len(rows))


def _picked(array: Any, values: Callable[[Any], ColumnValues]) -> ColumnValues:
    """A dictionary array, or one of runs: a value stands for many rows. ``values``: makes a column of its values."""
    if pyarrow().types.is_dictionary(array.type):
        numbers, words = _filled(array.indices).astype(np.int64), values(array.dictionary)
        return _Made(array, lambda rows: words.take(numbers[rows]), _nulls(array.indices))
    ends, first, runs = array.run_ends.to_numpy(), array.offset, values(array.values)
    return _Made(array, lambda rows: runs.take(np.searchsorted(ends, rows + first, side="right")), None)


def _tensor(array: Any) -> ColumnValues:
    shape, order = array.type.shape, tensor_order(array.type)
    values = as_values(array.storage)
    if isinstance(values, Fixed):
        return Fixed(values.array.reshape(len(array), *shape).transpose(0, *(axis + 1 for axis in order)))

    def shaped(value: Any) -> Any:  # of one that is null, or has nulls
        made = np.array(value, None if isinstance(value, np.ndarray) else object)
        made = made.reshape(shape).transpose(order).copy()
        return made if isinstance(value, np.ndarray) else made.tolist()

    return _Made(array, lambda rows: Unstacked(map(shaped, values.take(rows)), own_numbers=False), _nulls(array))


def _objects(array: Any) -> ColumnValues:
    """Values as Python's objects, whatever they hold."""
    types, kind = pyarrow().types, array.type
    if _is_tensor(kind):
        values = _tensor(array)
        return _Made(array, lambda rows: list(values.take(rows)), _nulls(array))
    if _is_extension(kind):
        return _objects(_stored(array))
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _picked(array, _objects)
    if types.is_date64(kind):  # whose time of day Python's dates would leave out
        return _objects(array.view(pyarrow().timestamp("ms")))
    if types.is_union(kind):
        return _Made(array, _unions(array), None)
    make = _structs if types.is_struct(kind) else _lists if types.is_nested(kind) else _leaves
    return _Made(array, _numbers(array) if _is_number(kind) else make(array), _nulls(array))


def _lists(array: Any) -> Make:
    """Of lists; of maps, of pairs."""
    starts, lengths = _list_rows(array)
    inside = (array.keys, array.items) if pyarrow().types.is_map(array.type) else (array.values,)
    held, columns = len(inside[0]), [_objects(part) for part in inside]

    def make(rows: Ids) -> list[Any]:
        sizes = lengths[rows]
        ends = np.cumsum(sizes)
        begins = ends - sizes
        total = int(sizes.sum())
        if total > _MOST_SHARED + 16 * held:
            raise ValueError(f"{len(rows)} lists share {held} values so that they hold {total}")
        inner = np.arange(total) + np.repeat(starts[rows] - begins, sizes)
        parts = [column.take(inner) for column in columns]
        values = list(zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
        return cut(values, begins, ends)

    return make


def _structs(array: Any) -> Make:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise ValueError(f"a struct has two fields of one name: {', '.join(names)}")
    columns = [_objects(array.field(number)) for number in range(len(names))]

    def make(rows: Ids) -> list[Any]:
        fields = [column.take(rows) for column in columns]
        if not fields:
            return [{} for _ in rows]
        return [dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)]

    return make


def _unions(array: Any) -> Make:
    """Of values of several types."""
    columns = [_objects(array.field(number)) for number in range(array.type.num_fields)]
    codes, code = array.type.type_codes, array.type_codes.to_numpy()
    dense = array.type.mode == "dense"
    places = array.offsets.to_numpy().astype(np.int64) if dense else np.arange(len(array))

    def make(rows: Ids) -> list[Any]:
        values: list[Any] = [None] * len(rows)
        for one, column in zip(codes, columns, strict=True):
            here = np.flatnonzero(code[rows] == one)
            for place, value in zip(here.tolist(), column.take(places[rows[here]]), strict=True):
                values[place] = value
        return values

    return make


def _numbers(array: Any) -> Make:
    """Of numbers, as Python's own."""
    values = _filled(array)
    return lambda rows: values[rows].tolist()


def _leaves(array: Any) -> Make:
    """Of values that hold no others."""
    types, kind = pyarrow().types, array.type
    view = types.is_string_view(kind) or types.is_binary_view(kind)
    time = types.is_time(kind) or _is_date(kind)
    # The way that is several times as fast, where it makes the same objects.
    quick = kind_of(kind) in ("string", "binary") or types.is_fixed_size_binary(kind)

    def make(rows: Ids) -> list[Any]:
        run = run_of(rows)
        if run is not None:
            taken = array.slice(run.start, run.stop - run.start)
        elif view:  # of which Arrow itself takes none
            _, heads, *data = array.buffers()
            picked = np.frombuffer(heads, "V16", len(array), 16 * array.offset)[rows]
            taken = type(array).from_buffers(kind, len(rows), [None, pyarrow().py_buffer(picked), *data])
        else:
            taken = array.take(pyarrow().array(rows))
        if time:
            return _times(taken)
        values: list[Any] = taken.to_numpy(zero_copy_only=False).tolist() if quick else taken.to_pylist()
        return values

    return make


def _times(array: Any) -> list[Any]:
    """Times, none of them null, as Python's own where these hold the value, and as NumPy's where not.

    pyarrow would ask whether pandas is installed.
    """
    pa, kind = pyarrow(), array.type
    if getattr(kind, "unit", "") == "ns":
        whole = array.view(pa.int64()).to_numpy() % 1000 == 0
        zone = (kind.tz,) if pa.types.is_timestamp(kind) else ()
        make = pa.timestamp if zone else pa.duration if pa.types.is_duration(kind) else pa.time64
        plain = (array if whole.all() else array.filter(pa.array(whole))).cast(make("us", *zone)).to_pylist()
        values = plain if whole.all() else _numpy_times(array)
        for place, value in zip(np.flatnonzero(whole).tolist(), plain, strict=True):
            values[place] = value
        return values
    try:
        found: list[Any] = array.to_pylist()
    except (OverflowError, ValueError):
        if len(array) > 1:
            return [value for number in range(len(array)) for value in _times(array.slice(number, 1))]
        found = _numpy_times(array)
    return found


def _numpy_times(array: Any) -> list[Any]:
    kind = array.type
    if not pyarrow().types.is_time(kind):
        return list(array.to_numpy(zero_copy_only=False))
    numbers = array.view(pyarrow().int64() if kind.bit_width == 64 else pyarrow().int32()).to_numpy()
    return list(numbers.astype(f"m8[{kind.unit}]"))
