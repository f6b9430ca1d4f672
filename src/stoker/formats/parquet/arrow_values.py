"""Arrow arrays of any type and layout as columns: rows taken from them are values as users see them.

Numbers, and lists of them, are NumPy's. All else is a tree of parts: rows of a list or a struct lead to rows of what is in
it, by numbers alone, and Python's objects are made at the leaves. So rows in any order are read where they lie, whatever the
layout (views, dictionaries, runs), and only those that are asked for are made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.schema import tensor_order
from stoker.formats.parquet.values import ColumnValues, Fixed, Holed, RaggedLists, run_of
from stoker.formats.unstacked import Unstacked, spread
from stoker.types import Column, Ids

# Lists may share values, and lists of lists do so once more at each level: a small file could tell of any number. So many
# that are taken at once, or 16 times as many as there are, are no mistake.
_MOST_SHARED: Final = 1 << 25


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
    """Whether an Arrow type is an extension type."""
    return isinstance(kind, pyarrow().BaseExtensionType)


def _is_tensor(kind: Any) -> bool:
    """Whether an Arrow type is that of arrays of one shape."""
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
    """Whether an Arrow type is lists, of any layout; maps are none."""
    types = pyarrow().types
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(views or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_date(kind: Any) -> bool:
    """Whether it is what NumPy has: points and spans of time."""
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


class _Node(ColumnValues):
    """Values of which some may be null: these are ``None``. ``null``: which are null; ``None``: none."""

    def __init__(self, array: Any, null: NDArray[np.bool_] | None) -> None:
        self.nbytes = array.nbytes
        self._null = null

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002
        there = None if self._null is None else np.flatnonzero(~self._null[rows])
        if there is None or len(there) == len(rows):
            return self._make(rows)
        return spread(self._make(rows[there]), there.tolist(), len(rows))

    @abstractmethod
    def _make(self, rows: Ids) -> Column:
        """The values of rows that are not null."""


class _Picked(_Node):
    """Values that stand for many rows each; ``place``: from numbers of rows to those of values."""

    def __init__(
        self, array: Any, null: NDArray[np.bool_] | None, values: ColumnValues, place: Callable[[Ids], Ids]
    ) -> None:
        super().__init__(array, null)
        self._values, self._place = values, place

    def _make(self, rows: Ids) -> Column:
        return self._values.take(self._place(rows))


def _picked(array: Any, values: Callable[[Any], ColumnValues]) -> ColumnValues:
    """A dictionary array, or one of runs; ``values``: makes a column of its values."""
    if pyarrow().types.is_dictionary(array.type):
        numbers = _filled(array.indices).astype(np.int64)
        return _Picked(array, _nulls(array.indices), values(array.dictionary), numbers.__getitem__)
    ends, first = array.run_ends.to_numpy(), array.offset
    return _Picked(array, None, values(array.values), lambda rows: np.searchsorted(ends, rows + first, side="right"))


def _tensor(array: Any) -> ColumnValues:
    shape, order = array.type.shape, tensor_order(array.type)
    values = as_values(array.storage)
    if isinstance(values, Fixed):
        return Fixed(values.array.reshape(len(array), *shape).transpose(0, *(axis + 1 for axis in order)))
    return _Tensors(array, values, shape, order)


class _Tensors(_Node):
    """Arrays of one shape, of which some, or numbers in them, are null."""

    def __init__(self, array: Any, values: ColumnValues, shape: list[int], order: list[int]) -> None:
        super().__init__(array, _nulls(array))
        self._values, self._shape, self._order = values, shape, order

    def _make(self, rows: Ids) -> Column:
        return Unstacked(map(self._one, self._values.take(rows)), own_numbers=False)

    def _one(self, value: Any) -> Any:
        array = np.array(value, None if isinstance(value, np.ndarray) else object)
        shaped = array.reshape(self._shape).transpose(self._order).copy()
        return shaped if isinstance(value, np.ndarray) else shaped.tolist()


def _objects(array: Any) -> ColumnValues:
    """Values as Python's objects, whatever they hold."""
    types, kind = pyarrow().types, array.type
    if _is_tensor(kind):
        return _Arrays(array)
    if _is_extension(kind):
        return _objects(_stored(array))
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _picked(array, _objects)
    if types.is_union(kind):
        return _Unions(array)
    if types.is_struct(kind):
        return _Structs(array)
    if types.is_nested(kind):
        return _Lists(array)
    if types.is_date64(kind):  # whose time of day Python's dates would leave out
        return _objects(array.view(pyarrow().timestamp("ms")))
    return _Numbers(array) if _is_number(kind) else _Leaf(array)


