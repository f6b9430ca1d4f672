"""litdata's samples: how their values are decoded, by the words of ``data_format``, and the trees that values are leaves of.

A sample is a nested dict, list or tuple, whose leaves are stored one after the other.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from stoker.errors import FormatError
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.mds.encodings.scalars import bfloat16_values
from stoker.formats.mds.encodings.text import parse_json
from stoker.types import Array

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
_ARRAYS: Final = ("numpy", "tensor", "no_header_numpy", "no_header_tensor")
_KNOWN: Final = frozenset([*FIXED, *_WORDS, *_FILES, *_ARRAYS, "jpeg_array", "pickle", "graph"])


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

    FormatError if there is no such type.
    """
    head, _, number = leaf.partition(":")
    names = _TORCH if head == "no_header_tensor" else _NUMPY
    if not (number.isascii() and number.isdigit() and int(number) < len(names)):
        raise FormatError(f"litdata's data type {leaf!r} is not read; of {head} it has 0 to {len(names) - 1}")
    return names[int(number)]


@lru_cache(maxsize=256)
def decoder_of(leaf: str) -> Decode:
    """A function from the bytes of a leaf to its value; it raises what decoders do on bytes that are no such value.

    FormatError if leaves of this kind are not read.
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
        return partial(_shaped, _NUMPY, "<")
    if kind == "tensor":
        return partial(_shaped, _TORCH, ">")
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


def _shaped(names: tuple[str, ...], order: str, data: bytes) -> Array:
    """An array behind its data type, one of these, and its shape, in this order of bytes."""
    kind, rank = struct.unpack_from(f"{order}2I", data)
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


NESTED: Final = "nested"
"""Word for the type of a column whose values are dicts, lists or tuples of leaves."""
ALONE: Final = "data"
"""Column of a sample that is a value by itself."""

Build = Callable[[Iterator[Any]], Any]
_TYPE_WORDS: Final = {"str": "str", "int": "int", "float": "float", "bool": "bool", "bytes": "bytes"}
_DEEPEST_TREE: Final = 100


@dataclass(frozen=True, slots=True)
class Branch:
    """A column: a leaf, or what is built of several.

    Attributes:
        first: number of its first leaf.
        end: number after its last.
        build: makes the value of its leaves; ``None`` for a leaf itself.
    """

    first: int
    end: int
    build: Build | None


@dataclass(frozen=True, slots=True)
class SampleTree:
    """The columns of samples, and which leaves each is made of.

    Attributes:
        leaves: litdata's words for the types of the leaves.
        branches: by column; those that only some chunks have are not among them.
        kinds: words for the types of all columns.
    """

    leaves: tuple[str, ...]
    branches: Mapping[str, Branch]
    kinds: Mapping[str, str]


@lru_cache(maxsize=64)
def sample_tree(leaves: tuple[str, ...], spec: str | None, types: str) -> SampleTree:
    """Read the shape of samples.

    A dict's keys are the columns; those of a list or tuple are ``0``, ``1``, ...; a value by itself is ``data``. ValueError
    if it is not valid; says why. ``leaves``: ``data_format`` of litdata's index. ``spec``: ``data_spec``: the tree, as JSON
    text; ``None`` for a single leaf. ``types``: ``types``, as JSON text.
    """
    try:
        root = {"type": None, "children_spec": []} if spec is None else json.loads(spec)[1]
        names, children = _parts(root)
        if names is None:
            names, children = [ALONE], [root]
        branches: dict[str, Branch] = {}
        first = 0
        for name, child in zip(names, children, strict=True):
            build = None if child["type"] is None else _build(child, _DEEPEST_TREE)
            end = first + _count(child)
            branches[str(name)] = Branch(first, end, build)
            first = end
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"'data_spec' is not a tree of litdata's: {error!r}") from None
    if first != len(leaves) or len(branches) != len(names) or not names:
        raise ValueError(f"'data_spec' has {first} leaves under {len(names)} names, data_format {len(leaves)}")
    kinds = {name: NESTED if branch.build else word_of(leaves[branch.first]) for name, branch in branches.items()}
    return SampleTree(leaves, branches, _declared(kinds, json.loads(types)))


def _declared(kinds: Mapping[str, str], types: Any) -> Mapping[str, str]:
    """The kinds of columns, with those that only rows as Arrow have: ``types`` tells the columns of all chunks."""
    if not isinstance(types, dict) or "type" in types or "kind" in types:
        return kinds
    found = dict(kinds)
    for name, told in types.items():
        word = told if isinstance(told, str) else told.get("type") if isinstance(told, dict) else None
        if name not in kinds:
            found[name] = _TYPE_WORDS.get(str(word), NESTED)
    return found


def _parts(node: Mapping[str, Any]) -> tuple[Sequence[Any] | None, Sequence[Mapping[str, Any]]]:
    """Names of a node's children, and the children; ``None`` for names of what is no dict, list or tuple of columns."""
    kind, children = node["type"], node["children_spec"]
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(node["context"])
        return keys, children
    if kind == "collections.defaultdict":
        return node["context"]["dict_context"], children
    if kind in ("builtins.list", "builtins.tuple", "collections.deque"):
        return range(len(children)), children
    return None, children


def _count(node: Mapping[str, Any]) -> int:
    """Number of a node's leaves."""
    return 1 if node["type"] is None else sum(map(_count, node["children_spec"]))


def _build(node: Mapping[str, Any], deeper: int) -> Build:
    """A function that takes the leaves of a node, in order, and makes its value."""
    if not deeper:
        raise ValueError(f"more than {_DEEPEST_TREE} levels")
    if node["type"] is None:
        return next
    names, children = _parts(node)
    if names is None:
        raise ValueError(f"nodes of {node['type']} are not read")
    builds = [_build(child, deeper - 1) for child in children]
    kind = node["type"]
    if kind in ("builtins.dict", "collections.defaultdict", "collections.OrderedDict"):
        made = OrderedDict if kind == "collections.OrderedDict" else dict
        pairs = list(zip(names, builds, strict=True))
        return lambda leaves: made((name, build(leaves)) for name, build in pairs)
    sequence: Callable[[Any], Any] = {"builtins.list": list, "builtins.tuple": tuple}.get(kind, deque)
    return lambda leaves: sequence([build(leaves) for build in builds])
