"""Packed states: what the state of a run with many streams says of each of them, as one short text.

A stream takes about 200 bytes of a state as plain JSON, and about 20 in a packed one: values are listed by key instead of by
stream, hashes are cut to 40 bits, and all is compressed. The state stays plain JSON.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stoker.errors import StateError

PACKED_VERSION: Final = 3
"""Version of packed states."""

_MOST_PLAIN: Final = 64
# Hexadecimal digits of a hash: that another hash has the same ones is less likely than a flipped bit in memory.
_DIGITS: Final = 10
_HASHES: Final = ("fingerprint", "content")
_PARTS: Final = ("streams", "consumed", "origin")
_OF_ORDER: Final = ("streams", "schedule", "weights", "given")
_HASH: Final = re.compile(f"[0-9a-f]{{{_DIGITS}}}")
# Keys by which streams may differ until they are listed one by one.
_MOST_SHAPES: Final = 16
_MOST_BYTES: Final = 1 << 28
# The CRC-32 of gzip finds damage that zlib's own checksum does not; states without it are read, too.
_GZIP: Final = 31
_GZIP_OR_ZLIB: Final = 47
_DAMAGED: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    zlib.error,
)


def pack_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state, with what it says of its streams in one text ``packed``, if there are more than 64 of them."""
    if len(state["streams"]) <= _MOST_PLAIN:
        return dict(state)
    order = dict(state["order"])
    inside = {name: state[name] for name in _PARTS if name in state}
    inside["streams"] = {name: _cut(about) for name, about in state["streams"].items()}
    if inside.get("origin", {}).get("away"):
        inside["origin"] = {**inside["origin"], "away": [_cut(one) for one in inside["origin"]["away"]]}
    inside["order"] = {name: order.pop(name) for name in _OF_ORDER if name in order}
    hashes = bytearray()
    text = json.dumps({name: _tabulate(part, hashes) for name, part in inside.items()}, separators=(",", ":"))
    deflater = zlib.compressobj(9, wbits=_GZIP)
    # The code that suits text would lengthen the hashes, and the other way round: each has a block of its own.
    blocks = [deflater.compress(text.encode() + b"\n"), deflater.flush(zlib.Z_SYNC_FLUSH), deflater.compress(hashes)]
    packed = base64.b85encode(b"".join(blocks) + deflater.flush()).decode()
    rest = {name: value for name, value in state.items() if name not in _PARTS}
    return {**rest, "version": PACKED_VERSION, "order": order, "packed": packed}


def unpack_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with all that it says of each stream in plain text. Others than packed ones are returned as they are.

    Both forms can be loaded. Hashes are cut to 10 digits in packed states, and so they are here.

    Args:
        state: as ``state_dict()`` gave it.

    Raises:
        StateError: it is packed, and damaged.

    >>> unpack_state({"version": 2, "epoch": 1})
    {'version': 2, 'epoch': 1}
    """
    if "packed" not in state or state.get("version") != PACKED_VERSION:
        return dict(state)
    try:
        inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
        found = inflater.decompress(base64.b85decode(state["packed"]), _MOST_BYTES)
        if not inflater.eof:
            raise ValueError("it ends too early, or is too long")
        text, _, hashes = found.partition(b"\n")
        inside = {name: _restore(part, hashes) for name, part in json.loads(text).items()}
        order = {**state["order"], **inside.pop("order")}
    except _DAMAGED as error:
        raise StateError(f"this state's 'packed', which tells its streams, is damaged: {error}") from None
    rest = {name: value for name, value in state.items() if name != "packed"}
    return {**rest, "version": PACKED_VERSION - 1, **inside, "order": order}


def cut_alike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Our description of a stream, its hashes cut if those of a state's description are."""
    return _cut(ours) if any(len(one) == _DIGITS for one in _hashes(theirs)) else dict(ours)


def _hashes(about: Mapping[str, Any]) -> Iterator[str]:
    for name in _HASHES:
        value = about.get(name)
        yield from (one for one in (value.values() if isinstance(value, Mapping) else (value,)) if isinstance(one, str))


def _cut(about: Mapping[str, Any]) -> dict[str, Any]:
    cut = dict(about)
    for name in _HASHES:
        value = cut.get(name)
        if isinstance(value, Mapping):
            cut[name] = {kind: one[:_DIGITS] if isinstance(one, str) else one for kind, one in value.items()}
        elif isinstance(value, str):
            cut[name] = value[:_DIGITS]
    return cut


def _tabulate(value: Any, hashes: bytearray) -> Any:
    """A dict of dicts by key instead of by entry, and so on inside; other values in a list of one.

    Hashes are appended to ``hashes``.
    """
    if isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
        return {"names": list(value), "table": _columns(list(value.values()), hashes)}
    if isinstance(value, Mapping) and value:
        return {"names": list(value), "values": list(value.values())}
    return [value]


def _restore(value: Any, hashes: bytes) -> Any:
    if isinstance(value, list):
        (found,) = value
        return found
    if "table" in value:
        return dict(zip(value["names"], _entries(value["table"], len(value["names"]), hashes), strict=True))
    return dict(zip(value["names"], value["values"], strict=True))


def _columns(entries: Sequence[Any], hashes: bytearray) -> Any:
    """Values as they are, or dicts by key: ``shapes`` are the different lists of keys, ``shape`` tells each entry's."""
    shapes: dict[tuple[str, ...], int] = {}
    if entries and all(isinstance(one, Mapping) for one in entries):
        shape = [shapes.setdefault(tuple(one), len(shapes)) for one in entries]
    if not 0 < len(shapes) <= _MOST_SHAPES:
        if all(isinstance(one, str) and _HASH.fullmatch(one) for one in entries):
            hashes += bytes.fromhex("".join(entries))
            return {"hashes": len(hashes) - len(entries) * _DIGITS // 2}
        return list(entries)
    keys = dict.fromkeys(key for one in shapes for key in one)
    columns = {key: _columns([one[key] for one in entries if key in one], hashes) for key in keys}
    return {"shapes": [list(one) for one in shapes], "shape": shape, "columns": columns}


def _entries(table: Any, count: int, hashes: bytes) -> list[Any]:
    """The ``count`` values that :func:`_columns` was given."""
    if isinstance(table, list):
        found = table
    elif "hashes" in table:
        begin = table["hashes"]
        text = hashes[begin : begin + count * _DIGITS // 2].hex()
        found = [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]
    else:
        shapes, shape = table["shapes"], table["shape"]
        often = {key: 0 for one in shapes for key in one}
        for number in shape:
            for key in shapes[number]:
                often[key] += 1
        columns = {key: iter(_entries(column, often[key], hashes)) for key, column in table["columns"].items()}
        found = [{key: next(columns[key]) for key in shapes[number]} for number in shape]
    if len(found) != count:
        raise ValueError(f"{len(found)} values of {count} streams")
    return found
