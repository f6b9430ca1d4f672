"""Memory of large batches, used again once nobody holds the batch.

Fresh memory of the operating system comes zeroed, which takes as long as filling it: copies into it run at half their speed.
The allocator keeps small blocks itself, and gives large ones back at once; so does this module, some time later.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.forks import ProcessLock

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
