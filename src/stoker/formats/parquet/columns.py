"""Columns of stoker's encodings as Arrow's, for Parquet files.

Arrays of one shape are lists of fixed size; those of bytes, or of several dimensions, are fixed-size binary, which reads many
times as fast, with data type and shape in the column's metadata. One-dimensional arrays of a data type and any length are
lists. Columns that Parquet has no type for are the text or the bytes of their encoding. The encodings' names are in the
files' metadata, so that what is read, and a conversion back, give the same values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.errors import EncodingError
from stoker.formats.common.container import fixed_kind
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.schema import DECLARED_KEY, ColumnSchema, plain_layout, tensor_order
from stoker.types import Column

TEXTS: Final = ("str", "json", "str_int", "str_float", "str_decimal")
"""Encodings of columns that are stored as text, so that others read text."""


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """A column.

    ``encoding``: as an MDS index names it. ``arrow``: the ``pyarrow.DataType`` that its values are stored as; ``None`` for
    what goes with the encoding.
    """

    name: str
    encoding: str
    arrow: Any = None


def schema_of(columns: Sequence[ParquetColumn]) -> Any:
    """The ``pyarrow.Schema`` of files of these columns."""
    pa = pyarrow()
    about = json.dumps({"columns": {column.name: column.encoding for column in columns}}, sort_keys=True)
    fields = [pa.field(column.name, _arrow_type(column), metadata=_declaration(column)) for column in columns]
    return pa.schema(fields, metadata={DECLARED_KEY: about.encode()})


def to_arrow(values: Column, column: ParquetColumn) -> Any:
    """A column's values as a ``pyarrow.Array``.

    UnfitValueError if a value does not fit; ``row`` and ``column`` tell which. EncodingError if the values are none of the
    column's type.
    """
    pa = pyarrow()
    try:
        kind = _arrow_type(column)
        if column.arrow is not None and _declaration(column) is None:
            return _kept(values, kind)
        encoding = get_encoding(column.encoding)
        if encoding.name == "str":
            return pa.array(values, kind)
        return stored_to_arrow(values if list_dtype(encoding) is not None else encoding.encode_column(values), column)
    except UnfitValueError as error:
        error.column = error.column or column.name
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise EncodingError(f"column {column.name!r} can not be stored as {_arrow_type(column)}: {error}") from error


def stored(value: Any, column: ParquetColumn) -> Any:
    """One value, checked and copied, for :func:`stored_to_arrow`. Exception if it does not fit."""
    encoding = get_encoding(column.encoding)
    dtype = list_dtype(encoding)
    if dtype is None:
        return bytes(encoding.encode(value))
    array = np.array(value)
    _check_list(array, dtype, column.name)
    return array


def stored_to_arrow(values: Any, column: ParquetColumn) -> Any:
    """Values that :func:`stored` returned, or rows of bytes of a fixed width, as a ``pyarrow.Array``."""
    encoding, kind = get_encoding(column.encoding), _arrow_type(column)
    if (dtype := list_dtype(encoding)) is not None:
        return _lists(values, dtype, kind, column.name)
    return _from_raw(values, encoding, kind)


def read_declared(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Names and encodings of the columns, by a schema's metadata; empty where stoker did not write it."""
    try:
        columns = json.loads((metadata or {})[DECLARED_KEY])["columns"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    good = isinstance(columns, dict) and all(type(kind) is str for kind in columns.values())
    return columns if good else {}


def encoded_columns(metadata: Mapping[bytes, bytes], columns: Sequence[ColumnSchema]) -> dict[str, str]:
    """Names and encodings of a file's columns whose values are to be decoded, as Parquet's own types do not tell them.

    FormatError if there is no such encoding.
    """
    declared = read_declared(metadata)
    found: dict[str, str] = {}
    for column in columns:
        if column.name in declared:
            encoding = get_encoding(declared[column.name])
            if column.type == _stored_type(encoding):
                found[column.name] = declared[column.name]
    return found


def _stored_type(encoding: Encoding) -> str:
    """The type of a file's column whose values need decoding by this encoding; empty where Parquet's own do."""
    if encoding.name in TEXTS:
        return "string" if encoding.name != "str" else ""
    if encoding.size is None:
        return "" if encoding.verbatim or list_dtype(encoding) is not None else "binary"
    dtype, shape = fixed_kind(encoding)
    decoded = encoding.decode_fixed(np.zeros((0, encoding.size), np.uint8))
    if isinstance(decoded, np.ndarray) and (decoded.dtype, decoded.shape[1:]) == (dtype, shape):
        return ""
    if not shape:
        return dtype.name
    if len(shape) == 1 and dtype.itemsize > 1:
        return f"list<{dtype.name}>"
    return f"{dtype.name}[{', '.join(map(str, shape))}]"


def _from_raw(raw: Any, encoding: Encoding, kind: Any) -> Any:
    """Values as their encoding stores them: a list of bytes, or of a fixed width rows of uint8."""
    pa = pyarrow()
    if encoding.name in TEXTS:
        return pa.array([bytes(one).decode() for one in raw], kind)
    if encoding.size is None:
        return pa.array([bytes(one) for one in raw], kind)
    dtype, shape = fixed_kind(encoding)
    flat = np.frombuffer(b"".join(raw), np.uint8) if isinstance(raw, list) else np.ascontiguousarray(np.asarray(raw))
    rows = flat.reshape(-1).view(dtype)
    if shape == ():
        return pa.array(rows, kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.FixedSizeBinaryArray.from_buffers(kind, len(raw), [None, pa.py_buffer(rows)])
    return pa.FixedSizeListArray.from_arrays(pa.array(rows), type=kind)


def _arrow_type(column: ParquetColumn) -> Any:
    pa = pyarrow()
    if column.arrow is not None:
        return (
            column.arrow if isinstance(column.arrow, pa.BaseExtensionType) else plain_layout(column.arrow, large=False)
        )
    encoding = get_encoding(column.encoding)
    if encoding.name in TEXTS:
        return pa.string()
    if (dtype := list_dtype(encoding)) is not None:
        return pa.list_(pa.from_numpy_dtype(dtype))
    if encoding.size is None:
        return pa.binary()
    kind, shape = fixed_kind(encoding)
    if _declaration(column) is not None:
        return pa.binary(encoding.size)
    scalar = pa.from_numpy_dtype(kind)
    return scalar if shape == () else pa.list_(scalar, int(np.prod(shape, dtype=np.int64)))


def _declaration(column: ParquetColumn) -> dict[str, str] | None:
    """The type of the arrays that a field's bytes are; ``None`` for other columns."""
    encoding = get_encoding(column.encoding)
    if encoding.size is None:
        return None
    if column.arrow is not None and not pyarrow().types.is_fixed_size_binary(column.arrow):
        return None
    kind, shape = fixed_kind(encoding)
    if not shape or (len(shape) == 1 and kind.itemsize > 1) or kind.kind not in "biuf":
        return None
    return {"dtype": kind.name, "shape": ",".join(map(str, shape))}


def list_dtype(encoding: Encoding) -> np.dtype[Any] | None:
    """The dtype of arrays of any length, which become lists; ``None`` for other columns."""
    head, _, dtype = encoding.name.partition(":")
    return np.dtype(dtype) if head == "ndarray" and dtype and encoding.size is None and dtype != "bfloat16" else None


def _lists(values: Column, dtype: np.dtype[Any], kind: Any, name: str) -> Any:
    pa = pyarrow()
    arrays = [np.asarray(value) for value in values]
    for row, array in enumerate(arrays):
        _check_list(array, dtype, name, row)
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UnfitValueError("more values in one batch than a list holds", row=0, column=name)
    flat = np.concatenate([array.astype(dtype, copy=False) for array in arrays]) if arrays else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(flat), type=kind)


def _check_list(array: Any, dtype: np.dtype[Any], name: str, row: int | None = None) -> None:
    if array.ndim != 1 or (array.size and array.dtype != dtype):
        raise UnfitValueError(
            f"expected a list of {dtype}, got an array of {array.dtype} of shape {array.shape}: declare the column with its "
            f"shape, or 'ndarray' for arrays of any kind, columns={{{name!r}: 'ndarray'}}",
            row=row,
            column=name,
        )


def _kept(values: Column, kind: Any) -> Any:
    """Values of a column that Arrow had already, in its own type again."""
    pa = pyarrow()
    if isinstance(kind, pa.FixedShapeTensorType):
        order = np.argsort(tensor_order(kind))
        values = [None if value is None else np.asarray(value).transpose(order).reshape(-1) for value in values]
    if isinstance(kind, pa.BaseExtensionType):
        bits = isinstance(kind, pa.Bool8Type)
        stored = pa.array(values, pa.bool_()).cast(kind.storage_type) if bits else _kept(values, kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, stored)
    if isinstance(values, np.ndarray) and values.ndim > 1 and not values.size:  # lists of a fixed size are never empty
        return pa.array(values.tolist(), kind)
    if isinstance(values, np.ndarray) and values.ndim > 1:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]).cast(kind)
    return pa.array(values, kind)
