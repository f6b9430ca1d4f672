"""Open shards of one process: mapped files behind readers, opened on demand or ahead of it."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.cache.base import ShardCache
from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.shared_counters import Count, Counts
from stoker.concurrency.shared_file import spawning
from stoker.concurrency.spans.read_times import ReadTimes
from stoker.concurrency.spans.recorder import Stage, join_recording, recorder, span
from stoker.concurrency.spans.sample_clock import ShortSamples
from stoker.concurrency.threads import Threads
from stoker.errors import CorruptDataError, DatasetChangedError, ObjectNotFoundError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.registry import get_format
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.policy import MOST_OPEN, SMALL_FILES_AT_ONCE, SMALL_SHARDS_HELD, most_maps, spare_bytes
from stoker.reading.fetch_width import FetchWidth
from stoker.reading.loaded import Loaded, open_files
from stoker.reading.small_files import AheadWindow, SmallShards
from stoker.reading.small_objects import ObjectGroup
from stoker.storage.files import MappedFile, check_mapped
from stoker.types import Ids

logger = logging.getLogger(__name__)

# Seconds for which a mapped file that was found whole is taken to be so.
_TRUSTED: Final = 0.05
# Readers that one opening looks at for some to drop, so that it costs the same however many are open.
_LOOKED_AT: Final = 16

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
        options: how samples are handed out.
        counts: where it counts what it does.
        ids: name of a column that samples get beside those of the shards: their ids; ``None``: none.
        reads_cut: whether shards are opened of which a local file ends too early; see
            :meth:`~stoker.formats.format.Format.open_cut`.

    Attributes:
        width: how many shards are fetched at once.
        times: what reading took.
        fetched: for each shard whether it was not in the cache when this process first wanted it; ``None`` for no shard.
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
        self.short_samples = ShortSamples()
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
        # The least recently used first.
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._maps: dict[int, list[MappedFile]] = {}
        # When the files of an open shard are to be looked at again.
        self._due: dict[int, float] = {}
        # Bytes of the open shards that are held in memory although the cache has them, and of each of them.
        self._held = 0
        self._held_sizes: dict[int, int] = {}
        self._needed: Collection[int] = ()
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
        """See :class:`~stoker.concurrency.forks.Forkable`."""
        # Futures and threads of the parent are not ours; its open readers are (the maps are shared).
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._coming: dict[int, Future[_Opened]] = {}
        # Small shards that were asked for ahead.
        self._window = AheadWindow()
        self._fetching: list[Future[None]] = []
        self.times = ReadTimes()

    @property
    def cache(self) -> ShardCache:
        """The cache of the first stream, and of the only one where there is one."""
        return self.caches[0]

    def cache_of(self, shard: int) -> ShardCache:
        """The cache that holds a shard."""
        return self.caches[self.index.part_of(shard) if isinstance(self.index, ConcatIndex) else 0]

    def get(self, shard: int) -> ShardReader:
        """The reader of a shard, fetched and opened first if need be.

        Raises:
            StokerError: it can not be fetched, or is corrupt twice over. Nothing waits longer than the storage's
                timeouts and the cache's stall time.
        """
        reader = self._open.get(shard)
        if reader is not None and self._due.get(shard, 0.0) > time.monotonic():
            try:  # noqa: SIM105 - suppress() takes longer than all else here
                self._open.move_to_end(shard)
            except KeyError:  # another thread has just dropped it
                pass
            return reader
        while True:
            with self._lock:
                reader = self._open.get(shard)
                if reader is not None and self._is_whole(shard):
                    self._open.move_to_end(shard)
                    return reader
                if self._window.waits(shard):
                    self._begin(self._window.demand(shard))
                coming = self._coming.get(shard)
                mine: Future[_Opened] = Future()
                if coming is None:
                    mine.set_running_or_notify_cancel()  # others wait for it: it can not be cancelled
                    self._coming[shard] = mine
            if coming is None:
                with span(Stage.OPEN), self.times.awaiting():
                    return self._load_for_all(shard, mine)
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

        Args:
            shards: their numbers.
            small_files: also those that are small files of this machine, whose reading another process does not spare.
        """
        window, small = self._window, self._small
        with self._lock:
            objects: dict[ShardCache, list[int]] = {}
            for shard in shards:
                if shard in self._open or shard in self._coming or window.waits(shard):
                    continue
                size = small.size(shard)
                if size is not None:
                    if small_files:
                        window.add(shard, size)
                elif small.is_object(shard):
                    objects.setdefault(self.cache_of(shard), []).append(shard)
                else:
                    self._begin(([shard],))
            self._begin(window.groups())
            for cache, chosen in objects.items():
                for first in range(0, len(chosen), SMALL_FILES_AT_ONCE):
                    self._begin_objects(cache, chosen[first : first + SMALL_FILES_AT_ONCE])

    def _begin_objects(self, cache: ShardCache, shards: list[int]) -> None:
        """Have small objects of a store fetched by as many threads, and opened by one. The lock is held."""
        group = ObjectGroup(
            shards,
            self.index.shards,
            cache,
            self.options,
            self.counts,
            load=lambda shard, repeated: self._load(shard, demanded=False, repeated=repeated),
            may_hold=lambda: self._held < SMALL_SHARDS_HELD,
            at_once=lambda: self.width.value,
        )
        future = self._threads.submit_each(range(len(shards)), group.fetch, partial(self._objects_loaded, group))
        self._coming.update(dict.fromkeys(shards, future))

    def fetch(self, shards: Iterable[int]) -> None:
        """Begin to bring shards into caches that other processes read, in this order: none is opened here.

        Those that an earlier call asked for are left out where they have not begun. Errors are not told: those who read the
        shards meet them.
        """
        for future in self._fetching:
            future.cancel()
        self._fetching = []
        size = 0
        for shard in shards:
            info, cache = self.index.shards[shard], self.cache_of(shard)
            size += info.size
            if size <= cache.for_others:
                self._fetching.append(self._threads.submit(partial(self._fetch_for_others, cache, info)))

    def _fetch_for_others(self, cache: ShardCache, info: ShardInfo) -> None:
        with span(Stage.FETCH, info.size, self.width.value):
            cache.fetch_for_others(info)

    def _begin(self, groups: Iterable[list[int]]) -> None:
        """Have groups of shards opened, each by one thread. The lock is held."""
        for group in groups:
            self._coming.update(dict.fromkeys(group, self._threads.submit(partial(self._load_ahead, group))))

    def _load_ahead(self, shards: Sequence[int]) -> _Opened:
        found: _Opened = {**self._open_small(shards)}
        for shard in shards:
            if shard in found:
                continue
            try:
                loaded = self._load(shard, demanded=False)
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
        small = [shard for shard in shards if self._small.size(shard) is not None]
        if not small:
            return {}
        with span(Stage.FETCH, at_once=self.width.value):
            found, size = self._small.open(small, self._threads.count)
        self.counts.opened(size, hit=True, shards=len(found))
        with self._lock:
            for shard, reader in found.items():
                self._coming.pop(shard, None)
                wanted = shard in self._window or shard in self._needed or not self._small.is_sample(shard)
                if wanted and shard not in self._open:
                    self._open[shard] = reader
                    self._due[shard] = math.inf  # nothing is mapped that could be cut
            self._trim(-1, 2 * len(found))
        return found

    def share(self, processes: int, readers: int = 0) -> None:
        """Say how many processes of this node read through the same caches, this one included.

        Args:
            processes: that fetch.
            readers: of each of them, further processes that read what it has fetched.
        """
        self.width.sharers = processes
        processes *= 1 + readers
        limits = [cache.settings.limit for cache in set(self.caches)]
        spare = spare_bytes(None if None in limits else sum(limit or 0 for limit in limits), processes)
        for cache in self.caches:
            cache.share(processes, spare)

    def ready(self, shards: Collection[int]) -> int:
        """The number of these shards that are open."""
        return len(self._open.keys() & shards)

    @contextlib.contextmanager
    def counted(self, shards: Ids, distinct: Collection[int]) -> Iterator[None]:
        """Count what is read inside as one step.

        Args:
            shards: the shard of each sample that is read.
            distinct: the different ones.
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
        """Note shards that another process, which reads for this one, has fetched."""
        if not shards:
            return
        with self._lock:
            if self.fetched is None:
                self.fetched = np.zeros(len(self.index), dtype=np.bool_)
            self.fetched[list(shards)] = True

    def expect(self, shards: Collection[int], at_once: int = 0) -> None:
        """Say which shards are needed soon, as a collection that may go on changing: these are kept open longest.

        Args:
            shards: their numbers. None for now: what was needed before is closed, where it takes memory.
            at_once: bytes of shards that are needed at the same time. So many are read ahead at least.
        """
        self._needed = shards
        if not shards:
            with self._lock:
                coming, self._coming = self._coming, {}
                self._window.reset(at_once)
                for shard in list(self._open):
                    if self._small.is_sample(shard) or not self.cache_of(shard).keeps:
                        self._close(shard)
            for future in coming.values():
                future.cancel()
            for cache in self.caches:
                cache.trim()

    def done_with(self, shard: int, *, close: bool = False) -> None:
        """Say that a shard is not needed soon. Where the cache is limited, or memory, its file may then go.

        Args:
            shard: its number.
            close: let go of it in any case.
        """
        future = self._coming.pop(shard, None)
        if future is not None:
            future.cancel()
        if shard in self._window:
            with self._lock:
                self._begin(self._window.done(shard))
        cache = self.cache_of(shard)
        beyond = len(self._open) > self.most_open or self._small.is_sample(shard)
        if close or cache.settings.limit is not None or not cache.keeps or beyond:
            with self._lock:
                self._close(shard)

    def check(self, shard: int) -> None:
        """Check that the files of a shard, if it is open, are whole: for those that read from a reader for long.

        Raises:
            CorruptDataError: one was cut.
        """
        if self._due.get(shard, 0.0) <= time.monotonic():
            with self._lock:
                check_mapped(self._maps.get(shard, ()))
                if shard in self._open:
                    self._due[shard] = time.monotonic() + _TRUSTED

    def _close(self, shard: int) -> None:
        self._open.pop(shard, None)
        self._maps.pop(shard, None)
        self._due.pop(shard, None)
        self._held -= self._held_sizes.pop(shard, 0)

    def _is_whole(self, shard: int) -> bool:
        """Whether no mapped file of an open shard was cut; if one was, the shard is closed."""
        try:
            check_mapped(self._maps.get(shard, ()))
        except CorruptDataError as error:
            logger.warning("%s; opening it again", error)
            self._close(shard)
            return False
        self._due[shard] = time.monotonic() + _TRUSTED
        return True

    def close(self) -> None:
        """Stop fetching ahead and drop all readers."""
        self._threads.close()
        self._window.reset()
        self._coming.clear()
        self._open.clear()
        self._maps.clear()
        self._due.clear()
        self._held_sizes.clear()
        self._held = 0
        for cache in self.caches:
            cache.close()

    def _load_for_all(self, shard: int, mine: Future[_Opened]) -> ShardReader:
        """Load a shard that nobody loads yet, for all threads that want it: each shard is opened once."""
        try:
            reader = self._open_small((shard,)).get(shard)
            if reader is None:
                loaded = self._load(shard, demanded=True)
                assert loaded is not None
                reader = self._keep([loaded], demanded=True)[0]
        except BaseException as error:
            self._arrived(shard, mine)  # the next reader tries anew
            mine.set_exception(error)
            raise
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
        if not demanded:
            for one in loaded:
                if one.seconds:
                    self.width.saw(one.seconds, one.work, one.size)
            self._threads.widen(self.width.value)
        readers = []
        trusted = time.monotonic() + _TRUSTED
        with self._lock:
            for one in loaded:
                shard, cache = one.shard, self.cache_of(one.shard)
                if one.fetched and cache.store is not None:  # not decompressed where it lies
                    if self.fetched is None:
                        self.fetched = np.zeros(len(self.index), dtype=np.bool_)
                    self.fetched[shard] = True
                if not demanded and shard not in self._needed and not cache.keeps:
                    readers.append(one.reader)  # nobody waits for it any more: its memory goes
                    continue
                kept = self._open.setdefault(shard, one.reader)
                if kept is one.reader:
                    self._maps[shard] = one.maps
                    self._due[shard] = trusted if one.maps else math.inf
                    self._held_sizes[shard] = one.held
                    self._held += one.held
                self._open.move_to_end(shard)
                readers.append(kept)
            if loaded:
                self._trim(loaded[-1].shard, max(_LOOKED_AT, 2 * len(loaded)))
        return readers

    def _trim(self, newest: int, looked_at: int = _LOOKED_AT) -> None:
        """Drop readers beyond the limit. Those that are needed soon only go where the process can not map more."""
        for _ in range(looked_at):
            if len(self._open) <= self.most_open or len(self._open) <= len(self._needed) < most_maps():
                return
            number, reader = self._open.popitem(last=False)
            if number == newest or (number in self._needed and len(self._open) < most_maps()):
                self._open[number] = reader
            else:
                self._close(number)

    def _load(self, shard: int, *, demanded: bool, repeated: bool = False) -> Loaded | None:
        """Open a shard, fetched first if need be. ``None`` where nobody demands it, and it is not to be had now.

        Where that is ``repeated``, a corrupt one is not fetched again.
        """
        info, cache = self.index.shards[shard], self.cache_of(shard)
        far = cache.store is not None
        is_small = cache.is_small(info) and (self._held < SMALL_SHARDS_HELD or not cache.keeps)
        begun, work = (time.perf_counter(), time.thread_time()) if far else (0.0, 0.0)
        for attempt in (2,) if repeated else (1, 2):
            files = cache.open(info)
            cut = files is None and self.reads_cut
            if cut:
                files = cache.open_cut(info)
            fetched = files is None
            if files is not None and not demanded:
                cache.read_ahead(files)
            if files is None:
                # An evictor may take the file between fetching and opening it; then it is fetched again.
                for _ in range(100):
                    with span(Stage.FETCH, info.size, self.width.value):
                        if is_small and (small := cache.fetch_small(info)) is not None:
                            files = [small]
                            break
                        if not self._fetch(info, cache, demanded=demanded):
                            return None
                    files = cache.open(info)
                    if files is not None:
                        break
                else:
                    raise ObjectNotFoundError(
                        f"{cache.describe(info)} disappears as often as it is fetched: is another process removing it?"
                    )
            try:
                if not fetched:
                    cache.validate(info, files)
                form, where = get_format(info.format), cache.describe(info)
                if not demanded and not fetched:
                    for file in files:
                        if isinstance(file, MappedFile):
                            file.await_headers(first=form.single)
                opened = open_files(form, info, files, where, self.options, cut=cut)
                if not demanded:
                    form.read_ahead(opened)
                took = (time.perf_counter() - begun, time.thread_time() - work) if fetched and far else (0.0, 0.0)
                held = far and cache.keeps
                return Loaded.of(shard, info, opened, files, fetched=fetched, held=held, took=took)
            except DatasetChangedError:
                raise
            except CorruptDataError as error:
                del files
                if attempt == 2 or not cache.discard(info):
                    raise
                self.counts.add(Count.RETRIES, 1)
                logger.warning("%s; fetching it again", error)
        raise AssertionError("unreachable")

    def _fetch(self, info: ShardInfo, cache: ShardCache, *, demanded: bool) -> bool:
        if demanded and cache.settings.limit is not None:
            if cache.fetch(info, if_full="evict"):
                return True
            # What we have open can not be evicted.
            with self._lock:
                for number in list(self._open):
                    if number not in self._needed and self.cache_of(number).root == cache.root:
                        self._close(number)
        return cache.fetch(info, wait=demanded, if_full="exceed" if demanded else "evict")
