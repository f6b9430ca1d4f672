"""Open shards of one process: mapped files behind readers, opened on demand or ahead of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.cache.base import ShardCache
from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.shared.file import spawning
from stoker.concurrency.spans.recorder import Stage, join_recording, recorder, span
from stoker.concurrency.spans.thread_times import ReadTimes
from stoker.concurrency.threads import Threads
from stoker.formats.base import ReadOptions, ShardReader
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.policy import MOST_OPEN, SMALL_FILES_AT_ONCE, small_shards_held
from stoker.reading.fetch_width import FetchWidth
from stoker.reading.opening.load_shard import Loaded, OpenReaders, load_shard
from stoker.reading.opening.small_files import AheadWindow, ObjectGroup, SmallShards
from stoker.types import Ids

_Opened = dict[int, ShardReader | Exception | None]
"""For each shard its reader, or the error of opening it, or ``None``: it is not in the cache, and no reader waits for it."""


class ShardPool:
    """Readers of a dataset's shards by shard number.

    Args:
        index: the dataset's shards; of several streams, the shards of all of them.
        cache: where their files are; for several streams, a cache for each part of the index.
        threads: how many shards are fetched and opened at once ahead of demand; ``None``: see
            :class:`~stoker.reading.fetch_width.FetchWidth`.
        most_open: how many readers are kept; beyond it the least recently used are dropped. A reader that is in use
            stays valid: its file stays mapped until the last reference goes. Those that are needed soon are kept beyond
            it, as far as the process may have maps.
        ids: name of a column that samples get beside those of the shards: their ids; ``None``: none.
        reads_cut: whether shards are opened of which a local file ends too early; see
            :meth:`~stoker.formats.format.Format.open_cut`.

    ``width``: how many shards are fetched at once. ``fetched``: for each shard whether it was not in the cache when this
    process first wanted it; ``None`` for no shard.
    """

    def __init__(
        self,
        index: Index | ConcatIndex,
        cache: ShardCache | Sequence[ShardCache],
        *,
        threads: int | None = None,
        most_open: int = MOST_OPEN,
        options: ReadOptions = ReadOptions(),
        counts: Counts | None = None,
        ids: str | None = None,
        reads_cut: bool = False,
    ) -> None:
        self.reads_cut = reads_cut
        self.index = index
        self.ids = ids
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
        self._small = SmallShards(index, self.caches, options)
        self.width = FetchWidth(threads, self._small.first_object)
        self._threads = Threads(self.width.value, "fetch")
        self._open = OpenReaders()
        self._reset()
        reset_in_children(self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "caches": self.caches,
            "threads": self.width.fixed,
            "most_open": self.most_open,
            "options": self.options,
            "counts": self.counts,
            "ids": self.ids,
            "reads_cut": self.reads_cut,
            "recording": recording.folder if spawning() and (recording := recorder()) is not None else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        index, caches = state.pop("index"), state.pop("caches")
        join_recording(state.pop("recording"))
        ShardPool.__init__(self, index, caches, **state)

    def after_fork(self) -> None:
        # Futures and threads of the parent are not ours; its open readers are (the maps are shared).
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._coming: dict[int, Future[_Opened]] = {}
        # Small shards that were asked for ahead.
        self._window = AheadWindow()
        self.times = ReadTimes()

    def cache_of(self, shard: int) -> ShardCache:
        """The cache that holds a shard."""
        return self.caches[self.index.part_of(shard) if isinstance(self.index, ConcatIndex) else 0]

    def get(self, shard: int) -> ShardReader:
        """The reader of a shard, fetched and opened first if need be.

        StokerError if it can not be fetched, or is corrupt twice over. Nothing waits longer than the storage's timeouts and
        the cache's stall time.
        """
        reader = self._open.readers.get(shard)
        if reader is not None and self._open.due.get(shard, 0.0) > time.monotonic():
            self._open.used.append(shard)
            return reader
        while True:
            mine: Future[_Opened] = Future()
            try:
                with self._lock:
                    reader = self._open.whole(shard)
                    if reader is not None:
                        return reader
                    if shard in self._window.waiting:
                        self._begin(self._window.demand(shard))
                    coming = self._coming.get(shard)
                    if coming is None:
                        mine.set_running_or_notify_cancel()  # others wait for it: it can not be cancelled
                        self._coming[shard] = mine
                if coming is None:
                    with span(Stage.OPEN), self.times.awaiting():
                        return self._load_for_all(shard, mine)
            except BaseException as error:  # an interrupt comes anywhere: nobody is to wait for what does not come
                self._arrived(shard, mine)  # the next reader tries anew
                if not mine.done():
                    mine.set_exception(error)
                raise
            try:
                with span(Stage.OPEN), self.times.awaiting():
                    found = coming.result().get(shard)
            except CancelledError:
                found = None
            finally:
                self._arrived(shard, coming)
            if isinstance(found, Exception):
                raise found
            if found is not None:
                return found

    @property
    def saturated(self) -> bool:
        """Whether more shards are to be fetched or opened ahead than are at once."""
        return self._threads.waits

    def tune_downloads(self, count: int) -> None:
        """Fetch so many shards at once, up to the bound for their size; 0: as many as this pool chooses."""
        if count != self.width.tuned:
            self.width.tuned = count
            self._threads.resize(self.width.value)

    def prefetch(self, shards: Iterable[int], *, small_files: bool = True) -> None:
        """Begin to fetch and open shards, in this order, on the pool's threads. Errors wait for :meth:`get`.

        ``small_files``: also those that are small files of this machine, whose reading another process does not spare.
        """
        window, small, readers = self._window, self._small, self._open.readers
        with self._lock:
            objects: dict[ShardCache, list[int]] = {}
            for shard in shards:
                if shard in readers or shard in self._coming or shard in window.waiting:
                    continue
                stream = small.stream_of(shard)
                size = stream.size(shard)
                if size is not None:
                    if small_files:
                        window.add(shard, size)
                elif stream.far and stream.is_object(shard):
                    objects.setdefault(self.cache_of(shard), []).append(shard)
                else:
                    self._coming[shard] = self._threads.submit(partial(self._load_ahead, (shard,)))
            if window.waiting:
                self._begin(window.groups())
            for cache, chosen in objects.items():
                for first in range(0, len(chosen), SMALL_FILES_AT_ONCE):
                    self._begin_objects(cache, chosen[first : first + SMALL_FILES_AT_ONCE])

    def _begin_objects(self, cache: ShardCache, shards: list[int]) -> None:
        """Have small objects of a store fetched by as many threads, and opened by one. The lock is held."""
        group = ObjectGroup(self, cache, shards)
        future = self._threads.submit_each(range(len(shards)), group.fetch, partial(self._objects_loaded, group))
        self._coming.update(dict.fromkeys(shards, future))

    def fetch_for_others(self, shard: int) -> Future[None]:
        """Begin to bring a shard into a cache that other processes read. It is not opened here."""
        info, cache = self.index.shards[shard], self.cache_of(shard)

        def fetch() -> None:
            with span(Stage.FETCH, info.size, self.width.value):
                cache.fetch_for_others(info)

        return self._threads.submit(fetch)

    def _begin(self, groups: Iterable[list[int]]) -> None:
        """Have groups of small shards opened, each by one thread. The lock is held."""
        for group in groups:
            self._coming.update(dict.fromkeys(group, self._threads.submit(partial(self._load_group, group))))

    def _load_group(self, shards: Sequence[int]) -> _Opened:
        return self._load_ahead(shards, self._open_small(shards))

    def _load_ahead(self, shards: Sequence[int], opened: Mapping[int, ShardReader] | None = None) -> _Opened:
        """Open shards, each by itself, but for those that were."""
        found: _Opened = {**(opened or {})}
        for shard in shards:
            if shard in found:
                continue
            try:
                loaded = load_shard(self, shard, demanded=False)
                found[shard] = None if loaded is None else self._keep([loaded], demanded=False)[0]
            except Exception as error:  # noqa: BLE001 - raised where the shard is asked for
                found[shard] = error
        return found

    def _objects_loaded(self, group: ObjectGroup, fetched: list[Any]) -> _Opened:
        found = group.finish(fetched)
        readers = iter(self._keep([one for _, one in found if isinstance(one, Loaded)], demanded=False))
        return {shard: next(readers) if isinstance(one, Loaded) else one for shard, one in found}

    def _open_small(self, shards: Sequence[int]) -> Mapping[int, ShardReader]:
        """Open those of some shards that are small files of this machine and pass all checks."""
        small = [shard for shard in shards if self._small.stream_of(shard).size(shard) is not None]
        if not small:
            return {}
        with span(Stage.FETCH, at_once=self.width.value):
            found, size = self._small.open(small, self._threads.count)
        self.counts.opened(size, hit=True, shards=len(found))
        with self._lock:
            for shard, reader in found.items():
                self._coming.pop(shard, None)
                wanted = (
                    shard in self._window or shard in self._open.needed or self._small.stream_of(shard).files is None
                )
                if wanted and shard not in self._open.readers:
                    self._open.keep_unmapped(shard, reader)
            self._open.trim(self.most_open, -1, len(found))
        return found

    def share(self, processes: int, readers: int = 0) -> None:
        """Say how many processes of this node read through the same caches, this one included.

        ``processes``: that fetch. ``readers``: of each of them, further processes that read what it has fetched.
        """
        self.width.sharers = processes
        processes *= 1 + readers
        limits = [cache.settings.limit for cache in set(self.caches)]
        for cache in self.caches:
            cache.share(processes, None if None in limits else sum(limit or 0 for limit in limits))

    def ready(self, shards: Collection[int]) -> int:
        """The number of these shards that are open."""
        return sum(map(self._open.readers.__contains__, shards))  # which other threads may add to meanwhile

    @contextlib.contextmanager
    def counted(self, shards: Ids, distinct: Collection[int]) -> Iterator[None]:
        """Count what is read inside as one step.

        ``shards``: the shard of each sample that is read. ``distinct``: the different ones.
        """
        begun, ready = time.perf_counter_ns(), self.ready(distinct)
        yield
        took = time.perf_counter_ns() - begun
        self.count(shards, distinct, ready, took)
        self.times.step(len(shards), took)

    def count(self, shards: Ids, distinct: Collection[int], ready: int, nanoseconds: int) -> None:
        """Count a step of reading; args are those of :meth:`counted`, the shards that were open, and the time it took."""
        remote = 0 if self.fetched is None else int(np.count_nonzero(self.fetched[shards]))
        self.counts.read_step(len(shards), remote, ready, len(distinct) - ready, nanoseconds)

    def note_fetched(self, shards: Sequence[int]) -> None:
        """Note shards that were fetched, here or by another process, which reads for this one."""
        with self._lock:
            if self.fetched is None:
                self.fetched = np.zeros(len(self.index), dtype=np.bool_)
            self.fetched[list(shards)] = True

    def expect(self, shards: Collection[int], at_once: int = 0) -> None:
        """Say which shards are needed soon, as a collection that may go on changing: these are kept open longest.

        ``shards``: their numbers. None for now: what was needed before is closed, where it takes memory. ``at_once``: bytes
        of shards that are needed at the same time. So many are read ahead at least.
        """
        self._open.needed = shards
        if not shards:
            with self._lock:
                coming, self._coming = self._coming, {}
                self._window.reset(at_once)
                for shard in list(self._open.readers):
                    held = self._small.stream_of(shard).files is not None or shard in self._open.held_sizes
                    if held or not self.cache_of(shard).keeps:
                        self._open.close(shard)
            for future in coming.values():
                future.cancel()
            for cache in self.caches:
                cache.trim()

    def done_with(self, shard: int, *, close: bool = False) -> None:
        """Say that a shard is not needed soon. Where the cache is limited, or memory, its file may then go.

        ``close``: let go of it in any case.
        """
        future = self._coming.pop(shard, None)
        if future is not None:
            future.cancel()
        if shard in self._window:
            with self._lock:
                self._begin(self._window.done(shard))
        cache = self.cache_of(shard)
        whole = self._small.stream_of(shard).files is not None
        beyond = whole or len(self._open.readers) > self.most_open or shard in self._open.held_sizes
        if close or cache.settings.limit is not None or not cache.keeps or beyond:
            with self._lock:
                self._open.close(shard)

    def check(self, shard: int) -> None:
        """Check that the files of a shard, if it is open, are whole: for those that read from a reader for long.

        CorruptDataError if one was cut.
        """
        if self._open.due.get(shard, 0.0) <= time.monotonic():
            with self._lock:
                self._open.check(shard)

    def close(self) -> None:
        """Stop fetching ahead and drop all readers."""
        self._threads.close()
        with self._lock:
            self._window.reset()
            self._coming.clear()
            self._open.clear()
        for cache in self.caches:
            cache.close()

    def _load_for_all(self, shard: int, mine: Future[_Opened]) -> ShardReader:
        """Load a shard that nobody loads yet, for all threads that want it: each shard is opened once."""
        reader = self._open_small((shard,)).get(shard)
        if reader is None:
            loaded = load_shard(self, shard, demanded=True)
            assert loaded is not None
            reader = self._keep([loaded], demanded=True)[0]
        self._arrived(shard, mine)
        mine.set_result({shard: reader})
        return reader

    def _arrived(self, shard: int, coming: Future[_Opened]) -> None:
        with self._lock:
            if self._coming.get(shard) is coming:
                del self._coming[shard]

    def _keep(self, loaded: Sequence[Loaded], *, demanded: bool) -> list[ShardReader]:
        """Count shards that were loaded, and keep their readers: those that are there, where another thread was faster."""
        for hit in (False, True):
            sizes = [one.counted for one in loaded if one.fetched is not hit]
            if sizes:
                self.counts.opened(sum(sizes), hit=hit, shards=len(sizes))
        seen = () if demanded else [one for one in loaded if one.seconds]
        if seen:
            for one in seen:
                self.width.saw(one.seconds, one.work, one.size)
            self.width.note_held(self._open.held)
            self._threads.resize(self.width.value, fewer=self.width.is_ahead)
        # The others were decompressed where they lie.
        fetched = [one.shard for one in loaded if one.fetched and self.cache_of(one.shard).store is not None]
        if fetched:
            self.note_fetched(fetched)
        readers = []
        with self._lock:
            for one in loaded:
                # What nobody waits for any more is not kept where it takes memory.
                wanted = demanded or one.shard in self._open.needed or self.cache_of(one.shard).keeps
                readers.append(self._open.keep(one) if wanted else one.reader)
            if loaded:
                self._open.trim(self.most_open, loaded[-1].shard, len(loaded))
        return readers

    def may_hold(self) -> bool:
        """Return whether one more small shard may be held in memory as fetched, instead of mapped in the disk cache."""
        return self._open.held < small_shards_held(self.width.sharers)

    def make_room(self, cache: ShardCache) -> None:
        """Close open shards of a cache that are not needed soon: while they are open, they can not be evicted."""
        with self._lock:
            for number in list(self._open.readers):
                if number not in self._open.needed and self.cache_of(number).root == cache.root:
                    self._open.close(number)
