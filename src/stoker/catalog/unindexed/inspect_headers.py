"""Headers of many files, read side by side from the store, or from all of a file where a format needs that.

Of some formats the members of a file each tell where the next one is: where members are large, only heads are read. How
large depends on the store: a step takes a request, and in the time of one a near store gives 100 KB of a file that is fetched
whole, a distant one 1 MB, and a disk 10 KB. So steps are timed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.cache.base import ShardCache
from stoker.catalog.unindexed.find_files import HEADERS_AT_ONCE, SourceFiles, read_listed
from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError
from stoker.formats.base import ShardInfo
from stoker.formats.common.compression import codec_of
from stoker.formats.common.file_shards import UnindexedFile, file_mark, packed_file, whole_file
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, MappedSource, Partition, check_range
from stoker.formats.format import Format
from stoker.policy import READ_WHOLE
from stoker.storage import ObjectInfo, Store, is_local
from stoker.storage.files.part_files import unlink
from stoker.storage.transfer import side_by_side
from stoker.types import Ids

logger = logging.getLogger(__name__)

LOCAL_BLOCK: Final = 1 << 12
"""Bytes that are read of a local file for a head: as many as the kernel reads anyway."""
# What a request brings: a head, and small members behind it. See benchmarks/header_bytes.py.
_STEP_BLOCK: Final = 1 << 14
# Steps are to be longer than so many blocks, so that at most a quarter of the bytes is fetched.
_BLOCKS: Final = 4
# Bytes a second that one connection brings of a file that is fetched whole: where steps go on slower, that is better.
_RATE: Final = 50e6
# Requests before steps are judged, for the first members may be other than the rest.
_TRIAL: Final = 8

_BLOCK: Final = 1 << 16
_HELD: Final = 8
_MOST_NAMED: Final = 5
_WHOLE: Final = np.zeros((0, 3), dtype=np.int64)


class ShortStepsError(Exception):
    """Heads lie so close that it is better to have all of the file."""


class HeaderWalk:
    """Sources for the files of one dataset. Once the heads of one lie too close, the others are not tried."""

    def __init__(self, store: Store) -> None:
        local = is_local(store.url) is not None
        self.block = LOCAL_BLOCK if local else _STEP_BLOCK
        self._least = READ_WHOLE if local else _TRIAL * _BLOCKS * _STEP_BLOCK
        self.short = threading.Event()

    def worth_trying(self, size: int) -> bool:
        """Whether reading the headers of a file of ``size`` bytes in steps may cost less than to fetch it whole."""
        return not self.short.is_set() and size > self._least


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that can not be read. ``key``: the file. ``problem``: what is wrong with it."""

    key: str
    problem: str


