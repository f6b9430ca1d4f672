"""Columns of Parquet files: their types, their pages, and what the footer tells of them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from stoker.formats.parquet import thrift as compact
from stoker.formats.parquet.arrow import pyarrow
from stoker.integers import encode_varint
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent, finish_of
from stoker_bench.generation.ragged import column_cells
from stoker_bench.generation.segments import Finish, Segment, StreamBytes
from stoker_bench.generation.spec import DatasetSpec

PLAIN, RLE = 0, 3
"""Encodings."""

_REQUIRED, _REPEATED = 0, 2

# Physical types, and converted types where they say more.
_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED = 0, 1, 2, 4, 5, 6, 7
_SCALARS: Final[dict[str, tuple[int, int | None]]] = {
    "bool": (_BOOLEAN, None),
    "int8": (_INT32, 15),
    "int16": (_INT32, 16),
    "int32": (_INT32, None),
    "int64": (_INT64, None),
    "uint8": (_INT32, 11),
    "uint16": (_INT32, 12),
    "uint32": (_INT32, 13),
    "uint64": (_INT64, 14),
    "float16": (_FIXED, None),
    "float32": (_FLOAT, None),
    "float64": (_DOUBLE, None),
}
_UTF8, _LIST = 0, 3
# Small integers are stored in four bytes: those that are not negative need no bits above their own.
_SMALL: Final = {
    "int8": Finish(clear=b"\x7f\0\0\0"),
    "int16": Finish(clear=b"\xff\x7f\0\0"),
    "uint8": Finish(clear=b"\xff\0\0\0"),
    "uint16": Finish(clear=b"\xff\xff\0\0"),
}


def is_list(column: Column) -> bool:
    """Whether rows are lists, as token ids are."""
    return column.tokens and bool(column.shape)


@lru_cache(maxsize=1024)
def physical_type(column: Column) -> tuple[int, int | None]:
    """Physical and converted type of a column's values."""
    if column.numeric and (not column.shape or is_list(column)):
        return _SCALARS[column.dtype]
    if column.width is not None and column.dtype != "str":
        return _FIXED, None
    return _BYTE_ARRAY, _UTF8 if column.dtype == "str" else None


@lru_cache(maxsize=1024)
def _item(column: Column) -> int:
    """Bytes that a number is stored in; 0 for booleans, of which a byte holds eight."""
    kind = physical_type(column)[0]
    return {_BOOLEAN: 0, _INT32: 4, _FLOAT: 4, _INT64: 8, _DOUBLE: 8}.get(kind, np.dtype(column.dtype).itemsize)


@lru_cache(maxsize=1024)
def row_width(column: Column) -> int | None:
    """Bytes of a row in a page; 0 for booleans, ``None`` where rows differ."""
    kind = physical_type(column)[0]
    if kind == _BYTE_ARRAY:
        return None
    if column.numeric and (not column.shape or is_list(column)):
        return _item(column) * math.prod(column.shape)
    return column.width


