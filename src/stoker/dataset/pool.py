"""Open shards of one process: mapped files behind readers, opened on demand or ahead of it."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.cache import ShardCache
from stoker.dataset.counts import Count, Counts
from stoker.dataset.index import Index
from stoker.dataset.joined import JoinedIndex
from stoker.dataset.threads import Threads
from stoker.errors import CorruptDataError, ObjectNotFoundError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.registry import get_format

__all__ = ["ShardPool"]

logger = logging.getLogger(__name__)


class ShardPool:
    """Readers of a dataset's shards by shard number.

    Args:
        index: the dataset's shards; of several streams, the shards of all of them.
        cache: where their files are; for several streams, a cache for each part of the index.
        threads: how many shards are fetched and opened at once ahead of demand.
        most_open: how many readers are kept; beyond it the least recently used are dropped. A reader that is in use
            stays valid: its file stays mapped until the last reference goes.
        options: how samples are handed out.
        counts: where it counts what it does.

    Attributes:
        fetched: for each shard whether it was not in the cache when this process first wanted it; ``None`` for no shard.
    """

    def __init__(
        self,
        index: Index | JoinedIndex,
        cache: ShardCache | Sequence[ShardCache],
        *,
        threads: int = 8,
        most_open: int = 256,
        options: ReadOptions = ReadOptions(),
        counts: Counts | None = None,
    ) -> None:
        self.index = index
        self.counts = counts or Counts()
        self.fetched: NDArray[np.bool_] | None = None
        self.caches = (cache,) if isinstance(cache, ShardCache) else tuple(cache)
        for one in self.caches:
            one.counts = self.counts
            if one.early:
                self.counts.add(Count.BYTES_FETCHED, sum(one.early))
                one.early = []
        self.most_open = most_open
        self.options = options
        self._threads = Threads(threads, "fetch")
        self._tick = itertools.count()
        self._open: dict[int, ShardReader] = {}
        self._used: dict[int, int] = {}
        self._needed: Collection[int] = ()
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "caches": self.caches,
            "threads": self._threads.count,
            "most_open": self.most_open,
            "options": self.options,
            "counts": self.counts,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        index, caches = state.pop("index"), state.pop("caches")
        ShardPool.__init__(self, index, caches, **state)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._coming: dict[int, Future[ShardReader | None]] = {}

    @property
    def cache(self) -> ShardCache:
        """The cache of the first stream, and of the only one where there is one."""
        return self.caches[0]

    def cache_of(self, shard: int) -> ShardCache:
        """The cache that holds a shard."""
        return self.caches[self.index.part_of(shard) if isinstance(self.index, JoinedIndex) else 0]

    def get(self, shard: int) -> ShardReader:
        """The reader of a shard, fetched and opened first if need be.

        Raises:
            StokerError: it can not be fetched, or is corrupt twice over. Nothing waits longer than the storage's
                timeouts and the cache's stall time.
        """
        reader = self._open.get(shard)
        if reader is not None:
            self._used[shard] = next(self._tick)
            return reader
        self._mind_fork()
        while True:
            with self._lock:
                reader = self._open.get(shard)
                if reader is not None:
                    self._used[shard] = next(self._tick)
                    return reader
                coming = self._coming.get(shard)
                mine: Future[ShardReader | None] = Future()
                if coming is None:
                    mine.set_running_or_notify_cancel()  # others wait for it: it can not be cancelled
                    self._coming[shard] = mine
            if coming is None:
                return self._load_for_all(shard, mine)
            try:
                reader = coming.result()
            except CancelledError:
                reader = None
            finally:
                self._arrived(shard, coming)
            if reader is not None:
                return reader

    def prefetch(self, shards: Iterable[int]) -> None:
        """Begin to fetch and open shards, in this order, on the pool's threads. Errors wait for :meth:`get`."""
        self._mind_fork()
        for shard in shards:
            with self._lock:
                if shard not in self._open and shard not in self._coming:
                    self._coming[shard] = self._threads.submit(partial(self._load_ahead, shard))

    def ready(self, shards: Collection[int]) -> int:
        """How many of these shards are open."""
        return len(self._open.keys() & shards)

    def expect(self, shards: Collection[int]) -> None:
        """Say which shards are needed soon, as a collection that may go on changing: these are kept open longest."""
        self._mind_fork()
        self._needed = shards
        if not shards:
            coming, self._coming = self._coming, {}
            for future in coming.values():
                future.cancel()
            with self._lock:
                for shard in list(self._open):
                    if not self.cache_of(shard).keeps:
                        self._close(shard)

    def done_with(self, shard: int) -> None:
        """Say that a shard is not needed soon. Where the cache is limited, or memory, its file may then go."""
        future = self._coming.pop(shard, None)
        if future is not None:
            future.cancel()
        cache = self.cache_of(shard)
        if cache.settings.limit is not None or not cache.keeps:
            self._close(shard)

    def _close(self, shard: int) -> None:
        self._open.pop(shard, None)
        self._used.pop(shard, None)

    def close(self) -> None:
        """Stop fetching ahead and drop all readers."""
        self._threads.close()
        self._coming.clear()
        self._open.clear()
        self._used.clear()

    def _mind_fork(self) -> None:
        # Futures and threads of the parent are not ours; its open readers are (the maps are shared).
        if self._pid != os.getpid():
            self._reset()

    def _load_ahead(self, shard: int) -> ShardReader | None:
        reader = self._load(shard, demanded=False)
        return None if reader is None else self._keep(shard, reader, demanded=False)

    def _load_for_all(self, shard: int, mine: Future[ShardReader | None]) -> ShardReader:
        """Load a shard that nobody loads yet, for all threads that want it: each shard is opened once."""
        try:
            reader = self._keep(shard, self._load(shard, demanded=True), demanded=True)
        except BaseException as error:
            self._arrived(shard, mine)  # whoever asks from now on tries anew
            mine.set_exception(error)
            raise
        self._arrived(shard, mine)
        mine.set_result(reader)
        return reader

    def _arrived(self, shard: int, coming: Future[ShardReader | None]) -> None:
        with self._lock:
            if self._coming.get(shard) is coming:
                del self._coming[shard]

    def _keep(self, shard: int, reader: ShardReader | None, *, demanded: bool) -> ShardReader:
        assert reader is not None
        with self._lock:
            if not demanded and shard not in self._needed and not self.cache_of(shard).keeps:
                return reader  # nobody waits for it any more: its memory goes
            kept = self._open.setdefault(shard, reader)
            self._used[shard] = next(self._tick)
            if len(self._open) > self.most_open:
                spare = sorted(
                    (used, number) for number, used in list(self._used.items()) if number not in self._needed
                )
                for _, number in spare[: max(1, len(self._open) - self.most_open)]:
                    self._close(number)
        return kept

    def _load(self, shard: int, *, demanded: bool) -> ShardReader | None:
        info, cache = self.index.shards[shard], self.cache_of(shard)
        for attempt in (1, 2):
            files = cache.open(info)
            fetched = files is None
            if files is not None and not demanded:
                cache.read_ahead(files)
            if files is None:
                # An evictor may take the file between fetching and opening it; then it is fetched again.
                for _ in range(100):
                    if not self._fetch(info, cache, demanded=demanded):
                        return None
                    files = cache.open(info)
                    if files is not None:
                        break
                else:
                    raise ObjectNotFoundError(
                        f"{cache.describe(info)} disappears as often as it is fetched: is another process removing it?"
                    )
                self._note_fetched(shard, cache)
            try:
                if not fetched:
                    cache.validate(info, files)
                reader = self._reader(info, cache, files)
                self.counts.opened(info.size, hit=not fetched)
                return reader
            except CorruptDataError as error:
                del files
                if attempt == 2 or not cache.discard(info):
                    raise
                self.counts.add(Count.RETRIES, 1)
                logger.warning("%s; fetching it again", error)
        raise AssertionError("unreachable")

    def _note_fetched(self, shard: int, cache: ShardCache) -> None:
        if cache.store is None:  # decompressed where it lies
            return
        with self._lock:
            if self.fetched is None:
                self.fetched = np.zeros(len(self.index), dtype=np.bool_)
            self.fetched[shard] = True

    def _fetch(self, info: ShardInfo, cache: ShardCache, *, demanded: bool) -> bool:
        if demanded and cache.settings.limit is not None:
            if cache.fetch(info, room=False):
                return True
            # What we have open can not be evicted.
            with self._lock:
                for number in list(self._open):
                    if number not in self._needed and self.cache_of(number).root == cache.root:
                        self._close(number)
        return cache.fetch(info, wait=demanded, room=demanded)

    def _reader(self, info: ShardInfo, cache: ShardCache, files: list[Any]) -> ShardReader:
        return get_format(info.format).open(info, files, where=cache.describe(info), options=self.options)
