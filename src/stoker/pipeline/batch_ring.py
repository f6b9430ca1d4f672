"""Reusable shared memory that DataLoader workers fill and the main process reads.

torch passes each tensor from a worker in new shared memory: made, mapped, faulted in page by page, handed over through a
socket, unmapped and freed. For batches of small samples that costs several times what making them does. Here the memory is
reused: a worker writes into a block, the main process uses it in place, and when the last tensor on it is gone the block is
free for the worker to fill again.

The memory is a :class:`~stoker.concurrency.shared.file.SharedFile`. Nobody ever waits for a block: where none is free, the
caller falls back to torch's own way.

Each worker process holds one *region*, claimed by a record lock that the kernel drops with the process. A block is

* ``FREE``: the worker may take it;
* ``FILLED``: taken by the worker, and perhaps on its way to the main process;
* ``IN_USE``: the main process has it, and gives it back by setting it ``FREE``;
* ``HELD``: the same, and children have it, too, which were forked while it was in use: each holds a lock of the kernel's that
  goes with it. The worker may take it when no lock is left.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.forks import alive
from stoker.concurrency.shared.file import SharedFile, spawning
from stoker.errors import StateError

_REGIONS: Final = 128
_REGION_BYTES: Final = 512 << 20
_BLOCKS: Final = 64
_ALIGNMENT: Final = 4096

FREE, FILLED, IN_USE, HELD = range(4)
_OFFSET, _CAPACITY, _STATE, _GENERATION = range(4)
_HEADER_BYTES: Final = -(-_REGIONS * _BLOCKS * 4 * 8 // _ALIGNMENT) * _ALIGNMENT


class Ring:
    """The blocks of one data set's workers, in the main process and in all of them.

    ``number``: its name among all. ``maker``: number of the process that made it.
    """

    def __init__(self) -> None:
        size = _HEADER_BYTES + _REGIONS * _REGION_BYTES  # sparse: pages come when they are written
        self._attach(SharedFile("stoker-batches", size), (int.from_bytes(os.urandom(8), "little") >> 1))
        self.maker = os.getpid()

    def _attach(self, file: SharedFile, number: int) -> None:
        self._file = file
        self.number = number
        # Blocks of region r: shape (blocks, 4), int64.
        self.table: NDArray[np.int64] = np.frombuffer(file.map(_HEADER_BYTES), np.int64)[
            : _REGIONS * _BLOCKS * 4
        ].reshape(_REGIONS, _BLOCKS, 4)
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._region: Region | None = None
        # Blocks that this process uses, as region and slot; and what becomes of those that forked children use, too.
        self.used: set[tuple[int, int]] = set()
        self.forked: dict[tuple[int, int], int] = {}
        # Descriptors by which children will hold blocks, by the thread that forks.
        self._guards: dict[int, int] = {}
        _rings[number] = self

    def region(self) -> Region | None:
        """This process's region to fill, claimed on first use; ``None`` where there is none left."""
        if self._region is None or self._region.pid != os.getpid():
            self._region = self._claim()
        return self._region

    def memory(self, region: int) -> NDArray[np.uint8]:
        """A region's bytes, mapped on first use and kept."""
        found = self._memory.get(region)
        if found is None:
            mapped = self._file.map(_REGION_BYTES, _HEADER_BYTES + region * _REGION_BYTES)
            found = self._memory[region] = np.frombuffer(mapped, np.uint8)
        return found

    def before_fork(self) -> None:
        """Have the child hold all blocks that are in use."""
        used = list(self.used)
        if used:
            try:
                self._guards[threading.get_ident()] = self._file.hold(_lock_of(*block) for block in used)
                self.forked.update(dict.fromkeys(used, HELD))
            except OSError:
                self.forked.update(dict.fromkeys(used, IN_USE))  # for ever

    def after_fork_in_parent(self) -> None:
        """Leave them to the child. Other threads may be about to fork, too."""
        guard = self._guards.pop(threading.get_ident(), None)
        if guard is not None:
            os.close(guard)

    def after_fork_in_child(self) -> None:
        """Hold them until this process ends."""
        self._guards.clear()

    def is_held(self, region: int, slot: int) -> bool:
        """Whether a child uses a block."""
        return self._file.is_held(_lock_of(region, slot))

    def _claim(self) -> Region | None:
        for number in range(_REGIONS):
            if not self._file.claim(number):
                continue
            table = self.table[number]
            # Nobody will receive the blocks that a dead worker had filled but not sent.
            table[table[:, _STATE] == FILLED, _STATE] = FREE
            try:
                return Region(self, number, table, self.memory(number))
            except OSError:
                return None  # no address space for it
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self._file, "number": self.number, "maker": self.maker} if spawning() else {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state:
            self._attach(state["file"], state["number"])
            self.maker = state["maker"]
        else:
            Ring.__init__(self)


_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class RingBlock:
    """One block as its worker sees it.

    Attributes:
        generation: how often the block has been taken.
    """

    ring: int
    region: int
    slot: int
    generation: int


class Region:
    """The blocks of one worker process."""

    def __init__(self, ring: Ring, number: int, table: NDArray[np.int64], memory: NDArray[np.uint8]) -> None:
        self.pid = os.getpid()
        self._ring = ring
        self._number = number
        self._table = table
        self._memory = memory
        # A worker collates in one thread and pickles what it sends in another.
        self._lock = threading.Lock()
        self._kept: set[int] = set()

    def take(self, size: int) -> tuple[RingBlock, NDArray[np.uint8]] | None:
        """A block with space for ``size`` bytes, and those bytes; ``None`` if none is free and there is no space for more.

        Give it back with :meth:`drop`, or hand it over with :func:`receive` in the main process. It is not taken again
        before the bytes returned here are gone too, so a worker may keep what it has sent.
        """
        with self._lock:
            taken = self._take(size)
            if taken is not None:
                slot = taken[0].slot
                self._kept.add(slot)
                weakref.finalize(taken[1], self._kept.discard, slot).atexit = False
            return taken

    def _take(self, size: int) -> tuple[RingBlock, NDArray[np.uint8]] | None:
        table = self._table
        for held in np.flatnonzero(table[:, _STATE] == HELD).tolist():
            if not self._ring.is_held(self._number, held):
                table[held, _STATE] = FREE
        capacity = table[:, _CAPACITY]
        # Much larger blocks are left for larger batches.
        free = (table[:, _STATE] == FREE) & (capacity >= size) & (capacity <= 2 * size + _ALIGNMENT)
        free[list(self._kept)] = False
        fitting = np.flatnonzero(free)
        if fitting.size:
            slot = int(fitting[np.argmin(capacity[fitting])])
        else:
            used = int((capacity > 0).sum())
            begin = int((table[:used, _OFFSET] + capacity[:used]).max()) if used else 0
            needed = -(-size // _ALIGNMENT) * _ALIGNMENT
            if used == _BLOCKS or begin + needed > _REGION_BYTES or not size:
                return None
            slot = used
            table[slot, _OFFSET] = begin
            table[slot, _CAPACITY] = needed
        row = table[slot]
        row[_GENERATION] += 1
        row[_STATE] = FILLED
        begin = int(row[_OFFSET])
        block = RingBlock(self._ring.number, self._number, slot, int(row[_GENERATION]))
        return block, self._memory[begin : begin + size]

    def drop(self, block: RingBlock) -> None:
        """Give back a block that will not be sent."""
        row = self._table[block.slot]
        if (int(row[_GENERATION]), int(row[_STATE])) == (block.generation, FILLED):
            row[_STATE] = FREE


class _UsedBlock:
    """Memory that arrays are made on. Views of an array have its base as their own, so the base is this."""

    __slots__ = ("__weakref__", "_memory")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        found: dict[str, Any] = self._memory.__array_interface__
        return found


def receive(block: RingBlock, size: int) -> NDArray[np.uint8]:
    """The bytes of a block that a worker has filled, to be used in place. The block is free again when they are gone.

    StateError if this is not the process whose data set the worker reads, or the worker's successor has taken the block.
    """
    ring = _rings.get(block.ring)
    if ring is None:
        raise StateError(
            "a batch in shared memory reached a process that does not hold its dataset: iterate over the loader in the "
            "process that made it, and send copies of batches to others"
        )
    row = ring.table[block.region, block.slot]
    if (int(row[_GENERATION]), int(row[_STATE])) != (block.generation, FILLED):
        raise StateError(
            "a batch in shared memory came after its worker was replaced by another iteration's: begin another iteration"
        )
    row[_STATE] = IN_USE
    begin = int(row[_OFFSET])
    used = _UsedBlock(ring.memory(block.region)[begin : begin + size])
    ring.used.add((block.region, block.slot))
    weakref.finalize(used, _give_back, ring, block, row, os.getpid()).atexit = False
    return np.asarray(used)


def _give_back(ring: Ring, block: RingBlock, row: NDArray[np.int64], pid: int) -> None:
    # A forked child has the bytes, too, but only the parent gives them back.
    if pid == os.getpid() and int(row[_GENERATION]) == block.generation:
        ring.used.discard((block.region, block.slot))
        row[_STATE] = ring.forked.pop((block.region, block.slot), FREE)


def _lock_of(region: int, slot: int) -> int:
    """The byte whose lock holds a block; those before it are claims of regions."""
    return _REGIONS + region * _BLOCKS + slot


def _before_fork() -> None:
    for ring in alive(_rings):
        ring.before_fork()


def _after_fork_in_parent() -> None:
    for ring in alive(_rings):
        ring.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for ring in alive(_rings):
        ring.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
