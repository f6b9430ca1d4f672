"""Types of columns in terms that all formats share: by these, shards are read together or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import column_names
from stoker.formats.registry import get_format

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
        """Whether values of both come as one column. Types that only a format knows are compared within it."""
        if not self.base or not other.base:
            return self.format != other.format or self.word == other.word
        if {self.base, other.base} == {"text", _ANYTHING}:
            return True  # a list, of text and None
        if self.base != other.base:
            return False
        return self.shape == other.shape or (None in (self.shape, other.shape) and () not in (self.shape, other.shape))


def column_kinds(info: ShardInfo) -> dict[str, ColumnKind]:
    """A shard's columns and what they hold, in its order."""
    spec = info.spec
    if "columns" in spec:
        words: Mapping[str, str] = {**spec["columns"], **spec.get("encodings", {})}
    else:
        words = dict(zip(spec["column_names"], spec["column_encodings"], strict=True))
    return {name: _kind(info.format, str(words[name])) for name in column_names(info)}


def may_hold_images(info: ShardInfo, columns: Sequence[str] | None) -> bool:
    """Whether values of some of a shard's columns may be images, or lists of them; ``None`` for all columns."""
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
