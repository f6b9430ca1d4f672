"""Loads one shard: fetched if need be, opened, and once more where it is corrupt; and says which readers stay open."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from stoker.cache.base import ShardCache
from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import CorruptDataError, DatasetChangedError, ObjectNotFoundError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.format import Format
from stoker.formats.registry import get_format
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.policy import most_maps
from stoker.reading.fetch_width import FetchWidth
from stoker.storage.files.mapped import MappedFile, check_mapped
from stoker.types import Buffer


class LoadingPool(Protocol):
    """The pool of a shard that is loaded, as far as it decides how: a :class:`~stoker.reading.shard_pool.ShardPool`."""

    index: Index | ConcatIndex
    options: ReadOptions
    counts: Counts
    width: FetchWidth
    reads_cut: bool

    def cache_of(self, shard: int) -> ShardCache: ...
    def may_hold(self) -> bool: ...
    def make_room(self, cache: ShardCache) -> None: ...


class Loaded(NamedTuple):
    """A shard that was fetched, if need be, and opened, and is to be kept open.

    Attributes:
        maps: maps of its files.
        fetched: whether it was not in the cache.
        counted: those of them that were opened now.
        held: bytes that are held in memory although the cache has them.
        seconds: that fetching it took; 0 where nothing was fetched from a store.
        work: seconds of them in which a thread of this process computed.
    """

    shard: int
    reader: ShardReader
    maps: list[MappedFile]
    fetched: bool
    size: int
    counted: int
    held: int
    seconds: float
    work: float

    @classmethod
    def of(
        cls,
        shard: int,
        info: ShardInfo,
        reader: ShardReader,
        files: Sequence[Buffer],
        *,
        fetched: bool,
        held: bool,
        took: tuple[float, float] = (0.0, 0.0),
    ) -> Loaded:
        """A shard of which these files were opened; ``held`` says whether the cache has what is not mapped, too."""
        maps = [file for file in files if isinstance(file, MappedFile)]
        size = info.size
        counted = 0 if info.detail is not None and _is_left_in_store(info) else size
        return cls(shard, reader, maps, fetched, size, counted, size if held and not maps else 0, *took)


def _is_left_in_store(info: ShardInfo) -> bool:
    """Whether a handle reads what it needs of a shard's file, which is not fetched."""
    if info.raw:
        return False
    from stoker.formats.media.source import StoredFile

    return isinstance(info.detail, StoredFile)


def open_files(
    form: Format, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions, *, cut: bool = False
) -> ShardReader:
    """Open a shard's files, and compare the checksums in them where that is asked for.

    CorruptDataError if they are not what the index describes.
    """
    opened = (form.open_cut if cut else form.open)(info, files, where=where, options=options)
    if options.checksums and files:  # rows of tables have no files here
        for row, message in form.bad_checksums(info, files[0], where):
            raise CorruptDataError(f"{where}: {'' if row is None else f'row {row}: '}{message}")
    return opened


logger = logging.getLogger(__name__)


def load_shard(pool: LoadingPool, shard: int, *, demanded: bool, repeated: bool = False) -> Loaded | None:
    """Open a shard, fetched first if need be. ``None`` where nobody demands it, and it is not to be had now.

    StokerError if it can not be fetched, or is corrupt twice over.

    Args:
        demanded: whether somebody waits for it; otherwise it is read ahead.
        repeated: whether it came once, and was corrupt: then it is not fetched again.
    """
    info, cache = pool.index.shards[shard], pool.cache_of(shard)
    far = cache.store is not None
    is_small = far and cache.is_small(info) and (not cache.keeps or pool.may_hold())
    begun, work = (time.perf_counter(), time.thread_time()) if far else (0.0, 0.0)
    for attempt in (2,) if repeated else (1, 2):
        files = cache.open(info)
        may_be_cut = files is None and pool.reads_cut
        if may_be_cut:
            files = cache.open_cut(info)
        fetched = files is None
        if files is None:
            files = _fetched_files(pool, info, cache, is_small=is_small, demanded=demanded)
            if files is None:
                return None
        elif not demanded:
            cache.read_ahead(files)
        try:
            if not fetched:
                cache.validate(info, files)
            form, where = get_format(info.format), cache.describe(info)
            if not demanded and not fetched:
                for file in files:
                    if isinstance(file, MappedFile):
                        file.await_headers(first=form.single)
            opened = open_files(form, info, files, where, pool.options, cut=may_be_cut and not fetched)
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
            pool.counts.add(Count.RETRIES, 1)
            logger.warning("%s; fetching it again", error)
    raise AssertionError("unreachable")