class HeaderReader:
    """Reads headers of the files of one dataset.

    ``partitions``: what the folders of each file tell, by its key. ``fetched``: maps files where all of a file is read;
    ``None`` to read no more of a file than its header.
    """

    def __init__(
        self,
        reader: Format,
        store: Store,
        settings: Mapping[str, Any],
        partitions: Mapping[str, Partition] | None = None,
        fetched: FetchedFiles | None = None,
    ) -> None:
        self._reader = reader
        self._store = store
        self._settings = settings
        self._partitions = partitions or {}
        self._fetched = fetched
        self._walk = HeaderWalk(store)

    def know_all(self, found: SourceFiles, known: Mapping[str, UnindexedFile]) -> bool:
        """Whether no file need be opened, as all are known and the same."""
        return self._reader.single or all(
            _unchanged(known.get(file.key), file, found.beside.get(file.key, ())) for file in found.files
        )

    def read_all(
        self, found: SourceFiles, known: Mapping[str, UnindexedFile], *, skip_bad: bool = False
    ) -> tuple[list[UnindexedFile], list[BadFile]]:
        """Facts of all files, in their order, and the files that can not be read.

        Args:
            known: what is known of files, by key. Those that are still the same are not opened again.
            skip_bad: leave files out that are damaged or of another format, instead of raising that.

        Raises:
            CorruptDataError, FormatError: a file is damaged, or needs what is not supported; names it.
            ConfigError: the settings do not fit a file.
            StorageError: a file can not be read.
        """
        if self._reader.single:
            spec = self._reader.inspect_names([file.key for file in found.files], self._settings)
            before = next((one.spec for one in known.values()), None)
            known, spec = (known, before) if before == spec else ({}, spec)
            files = [_unchanged(known.get(file.key), file, ()) for file in found.files]
            return [
                one or UnindexedFile(file, 1, spec, _WHOLE) for one, file in zip(files, found.files, strict=True)
            ], []
        outcomes: list[UnindexedFile | BadFile | None] = [
            _unchanged(known.get(file.key), file, found.beside.get(file.key, ())) for file in found.files
        ]
        missing = [number for number, one in enumerate(outcomes) if one is None]
        work = [
            partial(self.read, file, found.beside.get(file.key, ()), skip_bad=skip_bad)
            for file in map(found.files.__getitem__, missing)
        ]
        for number, outcome in zip(missing, side_by_side(work, HEADERS_AT_ONCE, "headers"), strict=True):
            outcomes[number] = outcome
        bad = [one for one in outcomes if isinstance(one, BadFile)]
        if bad:
            logger.warning(
                "%d of %d %s files are left out, because they can not be read: %s",
                len(bad),
                len(outcomes),
                self._reader.name,
                "; ".join(f"{one.key}: {one.problem}" for one in bad[:_MOST_NAMED])
                + ("; ..." if len(bad) > _MOST_NAMED else ""),
            )
        return [one for one in outcomes if isinstance(one, UnindexedFile)], bad

    def read(
        self, file: ObjectInfo, beside: tuple[ObjectInfo, ...] = (), *, skip_bad: bool = False
    ) -> UnindexedFile | BadFile:
        """Read the facts of a file. With ``skip_bad``, a file that can not be read gives the reason; see :meth:`read_all`."""
        where = self._store.url_of(file.key)
        if file.size < 0:  # which nobody has asked for yet
            file = self._store.head(file.key)
        try:
            facts, unpacked = self._inspect(file, where)
        except FormatError as error:
            problem = str(error).removeprefix(f"{where}: ")
            if skip_bad:
                return BadFile(file.key, problem)
            raise type(error)(
                f"{_named(problem, where)}. Mend or remove the file, or leave it out with "
                'format_options={"on_bad_files": "skip"}'
            ) from error
        except ConfigError as error:
            raise ConfigError(_named(str(error), where)) from error
        return UnindexedFile(file, facts.samples, facts.spec, span_array(facts), beside, unpacked)

    def _inspect(self, file: ObjectInfo, where: str) -> tuple[HeaderFacts, int | None]:
        """A file's header, and of a compressed file the bytes of what comes out of it."""
        reader, fetched, settings = self._reader, self._fetched, self._settings
        if reader.row_groups:
            settings = {**settings, "partition": dict(self._partitions.get(file.key, ()))}
        codec = codec_of(file.key) if reader.packed else None
        if fetched is None or reader.row_groups or not (reader.whole or codec is not None):
            with self._store.opened_ranges(file.key) as read:
                return _header(reader, StoreSource(self._store, file.key, file.size, where, read), settings), None
        source: ByteSource | None = None
        if reader.steps and codec is None and self._walk.worth_trying(file.size):
            with contextlib.suppress(ShortStepsError), self._store.opened_ranges(file.key) as read:
                source = WalkedSource(self._walk, self._store, file.key, file.size, where, read)
                return _header(reader, source, settings), None
        unpacked = None
        try:
            source = MappedSource(fetched.open(reader.name, file, codec), where)
            if codec is not None:
                unpacked = source.size
                if "piece_bytes" in reader.settings:  # a reader of a part of it has all of it fetched
                    settings = {"piece_bytes": max(1, unpacked), **settings}
            return _header(reader, source, settings), unpacked
        finally:
            del source
            fetched.let_go(file, unpacked)


def _unchanged(old: UnindexedFile | None, file: ObjectInfo, beside: tuple[ObjectInfo, ...]) -> UnindexedFile | None:
    """The recorded facts of a file, if it and the files that belong to it are unchanged."""
    if old is None:
        return None
    if not beside and not old.beside and (old.file.size, old.file.version) == (file.size, file.version):
        return old  # as nearly all are
    return old if old.mark == tuple(map(file_mark, (file, *beside))) else None


