"""Writing small footers: values of Thrift's compact protocol, as pairs of a type and bytes.

Source: ``thrift-compact-protocol.md`` of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stoker.integers import encode_varint

_I32: Final = 5
_I64: Final = 6
_BINARY: Final = 8
_LIST: Final = 9
_STRUCT: Final = 12


def struct(*fields: tuple[int, tuple[int, bytes] | None]) -> tuple[int, bytes]:
    """A struct of fields: rising numbers, each with a value made by the functions here. ``None`` is left out."""
    out = bytearray()
    last = 0
    for number, value in fields:
        if value is None:
            continue
        kind, data = value
        delta = number - last
        out += bytes([delta << 4 | kind]) if delta < 16 else bytes([kind]) + _zigzag(number)
        out += data
        last = number
    return _STRUCT, bytes(out) + b"\0"


def integer(value: int, *, wide: bool = True) -> tuple[int, bytes]:
    """An i64, or an i32 if not ``wide``."""
    return _I64 if wide else _I32, _zigzag(value)


def binary(value: bytes) -> tuple[int, bytes]:
    """A string."""
    return _BINARY, encode_varint(len(value)) + value


def list_of(values: Iterable[tuple[int, bytes]]) -> tuple[int, bytes]:
    """A list of at least one value, all of one type."""
    items = list(values)
    kind, count = items[0][0], len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + encode_varint(count)
    return _LIST, head + b"".join(data for _, data in items)


def _zigzag(value: int) -> bytes:
    return encode_varint((value << 1) ^ (value >> 63))