def _fetched_files(
    pool: LoadingPool, info: ShardInfo, cache: ShardCache, *, is_small: bool, demanded: bool
) -> list[Buffer] | None:
    """The files of a shard that the cache has not; ``None`` where nobody demands it, and it is not to be had now."""
    with cache.held(info):
        for _ in range(100):  # another program may remove it, or an evictor that saw it before it was held
            with span(Stage.FETCH, info.size, pool.width.value):
                if is_small and (small := cache.fetch_small(info)) is not None:
                    return [small]
                if not _fetch(pool, info, cache, demanded=demanded):
                    return None
            files = cache.open(info)
            if files is not None:
                return files
    raise ObjectNotFoundError(
        f"{cache.describe(info)} disappears as often as it is fetched: is another process removing it?"
    )


def _fetch(pool: LoadingPool, info: ShardInfo, cache: ShardCache, *, demanded: bool) -> bool:
    if demanded and cache.settings.limit is not None:
        if cache.fetch(info, if_full="evict"):
            return True
        pool.make_room(cache)
    return cache.fetch(info, wait=demanded, if_full="exceed" if demanded else "evict")


# Seconds for which a mapped file that was found whole is taken to be so.
_TRUSTED: Final = 0.05
# Readers that one opening looks at for some to drop, so that it costs the same however many are open.
_LOOKED_AT: Final = 16
# Uses that are noted until the next opening; earlier ones are forgotten.
_NOTED: Final = 1 << 12


class OpenReaders:
    """Readers by shard number, the least recently used first. Its user holds a lock around each method.

    Without it, a reader may be looked up, and :attr:`used` added to: an ``OrderedDict`` that two threads change at once is
    damaged where Python has no lock of its own.

    Attributes:
        readers: the readers, in the order of their use but for what :attr:`used` tells.
        used: shards that were used since the last opening, in that order.
        due: when the files of each open shard are to be looked at again, by ``time.monotonic``.
        needed: shards that are needed soon, as a collection that may go on changing: these are kept longest.
        held_sizes: bytes of each open shard that is held in memory although the cache has it.
        held: the sum of them.
    """

    def __init__(self) -> None:
        self.readers: OrderedDict[int, ShardReader] = OrderedDict()
        self.used: deque[int] = deque(maxlen=_NOTED)
        self.due: dict[int, float] = {}
        self.needed: Collection[int] = ()
        self.held = 0
        self.held_sizes: dict[int, int] = {}
        self._maps: dict[int, list[MappedFile]] = {}

    def whole(self, shard: int) -> ShardReader | None:
        """The reader of a shard, if it is open and no file that it maps was cut; if one was, the shard is closed."""
        reader = self.readers.get(shard)
        if reader is None:
            return None
        try:
            check_mapped(self._maps.get(shard, ()))
        except CorruptDataError as error:
            logger.warning("%s; opening it again", error)
            self.close(shard)
            return None
        self.due[shard] = time.monotonic() + _TRUSTED
        self.used.append(shard)
        return reader

    def check(self, shard: int) -> None:
        """Check that the files of a shard, if it is open, are whole. CorruptDataError if one was cut."""
        check_mapped(self._maps.get(shard, ()))
        if shard in self.readers:
            self.due[shard] = time.monotonic() + _TRUSTED

    def keep(self, loaded: Loaded) -> ShardReader:
        """Keep the reader of a shard that was loaded; the one that is there, where another thread was faster."""
        shard = loaded.shard
        kept = self.readers.setdefault(shard, loaded.reader)
        if kept is loaded.reader:
            self._maps[shard] = loaded.maps
            self.due[shard] = time.monotonic() + _TRUSTED if loaded.maps else math.inf
            if loaded.held:
                self.held_sizes[shard] = loaded.held
                self.held += loaded.held
        self.used.append(shard)
        return kept

    def keep_unmapped(self, shard: int, reader: ShardReader) -> None:
        """Keep the reader of a shard that is not open, whose bytes are its own: nothing is mapped that could be cut."""
        self.readers[shard] = reader
        self.due[shard] = math.inf
        self.used.append(shard)

    def trim(self, most_open: int, newest: int, opened: int) -> None:
        """Drop readers beyond a number. Those that are needed soon only go where the process can not map more.

        ``most_open``: the number. ``newest``: a shard that stays. ``opened``: how many were opened, which is how many more
        there may be.
        """
        for _ in range(len(self.used)):
            shard = self.used.popleft()
            if shard in self.readers:
                self.readers.move_to_end(shard)
        for _ in range(max(_LOOKED_AT, 2 * opened)):
            if len(self.readers) <= most_open or len(self.readers) <= len(self.needed) < most_maps():
                return
            number, reader = self.readers.popitem(last=False)
            if number == newest or (number in self.needed and len(self.readers) < most_maps()):
                self.readers[number] = reader
            else:
                self.close(number)

    def close(self, shard: int) -> None:
        """Drop the reader of a shard, if it is open. What still uses it can: its file stays mapped until the last does."""
        self.readers.pop(shard, None)
        self._maps.pop(shard, None)
        self.due.pop(shard, None)
        self.held -= self.held_sizes.pop(shard, 0)

    def clear(self) -> None:
        """Drop all readers."""
        for one in (self.readers, self.due, self._maps, self.held_sizes):
            one.clear()
        self.held = 0
