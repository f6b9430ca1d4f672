"""Values of litdata's samples: how its serializers' bytes are decoded, by the words of ``data_format``."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from stoker.errors import FormatError
from stoker.formats.common.json_values import parse_json
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.mds.encodings.scalars import bfloat16_values
from stoker.types import Array

__all__ = ["FIXED", "decoder_of", "dtype_of", "pickled", "word_of"]

Decode = Callable[[bytes], Any]

BFLOAT16: Final = "bfloat16"
# litdata numbers data types; names that stand twice are aliases.
_TORCH: Final = (
    *("float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128"),
    *("float16", "float16", BFLOAT16, "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool"),
    "uint16",
)
_NUMPY: Final = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
)
FIXED: Final = {"int": "<i8", "float": "<f8", "bool": "|u1"}
"""Leaves of a fixed width, and the types that they are stored as."""
_IMAGES: Final = ("jpeg", "image", "pil")
_FILES: Final = ("bytes", "file", "video", "audio", "nifti", "mesh", "pdf", "tifffile")
_WORDS: Final = {"str": "str", "text": "str", "json": "json"} | dict.fromkeys(_IMAGES, "image")
_KNOWN: Final = frozenset(
    [
        *FIXED,
        *_WORDS,
        *_FILES,
        "jpeg_array",
        "numpy",
        "tensor",
        "no_header_numpy",
        "no_header_tensor",
        "pickle",
        "graph",
    ]
)


def _serializer(leaf: str) -> str:
    """The serializer that a word of ``data_format`` means: of ``file:jpeg`` the second, where there is such a one."""
    head, _, tail = leaf.partition(":")
    return tail if tail in _KNOWN else head


def pickled(leaf: str) -> bool:
    """Whether decoding such leaves can run code from the data."""
    return _serializer(leaf) == "pickle"


def word_of(leaf: str) -> str:
    """The type of a column of such leaves, in the words of an index."""
    kind = _serializer(leaf)
    if kind in FIXED:
        return kind
    if kind in _FILES:
        return "bytes"
    if kind.startswith("no_header_"):
        dtype = dtype_of(leaf)
        return f"ndarray:{'float32' if dtype == BFLOAT16 else dtype}"
    return _WORDS.get(kind, leaf)


def dtype_of(leaf: str) -> str:
    """The data type of arrays without a header: ``no_header_numpy:9`` is ``float32``.

    Raises:
        FormatError: there is no such type.
    """
    head, _, number = leaf.partition(":")
    names = _TORCH if head == "no_header_tensor" else _NUMPY
    if not (number.isascii() and number.isdigit() and int(number) < len(names)):
        raise FormatError(f"litdata's data type {leaf!r} is not read; of {head} it has 0 to {len(names) - 1}")
    return names[int(number)]


@lru_cache(maxsize=256)
def decoder_of(leaf: str) -> Decode:
    """A function from the bytes of a leaf to its value; it raises what decoders do on bytes that are no such value.

    Raises:
        FormatError: leaves of this kind are not read.
    """
    kind = _serializer(leaf)
    if kind in FIXED:
        return partial(_number, np.dtype(FIXED[kind]))
    if kind in ("str", "text"):
        return bytes.decode
    if kind in _FILES:
        return bytes
    if kind in _IMAGES:
        return get_encoding("pil" if kind == "pil" else "jpeg").decode  # by its content, whatever file it is
    if kind == "jpeg_array":
        return get_encoding("jpeg_array").decode
    if kind in ("no_header_numpy", "no_header_tensor"):
        return partial(_flat, dtype_of(leaf))
    if kind == "numpy":
        return _numpy
    if kind == "tensor":
        return _tensor
    if kind == "json":
        return _nested
    if kind == "pickle":
        return pickle.loads
    raise FormatError(
        f"values of litdata's serializer {leaf!r} are not read: leave the column out with columns=, or write it as bytes or "
        "arrays"
    )


def _number(dtype: np.dtype[Any], data: bytes) -> Any:
    if len(data) != dtype.itemsize:
        raise ValueError(f"a number of {len(data)} bytes")
    value = np.frombuffer(data, dtype)[0].item()
    return bool(value) if dtype.itemsize == 1 else value


def _flat(name: str, data: bytes) -> Array:
    """An array of one dimension, of a data type by name; bfloat16 becomes float32."""
    if name == BFLOAT16:
        return bfloat16_values(np.frombuffer(data, "<u2"))
    return np.frombuffer(data, np.dtype(name).newbyteorder("<")).copy()


def _numpy(data: bytes) -> Array:
    kind, rank = struct.unpack_from("<2I", data)
    return _shaped(_NUMPY, kind, rank, "<", data)


def _tensor(data: bytes) -> Array:
    kind, rank = struct.unpack_from(">2I", data)
    return _shaped(_TORCH, kind, rank, ">", data)


def _shaped(names: tuple[str, ...], kind: int, rank: int, order: str, data: bytes) -> Array:
    if kind >= len(names) or rank > 32 or len(data) < 8 + 4 * rank:
        raise ValueError(f"an array of data type {kind} with {rank} dimensions in {len(data)} bytes")
    shape = struct.unpack_from(f"{order}{rank}I", data, 8)
    return _flat(names[kind], data[8 + 4 * rank :]).reshape(shape)


# -- nested values, which litdata calls json ---------------------------------------------------------------------------

_DEEPEST: Final = 200
_RECORDS: Final = {0x11: 7, 0x12: 8, 0x13: 9, 0x14: 10}
"""Tags of values in records, and the tags of the same elsewhere."""


def _nested(data: bytes) -> Any:
    if not data or data[0] > 0x20:
        return parse_json(data)
    value, end = _value(data, 0, _DEEPEST)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after a nested value")
    return value


def _value(data: bytes, at: int, deeper: int) -> tuple[Any, int]:
    """The value at an offset, and where it ends."""
    if not deeper:
        raise ValueError(f"more than {_DEEPEST} levels")
    return _tagged(data, data[at], at + 1, deeper)


def _tagged(data: bytes, tag: int, at: int, deeper: int) -> tuple[Any, int]:
    if tag == 11:
        return None, at
    if tag == 10:
        return bool(data[at]), at + 1
    if tag in (8, 9):
        return struct.unpack_from("<q" if tag == 8 else "<d", data, at)[0], at + 8
    count = struct.unpack_from("<I", data, at)[0]
    at += 4
    if tag in (0, 7):
        text, at = _cut(data, at, count), at + count
        return (text.decode() if tag else parse_json(text)), at
    if tag in (2, 3):
        return np.frombuffer(_cut(data, at, 8 * count), "<i8" if tag == 2 else "<f8").tolist(), at + 8 * count
    if tag == 4:
        return [bool(one) for one in _cut(data, at, count)], at + count
    if count > len(data):
        raise ValueError(f"{count} values in {len(data)} bytes")
    if tag == 1:
        return _each(at, count, lambda start: _text(data, start))
    if tag == 5:
        pairs, at = _each(at, count, lambda start: _pair(data, start, deeper))
        return dict(pairs), at
    if tag == 6:
        return _records(data, at, count, deeper)
    raise ValueError(f"a nested value of the unknown kind {tag}")


def _records(data: bytes, at: int, count: int, deeper: int) -> tuple[list[dict[str, Any]], int]:
    keys = struct.unpack_from("<I", data, at)[0]
    if keys * max(1, count) > len(data):
        raise ValueError(f"{count} records of {keys} values in {len(data)} bytes")
    names, at = _each(at + 4, keys, lambda start: _text(data, start))
    rows = []
    for _ in range(count):
        row: dict[str, Any] = {}
        for name in names:
            kind = data[at]
            row[name], at = (None, at + 1) if kind == 0x10 else _tagged(data, _RECORDS[kind], at + 1, deeper)
        rows.append(row)
    return rows, at


def _pair(data: bytes, at: int, deeper: int) -> tuple[tuple[str, Any], int]:
    key, at = _text(data, at)
    value, at = _value(data, at, deeper - 1)
    return (key, value), at


def _each(at: int, count: int, read: Callable[[int], tuple[Any, int]]) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = read(at)
        found.append(value)
    return found, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    size = struct.unpack_from("<I", data, at)[0]
    return _cut(data, at + 4, size).decode(), at + 4 + size


def _cut(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise ValueError(f"a value of {size} bytes leaves its sample")
    return found
