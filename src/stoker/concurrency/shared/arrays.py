"""Files of stoker's own that hold arrays: written whole, checked by a digest when they are read, mapped by all processes.

    magic (8) | xxh3 of all that follows (16) | bytes of the header (8) | header, JSON, spaces up to a multiple of 8 | arrays

The last byte of the magic rises when the arrays change. The order of bytes in a number is in the header.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import xxhash

from stoker.concurrency.shared.bytes import SharedBytes

_CHECKED: Final = 24
_BEGIN: Final = 32
_BYTE_ORDER: Final = "byteorder"


def pack_arrays(magic: bytes, header: Mapping[str, Any], arrays: Sequence[bytes | memoryview]) -> list[Any]:
    """The parts of a file.

    Args:
        magic: 8 bytes that tell what it holds.
        header: JSON values.
        arrays: bytes of the arrays, one after the other.
    """
    text = json.dumps({**header, _BYTE_ORDER: sys.byteorder}).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    head = len(text).to_bytes(8, "little") + text
    digest = xxhash.xxh3_128(head)
    for array in arrays:
        digest.update(array)
    return [magic + digest.digest() + head, *arrays]


def unpack_arrays(magic: bytes, data: SharedBytes) -> tuple[dict[str, Any], int]:
    """The header of a file, and where its arrays begin: a multiple of 8.

    Raises:
        ValueError: it is damaged, of another kind, or of another machine.
    """
    view = data.view
    if bytes(view[:_CHECKED]) != magic + xxhash.xxh3_128_digest(view[_CHECKED:]):
        raise ValueError("it is damaged, or of another version of stoker")
    at = _BEGIN + int.from_bytes(view[_CHECKED:_BEGIN], "little")
    header = json.loads(bytes(view[_BEGIN:at]))
    if header.pop(_BYTE_ORDER) != sys.byteorder:
        raise ValueError("its numbers are of another order of bytes")
    return header, at


def cut_arrays(view: memoryview, at: int, columns: Sequence[tuple[Literal["q", "i"], int]]) -> Iterator[memoryview]:
    """Arrays that lie one after the other, and last the bytes after them.

    Single elements of a memory view take a fourth of the time that those of a NumPy array take.

    Args:
        view: the memory.
        at: where the first begins.
        columns: of each array the type, as :mod:`struct` has it, and the number of its elements.

    Raises:
        ValueError, TypeError: the memory is too short.
    """
    for kind, count in columns:
        end = at + (4 if kind == "i" else 8) * count
        if end > len(view):
            raise ValueError("the arrays are cut off")
        yield view[at:end].cast(kind)
        at = end
    yield view[at:]
