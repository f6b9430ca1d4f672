"""Shards whose columns are arrays with a row a sample: NPY, NPZ and HDF5.

A column is mapped where it lies in the file, and rows of all shards of a batch are gathered by address in one NumPy call.
Columns that are stored compressed are decoded once, and kept as decoded Parquet row groups are.

Where rows of a column differ in shape from file to file, the column's word is ``ndarray:DTYPE``, without a shape, and its
values in a batch are a list of arrays, from any kind of file.
"""

from __future__ import annotations

import math
import re
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import check_indexed, decode_fixed
from stoker.formats.common.container import PackedFormat, PackedShard, fixed_kind, read_gathered
from stoker.formats.common.gather import gather_rows, run_of
from stoker.types import Array, Batch, Buffer, Column, Ids

MOST_DIMENSIONS: Final = 32
# More than one byte that is stored never stands for so many (deflate's limit is 1032).
_MOST_RATIO: Final = 1100
_ALWAYS: Final = 1 << 26
_MOST_DECODED: Final = 1 << 32
# A column's word: dtype and shape; the shape may be missing.
_KIND: Final = re.compile(r"(?P<array>ndarray:)?(?P<dtype>.*?)(?::(?P<shape>[0-9,]+))?", re.DOTALL)
_TEXT: Final = re.compile(r"(?P<kind>str|bytes)(?P<bits>[0-9]+)")


class ArrayShard(PackedShard):
    """An open shard of arrays."""

    def __init__(self, info: ShardInfo, where: str, options: ReadOptions, arrays: Mapping[str, Array | None]) -> None:
        super().__init__(info, where, options)
        self._arrays = arrays
        kinds: Mapping[str, str] = info.spec.get("columns") or {}
        told = {name: _parsed(kind) for name, kind in kinds.items()}
        self.varying = frozenset(name for name, word in told.items() if word["array"] and word["shape"] is None)
        for name in self.columns:
            array = arrays.get(name)
            if array is not None:
                self._check(name, array)

    @abstractmethod
    def decode(self, name: str) -> Array:
        """A column that is not mapped, rows first."""

    def array(self, name: str) -> Array:
        """A column, rows first: mapped, or decoded now or before."""
        array = self._arrays.get(name)
        if array is None:
            array = self.kept(name, partial(self._decoded, name))
        return array

    def take(self, name: str, rows: Ids) -> Column:
        array = self.array(name)
        if name in self.varying:
            return [self._one(array[row]) for row in rows.tolist()]
        run = run_of(rows) if self.options.views and name not in self.encodings else None
        if run is not None and array.dtype.isnative and array.dtype.kind not in "SUV":
            view = array[run]
            view.flags.writeable = False
            return view
        return self.finish(name, rows, array[rows])

    def _one(self, value: Array) -> Any:
        """A row of a column whose rows differ in shape from file to file; as :meth:`take` hands out rows of one shape."""
        if value.dtype.kind in "SUV":
            return value.tolist()
        if not value.dtype.isnative:
            return value.astype(value.dtype.newbyteorder("="))
        if not self.options.views:
            return value.copy()
        view = value[...]  # a number, where the column has no shape here, is an array without dimensions
        view.flags.writeable = False
        return view

    def finish(self, name: str, rows: Ids, taken: Array) -> Column:
        """Rows as they were stored, to values as users see them."""
        encoding = self.encodings.get(name)
        if encoding is not None:
            return decode_fixed(encoding, taken, rows, name, self.where)
        if taken.dtype.kind in "SUV":
            if not _all_characters(taken):
                raise CorruptDataError(f"{self.where}: column {name!r} holds text with invalid characters")
            try:
                values: list[Any] = taken.tolist()
            except (ValueError, SystemError) as error:  # the latter for what is no character
                raise CorruptDataError(f"{self.where}: column {name!r}: {error}") from None
            return values
        return taken if taken.dtype.isnative else taken.astype(taken.dtype.newbyteorder("="))

    def _decoded(self, name: str) -> Array:
        array = self.decode(name)
        self._check(name, array)
        return array

    def _check(self, name: str, array: Array) -> None:
        check_indexed(f"{self.where}: column {name!r} has", len(array), self.samples, "rows")
        encoding = self.encodings.get(name)
        if encoding is None:
            return
        dtype, shape = fixed_kind(encoding)
        if array.shape[1:] != shape or array.dtype != dtype:
            raise CorruptDataError(
                f"{self.where}: column {name!r} holds {array.dtype} of shape {array.shape[1:]}, but is declared "
                f"{encoding.name}"
            )


