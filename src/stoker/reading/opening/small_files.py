"""Small shards, opened in groups: files of this machine, and objects of a store.

A shard that is one small file is read whole, not mapped: a map costs page faults, and a process can have only so many. What
is read takes memory of the process, so only so many bytes are read before they are needed; the rest waits its turn.

Of small objects each is requested by a thread of its own, and one thread does all the rest. A request of an object of 100 kB
takes some 100 µs of the processor, and what else there is to do for it, in a thread among a hundred that take turns, would
take as much again: each meets caches of the processor that others have filled, and waits for Python's lock wherever it lets
go of it. One thread does that for a whole group in a third of the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from stoker.cache.base import ShardCache
from stoker.cache.small_files import SmallFileReader, small_bytes
from stoker.concurrency.shared.counters import Count
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import CorruptDataError, DatasetChangedError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.registry import get_format
from stoker.index.columnar_shards import ColumnarShards, LazyShards, shard_bytes
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.policy import (
    READ_WHOLE,
    SMALL_BYTES_AHEAD,
    SMALL_BYTES_AT_ONCE,
    SMALL_FILE,
    SMALL_FILES_AT_ONCE,
    SMALL_OBJECT,
    small_files_open,
)
from stoker.reading.opening.load_shard import Loaded, LoadingPool, load_shard, open_files
from stoker.storage.types import Arrival
from stoker.types import Buffer

if TYPE_CHECKING:  # of files that are a sample each alone
    from stoker.formats.one_file import FileKind
    from stoker.index.file_index import FileShards

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Loaded | Exception | None
"""A shard, or its error, or ``None``: it is not to be had now, as another process is fetching it."""

_Requested: TypeAlias = tuple[Arrival | Exception, float, float]
"""The answer to a request, the seconds that it took, and those of them in which the thread computed."""


class ObjectGroup:
    """Shards of one cache of a pool that are small objects of its store, and are loaded together."""

    def __init__(self, pool: LoadingPool, cache: ShardCache, shards: Sequence[int]) -> None:
        self.shards = shards
        self._pool, self._cache = pool, cache
        self._lock = threading.Lock()
        self._infos: list[ShardInfo] = []
        self._claimed: Sequence[bool] | Exception | None = None

    def _claim(self) -> Sequence[bool] | Exception:
        """Whether each shard is to be requested: claimed for all of them by the first thread, when its turn has come."""
        with self._lock:
            if self._claimed is None:
                self._infos = infos = [self._pool.index.shards[shard] for shard in self.shards]
                small = [self._cache.is_small(info) for info in infos]
                try:
                    mine = iter(self._cache.claim_small([info for info, one in zip(infos, small, strict=True) if one]))
                    self._claimed = [one and next(mine) for one in small]
                except Exception as error:  # noqa: BLE001 - raised where a shard is asked for
                    self._claimed = error
            return self._claimed

    def fetch(self, number: int) -> tuple[int, _Requested | Outcome]:
        """Have the shard of a number in this group fetched; called by many threads."""
        claimed = self._claimed
        if claimed is None:
            claimed = self._claim()
        if isinstance(claimed, Exception):
            return number, claimed
        if not claimed[number]:
            return number, self._load_alone(self.shards[number])
        begun, work = time.perf_counter(), time.thread_time()
        info = self._infos[number]
        with span(Stage.FETCH, info.raw[0].bytes, self._pool.width.value):
            answer = self._cache.try_request(info)
        return number, (answer, time.perf_counter() - begun, time.thread_time() - work)

    def finish(self, fetched: Sequence[tuple[int, _Requested | Outcome]]) -> list[tuple[int, Outcome]]:
        """Open the shards that :meth:`fetch` gave these results for; shard and outcome of each."""
        found: list[tuple[int, Outcome]] = []
        requested: dict[int, _Requested] = {}
        for number, one in fetched:
            if isinstance(one, tuple) and not isinstance(one, Loaded):
                requested[number] = one
            else:
                found.append((self.shards[number], one))
        claimed = self._claimed
        if claimed is None or isinstance(claimed, Exception):
            return found
        work = time.thread_time()
        chosen = [number for number, mine in enumerate(claimed) if mine]
        infos = [self._infos[number] for number in chosen]
        answers = [requested[number][0] if number in requested else None for number in chosen]
        taken = self._cache.take_small(infos, answers)
        if not taken:
            return found
        work = (time.thread_time() - work) / len(taken)
        for number, info, data in zip(chosen, infos, taken, strict=True):
            if isinstance(data, Exception):
                found.append((self.shards[number], data))
            elif data is not None:
                _, seconds, mine = requested[number]
                found.append((self.shards[number], self._opened(self.shards[number], info, data, seconds, mine + work)))
        return found

    def _opened(self, shard: int, info: ShardInfo, data: Buffer, seconds: float, work: float) -> Outcome:
        cache = self._cache
        if cache.keeps and not self._pool.may_hold():
            return self._load_alone(shard)
        form = get_format(info.format)
        try:
            reader = open_files(form, info, [data], cache.describe(info), self._pool.options)
            form.read_ahead(reader)
        except CorruptDataError as error:
            if isinstance(error, DatasetChangedError) or not cache.discard(info):
                return error
            self._pool.counts.add(Count.RETRIES, 1)
            logger.warning("%s; fetching it again", error)
            return self._load_alone(shard, repeated=True)
        except Exception as error:  # noqa: BLE001 - raised where the shard is asked for
            return error
        return Loaded.of(shard, info, reader, [data], fetched=True, held=cache.keeps, took=(seconds, work))

    def _load_alone(self, shard: int, *, repeated: bool = False) -> Outcome:
        try:
            return load_shard(self._pool, shard, demanded=False, repeated=repeated)
        except Exception as error:  # noqa: BLE001 - raised where the shard is asked for
            return error


class SmallShards:
    """Shards of this machine that are one small file each.

    ``index``: the shards; of several streams, those of all of them. ``caches``: where the files of each stream are.
    ``first_object``: bytes of the first shard, where it is fetched from a store; otherwise more than a small one has.
    """

    def __init__(self, index: Index | ConcatIndex, caches: Sequence[ShardCache], options: ReadOptions) -> None:
        self._index = index
        parts = index.parts if isinstance(index, ConcatIndex) else (index,)
        firsts = index.offsets.tolist() if isinstance(index, ConcatIndex) else (0,)
        given = zip(parts, caches, firsts, strict=False)
        self.streams = [SmallStream(part, cache, first, options) for part, cache, first in given]
        shards, far = self.streams[0].shards, self.streams[0].far
        self.first_object = shard_bytes(shards, 0) if far and len(shards) else SMALL_FILE

    def stream_of(self, shard: int) -> SmallStream:
        """The stream of a shard."""
        return self.streams[self._index.part_of(shard) if isinstance(self._index, ConcatIndex) else 0]

    def open(self, shards: Sequence[int], threads: int) -> tuple[dict[int, ShardReader], int]:
        """Open those of some small shards that pass all checks.

        ``threads``: how many threads of this process do so at the same time. Gives their readers, and the bytes of all of
        them. The others are to be opened alone, which says what is wrong.
        """
        groups: dict[SmallStream, list[int]] = {}
        for shard in shards:
            groups.setdefault(self.stream_of(shard), []).append(shard)
        found: dict[int, ShardReader] = {}
        size, at_once = 0, small_files_open(threads)
        for stream, group in groups.items():
            for shard, data, reader in stream.open(group, at_once):
                found[shard] = reader
                size += len(data)
        return found, size


class SmallStream:
    """The small shards of one stream.

    Attributes:
        first: number of its first shard among those of all streams.
        files: the shards, where each is a file that is a sample: nothing of it is left to be read once it was.
        most: bytes of the largest small shard; 0 where none is opened here.
        parts: whether shards may be parts of files.
        far: whether they are fetched from a store into a cache without a limit, in which what is open is never to be closed.
    """

    __slots__ = ("_cache", "_kind", "_options", "far", "files", "first", "most", "parts", "shards")

    def __init__(self, index: Index, cache: ShardCache, first: int, options: ReadOptions) -> None:
        self.shards = index.shards
        self.first = first
        self.files = _listed(index.shards)
        here = cache.small_files is not None and not options.checksums
        self.most = 0 if not here else READ_WHOLE if self.files is None else SMALL_FILE
        first_files = () if isinstance(index.shards, LazyShards) or not index.shards else index.shards[0].raw
        self.parts = bool(first_files) and first_files[0].part is not None
        self.far = cache.store is not None and cache.settings.limit is None
        self._kind: FileKind | None = None
        if self.files is not None:
            from stoker.formats.one_file import FileKind

            self._kind = FileKind.of(self.files.format, self.files.spec, options)
        self._cache = cache
        self._options = options

    def size(self, shard: int) -> int | None:
        """Bytes of a small shard; ``None`` for others."""
        if not self.most:
            return None
        if self.parts:
            return small_bytes(self.shards[shard - self.first])
        size = shard_bytes(self.shards, shard - self.first)
        return size if size <= self.most else None

    def is_object(self, shard: int) -> bool:
        """Return whether a shard that is fetched may be one small object of a store: the cache tells when it is."""
        return shard_bytes(self.shards, shard - self.first) <= SMALL_OBJECT

    def open(self, shards: Sequence[int], at_once: int) -> Iterator[tuple[int, bytes, ShardReader]]:
        """Read and open shards; those that fail are left out, and raise their error where they are asked for."""
        reader = self._cache.small_files
        if reader is None:
            return iter(())
        if self.files is not None and self._kind is not None:
            return self._open_files(reader, self.files, self._kind, shards, at_once)
        return self._open_shards(reader, shards, at_once)

    def _open_files(
        self, reader: SmallFileReader, files: FileShards, kind: FileKind, shards: Sequence[int], at_once: int
    ) -> Iterator[tuple[int, bytes, ShardReader]]:
        from stoker.formats.one_file import FileShard

        first, folder = self.first, reader.folder
        for number, path, data in reader.read_listed(files, [shard - first for shard in shards], at_once):
            try:
                yield first + number, data, FileShard(kind, data, path, f"{folder}/{path}")
            except CorruptDataError:  # is raised again where the shard is asked for
                continue

    def _open_shards(
        self, reader: SmallFileReader, shards: Sequence[int], at_once: int
    ) -> Iterator[tuple[int, bytes, ShardReader]]:
        cache = self._cache
        infos = [self.shards[shard - self.first] for shard in shards]
        for shard, info, data in zip(shards, infos, reader.read_shards(infos, at_once), strict=True):
            if data is None:
                continue
            form = get_format(info.format)
            try:
                cache.validate(info, [data])
                opened = form.open(info, [data], where=cache.describe(info), options=self._options)
                form.read_ahead(opened)
            except Exception:  # noqa: BLE001, S112 - is raised again where the shard is asked for
                continue
            yield shard, data, opened


def _listed(shards: Sequence[ShardInfo]) -> FileShards | None:
    if not isinstance(shards, LazyShards) or isinstance(shards, ColumnarShards):
        return None
    from stoker.index.file_index import FileShards

    return shards if isinstance(shards, FileShards) else None


class AheadWindow:
    """Small shards that are wanted, in order, and those of them whose bytes are read ahead. Not thread-safe.

    ``limit``: bytes that are read ahead at most. ``waiting``: bytes of each shard whose reading has not begun, for want of
    room.
    """

    def __init__(self) -> None:
        self.limit = SMALL_BYTES_AHEAD
        self.waiting: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._bytes = 0

    def __contains__(self, shard: object) -> bool:
        return shard in self._begun or shard in self.waiting

    def add(self, shard: int, size: int) -> None:
        """Add a shard that is wanted after all others."""
        self.waiting[shard] = size

    def groups(self) -> Iterator[list[int]]:
        """Groups of shards that there is room for: reading them is said to begin."""
        while self.waiting:
            group: list[int] = []
            size = 0
            for shard, more in islice(self.waiting.items(), SMALL_FILES_AT_ONCE):
                if group and size + more > SMALL_BYTES_AT_ONCE:
                    break
                group.append(shard)
                size += more
            if self._bytes and self._bytes + size > self.limit:
                return
            for shard in group:
                self._begun[shard] = self.waiting.pop(shard)
            self._bytes += size
            yield group

    def demand(self, shard: int) -> Iterator[list[int]]:
        """Groups as of :meth:`groups`, with room made for a shard that waits: more is asked for at once than fits."""
        while shard in self.waiting:
            self.limit *= 2
            yield from self.groups()

    def done(self, shard: int) -> Iterator[list[int]]:
        """Groups as of :meth:`groups`, once a shard is not wanted any more."""
        self.waiting.pop(shard, None)
        self._bytes -= self._begun.pop(shard, 0)
        return self.groups()

    def reset(self, least: int = 0) -> None:
        """Forget all shards. ``least``: bytes that there must be room for."""
        self.limit = max(SMALL_BYTES_AHEAD, least)
        self.waiting.clear()
        self._begun.clear()
        self._bytes = 0
