"""Shards in memory: each process holds those that it reads, while it reads them, and nothing is written."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from stoker.cache.base import ATTEMPTS, CacheSettings, IfFull, ShardCache
from stoker.cache.range_fetch import fetch_part
from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.shared_counters import Count
from stoker.errors import CorruptDataError, StorageError
from stoker.formats.base import ShardInfo
from stoker.formats.common.hashing import fastest_hash, new_hash
from stoker.formats.common.reused_memory import LEAST, ReusedBlocks
from stoker.index.version import VersionWatch
from stoker.storage import Store
from stoker.types import Buffer, HeldBytes

# Memory of shards that were let go, kept for those to come, of this dataset or the next: no more than was in use at once.
_BLOCKS: Final = ReusedBlocks(1 << 30)
# From this size on, an object's own size is asked for first.
_LARGE: Final = 256 << 20


class MemoryCache(ShardCache):
    """Shard files of one dataset in the memory of this process, from when they are fetched until no reader has them.

    Files that several shards share are fetched once for readers that are open together. A head that a file's pieces share
    stays.

    Args: see :class:`~stoker.cache.base.ShardCache`; there must be a store.
    """

    keeps: ClassVar[bool] = False

    def __init__(self, root: Path, store: Store, settings: CacheSettings, watch: VersionWatch | None = None) -> None:
        super().__init__(root, store, settings, watch)
        self.after_fork()
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: what the parent holds is not read here."""
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._shards: weakref.WeakValueDictionary[str, HeldBytes] = weakref.WeakValueDictionary()
        # Those that were fetched, and wait for their first reader; and heads.
        self._fresh: dict[str, HeldBytes] = {}
        self._heads: dict[str, HeldBytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_busy", "_shards", "_fresh", "_heads")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self.after_fork()
        reset_in_children(self)

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self, info: ShardInfo) -> list[Buffer] | None:
        with self._lock:
            found = [self._shards.get(file.basename) for file in info.raw]
            if any(one is None for one in found):
                return None
            for file in info.raw:
                self._fresh.pop(file.basename, None)
        return [one if one is not None and one.size else b"" for one in found]

    def describe(self, info: ShardInfo) -> str:
        file = info.stored[0]
        assert self.store is not None
        return self.store.url_of(file.basename if file.part is None else file.part.key)

    def discard(self, info: ShardInfo) -> bool:
        with self._lock:
            for file in info.raw:
                self._shards.pop(file.basename, None)
                self._fresh.pop(file.basename, None)
                self._heads.pop(file.basename, None)
        return True

    def used(self, shards: Iterable[ShardInfo]) -> int:
        names = {file.basename for info in shards for file in info.raw}
        with self._lock:
            return sum(held.nbytes for name, held in self._shards.items() if name in names)

    # -- fetching --------------------------------------------------------------------------------------------------

    def fetch(self, info: ShardInfo, *, wait: bool = True, if_full: IfFull = "exceed") -> bool:  # noqa: ARG002 - no limit
        """See :class:`~stoker.cache.base.ShardCache`; those who fetch meanwhile are threads of this process."""
        return all(self._hold(info, number, wait=wait) for number in range(len(info.raw)))

    def _hold(self, info: ShardInfo, number: int, *, wait: bool) -> bool:
        name = info.raw[number].basename
        with self._lock:
            if name in self._shards:
                return True
            busy = self._busy.setdefault(name, threading.Lock())
        if not busy.acquire(blocking=wait):
            return False
        try:
            if name not in self._shards:
                data = self._content(info, number)
                with self._lock:
                    self._shards[name] = self._fresh[name] = data
                    if info.raw[number].part is not None and number + 1 < len(info.raw):
                        self._heads[name] = data
            return True
        finally:
            with self._lock:
                self._busy.pop(name, None)
            busy.release()

    def _memory(self, size: int) -> HeldBytes:
        found = np.empty(size, np.uint8) if size < LEAST else _BLOCKS.take(size)
        return found.view(HeldBytes)

    def _content(self, info: ShardInfo, number: int) -> HeldBytes:
        """The bytes of a raw file."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._fetched(info, number)
            except (CorruptDataError, StorageError) as error:
                self._check_retry(error, attempt)
        raise AssertionError("unreachable")

    def _fetched(self, info: ShardInfo, number: int) -> HeldBytes:
        """The same, fetched and checked."""
        file, store = info.raw[number], self.store
        assert store is not None
        if info.zip:
            packed = info.zip[number]
            zipped, arrived = store.read(packed.basename, max_bytes=packed.bytes)
            self._count(Count.BYTES_FETCHED, len(zipped))
            raw = self._decompressed(info, number, zipped, store.url_of(packed.basename), self._memory)
            self._check_version(packed if fastest_hash(packed.hashes) else file, arrived)
            return raw
        if file.part is not None:
            data = self._memory(file.bytes)
            fetch_part(store, file.part, memoryview(data))
            self._count(Count.BYTES_FETCHED, sum(file.part.ends) - sum(file.part.starts))
            return data
        if file.bytes > _LARGE:  # before memory is taken for what a damaged index claims
            self._check_size(file, store.head(file.basename).size)
        data = self._memory(file.bytes)
        name = self._hash_of(file)
        arrived = store.read_into(file.basename, memoryview(data), new_hash=None if name is None else new_hash(name))
        self._count(Count.BYTES_FETCHED, min(arrived.size, file.bytes))
        self._check_size(file, arrived.size)
        if name is not None:
            self._check_digest(file, name, arrived.digest, store.url_of(file.basename))
        self._check_version(file, arrived)
        return data
