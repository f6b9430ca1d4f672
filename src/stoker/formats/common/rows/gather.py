"""Copy many rows from any number of mapped files into one array, in one NumPy call.

A batch of shuffled samples comes from many shards. Gathering shard by shard costs some Python for each shard and a
second copy to put the rows in order. Here a row is named by its *address* in this process, so that rows of all shards
are taken by one fancy index, which copies each row once and releases the GIL.

The array that is indexed spans the process's whole address space and is never read but at the addresses given.
Callers therefore (a) hand in only addresses inside buffers whose bounds they have checked, and (b) keep those buffers
alive during the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.formats.common.rows.reused_memory import empty
from stoker.policy import SMALL_OBJECT
from stoker.types import Array, Buffer, Ids

# User-space addresses on 64-bit Linux stay below 2**47 (x86-64) and 2**48 (arm64) unless a larger one is asked for.
_SPAN = 1 << 48
# NumPy refuses arrays whose items have 2**63 bytes together, so wide rows are copied one at a time; they are long enough.
_WIDEST = 1 << 14
# The first page is never mapped; a null data pointer would make NumPy allocate.
_BASE = 4096
# Calls of it keep Python's lock.
_keeping = ctypes.PyDLL(None)
_keeping.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_keeping.memmove.restype = ctypes.c_void_p


class _AddressSpace:
    """All memory as items of ``width`` bytes, one starting at each byte.

    Items, as NumPy has a loop for one index of an array of one dimension that takes half the time of rows.
    """

    def __init__(self, width: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": f"|V{width}",
            "data": (_BASE, True),
            "shape": (_SPAN,),
            "strides": (1,),
        }


@lru_cache(maxsize=64)
def _items_of(width: int) -> NDArray[np.void]:
    return np.asarray(_AddressSpace(width))


def address_of(buffer: NDArray[np.uint8]) -> int:
    """Address of an array's first byte."""
    return int(buffer.__array_interface__["data"][0])  # without the object that .ctypes makes


def gather_rows(addresses: Ids, width: int, *, at_once: bool = False) -> NDArray[np.uint8]:
    """Copy ``width`` bytes from each address. Gives a fresh uint8 array of shape ``(n, width)``, C-contiguous and writable.

    Args:
        addresses: int64, shape ``(n,)``.
        width: bytes a row, at least 1.
        at_once: all of it is in memory, and no page of a mapped file, which storage may have to give: Python's lock is kept
            while wide rows are copied. Among many threads that takes less time than to have it again after each row.
    """
    if width <= _WIDEST:
        return _items_of(width)[addresses - _BASE].view(np.uint8).reshape(-1, width)
    out = empty(len(addresses), width)
    target = address_of(out)
    copy = _keeping.memmove if at_once and width <= SMALL_OBJECT else ctypes.memmove
    for source in addresses.tolist():
        copy(target, source, width)
        target += width
    return out


def gather_u32(addresses: Ids, count: int) -> Array:
    """Read ``count`` little-endian u32 from each address (aligned or not); int64 of shape ``(n, count)``."""
    return gather_rows(addresses, 4 * count).view("<u4").astype(np.int64)


def gather_spans(
    buffers: Sequence[Buffer], which: Ids | None, begins: Ids, ends: Ids, between: bytes = b""
) -> tuple[bytes, Ids]:
    """Copy spans of several buffers, one after the other. Gives the copy, and where each span begins in it.

    Args:
        buffers: what the spans lie in.
        which: for each span, the index of its buffer; ``None`` where there is one.
        begins, ends: where each begins and ends; int64, shape ``(n,)``, checked.
        between: bytes to put between each two.
    """
    bounds = begins.tolist(), ends.tolist()
    if which is None or len(buffers) == 1:
        buffer = buffers[0]
        copies = [buffer[begin:end] for begin, end in zip(*bounds, strict=True)]
    else:
        copies = [buffers[turn][begin:end] for turn, begin, end in zip(which.tolist(), *bounds, strict=True)]
    sizes = ends - begins + len(between)
    starts: Ids = np.cumsum(sizes) - sizes
    return between.join(copies), starts