def _header(reader: Format, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
    try:
        return reader.inspect_header(source, settings)
    except (ConfigError, FormatError):
        raise
    except ValueError as error:  # of another package's format
        raise CorruptDataError(f"{source.where}: {error}") from error


def _named(message: str, where: str) -> str:
    return message if where in message else f"{where}: {message}"


def span_array(facts: HeaderFacts) -> Ids:
    """The shards that a file is read as; see :class:`~stoker.formats.common.file_shards.UnindexedFile`."""
    if isinstance(facts.spans, np.ndarray):
        return facts.spans
    return np.array(facts.spans, dtype=np.int64).reshape(-1, 3) if facts.spans else _WHOLE


class FetchedFiles:
    """Files that are mapped whole to see what they hold: where they lie, or in the cache, as far as it may be filled."""

    def __init__(self, cache: ShardCache, limit: int | None, *, in_place: bool) -> None:
        self.in_place = in_place
        self._cache = cache
        self._left = limit
        self._fresh: set[str] = set()
        self._lock = threading.Lock()

    def open(self, name: str, file: ObjectInfo, codec: str | None = None) -> Any:
        """All of a file, or of what comes out of a compressed one."""
        if codec is None:
            info = ShardInfo(name, 0, (whole_file(file, in_place=self.in_place),), (), None, {})
        else:
            raw, packed = packed_file(file)
            info = ShardInfo(name, 0, (raw,), (packed,), codec, {})
        with self._cache.held(info):
            for _ in range(100):
                data = self._cache.open(info)
                if data is not None:
                    return data[0]
                self._cache.fetch(info)
                self._fresh.add(file.key)
        raise CorruptDataError(
            f"{self._cache.describe(info)} disappears as often as it is fetched: is another process removing it?"
        )

    def let_go(self, file: ObjectInfo, unpacked: int | None = None) -> None:
        """Remove a file that was fetched here from the cache, if there is no room for it.

        ``unpacked``: of a compressed one, bytes of what came out of it.
        """
        if self._left is None or file.key not in self._fresh:
            return
        with self._lock:
            size = file.size if unpacked is None else unpacked
            if stays := size <= self._left:
                self._left -= size
        if not stays:
            name = packed_file(file)[0] if unpacked is not None else whole_file(file, in_place=False)
            unlink(self._cache.root / name.basename)


class StoreSource:
    """A file of a store, of which a few blocks are kept: headers are read in small pieces that lie close.

    ``read``: gives bytes ``[start, end)`` of it, where it is open already.
    """

    def __init__(
        self, store: Store, key: str, size: int, where: str, read: Callable[[int, int], bytes] | None = None
    ) -> None:
        self.where = where
        self.size = size
        self._store = store
        self._key = key
        self._range = read or partial(store.get_range, key)
        self._block = _BLOCK if is_local(store.url) is None else READ_WHOLE if size <= READ_WHOLE else LOCAL_BLOCK
        self._blocks: deque[tuple[int, bytes]] = deque(maxlen=_HELD)

    def read(self, start: int, end: int) -> bytes:
        """See :class:`~stoker.formats.common.inspect_header.ByteSource`."""
        check_range(self, start, end)
        if end - start > self._block:  # of a file that is read through, or a large header, whose end may be there
            held = next((one for one in self._blocks if one[0] < end <= one[0] + len(one[1])), (end, b""))
            return self._fetch(start, held[0]) + held[1][: end - held[0]]
        for first, block in self._blocks:
            if first <= start and end <= first + len(block):
                return block[start - first : end - first]
        stop = min(self.size, max(end, start + self._block))
        begin = max(0, min(start, stop - self._block))
        block = self._fetch(begin, stop) if stop > begin else b""
        self._blocks.append((begin, block))
        return block[start - begin : end - begin]

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            return read_listed(self._store, lambda: self._range(start, end))
        except StokerError:
            size = self._store.head(self._key).size
            if size == self.size:
                raise
            raise CorruptDataError(f"it is being written to: it had {self.size} bytes, and has {size}") from None


class WalkedSource(StoreSource):
    """A file of a store that is read from its begin to its end with long steps.

    ShortStepsError by :meth:`read`, once steps were short.
    """

    def __init__(
        self, walk: HeaderWalk, store: Store, key: str, size: int, where: str, read: Callable[[int, int], bytes]
    ) -> None:
        super().__init__(store, key, size, where, read)
        self._block, self._blocks = walk.block, deque(maxlen=1)
        self._short = walk.short
        self._reached = self._requests = 0
        self._seconds = 0.0

    def _fetch(self, start: int, end: int) -> bytes:
        if end - start > self._block:  # what a member holds, not a head
            return super()._fetch(start, end)
        self._reached = max(self._reached, start)  # at the end, some members are looked at again
        if self._short.is_set() or self._is_slow():
            self._short.set()
            raise ShortStepsError
        begun = time.monotonic()
        found = super()._fetch(start, end)
        self._seconds += time.monotonic() - begun
        self._requests += 1
        return found

    def _is_slow(self) -> bool:
        if self._requests < _TRIAL:
            return False
        return self._reached < max(self._requests * _BLOCKS * self._block, self._seconds * _RATE)
