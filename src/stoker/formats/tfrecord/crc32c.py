"""CRC-32C as TFRecord files carry it: by hardware where there is a package for it, and of short numbers by NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import MissingPackageError
from stoker.types import Ids

_POLYNOMIAL: Final = 0x82F63B78
_DELTA: Final = 0xA282EAD8


@cache
def crc32c_function() -> Callable[[bytes], int]:
    """A function from bytes to their CRC-32C.

    Raises:
        MissingPackageError: no package that has one is installed.
    """
    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            found: Callable[[bytes], int] = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        return found
    raise MissingPackageError("TFRecord needs a package for its checksums: pip install 'stoker[tfrecord]'")


def mask(crc: int) -> int:
    """A checksum as the file holds it: rotated and shifted, so that checksums of data with checksums stay good."""
    return (((crc >> 15) | (crc << 17)) + _DELTA) & 0xFFFFFFFF


def masked(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """:func:`mask` of many."""
    wide = crcs.astype(np.uint64)
    return ((((wide >> np.uint64(15)) | (wide << np.uint64(17))) + np.uint64(_DELTA)) & np.uint64(0xFFFFFFFF)).astype(
        np.uint32
    )


def crc_of_lengths(lengths: Ids) -> NDArray[np.uint32]:
    """CRC-32C of each number's eight little-endian bytes."""
    octets = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, 8)
    table = _table()
    crc: NDArray[Any] = np.full(len(octets), 0xFFFFFFFF, np.uint32)
    for column in range(8):
        crc = table[(crc ^ octets[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


@cache
def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table
