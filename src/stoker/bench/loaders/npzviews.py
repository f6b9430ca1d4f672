"""NPZ files as ``np.savez`` writes them, without :mod:`zipfile` and without copies: arrays are views of the file's bytes.

Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3.7, 4.3.12 and 4.3.16; NumPy's ``lib/format.py`` for what is inside.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stoker.errors import FormatError
from stoker.formats.arrays.npy import parse_header
from stoker.types import Array

__all__ = ["npz_views"]

_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_WIDE: Final = 0xFFFFFFFF  # the real number is in a zip64 record


def npz_views(data: memoryview) -> dict[str, Array] | None:
    """The arrays of an archive by name, in its order, read-only.

    Returns:
        ``None`` where the archive is compressed, has a comment or more than 4 GB, or is damaged: then another reader
        decodes it or says what is wrong. Checksums are not looked at.
    """
    try:
        return _views(data)
    except (struct.error, FormatError, ValueError, TypeError, IndexError):
        return None


def _views(data: memoryview) -> dict[str, Array] | None:
    size = len(data)
    head, _, _, _, count, length, start, comment = _END.unpack_from(data, size - _END.size)
    if head != b"PK\5\6" or comment or start + length + _END.size > size:
        return None
    found: dict[str, Array] = {}
    at = start
    for _ in range(count):
        fields = _CENTRAL.unpack_from(data, at)
        flags, method, packed, whole = fields[3], fields[4], fields[8], fields[9]
        name_length, extra, said, place = fields[10], fields[11], fields[12], fields[16]
        name = bytes(data[at + _CENTRAL.size : at + _CENTRAL.size + name_length])
        at += _CENTRAL.size + name_length + extra + said
        if fields[0] != b"PK\1\2" or method or flags & 1 or packed != whole or _WIDE in (packed, place):
            return None
        if not name.endswith(b".npy"):
            continue
        local = _LOCAL.unpack_from(data, place)
        begin = place + _LOCAL.size + local[9] + local[10]
        if local[0] != b"PK\3\4" or begin + whole > start:
            return None
        found[name[:-4].decode("utf8")] = _array(data[begin : begin + whole])
    return found


def _array(data: memoryview) -> Array:
    length = 10 + int.from_bytes(data[8:10], "little") if data[6] == 1 else 12 + int.from_bytes(data[8:12], "little")
    if length > 1 << 16:
        raise ValueError("a header of more than NumPy's")
    dtype, shape, fortran = _header(bytes(data[:length]))
    count = 1
    for side in shape:
        count *= side
    if count * dtype.itemsize != len(data) - length:
        raise ValueError("a shape that is not that of the bytes")
    return np.frombuffer(data, dtype, count, length).reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """What a header says; those of a data set's files are few."""
    dtype, shape, fortran, _ = parse_header(lambda start, end: head[start:end], len(head), "the file")
    return dtype, shape, fortran
