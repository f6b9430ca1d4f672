"""Thrift's compact protocol, as much of it as Parquet needs. Source: ``thrift-compact-protocol.md`` of Apache Thrift.

There are two ways to walk through the fields of a struct. For structs of which a file has few, the reader of footers in
:mod:`.parse` gives them one by one. What there may be millions of (column chunks, pages) is walked by loops over the bytes
themselves, in half the time: :func:`struct_numbers`.

Small footers are written by :func:`struct` and the functions after it, whose values are pairs of a type and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stoker.errors import CorruptDataError
from stoker.integers import encode_varint

# Types of values.
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12

_DEEPEST: Final = 32
_TOO_LONG: Final = "its footer holds a number that is too long"


StructSpan = tuple[dict[int, int], int, int]
"""Integers and booleans of a struct by their fields, and where it begins and ends."""


def struct_numbers(data: bytes, at: int, inner: dict[int, StructSpan] | None = None) -> tuple[dict[int, int], int]:
    """Integers and booleans of the struct that begins at ``at``, by their fields, and its end.

    IndexError if it is cut off, CorruptDataError if it is wrong. ``data``: where it lies. ``at``: where it begins. ``inner``:
    gets the same of the structs in it, by their fields.
    """
    # This runs for each page and chunk, of which a dataset may have millions: no helpers but where they are rare.
    found: dict[int, int] = {}
    field = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            field += head >> 4
        else:
            number, at = unsigned(data, at)
            field = (number >> 1) ^ -(number & 1)
        if 4 <= kind <= 6:
            number, shift = data[at], 7
            at += 1
            if number > 127:
                number &= 127
                while (byte := data[at]) > 127 and shift < 63:
                    at += 1
                    number |= (byte & 127) << shift
                    shift += 7
                if byte > 127:
                    raise CorruptDataError(_TOO_LONG)
                at += 1
                number |= byte << shift
            found[field] = (number >> 1) ^ -(number & 1)
        elif kind == BINARY and data[at] < 128:
            at += data[at] + 1
        elif kind in (1, 2):
            found[field] = 2 - kind
        elif kind == STRUCT and inner is not None:
            numbers, end = struct_numbers(data, at)
            inner[field] = numbers, at, end
            at = end
        else:
            at = skip_value(data, at, kind, 0)
    return found, at + 1


# Functions, not methods: most of a footer is passed over, and attributes would double what that takes.
def skip_struct(data: bytes, at: int, depth: int) -> int:
    """The end of the struct that begins at ``at``."""
    while head := data[at]:
        at += 1
        kind = head & 15
        if head < 16:
            at = skip_value(data, at, I64, depth)  # the field's number
        if 4 <= kind <= 6:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind > 2:
            at = skip_value(data, at, kind, depth)
    return at + 1


def skip_value(data: bytes, at: int, kind: int, depth: int) -> int:
    """The end of the value of type ``kind`` that begins at ``at``."""
    if 4 <= kind <= 6:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == BINARY:
        length, at = unsigned(data, at)
        return at + length
    if kind in (1, 2):  # booleans: the value is in the type
        return at
    if depth > _DEEPEST:
        raise CorruptDataError("its footer is nested too deep")
    if kind == STRUCT:
        return skip_struct(data, at, depth + 1)
    if kind == 3:
        return at + 1
    if kind == 7:
        return at + 8
    if kind in (LIST, 10):
        count, kind = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = unsigned(data, at)
        kinds = [3 if kind in (1, 2) else kind]
    elif kind == 11:
        count, at = unsigned(data, at)
        kinds = [data[at] >> 4, data[at] & 15] if count else []
        at += bool(count)
    else:
        raise CorruptDataError(f"its footer holds a value of unknown type {kind}")
    if count > len(data):
        raise CorruptDataError("its footer holds a list that is longer than itself")
    if kinds == [I32]:
        for _ in range(count):
            while data[at] > 127:
                at += 1
            at += 1
        return at
    if kinds == [STRUCT]:
        for _ in range(count):
            at = skip_struct(data, at, depth + 1)
        return at
    for _ in range(count):
        for item in kinds:
            at = skip_value(data, at, item, depth + 1)
    return at


def unsigned(data: bytes, at: int) -> tuple[int, int]:
    """The number of variable length that begins at ``at``, and its end."""
    value = shift = 0
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise CorruptDataError(_TOO_LONG)
    return value | byte << shift, at + 1


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
    return STRUCT, bytes(out) + b"\0"


def integer(value: int, *, wide: bool = True) -> tuple[int, bytes]:
    """An i64, or an i32 if not ``wide``."""
    return I64 if wide else I32, _zigzag(value)


def binary(value: bytes) -> tuple[int, bytes]:
    """A string."""
    return BINARY, encode_varint(len(value)) + value


def list_of(values: Iterable[tuple[int, bytes]]) -> tuple[int, bytes]:
    """A list of at least one value, all of one type."""
    items = list(values)
    kind, count = items[0][0], len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + encode_varint(count)
    return LIST, head + b"".join(data for _, data in items)


def _zigzag(value: int) -> bytes:
    return encode_varint((value << 1) ^ (value >> 63))
