"""Shards in memory: each process holds those that it reads, while it reads them, and nothing is written."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from stoker.dataset.cache import CacheSettings, ShardCache
from stoker.dataset.counts import Count
from stoker.dataset.excerpts import fetch_part
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.reuse import KeptBlocks
from stoker.storage import Store
from stoker.types import Buffer, HeldBytes

__all__ = ["CacheKind", "HeldShards", "check_held", "is_held", "make_cache"]

CacheKind: TypeAlias = Literal["disk", "memory"]
"""Where shards of a remote are kept: in files that all processes of a node share, or held by each that reads them."""

# Memory of shards that were let go, kept for those to come: of fresh memory, each page is zeroed first.
_BLOCKS: Final = KeptBlocks(512 << 20)
os.register_at_fork(after_in_child=_BLOCKS.reset)


class HeldShards(ShardCache):
    """Shard files of one dataset in the memory of this process, from when they are fetched until no reader has them.

    Files that several shards share are fetched once for readers that are open together. A head that a file's pieces share
    stays.

    Args: see :class:`~stoker.dataset.cache.ShardCache`.
    """

    keeps: ClassVar[bool] = False

    def __init__(
        self,
        root: Path,
        store: Store | None,
        settings: CacheSettings,
        known: Callable[[], Mapping[str, int]] | None = None,  # noqa: ARG002 - nothing is evicted
    ) -> None:
        super().__init__(root, store, settings)
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._shards: dict[str, weakref.ref[HeldBytes]] = {}
        # Those that were fetched, and wait for their first reader; and heads.
        self._fresh: dict[str, HeldBytes] = {}
        self._heads: dict[str, HeldBytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        own = ("_pid", "_lock", "_busy", "_shards", "_fresh", "_heads")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self, info: ShardInfo) -> list[Buffer] | None:
        """See :class:`~stoker.dataset.cache.ShardCache`."""
        if self._pid != os.getpid():  # another thread of the parent may have had the lock
            self._reset()
        with self._lock:
            found = [self._held(file) for file in info.raw]
            if any(one is None for one in found):
                return None
            for file in info.raw:
                self._fresh.pop(file.basename, None)
        return [one if one is not None and one.size else b"" for one in found]

    def _held(self, file: FileInfo) -> HeldBytes | None:
        known = self._shards.get(file.basename)
        return None if known is None else known()

    def validate(self, info: ShardInfo, files: Sequence[Buffer]) -> None:
        """Nothing: what is held was checked when it was fetched."""

    def describe(self, info: ShardInfo) -> str:
        """Names a shard in errors: where it comes from."""
        file = info.stored[0]
        assert self.store is not None
        return self.store.url_of(file.basename if file.part is None else file.part.key)

    def discard(self, info: ShardInfo) -> bool:
        """See :class:`~stoker.dataset.cache.ShardCache`."""
        with self._lock:
            for file in info.raw:
                for kept in (self._shards, self._fresh, self._heads):
                    kept.pop(file.basename, None)
        return True

    # -- fetching --------------------------------------------------------------------------------------------------

    def fetch(self, info: ShardInfo, *, wait: bool = True, room: bool = True) -> bool:  # noqa: ARG002 - there is no limit
        """See :class:`~stoker.dataset.cache.ShardCache`; those who fetch meanwhile are threads of this process."""
        return all(self._hold(info, number, wait=wait) for number in range(len(info.raw)))

    def _hold(self, info: ShardInfo, number: int, *, wait: bool) -> bool:
        file = info.raw[number]
        name = file.basename
        with self._lock:
            if self._held(file) is not None:
                return True
            busy = self._busy.setdefault(name, threading.Lock())
        if not busy.acquire(blocking=wait):
            return False
        try:
            if self._held(file) is None:
                data = self._again_if_corrupt(lambda: self._content(info, number))
                with self._lock:
                    self._shards[name] = weakref.ref(data)
                    self._fresh[name] = data
                    if file.part is not None and number + 1 < len(info.raw):
                        self._heads[name] = data
            return True
        finally:
            with self._lock:
                self._busy.pop(name, None)
                for gone in [other for other, known in self._shards.items() if known() is None]:
                    del self._shards[gone]
            busy.release()

    def _content(self, info: ShardInfo, number: int) -> HeldBytes:
        """The bytes of a raw file, fetched and checked."""
        file, store = info.raw[number], self.store
        assert store is not None
        if info.zip:
            raw, _ = self._unzip(info, number)
            return np.frombuffer(raw, np.uint8).view(HeldBytes)
        data = _BLOCKS.take(file.bytes).view(HeldBytes)
        into = memoryview(data)
        if file.part is not None:
            fetch_part(store, file.part, into)
            self._count(Count.BYTES_FETCHED, sum(file.part.ends) - sum(file.part.starts))
            return data
        size = store.read_into(file.basename, into)
        self._count(Count.BYTES_FETCHED, min(size, file.bytes))
        where = store.url_of(file.basename)
        if size != file.bytes:
            raise CorruptDataError(f"{where} has {size} bytes, the index says {file.bytes}")
        if self.settings.validate_hash is not False and file.hashes and size:
            self._check(file, data, where)
        return data

    def keep(self, name: str, data: bytes, *, room: bool = True) -> None:
        """Nothing: it is held nowhere but in the memory of who has it."""

    def sweep(self) -> None:
        """Nothing: there are no part files."""


def is_held(cache: CacheKind) -> bool:
    """Whether shards are held in memory.

    Raises:
        ConfigError: neither ``"disk"`` nor ``"memory"``.
    """
    if cache not in ("disk", "memory"):
        raise ConfigError(f"cache={cache!r}: 'disk' or 'memory'")
    return cache == "memory"


def check_held(in_memory: bool, remote: object, local: object, keep_zip: bool = False) -> None:
    """See that nothing is asked to be kept where shards are held in memory.

    Raises:
        ConfigError: something is.
    """
    if in_memory and remote is not None and (local is not None or keep_zip):
        given = f"local={os.fspath(local)!r}" if isinstance(local, str | os.PathLike) else "keep_zip=True"
        raise ConfigError(f"{given} says where shards are kept, and cache='memory' keeps none: leave out one of them")


def make_cache(
    root: Path, store: Store | None, settings: CacheSettings, known: Callable[[], Mapping[str, int]] | None = None
) -> ShardCache:
    """The cache that the settings ask for; files that are read where they lie (no ``store``) are mapped in any case."""
    kind = HeldShards if settings.in_memory and store is not None else ShardCache
    return kind(root, store, settings, known)
