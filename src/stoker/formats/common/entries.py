"""Shard descriptions back to the entries of an index, and the types of their columns in terms that all formats share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.registry import get_format

Sizes: TypeAlias = Callable[[Sequence[str]], Mapping[str, int]]
"""Gives the bytes of files by their names."""

_HEAD: Final = 8  # count and offset
_SETTINGS: Final = ("hashes", "size_limit", "inferred")


def entry_of(info: ShardInfo) -> dict[str, Any]:
    """The shard's entry in an index's ``shards`` list.

    FormatError if shards of its format are indexed from their files and have no entry.
    """
    if info.detail is not None:
        raise FormatError(f"{info.format} datasets have no index.json: they are indexed from their own files")
    entry: dict[str, Any] = {
        **info.spec,
        "compression": info.compression,
        "format": info.format,
        "samples": info.samples,
        "version": 2,
    }
    form = get_format(info.format)
    for key in form.implied:
        del entry[key]
    for number, role in enumerate(form.roles):
        entry[f"raw_{role}"] = _file(info.raw[number])
        entry[f"zip_{role}"] = _file(info.zip[number]) if info.zip else None
    return entry


def check_empty(info: ShardInfo, where: str) -> None:
    """Check that a shard of no samples is as large as such a shard is: a reader never opens it.

    Its header, the only file of MDS and the meta file of others, is ``u32 0 | u32 offset | config JSON``, and the config is
    the shard's entry without its count and files. ``info``: a shard of 0 samples. CorruptDataError if its header has another
    size, so there are samples, or the config is another.
    """
    left_out = {"samples"} | {f"{kind}_{role}" for kind in ("raw", "zip") for role in get_format(info.format).roles}
    config = {name: value for name, value in entry_of(info).items() if name not in left_out}
    header, size = info.raw[-1], _HEAD + len(json.dumps(config, sort_keys=True).encode())
    if header.bytes != size:
        raise CorruptDataError(
            f"{where}: the index says 0 samples, but {header.basename} has {header.bytes} bytes, where a shard without "
            f"samples has {size}: its samples would be left out. Rebuild the index from the shards: stoker verify "
            "--repair"
        )


def identity_of(info: ShardInfo) -> dict[str, Any]:
    """The part of a shard's description that decides how its bytes are read; settings of the writer are left out."""
    if info.detail is not None:  # the detail has an identity of its own, whatever columns are read
        return {"format": info.format}
    left_out = (*_SETTINGS, *get_format(info.format).implied)
    return {"format": info.format, **{key: value for key, value in info.spec.items() if key not in left_out}}


def identity_text(shard: ShardInfo) -> str:
    """The text of a fingerprint for all shards that are read as this one is."""
    return json.dumps(identity_of(shard), sort_keys=True)


def identity_line(files: str, samples: int | str, kind: int) -> str:
    """The text of a fingerprint for one shard.

    ``files``: name and bytes of each raw file. ``samples``: how many it holds, or what stands for it in a template. ``kind``:
    number of its :func:`identity_text` among those before it.
    """
    return f"{files}\0{samples}\0{kind}\n"


def column_names(info: ShardInfo) -> tuple[str, ...]:
    """Names of the shard's columns, in its order."""
    return tuple(info.spec["columns"] if "columns" in info.spec else info.spec["column_names"])


def column_words(spec: Mapping[str, Any]) -> dict[str, str]:
    """Names of a shard's columns, in its order, and the words that its spec has for their types."""
    if "columns" in spec:
        return dict(spec["columns"])
    return dict(zip(spec["column_names"], spec["column_encodings"], strict=True))


def _file(info: FileInfo) -> dict[str, Any]:
    return {"basename": info.basename, "bytes": info.bytes, "hashes": info.hashes}


_DTYPE: Final = r"(?:u?int(?:8|16|32|64)|b?float16|float32|float64|bool)"
_LIST: Final = re.compile(
    rf"(?:large_|fixed_size_)?list(?:_view)?<(?:\w+: )?(?P<item>double|float|halffloat|{_DTYPE})(?: not null)?>"
    r"(?:\[(?P<size>[0-9]+)\])?"
)
_TENSOR: Final = re.compile(rf"(?P<dtype>{_DTYPE})\[(?P<shape>[0-9, ]*)\]")
_ARRAY: Final = re.compile(rf"ndarray:(?P<dtype>{_DTYPE})(?::(?P<shape>[0-9,]+))?")
_PLAIN: Final = re.compile(_DTYPE)
FLOATS: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's words for types of floats, and NumPy's."""
_TEXT: Final = frozenset(["str", "string", "large_string", "string_view"])
_BYTES: Final = frozenset(["bytes", "binary", "large_binary", "binary_view"])
_IMAGES: Final = frozenset(["jpeg", "png", "pil", "image"])
_ANYTHING: Final = "json"
"""Kind of a column that may hold anything, ``None`` too."""


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """The type of a column's values.

    Attributes:
        word: as the index or the file itself calls the type.
        base: data type, ``text``, ``bytes``, ``image`` or ``json``; empty where only its format knows.
        shape: of a value; ``None`` where values may differ in shape.
    """

    format: str
    word: str
    base: str
    shape: tuple[int, ...] | None = ()

    def agrees(self, other: ColumnKind) -> bool:
        """Return whether two shards can give one column of these kinds.

        Kinds without a base type are compared within a format.
        """
        if not self.base or not other.base:
            return self.format != other.format or self.word == other.word
        if {self.base, other.base} == {"text", _ANYTHING}:
            return True  # a list, of text and None
        if self.base != other.base:
            return False
        return self.shape == other.shape or (None in (self.shape, other.shape) and () not in (self.shape, other.shape))


def column_kinds(info: ShardInfo) -> dict[str, ColumnKind]:
    """A shard's columns and what they hold, in its order."""
    words, encodings = column_words(info.spec), info.spec.get("encodings", {})
    return {name: _kind(info.format, str(encodings.get(name, word))) for name, word in words.items()}


def may_hold_images(info: ShardInfo, columns: Sequence[str] | None) -> bool:
    """Return whether a shard may hold images, or lists of images, in the given columns; ``None``: in any column."""
    return any(
        kind.base == "image" or kind.word.startswith("list[")
        for name, kind in column_kinds(info).items()
        if columns is None or name in columns
    )


@lru_cache(maxsize=4096)
def _kind(form: str, word: str) -> ColumnKind:
    base: str = word.partition(":")[0]
    shape: tuple[int, ...] | None = ()
    if word in _TEXT:
        base = "text"
    elif word in _BYTES:
        base = "bytes"
    elif base in _IMAGES:
        base = "image"
    elif base in (own := get_format(form).types):
        base = own[base]
    elif word in ("int", "float"):
        base = f"{word}64"
    elif _PLAIN.fullmatch(word) or word == _ANYTHING:
        base = word
    elif match := _LIST.fullmatch(word):
        base, shape = FLOATS.get(match["item"], match["item"]), None
        shape = (int(match["size"]),) if match["size"] else None
    elif match := _TENSOR.fullmatch(word):
        base = match["dtype"]
        shape = tuple(int(size) for size in match["shape"].split(",") if size.strip()) or None
    elif match := _ARRAY.fullmatch(word):
        base = match["dtype"]
        shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else None
    elif base == "tokens":
        base, shape = word.rpartition(":")[2], None
    else:
        base = ""
    return ColumnKind(form, word, base, shape)