def page_values(content: FileContent, column: Column, first: int, count: int) -> list[Segment]:
    """A page of rows ``[first, first + count)``."""
    kind = physical_type(column)[0]
    if kind == _BYTE_ARRAY:
        segments: list[Segment] = []
        for cell in column_cells(content, column, first, count):
            segments += [cell.size.to_bytes(4, "little"), *cell.segments]
        return segments
    if kind == _BOOLEAN:
        return [StreamBytes(-(-count // 8), content.noise)]
    size = (row_width(column) or 0) * count
    if column.tokens:
        levels = [_levels(column, count)] if column.shape else []
        return [*levels, StreamBytes(size, content.tokens(np.dtype(f"<u{_item(column)}")))]
    if not column.numeric:
        return [StreamBytes(size, content.noise)]
    finish = finish_of(column.dtype)
    return [StreamBytes(size, content.noise, _SMALL.get(column.dtype, finish) if not column.shape else finish)]


@lru_cache(maxsize=16)
def _levels(column: Column, count: int) -> bytes:
    """Repetition and definition levels of rows that are lists of one length: runs, in the hybrid encoding of one bit."""
    length = math.prod(column.shape)
    row = b"\x02\0" + (encode_varint(2 * (length - 1)) + b"\1" if length > 1 else b"")
    repetition = row * count
    definition = encode_varint(2 * length * count) + b"\1"
    return b"".join(len(levels).to_bytes(4, "little") + levels for levels in (repetition, definition))


@lru_cache(maxsize=1024)
def page_header(values: int, raw: int, stored: int) -> bytes:
    """The header of a page of so many values, with its bytes before and after compression."""
    page = compact.struct(
        (1, compact.integer(values, wide=False)),
        (2, compact.integer(PLAIN, wide=False)),
        (3, compact.integer(RLE, wide=False)),
        (4, compact.integer(RLE, wide=False)),
    )
    return compact.struct(
        (1, compact.integer(0, wide=False)),
        (2, compact.integer(raw, wide=False)),
        (3, compact.integer(stored, wide=False)),
        (5, page),
    )[1]


def dictionary_header(stored: int) -> bytes:
    """The header of a dictionary page without values, which has so many bytes after compression."""
    page = compact.struct((1, compact.integer(0, wide=False)), (2, compact.integer(PLAIN, wide=False)))
    return compact.struct(
        (1, compact.integer(2, wide=False)),
        (2, compact.integer(0, wide=False)),
        (3, compact.integer(stored, wide=False)),
        (7, page),
    )[1]


def schema_elements(columns: tuple[Column, ...]) -> list[tuple[int, bytes]]:
    """Elements of the schema, the root first."""
    found = [compact.struct((4, compact.binary(b"schema")), (5, compact.integer(len(columns), wide=False)))]
    for column in columns:
        kind, converted = physical_type(column)
        name = column.name
        if is_list(column):
            found.append(_element(name, _REQUIRED, children=1, converted=_LIST))
            found.append(_element("list", _REPEATED, children=1))
            name = "element"
        length = None
        if kind == _FIXED:
            length = np.dtype(column.dtype).itemsize if column.numeric and not column.shape else column.width
        found.append(
            _element(name, _REQUIRED, kind=kind, length=length, converted=converted, half=column.dtype == "float16")
        )
    return found


def _element(
    name: str,
    repetition: int,
    *,
    kind: int | None = None,
    length: int | None = None,
    children: int | None = None,
    converted: int | None = None,
    half: bool = False,
) -> tuple[int, bytes]:
    def small(value: int | None) -> tuple[int, bytes] | None:
        return None if value is None else compact.integer(value, wide=False)

    # 15: the logical type of half-precision numbers, which has no converted type
    logical = compact.struct((15, compact.struct())) if half and length == 2 else None
    return compact.struct(
        (1, small(kind)),
        (2, small(length)),
        (3, small(repetition)),
        (4, compact.binary(name.encode())),
        (5, small(children)),
        (6, small(converted)),
        (10, logical),
    )


@lru_cache(maxsize=4)
def arrow_schema(spec: DatasetSpec) -> bytes:
    """The Arrow schema, whose fields tell arrays' types and shapes."""
    pa = pyarrow()
    fields = []
    for column in spec.fields:
        kind, _ = physical_type(column)
        about = None
        if is_list(column):
            arrow = pa.list_(pa.field("element", pa.from_numpy_dtype(np.dtype(column.dtype)), nullable=False))
        elif column.numeric and not column.shape:
            arrow = pa.from_numpy_dtype(np.dtype(column.dtype))
        elif kind == _FIXED:
            arrow = pa.binary(column.width)
            if column.numeric:
                about = {"dtype": column.dtype, "shape": ",".join(map(str, column.shape))}
        else:
            arrow = pa.string() if column.dtype == "str" else pa.binary()
        fields.append(pa.field(column.name, arrow, nullable=False, metadata=about))
    schema: bytes = pa.schema(fields).serialize().to_pybytes()
    return schema
