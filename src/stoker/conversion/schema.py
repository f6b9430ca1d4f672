"""Chooses a column's encoding: by its declared type where there is one, else by its values."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.formats.parquet.schema import tensor_order
from stoker.types import Column

Reading = Literal["plain", "text", "array", "file", "decode", "picture"]
"""The change of values that a reader returns: none, made text, made arrays, the bytes of a file taken out of a
``{"bytes", "path"}`` struct, decoded from the bytes of the column's encoding, or none for bytes that begin as JPEG or PNG
files do."""

_SIGNATURES: Final = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_NUMBERS: Final = frozenset(
    ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
_DEEP: Final = 8


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's encoding and type.

    Attributes:
        encoding: as an MDS index names it; empty where only the values tell.
        reading: what is done to its values.
        arrow: the ``pyarrow.DataType`` that it has in the source, where that can be kept.
    """

    encoding: str
    reading: Reading = "plain"
    arrow: Any = None


_OF_PYTHON: Final[tuple[tuple[Any, ColumnType], ...]] = (
    (str, ColumnType("str")),
    (bool | np.bool_, ColumnType("bool")),
    (int, ColumnType("int")),
    (float, ColumnType("float64")),
    (decimal.Decimal, ColumnType("str_decimal")),
    (dt.date | dt.time | dt.timedelta, ColumnType("str", "text")),
    (dict, ColumnType("json")),
)


def of_arrow(kind: Any, name: str, array: tuple[str, tuple[int, ...]] | None = None) -> ColumnType:
    """The type of a column that Arrow declares.

    ======================================  ===============================================================
    numbers, booleans, text                 the same
    binary                                  ``bytes``, or ``jpeg`` and ``png`` if the values are such files
    timestamps, dates, times, durations     ``str``, in the form of ISO 8601
    decimals                                ``str_decimal``
    lists of numbers                        ``ndarray:DTYPE``, of one shape where the type says so
    lists of such lists                     ``ndarray:DTYPE``
    tensors of one shape                    ``ndarray:DTYPE:SHAPE``
    bytes that are declared to be arrays    ``ndarray:DTYPE:SHAPE``
    structs, maps, all other lists          ``json``
    ======================================  ===============================================================

    ``array``: data type and shape of the arrays that its bytes are declared to be. A column of nothing but nulls is an
    error.
    """
    import pyarrow as pa

    if array is not None:
        return ColumnType(f"ndarray:{array[0]}:{','.join(map(str, array[1]))}", "plain", kind)

    types, inner = pa.types, kind
    if isinstance(inner, pa.FixedShapeTensorType) and (scalar := _number(inner.value_type)):
        shape = ",".join(str(inner.shape[axis]) for axis in tensor_order(inner))
        return ColumnType(f"ndarray:{'int64' if scalar == 'int' else scalar}:{shape}", "array", kind)
    if isinstance(inner, pa.BaseExtensionType):
        inner = pa.bool_() if isinstance(inner, pa.Bool8Type) else inner.storage_type
    if types.is_dictionary(inner) or types.is_run_end_encoded(inner):
        inner = inner.value_type
    if types.is_null(inner):
        raise ConfigError(f"column {name!r} holds nothing but nulls: leave it out with select=")
    if types.is_binary(inner) or types.is_large_binary(inner) or types.is_binary_view(inner):
        return ColumnType("", "plain", kind)
    if types.is_fixed_size_binary(inner):
        return ColumnType("bytes", "plain", kind)
    if types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner):
        return ColumnType("str", "plain", kind)
    if types.is_temporal(inner):
        return ColumnType("str", "text", kind)
    if types.is_decimal(inner):
        return ColumnType("str_decimal", "plain", kind)
    if scalar := _number(inner):
        return ColumnType(scalar, "plain", kind)
    depth, lengths = 0, []
    lists = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
    while isinstance(inner, lists) and depth < _DEEP:
        lengths.append(inner.list_size if types.is_fixed_size_list(inner) else 0)
        inner = inner.value_type
        depth += 1
    if depth and (scalar := _number(inner)):
        dtype = "int64" if scalar == "int" else scalar
        shape = ":" + ",".join(map(str, lengths)) if all(lengths) else ""
        return ColumnType(f"ndarray:{dtype}{shape}", "array", kind)
    return ColumnType("json", "plain", kind)


def of_values(values: Column, name: str) -> ColumnType:
    """The type of a column by some of its values."""
    if isinstance(values, np.ndarray):
        return _of_array(values, name)
    some = [value for value in values if value is not None]
    if not some:
        raise ConfigError(f"column {name!r} begins with nothing but nulls: say its type with columns=, or leave it out")
    found = {_of_value(value, name) for value in some}
    if len(found) == 1:
        return found.pop()
    for whole in ({"int", "float64"}, {"bool", "int"}):
        if {one.encoding for one in found} == whole:
            return ColumnType("float64" if "float64" in whole else "int")
    if all(one.encoding.startswith("ndarray:") for one in found):
        dtypes = {one.encoding.split(":")[1] for one in found}
        if len(dtypes) == 1:  # of several shapes
            return ColumnType(f"ndarray:{dtypes.pop()}", "array")
    if {one.encoding for one in found} <= {"jpeg", "png", "bytes"}:
        return ColumnType("bytes")
    names = " and ".join(sorted(one.encoding for one in found)[:3])
    raise ConfigError(f"column {name!r} has values of several types, {names}: say which it is with columns=")


def _of_array(values: np.ndarray[Any, Any], name: str) -> ColumnType:
    if values.dtype.kind in "mM":
        return ColumnType("str", "text")
    dtype = values.dtype.newbyteorder("=").name
    if dtype == "bool" or dtype in _NUMBERS:
        if values.ndim == 1:
            return ColumnType("int" if dtype == "int64" else dtype)
        return ColumnType(f"ndarray:{dtype}:{','.join(map(str, values.shape[1:]))}", "array")
    raise ConfigError(f"column {name!r} is an array of {values.dtype}: make it something else with transform=")


def _of_value(value: Any, name: str) -> ColumnType:
    if isinstance(value, bytes | bytearray | memoryview):
        head = bytes(value[:8])
        return ColumnType(next((kind for kind, begins in _SIGNATURES.items() if head.startswith(begins)), "bytes"))
    for kinds, told in _OF_PYTHON:
        if isinstance(value, kinds):
            return told
    if isinstance(value, np.generic | np.ndarray):
        return _of_array(np.asarray(value)[None], name)
    if isinstance(value, list | tuple):
        return _of_list(value)
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # an image of Pillow
        return ColumnType("jpeg" if getattr(value, "format", None) == "JPEG" else "png")
    raise ConfigError(
        f"column {name!r} holds {with_article(type(value).__name__)}, which no encoding is made for: make it something else "
        "with transform=, or leave it out with select="
    )


def _of_list(value: Sequence[Any]) -> ColumnType:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return ColumnType("json")
    if array.size and array.dtype.name in _NUMBERS | {"bool"}:
        return ColumnType(f"ndarray:{array.dtype.name}", "array")
    return ColumnType("json")


def _number(kind: Any) -> str:
    """Encoding of a number or truth value; empty for all else."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype: str = np.dtype(kind.to_pandas_dtype()).name
        return "int" if dtype == "int64" else dtype
    return ""
