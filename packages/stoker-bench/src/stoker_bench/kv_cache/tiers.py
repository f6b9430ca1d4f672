"""The tiers of a cache: the place of each entry, and the entries that make room for new ones. Nothing is moved here.

The rules are those of MLPerf Storage's benchmark. An entry goes to the first tier that takes it. A tier of memory takes what
is at most 95 % of its budget, and entries that were not used for the longest time move to the next tier until it is at most
80 % full. The storage takes everything, and removes what was not used for the longest time once it is full. Entries that are
read stay where they are. A tier without a budget is not there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from stoker.errors import ConfigError

Tier = Literal["accelerator", "memory", "storage"]
TIERS: Final[tuple[Tier, ...]] = ("accelerator", "memory", "storage")

_LARGEST: Final = 0.95
_FULL: Final = 0.8
_EMPTY: Final = 0.05
_WORTH: Final = (0.2, 0.5)
"""A tier that is less full than the first part makes no room for what would take more than the second part of it."""


class KvEntry:
    """An entry of the cache.

    Attributes:
        number: of the request that made it.
        size: in bytes.
        tier: that holds it, once all planned operations are done.
        last: when it was used last, as a count of all uses.
        planned: number of operations on it that were planned so far.
        settled: number of these that must be done before it may be read.
        done: number of operations that are done; counted by the threads that do them.
    """

    __slots__ = ("done", "last", "number", "planned", "settled", "size", "tier")

    def __init__(self, number: int, size: int, tier: Tier, last: int) -> None:
        self.number, self.size, self.tier, self.last = number, size, tier, last
        self.planned = self.settled = self.done = 0


class Operation(NamedTuple):
    """An operation on an entry.

    Attributes:
        kind: ``write`` and ``read`` are a request's own, ``move`` and ``delete`` make room.
        entry: that it is on.
        tier: that the entry is in, or is written to.
        to: the tier that it is moved to; else the same.
        after: number of operations on the entry that must be done before.
        number: of the operation, in the order of planning; reads have none.
        may_remain: of what goes to storage: bytes of entries that may still be there although they are to be deleted before.
    """

    kind: Literal["write", "read", "move", "delete"]
    entry: KvEntry
    tier: Tier
    to: Tier
    after: int
    number: int = 0
    may_remain: int = 0


class TierTable:
    """The tiers of a rank.

    Args:
        accelerator, memory, storage: bytes that each may hold.

    Attributes:
        used: bytes that each holds.
    """

    def __init__(self, accelerator: int, memory: int, storage: int) -> None:
        self._limits: dict[Tier, int] = {"accelerator": accelerator, "memory": memory, "storage": storage}
        self._order: list[Tier] = [tier for tier in TIERS if self._limits[tier]]
        self.used: dict[Tier, int] = dict.fromkeys(TIERS, 0)
        self._entries: dict[int, KvEntry] = {}
        self._oldest: dict[Tier, list[tuple[int, int]]] = {tier: [] for tier in TIERS}
        self._now = self._made = 0

    def write(self, number: int, size: int) -> list[Operation]:
        """The operations that write an entry, with those that make room; none where it is there.

        Raises:
            ConfigError: it is larger than all of the storage.
        """
        if number in self._entries:
            return []
        if size > self._limits["storage"]:
            raise ConfigError(
                f"an entry of {size:,} bytes does not fit the storage, which may hold {self._limits['storage']:,} bytes: "
                "kv_cache.capacity_bytes, or a rank's part of nine tenths of what is free there if that is less"
            )
        made: list[Operation] = []
        tier = next(tier for tier in self._order if self._make_room(tier, size, made))
        entry = KvEntry(number, size, tier, self._tick())
        self._entries[number] = entry
        self._file(entry)
        made.append(self._exclusive("write", entry, tier, tier))
        return made

    def read(self, number: int) -> Operation | None:
        """The operation that reads an entry; ``None`` where it is not there."""
        entry = self._entries.get(number)
        if entry is None:
            return None
        entry.last = self._tick()
        self._file(entry)
        entry.planned += 1
        return Operation("read", entry, entry.tier, entry.tier, entry.settled)

    def entries(self) -> Iterator[KvEntry]:
        """All that are there."""
        return iter(self._entries.values())

    def _make_room(self, tier: Tier, size: int, made: list[Operation]) -> bool:
        """Reserve ``size`` bytes of a tier, and plan what has to leave it before; ``False`` if it does not take them."""
        limit, last = self._limits[tier], tier == self._order[-1]
        if not last and size > limit * _LARGEST:
            return False
        goal = limit if last else limit * _FULL
        first = True
        while self.used[tier] + size > goal and (last or self.used[tier] >= limit * _EMPTY):
            if first and not last and self.used[tier] < limit * _WORTH[0] and size > goal * _WORTH[1]:
                return False
            first = False
            entry = self._least_used(tier)
            if entry is None:
                return last
            if last:
                made.append(self._exclusive("delete", entry, tier, tier))
                del self._entries[entry.number]
            else:
                below = self._order[self._order.index(tier) + 1]
                if not self._make_room(below, entry.size, made):
                    self._file(entry)
                    return False
                made.append(self._exclusive("move", entry, tier, below))
                entry.tier = below
                self._file(entry)
            self.used[tier] -= entry.size
        self.used[tier] += size
        return True

    def _exclusive(self, kind: Literal["write", "move", "delete"], entry: KvEntry, tier: Tier, to: Tier) -> Operation:
        self._made += 1
        may_remain = self._limits["storage"] - self.used["storage"] if to == "storage" else 0
        operation = Operation(kind, entry, tier, to, entry.planned, self._made, may_remain)
        entry.planned += 1
        entry.settled = entry.planned
        return operation

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _file(self, entry: KvEntry) -> None:
        heapq.heappush(self._oldest[entry.tier], (entry.last, entry.number))

    def _least_used(self, tier: Tier) -> KvEntry | None:
        """Take the least recently used entry of a tier; outdated lines of the heap are dropped."""
        heap = self._oldest[tier]
        while heap:
            last, number = heapq.heappop(heap)
            entry = self._entries.get(number)
            if entry is not None and entry.tier == tier and entry.last == last:
                return entry
        return None