class _Arrays(_Node):
    """Tensors, each by itself."""

    def __init__(self, array: Any) -> None:
        super().__init__(array, _nulls(array))
        self._values = _tensor(array)

    def _make(self, rows: Ids) -> list[Any]:
        return list(self._values.take(rows))


class _Lists(_Node):
    """Lists; of maps, of pairs."""

    def __init__(self, array: Any) -> None:
        super().__init__(array, _nulls(array))
        self._starts, self._lengths = _list_rows(array)
        parts = (array.keys, array.items) if pyarrow().types.is_map(array.type) else (array.values,)
        self._held = len(parts[0])
        self._parts = [_objects(part) for part in parts]

    def _make(self, rows: Ids) -> list[Any]:
        starts, lengths = self._starts[rows], self._lengths[rows]
        ends = np.cumsum(lengths)
        begins = ends - lengths
        total = int(lengths.sum())
        if total > _MOST_SHARED + 16 * self._held:
            raise ValueError(f"{len(rows)} lists share {self._held} values so that they hold {total}")
        inner = np.arange(total) + np.repeat(starts - begins, lengths)
        parts = [part.take(inner) for part in self._parts]
        values = list(zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
        return [values[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


class _Structs(_Node):
    """Structs."""

    def __init__(self, array: Any) -> None:
        super().__init__(array, _nulls(array))
        self._names = [field.name for field in array.type]
        if len(set(self._names)) < len(self._names):
            raise ValueError(f"a struct has two fields of one name: {', '.join(self._names)}")
        self._fields = [_objects(array.field(number)) for number in range(len(self._names))]

    def _make(self, rows: Ids) -> list[Any]:
        fields = [field.take(rows) for field in self._fields]
        if not fields:
            return [{} for _ in rows]
        return [dict(zip(self._names, values, strict=True)) for values in zip(*fields, strict=True)]


class _Unions(_Node):
    """Values of several types."""

    def __init__(self, array: Any) -> None:
        super().__init__(array, None)
        self._fields = [_objects(array.field(number)) for number in range(array.type.num_fields)]
        self._codes, self._code = array.type.type_codes, array.type_codes.to_numpy()
        dense = array.type.mode == "dense"
        self._places = array.offsets.to_numpy().astype(np.int64) if dense else np.arange(len(array))

    def _make(self, rows: Ids) -> list[Any]:
        values: list[Any] = [None] * len(rows)
        for code, field in zip(self._codes, self._fields, strict=True):
            here = np.flatnonzero(self._code[rows] == code)
            for place, value in zip(here.tolist(), field.take(self._places[rows[here]]), strict=True):
                values[place] = value
        return values


class _Numbers(_Node):
    """Numbers, as Python's own."""

    def __init__(self, array: Any) -> None:
        super().__init__(array, _nulls(array))
        self._values = _filled(array)

    def _make(self, rows: Ids) -> list[Any]:
        values: list[Any] = self._values[rows].tolist()
        return values


class _Leaf(_Node):
    """Values that hold no others."""

    def __init__(self, array: Any) -> None:
        super().__init__(array, _nulls(array))
        self._array = array
        types, kind = pyarrow().types, array.type
        self._view = types.is_string_view(kind) or types.is_binary_view(kind)
        self._time = types.is_time(kind) or _is_date(kind)
        # The way that is several times as fast, where it makes the same objects.
        flat = (
            types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        )
        self._quick = self._view or flat or types.is_fixed_size_binary(kind)

    def _make(self, rows: Ids) -> list[Any]:
        run, array = run_of(rows), self._array
        if run is not None:
            taken = array.slice(run.start, run.stop - run.start)
        elif self._view:  # of which Arrow itself takes none
            _, heads, *data = array.buffers()
            picked = np.frombuffer(heads, "V16", len(array), 16 * array.offset)[rows]
            taken = type(array).from_buffers(array.type, len(rows), [None, pyarrow().py_buffer(picked), *data])
        else:
            taken = array.take(pyarrow().array(rows))
        if self._time:
            return _times(taken)
        values: list[Any] = taken.to_numpy(zero_copy_only=False).tolist() if self._quick else taken.to_pylist()
        return values


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
