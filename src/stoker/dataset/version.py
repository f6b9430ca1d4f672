"""Which version of a dataset was opened, and whether what is fetched later still belongs to it.

A dataset may be written anew in place, with the same names, counts and sizes. Where the index has hashes, they tell a shard
of another version. Where it has none, the index and the shard are looked at again before a shard is believed: a writer
replaces or removes the index before the first shard, or writes shards that are newer than what was opened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NoReturn

import xxhash

from stoker.dataset.index import INDEX_NAME, MOST_BYTES, Index
from stoker.errors import (
    AccessDeniedError,
    DatasetChangedError,
    ObjectNotFoundError,
    StorageError,
    StorageTimeoutError,
)
from stoker.formats.hashing import fastest_hash
from stoker.storage import ObjectInfo, Store, is_local

__all__ = ["IndexVersion", "LoadedIndex", "VersionWatch", "read_index", "version_of_listing"]

# By how much clocks of a store and of its readers may differ, in nanoseconds.
_SKEW: Final = 5_000_000_000
# An object store's index is asked for again after so many seconds, where the times of objects tell nothing.
_SELDOM: Final = 5.0


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """What tells one version of a dataset from another that has shards of the same names and sizes.

    Attributes:
        digest: of the index's bytes.
        hashed: whether every shard has a hash, so that the digest tells all.
        size: bytes of the index.
        etag: of the index, as the store tells it; empty where it does not.
        modified: when the index was written, in nanoseconds since 1970 by the store's clock; 0 where it does not tell.
        files: of a dataset without an index, what the listing said of each shard's file: bytes, ETag and time.
    """

    digest: str
    hashed: bool
    size: int = 0
    etag: str = ""
    modified: int = 0
    files: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Text that is another for another version."""
        return self.digest if self.hashed else f"{self.digest} {self.size} {self.etag} {self.modified}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> IndexVersion | None:
        """The version that :meth:`as_dict` gave; ``None`` where something else did."""
        try:
            files = {str(name): (int(one[0]), str(one[1]), int(one[2])) for name, one in given["files"].items()}
            numbers = int(given["size"]), str(given["etag"]), int(given["modified"])
            return cls(str(given["digest"]), bool(given["hashed"]), *numbers, files)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            return None


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """An index, and which version it is."""

    index: Index
    version: IndexVersion


def read_index(store: Store) -> LoadedIndex:
    """Read and check a dataset's index.

    Raises:
        ObjectNotFoundError: there is none.
        IndexFileError: it is not a valid index.
    """
    data, info = store.read(INDEX_NAME, max_bytes=MOST_BYTES)
    index = Index.from_json(data, store.url_of(INDEX_NAME))
    return LoadedIndex(index, IndexVersion(_digest(data), _hashed(index), info.size, info.version, info.modified))


def version_of_listing(index: Index, listing: Mapping[str, ObjectInfo]) -> IndexVersion:
    """The version of a dataset that has no index.

    Args:
        index: made from the shards' headers.
        listing: what the store says of each file.
    """
    names = [file.basename for shard in index.shards for file in shard.stored]
    files = {name: (listing[name].size, listing[name].version, listing[name].modified) for name in names}
    return IndexVersion(_digest(repr(sorted(files.items())).encode() + index.to_json()), hashed=False, files=files)


class VersionWatch:
    """Sees that shards belong to the version of a dataset that was opened. Thread-safe; picklable.

    Args:
        store: where the dataset is.
        version: what was opened.
        opened: when, in nanoseconds since 1970, by this machine's clock: before the index was read.
    """

    def __init__(self, store: Store, version: IndexVersion, opened: int) -> None:
        self.version = version
        self._store = store
        self._opened = opened
        self._stamps = is_local(store.url) is None and not store.url.startswith("http")
        self._same = (version.size, version.etag, version.modified)
        self._looked = -_SELDOM
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_looked")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._looked = -_SELDOM
        self._lock = threading.Lock()

    def check_fetched(self, info: ObjectInfo) -> None:
        """See that a file without a hash is of this version. Called when all of it has arrived.

        Args:
            info: what the store said of the file that arrived.

        Raises:
            DatasetChangedError: it is not.
            StorageError: the index can not be looked at.
        """
        version, where = self.version, self._store.url_of(info.key)
        if version.files:
            if version.files.get(info.key) != (info.size, info.version, info.modified):
                self._changed(f"{where} is not the file that was listed: its size, ETag or time of change is another")
            return
        # An object store gives its own time to whatever is put; files and what a web server has keep times of before.
        older = self._stamps and 0 < info.modified < version.modified
        self.look(seldom=older)
        if info.modified > max(version.modified, self._opened + _SKEW):
            self._changed(f"{where} was written after the dataset was opened, while its {INDEX_NAME} is as it was")

    def check_opened(self, key: str) -> None:
        """See that a file that was just mapped where it lies is of this version.

        Raises:
            DatasetChangedError: it is not.
        """
        try:
            info = self._store.head(key)
        except ObjectNotFoundError:  # gone since
            self.look()
            return
        self.check_fetched(info)

    def look(self, *, cause: BaseException | None = None, seldom: bool = False) -> None:
        """See that the index is still the one that was opened.

        Args:
            cause: an error that another version would explain.
            seldom: ask only every few seconds.

        Raises:
            DatasetChangedError: the index is another, or gone.
            StorageError: it can not be asked for.
        """
        if self.version.files:
            return
        with self._lock:
            now = time.monotonic()
            if seldom and now - self._looked < _SELDOM:
                return
            self._looked = now
        where = self._store.url_of(INDEX_NAME)
        try:
            stamp = _stamp(self._index_info())
            if stamp == self._same and any(stamp[1:]):
                return
            # Where the store tells nothing but a size, or the index was only copied or touched, its bytes tell.
            if self.version.hashed or stamp == self._same:
                data, info = self._store.read(INDEX_NAME, max_bytes=MOST_BYTES)
                if _digest(data) == self.version.digest:
                    self._same = _stamp(info)
                    return
        except ObjectNotFoundError:
            self._changed(f"{where} is gone, as a writer that replaces the dataset leaves it", cause)
        self._changed(f"{where} was written anew", cause)

    def explain(self, error: BaseException) -> None:
        """Raise what explains a failed fetch, if the dataset was written anew; otherwise do nothing.

        Raises:
            DatasetChangedError: it was.
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

    def _changed(self, what: str, cause: BaseException | None = None) -> NoReturn:
        raise DatasetChangedError(
            f"{self._store.url_of('')} changed after it was opened: {what}. Its shards can not be told from those of the "
            "version that was opened. Open the dataset again; a run that began with the old version can not go on with "
            "the new one"
        ) from cause


def _stamp(info: ObjectInfo) -> tuple[int, str, int]:
    return info.size, info.version, info.modified


def _hashed(index: Index) -> bool:
    """Whether each shard has a hash that can be checked: of its raw files or of the compressed ones."""
    kinds = {
        (tuple(tuple(file.hashes) for file in shard.raw), tuple(tuple(file.hashes) for file in shard.zip))
        for shard in index.shards
    }
    return all(
        all(map(fastest_hash, raw)) or (bool(packed) and all(map(fastest_hash, packed))) for raw, packed in kinds
    )


def _digest(data: bytes) -> str:
    return str(xxhash.xxh3_128_hexdigest(data))