class ArrayFormat(PackedFormat):
    """Base of the formats of arrays."""

    def read_many(
        self, shards: Sequence[ArrayShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        return read_gathered(shards, which, rows, columns, partial(_gather, shards, which, rows))

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`~stoker.formats.format.Format`.

        Columns of one data type may differ in the shape of rows.
        """
        one, two = first["columns"], other["columns"]
        columns: dict[str, str] = {}
        for name in one if one.keys() == two.keys() else ():
            if (kind := _common(one[name], two[name])) is not None:
                columns[name] = kind
        agreed = {**first, "columns": columns}
        return (
            agreed
            if len(columns) == len(one) and agreed == {**other, "columns": columns}
            else super().agree(first, other)
        )


def _gather(shards: Sequence[ArrayShard], which: Ids, rows: Ids, name: str) -> Column | None:
    """Rows of a column of several shards in one copy; ``None`` where they do not lie so that this can be."""
    first = shards[0]
    if name in first.varying or first._arrays.get(name) is None:
        return None
    arrays = [shard.array(name) for shard in shards]
    dtype, shape = arrays[0].dtype, arrays[0].shape[1:]
    width = dtype.itemsize * math.prod(shape)
    if not width or any(one.dtype != dtype or one.shape[1:] != shape or not _rows_whole(one) for one in arrays):
        return None
    bases = np.array([one.ctypes.data for one in arrays], dtype=np.int64)
    steps = np.array([one.strides[0] for one in arrays], dtype=np.int64)
    taken = gather_rows(bases[which] + rows * steps[which], width)
    out: Array = taken.view(dtype).reshape(len(rows), *shape)
    del arrays  # mapped until here
    return first.finish(name, rows, out)


def _all_characters(array: Array) -> bool:
    """Whether text, also in fields, is of Unicode's characters; NumPy makes strings of other numbers, too."""
    if array.dtype.fields is not None:
        return all(_all_characters(array[field]) for field in array.dtype.names or ())
    if array.dtype.kind != "U" or not array.size or not array.dtype.itemsize:
        return True
    codes = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    return bool(codes.max() <= sys.maxunicode)


def _rows_whole(array: Array) -> bool:
    """Whether each row's bytes lie in one piece."""
    return bool(array[:1].flags.c_contiguous) if len(array) else False


def map_array(
    data: Buffer | Array, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, fortran: bool, where: str
) -> Array:
    """An array that lies in a file, read-only. CorruptDataError if it does not fit into the file."""
    check_dtype(dtype, where)
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise CorruptDataError(f"{where}: an array has the invalid shape {str(shape)[:200]}")
    size = math.prod(shape) * dtype.itemsize
    if not 0 <= offset <= offset + size <= len(data):
        raise CorruptDataError(
            f"{where}: an array of {dtype} and shape {shape} at byte {offset} ends past the file's {len(data)} bytes"
        )
    if not size:
        if max(shape, default=0) > _MOST_DECODED:
            raise CorruptDataError(
                f"{where}: an array of shape {shape} has no values, and a dimension that is too large"
            )
        try:
            return np.zeros(shape, dtype)
        except ValueError as error:
            raise CorruptDataError(f"{where}: an array of shape {shape}: {error}") from None
    array: Array = np.ndarray(shape, dtype, buffer=data, offset=offset, order="F" if fortran else "C")
    array.flags.writeable = False
    return array


def check_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Check that values of a dtype can be read without running code. FormatError if they can not."""
    if dtype.hasobject:
        raise FormatError(
            f"{where}: holds pickled Python objects, which would run code when read: write it without them"
        )


def check_decoded(size: int, stored: int, where: str) -> None:
    """Refuse to decode to an absurd size before memory is taken for it.

    CorruptDataError if so few bytes can not hold so many.
    """
    if size > _MOST_DECODED or size > max(_ALWAYS, stored * _MOST_RATIO):
        raise CorruptDataError(f"{where}: {stored} bytes claim to hold {size} bytes of values")


def rows_first(array: Array, last: bool | None, where: str) -> Array:
    """The array with its axis of samples in front; ``last`` is what :func:`check_axis` returns.

    FormatError if it has no axis.
    """
    if last is None:
        return array[np.newaxis]
    if array.ndim == 0:
        raise FormatError(f"{where}: an array without dimensions has no rows, and so no samples: {_WHOLE}")
    return np.moveaxis(array, -1, 0) if last else array


def split_shape(shape: tuple[int, ...], last: bool | None, where: str) -> tuple[int, tuple[int, ...]]:
    """The number of samples in an array of a shape, and the shape of each. FormatError if it has no axis of samples.

    ``shape``: as the file has it; not yet believed. ``last``: what :func:`check_axis` returns.
    """
    if (not shape and last is not None) or any(type(n) is not int or n < 0 for n in shape):
        raise FormatError(f"{where}: an array of shape {str(shape)[:200]} has no rows, and so no samples: {_WHOLE}")
    if last is None:
        return 1, shape
    return (shape[-1], shape[:-1]) if last else (shape[0], shape[1:])


_WHOLE: Final = 'where a file is a sample, say so with format_options={"axis": None}'


def check_axis(settings: Mapping[str, Any]) -> bool | None:
    """Whether samples lie along the last axis of arrays, by the setting ``axis``; ``None`` where a file is a sample.

    ConfigError if it is neither 0, -1 nor ``None``.
    """
    axis = settings.get("axis", 0)
    if axis not in (0, -1, None) or isinstance(axis, bool):
        raise ConfigError(
            f"axis={axis!r}: samples lie along the first axis of arrays (0) or along the last (-1), or a file is a sample "
            "(None)"
        )
    return None if axis is None else bool(axis == -1)


@lru_cache(maxsize=1024)
def describe_kind(array_dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """A word for a column's type: ``float32``, ``ndarray:float32:3,4``."""
    name = array_dtype.name if array_dtype.fields is None else str(array_dtype)
    if not array_dtype.isnative:
        name = f"{name} (big-endian)"
    return f"ndarray:{name}:{','.join(map(str, shape))}" if shape else name


def check_kind(found: str | None, declared: str | None, where: str) -> None:
    """Check that a column, ``None`` for none, is of the kind that was indexed, which may leave shape or length open."""
    if declared is not None and (found is None or _common(found, declared) != declared):
        raise CorruptDataError(f"{where} is not {declared} as when it was indexed")


@lru_cache(maxsize=1024)
def _common(one: str, two: str) -> str | None:
    """The word for values of both kinds; ``None`` where data types differ."""
    if one == two:
        return one
    texts = _TEXT.fullmatch(one), _TEXT.fullmatch(two)
    if texts[0] is not None and texts[1] is not None and texts[0]["kind"] == texts[1]["kind"]:
        return max(one, two, key=lambda kind: int(kind[len(texts[0]["kind"]) :]))  # type: ignore[index]
    dtypes = [_parsed(kind)["dtype"] for kind in (one, two)]
    return f"ndarray:{dtypes[0]}" if dtypes[0] == dtypes[1] else None


@lru_cache(maxsize=1024)
def _parsed(kind: str) -> re.Match[str]:
    found = _KIND.fullmatch(kind)
    assert found is not None  # it matches anything
    return found
