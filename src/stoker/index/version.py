"""The version of a dataset that was opened, and checks that files fetched later belong to it.

A dataset may be written anew in place, with the same names, counts and sizes. Where the index has hashes, they tell a shard
of another version. Where it has none, the index and the shard are looked at again before a shard is believed: a writer
replaces or removes the index before the first shard, or writes shards that are newer than what was opened.

The clock of a store may differ from this machine's. So whether an object that was written about when the dataset was opened
was there by then only the store can tell, and only then: by a listing in the background, 1,000 objects an answer, for which
nothing waits unless such an object is fetched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NoReturn

import xxhash

from stoker.concurrency.forks import ProcessLocal, ProcessLock
from stoker.concurrency.threads import Threads
from stoker.digests import fastest_hash
from stoker.errors import (
    AccessDeniedError,
    DatasetChangedError,
    ObjectNotFoundError,
    StokerError,
    StorageError,
    StorageTimeoutError,
)
from stoker.index.index import INDEX_NAME, MOST_BYTES, Index, sizes_in
from stoker.index.side_index import SideIndex
from stoker.storage import ObjectInfo, Store, is_local
from stoker.storage.versions import is_local_version, same_version, stable_version, version_of_files

logger = logging.getLogger(__name__)

_STORES: Final = ("s3://", "gs://", "az://")
_MOST: Final = 10_000
# Seconds for which a listing is waited for: then it is as if there were none.
_PATIENCE: Final = 60.0

_Listed = dict[str, tuple[str, int]]

_digest: Final[Callable[[bytes], str]] = xxhash.xxh3_128_hexdigest

# By how much clocks of a store and of its readers may differ, in nanoseconds.
_SKEW: Final = 5_000_000_000
# CLOCK_REALTIME_COARSE of Linux, which Python has no name for.
_COARSE_CLOCK: Final = 5 if sys.platform == "linux" else time.CLOCK_REALTIME
# Shards whose times are looked at in less time than that clock takes to tick.
_LOOKED_AT: Final = 64
# Milliseconds until that clock ticks, at most, and some more.
_MOST_WAITS: Final = 20
# An object store's index is asked for again after so many seconds, where the times of objects tell nothing.
_SELDOM: Final = 5.0
# Bytes of an index that takes longer to parse than its kept form to find.
_LARGE: Final = 1 << 18


@cache
def _threads() -> Threads:
    return Threads(4, "versions")


class _Listing(ProcessLocal):
    """A listing that one process waits for."""

    def __init__(self) -> None:
        self.coming: Future[None] | None = None


class ListedVersions:
    """The versions of a store's objects from about now on. Picklable, with what is known by then.

    ``store``: where the objects are. Those of more than 10,000, and of stores that can not list, are not known.
    """

    def __init__(self, store: Store) -> None:
        self._listed: _Listed | None = None
        self._listing = _Listing()
        if store.url.startswith(_STORES):
            self._listing.coming = _threads().submit(partial(self._list, store))

    def is_known_otherwise(self, store: Store, info: ObjectInfo) -> bool:
        """Whether an object that was fetched is not the one that was listed."""
        listed = (self._await() or {}).get(info.key)
        if listed is None or listed == (info.version.strip('"'), info.modified):
            return False
        version, modified = listed
        if modified != info.modified or not version:
            return True
        # Some stores write a version otherwise in a listing: then the object of that version is still there.
        try:
            store.get_ranges(info.key, [0], [min(1, info.size)], version=version)
        except StokerError:
            return True
        return False

    def _await(self) -> _Listed | None:
        coming = self._listing.coming
        if coming is not None:
            try:
                coming.result(_PATIENCE)
            except (CancelledError, TimeoutError):
                logger.debug("a listing has not come")
            self._listing.coming = None
        return self._listed

    def _list(self, store: Store) -> None:
        try:
            found = list(islice(store.list(), _MOST + 1))
        except StokerError as error:
            logger.debug("the objects can not be listed: %s", error)
            return
        if len(found) <= _MOST:
            self._listed = {info.key: (info.version.strip('"'), info.modified) for info in found}


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """The identity of a version, which differs between versions whose shards have the same names and sizes.

    Attributes:
        hashed: whether every shard has a hash, so that the digest tells all.
        etag: of the index, as the store tells it; empty where it does not.
        modified: when the index was written, see :class:`~stoker.storage.ObjectInfo`; 0 where the store does not tell.
        files: of a dataset without an index, what the listing said of each shard's file: bytes, ETag and time.
        block_size: of litdata's tokens, by which the same files are other samples.
    """

    digest: str
    hashed: bool
    size: int = 0
    etag: str = ""
    modified: int = 0
    files: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)
    block_size: int | None = None

    @property
    def text(self) -> str:
        """Text that is another for another version."""
        told = self.digest if self.hashed else f"{self.digest} {self.size} {stable_version(self.etag)} {self.modified}"
        return told if self.block_size is None else f"{told} {self.block_size}"

    @property
    def written(self) -> str:
        """The same for states: a local copy whose files have the same times of writing has the same."""
        if self.hashed:
            return self.digest
        files = self.files or {INDEX_NAME: (self.size, self.etag, self.modified)}
        # An object of the same bytes has the same ETag, so its time tells; a local file's version has a time already.
        told = version_of_files(
            (name, size, version if is_local_version(version) else f"{version} {modified}")
            for name, (size, version, modified) in sorted(files.items())
        )
        return told if self.files else f"{self.digest} {told}"

    def is_still(self, store: Store) -> bool:
        """Return whether the index is still the one that was read."""
        return _same((self.size, self.etag, self.modified), _stamp(store.head(INDEX_NAME)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> IndexVersion | None:
        """The version that :meth:`as_dict` gave; ``None`` where something else did."""
        try:
            files = {str(name): (int(one[0]), str(one[1]), int(one[2])) for name, one in given["files"].items()}
            numbers = int(given["size"]), str(given["etag"]), int(given["modified"])
            return cls(str(given["digest"]), bool(given["hashed"]), *numbers, files, given.get("block_size"))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            return None


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """An index, and which version it is."""

    index: Index
    version: IndexVersion

    def may_be_of(self, begun: int, store: Store) -> bool:
        """Return whether the index or a shard may have been written at or after ``begun``, a :func:`local_time` from before
        the index was read. Many shards are not looked at: they may have been. A listed version needs no time: none has."""
        if self.version.files:
            return False
        if self.version.modified >= begun or len(self.index) > _LOOKED_AT:
            return True
        keys = [file.basename for shard in self.index.shards for file in shard.stored]
        with contextlib.suppress(ObjectNotFoundError):  # says which when it is read
            return any(store.head(key).modified >= begun for key in keys)
        return True


def local_time() -> int:
    """Now, in nanoseconds since 1970, by the clock that local files get their times from; it ticks every few milliseconds.

    Files written after the call are not earlier, nor are those that were written before it in the same tick.
    """
    return time.clock_gettime_ns(_COARSE_CLOCK)


def opening_time(url: str | os.PathLike[str]) -> int:
    """Now, in nanoseconds since 1970, by the clock of the store at a URL as far as it can be known.

    Local files get their times from a clock that ticks every few milliseconds, some from a finer one. By the time that is
    returned, which may take a tick, files written before the call are not later, and files written after it not earlier.
    """
    begun = time.time_ns()
    if is_local(url) is not None:
        for _ in range(_MOST_WAITS):
            now = local_time()
            if now >= begun:
                return now
            time.sleep(0.001)
    return begun


def read_index(store: Store, side: Callable[[], SideIndex] | None = None, block_size: int | None = None) -> LoadedIndex:
    """Read and check a dataset's index.

    ObjectNotFoundError if there is none. IndexFileError if it is not a valid index. ``side``: makes the file that keeps a
    parsed index, of which only a large one is worth it. ``block_size``: of litdata's tokens; see
    :func:`stoker.formats.litdata.shards_of`.
    """
    data, info = store.read(INDEX_NAME, max_bytes=MOST_BYTES)
    digest = _digest(data)
    sizes = partial(sizes_in, store, INDEX_NAME)
    parse = partial(Index.from_json, data, store.url_of(INDEX_NAME), sizes=sizes, block_size=block_size)
    index = parse() if side is None or len(data) < _LARGE else side().load_or_make(digest, parse)
    version = IndexVersion(digest, _hashed(index), info.size, info.version, info.modified, block_size=block_size)
    return LoadedIndex(index, version)


def version_of_listing(index: Index, listing: Mapping[str, ObjectInfo]) -> IndexVersion:
    """The version of a dataset that has no index."""
    names = [file.basename for shard in index.shards for file in shard.stored]
    files = {name: (listing[name].size, listing[name].version, listing[name].modified) for name in names}
    stable = [(name, size, stable_version(version), time) for name, (size, version, time) in sorted(files.items())]
    return IndexVersion(_digest(repr(stable).encode() + index.to_json()), hashed=False, files=files)


class VersionWatch:
    """Sees that shards belong to the version of a dataset that was opened. Thread-safe; picklable.

    ``opened``: when, see :func:`opening_time`: before the index was read. ``listed``: versions of the store's objects at the
    opening, where the index has none.
    """

    def __init__(self, store: Store, version: IndexVersion, opened: int, listed: ListedVersions | None = None) -> None:
        self.version = version
        self._listed = listed
        self._store = store
        self._opened = opened
        local = is_local(store.url) is not None
        self._skew = 0 if local else _SKEW  # local files and this process share a clock
        self._stamps = not local and not store.url.startswith("http")
        self._same = (version.size, version.etag, version.modified)
        self._lock = ProcessLock()
        self._looked = -_SELDOM

    def check_fetched(self, info: ObjectInfo) -> None:
        """Check that a file without a hash is of this version. Called when all of it has arrived.

        DatasetChangedError if it is not. StorageError if the index can not be looked at.
        """
        version = self.version
        if version.files:
            if not _same(version.files.get(info.key), _stamp(info)):
                self.changed(info.key, "is not the file that was listed: its size, ETag or time of change is another")
            return
        # An object store gives its own time to whatever is put; files and what a web server has keep times of before.
        older = self._stamps and 0 < info.modified < version.modified
        self.look(seldom=older)
        if not self.is_older(info.modified):
            also = (
                "" if self._skew else ", or only its status, as by chmod or a hard link, and there is no hash to tell"
            )
            self.changed(
                info.key, f"was written after the dataset was opened, while its {INDEX_NAME} is as it was{also}"
            )
        recent = info.modified >= self._opened - self._skew
        if recent and self._listed is not None and self._listed.is_known_otherwise(self._store, info):
            self.changed(info.key, "is not the object that was there at the opening: its ETag or time is another")

    def is_older(self, modified: int) -> bool:
        """Return whether a time, in nanoseconds since 1970, is before the dataset's opening or its index, if it has one."""
        version = self.version
        return bool(version.files) or modified <= version.modified or modified < self._opened + self._skew

    def look(self, *, cause: BaseException | None = None, seldom: bool = False) -> None:
        """Check that the index is still the one that was opened.

        DatasetChangedError if the index is another, or gone. StorageError if it can not be asked for. ``cause``: an error
        that another version would explain. ``seldom``: ask only every few seconds.
        """
        if self.version.files:
            return
        with self._lock:
            now = time.monotonic()
            if seldom and 0 <= now - self._looked < _SELDOM:  # a copy may have that of another machine's clock
                return
            self._looked = now
        try:
            stamp = _stamp(self._index_info())
            if _same(self._same, stamp) and any(stamp[1:]):
                return
            # Where the store tells nothing but a size, or the index was only copied or touched, its bytes tell.
            if self.version.hashed or _same(self._same, stamp):
                data, info = self._store.read(INDEX_NAME, max_bytes=MOST_BYTES)
                if _digest(data) == self.version.digest:
                    self._same = _stamp(info)
                    return
        except ObjectNotFoundError:
            self.changed(INDEX_NAME, "is gone, as a writer that replaces the dataset leaves it", cause)
        self.changed(INDEX_NAME, "was rewritten", cause)

    def explain(self, error: BaseException) -> None:
        """Raise what explains a failed fetch, if the dataset was written anew; otherwise do nothing.

        DatasetChangedError if it was.
        """
        if isinstance(error, DatasetChangedError | StorageTimeoutError | AccessDeniedError):
            return
        try:
            self.look(cause=error)
        except StorageError:
            return

    def _index_info(self) -> ObjectInfo:
        try:
            return self._store.head(INDEX_NAME)
        except (ObjectNotFoundError, StorageTimeoutError):
            raise
        except StorageError:  # a server that answers no HEAD
            return self._store.read(INDEX_NAME, max_bytes=MOST_BYTES)[1]

    def changed(self, key: str, what: str, cause: BaseException | None = None) -> NoReturn:
        """Raise the error that says what is the matter with an object."""
        url_of = self._store.url_of
        raise DatasetChangedError(
            f"{url_of('')} changed after it was opened: {url_of(key)} {what}. Its shards can not be told from those of the "
            "version that was opened. Open the dataset again; a run that began with the old version can not continue with "
            "the new one"
        ) from cause


_stamp: Final[Callable[[ObjectInfo], tuple[int, str, int]]] = attrgetter("size", "version", "modified")


def _same(before: tuple[int, str, int] | None, now: tuple[int, str, int]) -> bool:
    """Whether a file is still the one that was opened. What a version tells of a local file has its times."""
    if before is None or before[0] != now[0] or not same_version(before[1], now[1]):
        return False
    return before[2] == now[2] or before[1] != now[1]


def _hashed(index: Index) -> bool:
    """Whether each shard has a hash that can be checked: of its raw files or of the compressed ones."""
    kinds = {
        (tuple(tuple(file.hashes) for file in shard.raw), tuple(tuple(file.hashes) for file in shard.zip))
        for shard in index.distinct_shards
    }
    return all(
        all(map(fastest_hash, raw)) or (bool(packed) and all(map(fastest_hash, packed))) for raw, packed in kinds
    )
