"""Shards in memory: held while they are read, shared by the processes of a node that read together, written nowhere."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from stoker.cache.base import CacheSettings, IfFull, ShardCache
from stoker.cache.node_shards import NodeShards, SharedAllocation, node_shards, shard_key
from stoker.cache.range_fetch import fetch_part
from stoker.concurrency.forks import ProcessLocal
from stoker.concurrency.shared.counters import Count
from stoker.concurrency.shared.node_file import path_for_others
from stoker.digests import fastest_hash
from stoker.errors import StokerError, StorageFullError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.gather import LEAST, ReusedBlocks
from stoker.index.version import VersionWatch
from stoker.policy import SHARED_SHARDS, reused_memory, spare_bytes
from stoker.storage import Store
from stoker.storage.files.own import CACHE_NAME
from stoker.storage.types import Arrival
from stoker.types import Buffer, PooledBuffer

logger = logging.getLogger(__name__)

# Memory of shards that were let go, kept for those to come, of this dataset or the next: no more than was in use at once.
_BLOCKS: Final = ReusedBlocks(reused_memory())
# Seconds between two looks whether another process has fetched what is waited for: a look takes some 30 µs.
_LONGEST_PAUSE: Final = 0.004
# From this size on, an object's own size is asked for first.
_LARGE: Final = 256 << 20


class _Held(ProcessLocal):
    """Shards of a dataset that one process holds.

    Attributes:
        busy: held by the thread that fetches a file.
        fresh, heads: files that were fetched, and wait for their first reader; and heads.
        awaited: since when others have been fetching what is waited for: if a process is stopped, all that it fetches stalls.
        may_share: whether other processes can be shared with, as far as is known.
        node: the shards of this node.
        shared: the same where other processes of it read this dataset, too.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.busy: dict[str, threading.Lock] = {}
        self.shards: weakref.WeakValueDictionary[str, PooledBuffer] = weakref.WeakValueDictionary()
        self.fresh: dict[str, PooledBuffer] = {}
        self.heads: dict[str, PooledBuffer] = {}
        self.awaited: dict[str, float] = {}
        self.may_share = True
        self.node: NodeShards | None = None
        self.shared: NodeShards | None = None


