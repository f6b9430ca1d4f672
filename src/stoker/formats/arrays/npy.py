"""NPY: a NumPy array in a file, a row a sample."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stoker.concurrency.forks import ProcessLock
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.arrays.array_shards import (
    MOST_DIMENSIONS,
    ArrayFormat,
    ArrayShard,
    check_axis,
    check_dtype,
    check_kind,
    describe_kind,
    map_array,
    rows_first,
    split_shape,
)
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import DECODE_ERRORS
from stoker.formats.common.container import PackedEncoder, read_offsets
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, check_count
from stoker.formats.common.records import BytesLike
from stoker.types import Array, Buffer, Ids

_MAGIC: Final = b"\x93NUMPY"
_MOST_HEADER: Final = 1 << 16
_COLUMN: Final = "data"

# As numpy.save writes the header of an array that is not structured.
_PLAIN: Final = re.compile(
    r"\{'descr': '([^'\\\n]+)', 'fortran_order': (False|True), 'shape': \(((?:N,|N(?:, N)+)?)\), \}\s*".replace(
        "N", "(?:0|[1-9][0-9]{0,18})"
    )
)
# Text, and the whole numbers between: Python 2 wrote long ones as 4L.
_NUMBERS_OF_PYTHON_2: Final = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|([0-9])L\b""")


# One thread at a time: CPython's parser counts its depth for all threads together (python/cpython#106905), and two that
# parse at once may both fail.
_PARSING: Final = ProcessLock()


def parse_header(
    read: Callable[[int, int], bytes], size: int, where: str
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """The header of an NPY file, which is text of Python's literals.

    CorruptDataError if it is none, FormatError if it holds pickled objects. ``size``: the file's bytes. Gives dtype, shape,
    whether the first axis varies fastest, and where the values begin.
    """
    head = read(0, min(size, 12))
    if len(head) < 10 or not head.startswith(_MAGIC) or head[6] not in (1, 2, 3):
        raise CorruptDataError(f"{where}: not an NPY file: it begins with {head[:8]!r}")
    start = 10 if head[6] == 1 else 12
    length = int.from_bytes(head[8:start], "little")
    if length > _MOST_HEADER or start + length > size:
        raise CorruptDataError(f"{where}: its header claims {length} bytes, in a file of {size}")
    raw = read(start, start + length)
    try:
        dtype, shape, fortran = _literals(raw, "utf8" if head[6] == 3 else "latin1")
    except (*DECODE_ERRORS, RecursionError, MemoryError) as error:
        raise CorruptDataError(f"{where}: not an NPY header: {type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(shape, tuple) or type(fortran) is not bool or len(shape) > MOST_DIMENSIONS:
        raise CorruptDataError(f"{where}: not an NPY header: shape {str(shape)[:200]}, fortran_order {fortran!r}")
    check_dtype(dtype, where)
    return dtype, shape, fortran, start + length


@lru_cache(maxsize=256)
def _literals(raw: bytes, coding: str) -> tuple[np.dtype[Any], Any, Any]:
    """Dtype, shape and order as a header has them. Headers of the files of a dataset are few."""
    text = raw.decode(coding)
    if plain := _PLAIN.fullmatch(text):
        shape = tuple(int(number) for number in plain[3].replace(",", " ").split())
        return np.dtype(plain[1]), shape, plain[2] == "True"
    with _PARSING:
        header = ast.literal_eval(_NUMBERS_OF_PYTHON_2.sub(lambda match: match[1] or match[2], text))
    return np.lib.format.descr_to_dtype(header["descr"]), header["shape"], header["fortran_order"]


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order, as :func:`numpy.save` writes it: its values begin at a multiple of 64."""
    text = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return _MAGIC + b"\1\0" + length.to_bytes(2, "little") + text.ljust(length - 1).encode("latin1") + b"\n"


class NPYShard(ArrayShard):
    """An open NPY file. Fields of a structured array are columns."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        read_offsets(info, files, where)
        data = files[0]
        dtype, shape, fortran, start = parse_header(lambda a, b: data[a:b], len(data), where)
        array = map_array(data, dtype, shape, start, fortran, where)
        array = rows_first(array, info.spec.get("samples_last", False), where)
        own = info.spec["columns"] if "columns" in info.spec else info.spec["column_names"]
        super().__init__(info, where, options, _columns(array, next(iter(own)), info.spec, where))

    def decode(self, name: str) -> Array:
        """See :class:`~stoker.formats.arrays.array_shards.ArrayShard`; there is no such column."""
        raise CorruptDataError(f"{self.where}: the array has no field {name!r}, which the index names")


def _columns(array: Array, name: str, spec: Mapping[str, Any], where: str) -> dict[str, Array | None]:
    kinds = spec.get("columns")
    if array.dtype.fields is None or "column_names" in spec:
        found: dict[str, Array | None] = {name: array}
    else:
        found = {field: array[field] for field in array.dtype.names or ()}
    if kinds is not None:
        for column, kind in kinds.items():
            there = found.get(column)
            is_there = None if there is None else describe_kind(there.dtype, there.shape[1:])
            check_kind(is_there, kind, f"{where}: column {column!r}")
    return found


class NPYFormat(ArrayFormat):
    """An array a shard."""

    name = "npy"
    shard = "an array"
    magic = (b"\x93NUMPY",)
    reader = NPYShard
    views = "runs of rows"
    suffixes = (".npy",)
    settings = ("axis", "column")
    encoder = "stoker.formats.arrays.npy:NPYEncoder"

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``axis`` (0, -1 where samples lie along the last axis, ``None`` where a file is a sample), ``column`` (the
        column's name, ``"data"``).
        """
        last = check_axis(settings)
        dtype, shape, _, start = parse_header(source.read, source.size, source.where)
        count, row = split_shape(shape, last, source.where)
        if start + math.prod(shape) * dtype.itemsize > source.size:
            raise CorruptDataError(
                f"{source.where}: an array of {dtype} and shape {shape} does not fit into the file's {source.size} bytes"
            )
        kinds = {settings.get("column", _COLUMN): describe_kind(dtype, row)}
        if dtype.fields is not None:
            fields = {name: dtype.fields[name][0] for name in dtype.names or ()}
            kinds = {name: describe_kind(field.base, row + field.shape) for name, field in fields.items()}
        if not kinds:
            raise CorruptDataError(f"{source.where}: an array without fields")
        return HeaderFacts(check_count(count, source.where), {"columns": kinds, "samples_last": last})


class NPYEncoder(PackedEncoder):
    """Samples of one column to the rows of an array.

    ConfigError for more than one column, or one whose values differ in size.
    """

    format = "npy"
    fixed_only = "NPY"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        super().__init__(columns, settings)
        if len(columns) > 1:
            raise ConfigError(f"NPY holds one array, and so one column, not {', '.join(sorted(columns))}: write NPZ")

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        (array,) = self.arrays(body, ends).values()
        return [npy_header(array.dtype, array.shape), body], None
