"""Copy many rows from any number of mapped files into one array, in one NumPy call, in memory that is used again.

A batch of shuffled samples comes from many shards. Gathering shard by shard costs some Python for each shard and a
second copy to put the rows in order. Here a row is named by its *address* in this process, so that rows of all shards
are taken by one fancy index, which copies each row once and releases the GIL.

The array that is indexed spans the process's whole address space and is never read but at the addresses given.
Callers therefore (a) hand in only addresses inside buffers whose bounds they have checked, and (b) keep those buffers
alive during the call.

Fresh memory of the operating system comes zeroed, which takes as long as filling it: copies into it run at half their speed.
The allocator keeps small blocks itself, and gives large ones back at once; so does this module, some time later.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.forks import ProcessLock
from stoker.policy import SMALL_OBJECT
from stoker.types import Array, Buffer, Ids

LEAST: Final = 1 << 20
"""Bytes from which on memory is used again. Of smaller blocks the C library's allocator takes care."""

_LIBC: Final = ctypes.CDLL(None)
_POPULATE_WRITE: Final = 23
_HUGE: Final = 2 << 20
_GRAIN: Final = 1 << 20
_MOST: Final = 256 << 20


def _fresh(size: int) -> NDArray[np.uint8]:
    """Memory of the operating system, all of it there at once, in huge pages where there are such.

    Getting them takes longer, as others' memory may have to be moved, but once; copies through them are faster ever after.
    MemoryError if there is not so much.
    """
    if not size:
        return np.empty(0, dtype=np.uint8)
    try:
        memory = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes can not be had: {error}") from None
    whole = np.frombuffer(memory, dtype=np.uint8)
    first = -whole.ctypes.data % _HUGE
    block = whole[first : first + size]
    _advise(block, mmap.MADV_HUGEPAGE)
    populate(block)
    return block


def populate(memory: NDArray[np.uint8]) -> None:
    """Get all pages of writable memory at once, which is faster than one by one; other threads run meanwhile."""
    _advise(memory, _POPULATE_WRITE)


def _advise(memory: NDArray[np.uint8], advice: int) -> None:
    """Tell the kernel what memory is for. One that does not know of it says so, and gives pages one by one."""
    first = memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = memory.ctypes.data + memory.nbytes - first
    _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), advice)


class _Block:
    """Memory that arrays are made on; it goes back when the last of them goes."""

    __slots__ = ("_home", "memory")

    def __init__(self, memory: NDArray[np.uint8], home: ReusedBlocks) -> None:
        self.memory, self._home = memory, home

    @property
    def __array_interface__(self) -> dict[str, Any]:
        found: dict[str, Any] = self.memory.__array_interface__
        return found

    def __del__(self) -> None:
        self._home.give_back(self.memory)


class ReusedBlocks:
    """Blocks that nobody uses now. Thread-safe. ``most``: bytes to keep; those that were given back first go first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[NDArray[np.uint8]] = []
        # A block may come back inside of any allocation, also one made under this lock: by garbage collection.
        self._lock = ProcessLock()

    @property
    def kept(self) -> int:
        """Bytes that are kept now."""
        with self._lock:
            return sum(block.nbytes for block in self._free)

    def take(self, size: int) -> NDArray[np.uint8]:
        """An array of so many bytes, writable, of any content; shape ``(size,)``."""
        whole = -(-size // _GRAIN) * _GRAIN
        with self._lock:
            at = next((at for at, block in enumerate(self._free) if whole <= block.nbytes <= 2 * whole), None)
            memory = None if at is None else self._free.pop(at)
        if memory is None:
            memory = _fresh(whole)
        return np.asarray(_Block(memory, self))[:size]

    def give_back(self, memory: NDArray[np.uint8]) -> None:
        """Keep a block that nobody uses any more, as far as there is room, and no other thread is at it."""
        # Finalizers do not wait: in a forked child the lock may be that of a thread which is not there, until it is reset.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._free.append(memory)
            while self._free and self.kept > self._most:
                self._free.pop(0)
        finally:
            self._lock.release()


_BLOCKS: Final = ReusedBlocks(_MOST)


def empty(rows: int, width: int) -> NDArray[np.uint8]:
    """An array of shape ``(rows, width)``, C-contiguous and writable, of any content."""
    size = rows * width
    if size < LEAST:
        return np.empty((rows, width), dtype=np.uint8)
    return _BLOCKS.take(size).reshape(rows, width)


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


@lru_cache(maxsize=64)
def _items_of(width: int) -> NDArray[np.void]:
    """All memory as items of ``width`` bytes, one starting at each byte.

    Items, as NumPy has a loop for one index of an array of one dimension that takes half the time of rows.
    """
    told = {"version": 3, "typestr": f"|V{width}", "data": (_BASE, True), "shape": (_SPAN,), "strides": (1,)}
    return np.asarray(SimpleNamespace(__array_interface__=told))


def address_of(buffer: NDArray[np.uint8]) -> int:
    """Address of an array's first byte."""
    return int(buffer.__array_interface__["data"][0])  # without the object that .ctypes makes