class MemoryCache(ShardCache):
    """Shard files of one dataset in memory, from when they are fetched until no reader has them.

    A process that reads alone holds them in memory of its own. Where several processes of a node share them, one of them
    fetches a file, and all map it; see :mod:`stoker.cache.node_shards`. Files that several shards share are fetched once for
    readers that are open together. A head that a file's pieces share stays.

    Args: see :class:`~stoker.cache.base.ShardCache`; there must be a store.
    """

    keeps: ClassVar[bool] = False

    def __init__(self, root: Path, store: Store, settings: CacheSettings, watch: VersionWatch | None = None) -> None:
        super().__init__(root, store, settings, watch)
        self._mine = _Held()
        # Names are those of one version of one dataset; memory:// is another one in each process.
        self._named = not store.url.startswith("memory:") and CACHE_NAME.fullmatch(root.name) is not None

    def share(self, processes: int, limit: int | None) -> None:
        """See :class:`~stoker.cache.base.ShardCache`. Workers that a process starts later find what it has opened here."""
        mine = self._mine
        if mine.node is None and self._named and mine.may_share:
            try:
                mine.node = node_shards()
            except (StokerError, OSError) as error:
                if processes > 1:
                    mine.may_share = False
                    logger.warning(
                        "%d processes of this node read the same dataset, and this one fetches all of its shards itself: "
                        "ReadOptions(cache='memory') is not shared here, as %s. cache='disk' is",
                        processes,
                        error,
                    )
        mine.shared = mine.node if processes > 1 else None
        if mine.node is not None:
            mine.node.offer()
            mine.node.spare = spare_bytes(limit, processes) if processes > 1 else 0
            if processes == 1:
                mine.node.trim()

    def close(self) -> None:
        mine = self._mine
        mine.node = mine.shared = None
        with mine.lock:
            mine.fresh.clear()
            mine.heads.clear()

    @property
    def for_others(self) -> int:
        return 0 if (shared := self._mine.shared) is None else shared.spare

    def fetch_for_others(self, info: ShardInfo) -> None:
        self.fetch(info, wait=False)
        with self._mine.lock:
            for file in info.raw:
                self._mine.fresh.pop(file.basename, None)

    def trim(self) -> None:
        if (shared := self._mine.shared) is not None:
            shared.trim()

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self, info: ShardInfo) -> list[Buffer] | None:
        found: list[Buffer] = []
        for file in info.raw:
            held = self._held(file)
            if held is None:
                return None
            found.append(held if held.size else b"")
        with self._mine.lock:
            for file in info.raw:
                self._mine.fresh.pop(file.basename, None)
        return found

    def _held(self, file: FileInfo) -> PooledBuffer | None:
        """A raw file that this process holds, or another one of the node."""
        with self._mine.lock:
            held = self._mine.shards.get(file.basename)
        if held is None and (shared := self._mine.shared) is not None:
            held = shared.find(self._key(file))
            if held is not None:
                with self._mine.lock:
                    self._mine.awaited.pop(file.basename, None)
                    held = self._mine.shards.setdefault(file.basename, held)
        return held

    def _key(self, file: FileInfo) -> bytes:
        """The key of a raw file among those of the node's processes: of this version of this dataset, and checked alike."""
        return shard_key(self.root.name, file.basename, file.bytes, self.settings.validate_hash)

    def discard(self, info: ShardInfo) -> bool:
        with self._mine.lock:
            for file in info.raw:
                self._mine.shards.pop(file.basename, None)
                self._mine.fresh.pop(file.basename, None)
                self._mine.heads.pop(file.basename, None)
                if (shared := self._mine.shared) is not None:
                    shared.forget(self._key(file))
        return True

    def used(self, shards: Iterable[ShardInfo]) -> int:
        names = {file.basename for info in shards for file in info.raw}
        with self._mine.lock:
            return sum(held.nbytes for name in names if (held := self._mine.shards.get(name)) is not None)

    # -- fetching --------------------------------------------------------------------------------------------------

    def fetch(self, info: ShardInfo, *, wait: bool = True, if_full: IfFull = "exceed") -> bool:  # noqa: ARG002 - no limit
        """See :class:`~stoker.cache.base.ShardCache`; those who fetch meanwhile are threads, and processes that share it."""
        return all(self._hold(info, number, wait=wait) for number in range(len(info.raw)))

    def is_small(self, info: ShardInfo) -> bool:
        """See :class:`~stoker.cache.base.ShardCache`; not where processes share what they fetch."""
        return self._mine.shared is None and super().is_small(info)

    def take_small(
        self, infos: Sequence[ShardInfo], answers: Sequence[Arrival | Exception | None]
    ) -> list[Buffer | Exception | None]:
        return [
            None if answer is None else self._take_small(info.raw[0], answer)
            for info, answer in zip(infos, answers, strict=True)
        ]

    def _take_small(self, file: FileInfo, answer: Arrival | Exception) -> Buffer | Exception:
        try:
            data = self._checked(file, answer)
        except Exception as error:  # noqa: BLE001 - it belongs to the shard
            return error
        held = np.frombuffer(data, np.uint8).view(PooledBuffer)
        with self._mine.lock:
            self._mine.shards[file.basename] = held
        return held

    def _hold(self, info: ShardInfo, number: int, *, wait: bool) -> bool:
        name = info.raw[number].basename
        with self._mine.lock:
            if name in self._mine.shards:
                return True
            busy = self._mine.busy.setdefault(name, threading.Lock())
        if not busy.acquire(blocking=wait):
            return False
        try:
            if name not in self._mine.shards:
                data = self._fetch_shared(info, number, wait=wait)
                if data is None:
                    return False
                is_head = info.raw[number].part is not None and number + 1 < len(info.raw)
                if is_head and self._mine.shared is not None:  # what stays must not keep the shards beside it
                    data = np.array(data).view(PooledBuffer)
                with self._mine.lock:
                    self._mine.shards[name] = self._mine.fresh[name] = data
                    if is_head:
                        self._mine.heads[name] = data
            return True
        finally:
            with self._mine.lock:
                self._mine.busy.pop(name, None)
            busy.release()

    def _fetch_shared(self, info: ShardInfo, number: int, *, wait: bool) -> PooledBuffer | None:
        """The bytes of a raw file, fetched by one of the processes that share it; ``None`` where that is not waited for.

        A process that ends leaves its claim to the next. One that does not end is waited for so long only, from when its
        claim was first met.
        """
        file, shared = info.raw[number], self._mine.shared
        if shared is None or not file.bytes:
            return self._content(info, number, _Memory())
        key = self._key(file)
        delay = 0.001
        while not shared.claim(key):
            if (found := self._held(file)) is not None:
                return found
            until = self._mine.awaited.setdefault(file.basename, time.monotonic()) + self.settings.stall_timeout
            if not wait:
                return None
            if time.monotonic() > until:
                return self._content(info, number, _Memory())
            time.sleep(delay)
            delay = min(delay * 1.5, _LONGEST_PAUSE)
        self._mine.awaited.pop(file.basename, None)
        try:
            found = shared.find(key)
            return self._publish(shared, key, info, number) if found is None else found
        finally:
            shared.release(key)

    def _publish(self, shared: NodeShards, key: bytes, info: ShardInfo, number: int) -> PooledBuffer:
        memory = _Memory(shared)
        try:
            data = self._content(info, number, memory)
        except BaseException as error:
            if memory.allocation is not None:
                shared.leave(memory.allocation)
            if not isinstance(error, StorageFullError):
                raise
            logger.warning("%s is not shared with other processes: %s", self.describe(info), error)
            return self._content(info, number, _Memory())
        return data if memory.allocation is None else shared.publish(key, memory.allocation)

    def _content(self, info: ShardInfo, number: int, memory: _Memory) -> PooledBuffer:
        """The bytes of a raw file, in memory that ``memory`` gives."""
        return self._attempted(partial(self._fetched, info, number, memory))

    def _fetched(self, info: ShardInfo, number: int, memory: _Memory) -> PooledBuffer:
        """The same, fetched and checked."""
        file, store = info.raw[number], self.store
        assert store is not None
        if info.zip:
            packed = info.zip[number]
            zipped, arrived = store.read(packed.basename, max_bytes=packed.bytes)
            self._count(Count.BYTES_FETCHED, len(zipped))
            raw = self._decompressed(info, number, zipped, store.url_of(packed.basename), memory.take)
            self._check_version(packed if fastest_hash(packed.hashes) else file, arrived)
            return raw
        if file.part is not None:
            data = memory.take(file.bytes)
            fetch_part(store, file.part, memoryview(data))
            self._count(Count.BYTES_FETCHED, sum(file.part.ends) - sum(file.part.starts))
            return data
        if file.bytes > _LARGE:  # before memory is taken for what a damaged index claims
            self._check_size(file, store.head(file.basename).size)
        found = memory.file(file.bytes)
        if found is None:
            data = memory.take(file.bytes)
            self._received(file, partial(store.read_into, file.basename, memoryview(data)))
        else:
            path, data = found
            self._received(file, partial(store.download, file.basename, path, max_bytes=file.bytes))
        return data


class _Memory:
    """Memory for a raw file that is fetched: shared, or of this process alone.

    ``allocation``: where it is among what processes share; ``None`` where it is not.
    """

    def __init__(self, shared: NodeShards | None = None) -> None:
        self._shared = shared
        self.allocation: SharedAllocation | None = None

    def take(self, size: int) -> PooledBuffer:
        """So many bytes, to be filled."""
        if self._shared is None:
            return (np.empty(size, np.uint8) if size < LEAST else _BLOCKS.take(size)).view(PooledBuffer)
        with _as_full():
            self.allocation = self._shared.allocate(size)
            self.allocation.reserve()
        return self.allocation.data

    def file(self, size: int) -> tuple[Path, PooledBuffer] | None:
        """The same as a file, which can be written to without getting its memory page by page; ``None`` where it is none."""
        if self._shared is None or size < SHARED_SHARDS // 4:
            return None
        with _as_full():
            self.allocation = self._shared.allocate(size)
        return Path(path_for_others(self.allocation.file.number)), self.allocation.data


@contextlib.contextmanager
def _as_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFullError(f"there is no memory that can be shared: {error}") from error