def gather_rows(addresses: Ids, width: int, *, at_once: bool = False) -> NDArray[np.uint8]:
    """Copy ``width`` bytes from each address. Gives a fresh uint8 array of shape ``(n, width)``, C-contiguous and writable.

    ``addresses``: int64, shape ``(n,)``. ``width``: bytes a row, at least 1. ``at_once``: all of it is in memory, and no page
    of a mapped file, which storage may have to give: Python's lock is kept while wide rows are copied. Among many threads
    that takes less time than to have it again after each row.
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


def record_bounds(sizes: Sequence[int | None], records: Ids, starts: Ids) -> tuple[list[Ids], dict[int, Ids], Ids]:
    """The columns of records as MDS has them: u32 sizes of those of no fixed size, then the values of all in order.

    ``sizes``: bytes of each column's values; ``None`` where they differ. ``records``: address of each record; int64, shape
    ``(n,)``. ``starts``: from where each is counted. Gives where each column begins, the lengths of those of no fixed size,
    by their numbers, and where the records end.
    """
    variable = sum(size is None for size in sizes)
    told = gather_u32(records, variable) if variable else None
    begins: list[Ids] = []
    lengths: dict[int, Ids] = {}
    cursor = starts + 4 * variable
    for number, size in enumerate(sizes):
        begins.append(cursor)
        if size is None:
            assert told is not None
            lengths[number] = told[:, len(lengths)]
        cursor = cursor + (lengths[number] if size is None else size)
    return begins, lengths, cursor


def run_of(rows: Ids) -> slice | None:
    """Rows that follow each other, as a slice."""
    count = len(rows)
    if not count or int(rows[-1]) - int(rows[0]) != count - 1 or (count > 2 and (np.diff(rows) != 1).any()):
        return None
    return slice(int(rows[0]), int(rows[0]) + count)


def cut(data: Any, begins: Ids, ends: Ids) -> list[Any]:
    """Slices of a buffer: copies of bytes, and views of a view."""
    return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def gather_spans(
    buffers: Sequence[Buffer], which: Ids | None, begins: Ids, ends: Ids, between: bytes = b""
) -> tuple[bytes, Ids]:
    """Copy spans of several buffers, one after the other. Gives the copy, and where each span begins in it.

    ``buffers``: what the spans lie in. ``which``: for each span, the index of its buffer; ``None`` where there is one.
    ``begins``, ``ends``: where each begins and ends; int64, shape ``(n,)``, checked. ``between``: bytes to put between each
    two.
    """
    if which is None or len(buffers) == 1:
        copies = cut(buffers[0], begins, ends)
    else:
        bounds = zip(which.tolist(), begins.tolist(), ends.tolist(), strict=True)
        copies = [buffers[turn][begin:end] for turn, begin, end in bounds]
    sizes = ends - begins + len(between)
    starts: Ids = np.cumsum(sizes) - sizes
    return between.join(copies), starts
