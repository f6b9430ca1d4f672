"""The location of a dataset's index and shards: the remote, the local cache, and which of them is authoritative."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.directory import CacheDirectory, CacheOrigin, latest_version, make_private, refuse_dataset
from stoker.cache.disk.disk_cache import make_cache
from stoker.digests import sha256
from stoker.display import redact_url
from stoker.errors import CacheError, ConfigError, StokerError, StorageTimeoutError
from stoker.index.index import INDEX_NAME, Index, load_index
from stoker.index.side_index import SideIndex
from stoker.index.version import (
    IndexVersion,
    ListedVersions,
    LoadedIndex,
    VersionWatch,
    local_time,
    opening_time,
    read_index,
)
from stoker.storage import RetryPolicy, Store, is_local, join_url, open_store
from stoker.storage.files.own import PRIVATE
from stoker.storage.files.regular import read_regular
from stoker.storage.transfer import split_transfer
from stoker.storage.url import parse_url
from stoker.storage.versions import describe_version, version_of_files
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)

# Bytes at the end of a file that tell it from one of another dataset with an index of the same bytes.
_COMPARED: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class DatasetLocation:
    """An opened dataset location.

    Attributes:
        cache: the directory its shard files are read from, and how they get there.
        keep: directories for what is computed from all of the dataset, the best first; the next serves where one can
            not be written to.
        version: text that is another for another version of the dataset; empty where the files' descriptions tell.
        origin: where the dataset lies; ``None`` of samples that lie nowhere.
        listed: text for states that is another if the index or, without one, any file is written anew.
        snapshot: of a table, which version it is, in words; empty of other datasets.
        told: the file or the pattern, where not all below the origin is read; empty otherwise.
    """

    index: Index
    cache: ShardCache
    keep: tuple[Path, ...] = ()
    version: str = ""
    origin: CacheOrigin | None = None
    listed: str = ""
    snapshot: str = ""
    told: str = ""

    @property
    def url(self) -> str:
        """The dataset's URL or directory, for messages; empty for synthetic samples."""
        return "" if self.origin is None else redact_url(self.origin.url)

    @property
    def where(self) -> str:
        """The file, the pattern, the URL or the directory that is read, for messages."""
        return self.told or self.url or str(self.cache.root)

    @property
    def about(self) -> dict[str, Any]:
        """The entries that identify the data in a state; see docs/resume.md."""
        return self.identity.about()

    @property
    def identity(self) -> DataIdentity:
        """All that identifies the data, which holds no reference to the cache: that would keep it locked."""
        return DataIdentity(self.index, self.snapshot, self.origin, self.listed)

    def limited(self, limit: int | None) -> DatasetLocation:
        """The same location with another ``cache_limit``.

        ConfigError for a limit, and no remote to fetch evicted shards from again.
        """
        cache = self.cache
        known = None if cache.store is None else self.index.file_sizes
        settings = replace(cache.settings, limit=limit)
        limited = make_cache(cache.directory or cache.root, cache.store, settings, known, cache.watch)
        limited.early = cache.early
        return replace(self, cache=limited)


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """All that identifies the data of a location in states; attributes are those of :class:`DatasetLocation`."""

    index: Index
    snapshot: str
    origin: CacheOrigin | None
    listed: str

    def about(self) -> dict[str, Any]:
        """The entries of a state; see docs/resume.md."""
        about: dict[str, Any] = {"fingerprint": self.index.fingerprint}
        if self.snapshot:
            about["snapshot"] = self.snapshot
        if content := self.index.content:
            return about | {"content": content}
        if self.origin is None:
            return about
        return about | describe_version(self.origin.text, self.listed)

    def about_first(self, samples: int) -> list[dict[str, Any]]:
        """The same for the first shards that have so many samples: several if empty shards follow, none if no shard ends
        there. Without hashes in the index, the version is the current one."""
        starts = self.index.table.starts
        low, high = int(np.searchsorted(starts, samples)), int(np.searchsorted(starts, samples, side="right"))
        found = []
        for count in range(max(1, low), min(high, len(self.index))):
            first = Index(self.index.shards[:count])
            parts = [file.part for shard in first.shards for file in shard.stored]
            files = {part.key: (part.key, part.size, part.version) for part in parts if part is not None}
            listed = version_of_files(files.values()) if files and None not in parts else self.listed
            found.append(replace(self, index=first, listed=listed).about())
        return found


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The location of a dataset, as the caller gave it, before anything is read.

    Attributes:
        source: URL or directory of the remote, split included; ``None`` if there is no remote.
        root: absolute path of the directory that shards are read from, or in which each version has its cache.
        in_place: whether the root is the dataset itself, not a cache.
    """

    source: str | None
    root: Path
    in_place: bool


def locate(
    remote: str | os.PathLike[str] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    storage_options: StorageOptions | None = None,
) -> SourceLocation:
    """The dataset's location. ConfigError for neither ``remote`` nor ``local``, or a ``split`` that leaves them."""
    if remote is None and local is None:
        raise ConfigError("give remote= (a URL, a directory, a file or a pattern), local= (a directory), or both")
    if split and (os.path.isabs(split) or ".." in Path(split).parts or "\0" in split):
        raise ConfigError(f"split must be a sub-directory of the dataset, got {split!r}")
    if local is not None and "://" in os.fspath(local) and not os.fspath(local).startswith("file://"):
        raise ConfigError(f"local is a directory, got {redact_url(os.fspath(local))!r}: give a URL as remote=")
    source = None if remote is None else join_url(remote, *([split] if split else []))
    root = None if local is None else Path(os.path.join(os.path.expanduser(local), split or ""))
    directory = None if source is None else is_local(source)
    mapped = not (storage_options and storage_options.get("read_by"))
    if not mapped and source is None:
        raise ConfigError(
            "storage_options['read_by'] is for files that are fetched into memory: give the directory as remote="
        )
    if storage_options and storage_options.get("library") and (source is None or directory is not None):
        # What reads a dataset in place makes no store, which would refuse it.
        split_transfer(parse_url(source or str(root)), {"library": storage_options["library"]})
    if root is None:
        root = directory if directory is not None and mapped else default_cache(str(source), storage_options)
    root = root.absolute()
    return SourceLocation(
        source,
        root,
        source is None or (directory is not None and os.path.realpath(directory) == os.path.realpath(root)),
    )


def open_indexed(
    remote: str | os.PathLike[str] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    *,
    settings: CacheSettings,
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
    load: Callable[[Store, Callable[[], SideIndex] | None], LoadedIndex] = read_index,
    opened: int | None = None,
) -> DatasetLocation:
    """Find the index and set up the cache.

    With only ``local`` (or a remote that is a directory, and no ``local``), shards are read where they lie. With a
    remote, its index is fetched each time, and each version of it has a directory of its own in the cache; where the store
    can not be reached, the version that was there last serves. Files of the dataset in ``local`` itself are linked there.

    Args:
        remote, local, split: where the dataset is, and its cache; see :class:`~stoker.streams.streams.Stream`.
        opened: an :func:`~stoker.index.version.opening_time` from before this call, for several datasets; ``None``: now.

    Raises:
        ConfigError: neither ``remote`` nor ``local``, or a ``split`` that leaves them.
        ObjectNotFoundError: there is no index.
        IndexFileError: the index is not valid.
    """
    address = locate(remote, local, split, storage_options)
    source, base = address.source, address.root
    if address.in_place:
        store = open_store(base)
        real = os.path.realpath(store.url)
        home = _own_directory(real, "")
        kept = partial(_side_index, home, real)
        begun = local_time() if opened is None else opened
        loaded = load(store, kept)
        if local is not None or not loaded.index.compressed:
            if opened is None and loaded.may_be_of(begun, store):
                begun = opening_time(base)
                if not loaded.version.is_still(store):
                    loaded = load(store, kept)
            # What is given as the remote is not written to.
            beside = (base,) if local is not None else ()
            keep = (*beside, home)
            cache = make_cache(base, None, settings, watch=VersionWatch(store, loaded.version, begun))
            return DatasetLocation(
                loaded.index,
                cache,
                keep,
                loaded.version.text,
                CacheOrigin(real),
                listed=loaded.version.written,
            )
        # A remote is not written to: its shards are decompressed into a cache.
        base = home
    assert source is not None  # without a remote we have returned
    if opened is None:
        opened = opening_time(source)
    store = open_store(source, storage_options, retry=retry, stall_timeout=stall_timeout)
    origin = origin_of(source, storage_options)
    home = default_cache(source, storage_options)
    side = None if settings.in_memory else partial(_side_index, home, origin.url)
    loaded, directory, fresh = _load(store, base, origin, lambda store: load(store, side))
    index = loaded.index
    copied = local is not None and _holds(base, index, store)
    if local is not None and not copied:
        refuse_dataset((Path(os.path.expanduser(local)).absolute(), base), source)
    untold = fresh and not (loaded.version.hashed or loaded.version.files)
    watch = VersionWatch(store, loaded.version, opened, ListedVersions(store) if untold else None)
    cache = make_cache(directory, store, settings, index.file_sizes, watch)
    if cache.keeps:
        directory.hold()
        _keep_index(index, cache, directory, base if copied else None)
        if fresh:
            directory.seen()
    with contextlib.suppress(OSError):
        cache.sweep()
    keep = tuple(dict.fromkeys((directory.path, home)))
    return DatasetLocation(index, cache, keep, loaded.version.text, origin, loaded.version.written)


def origin_of(source: str | os.PathLike[str], storage_options: StorageOptions | None) -> CacheOrigin:
    """The location of a dataset, independent of its name: the real path of a directory, or a URL and its endpoint.

    ConfigError if the URL or the options make no sense.
    """
    directory = is_local(source)
    if directory is not None:
        return CacheOrigin(os.path.realpath(directory))
    store = open_store(source, storage_options)
    return CacheOrigin(store.origin, store.endpoint())


def _load(
    store: Store, base: Path, origin: CacheOrigin, load: Callable[[Store], LoadedIndex]
) -> tuple[LoadedIndex, CacheDirectory, bool]:
    """The index, the directory for its version, and whether it came from the store.

    Where the store can not be reached, the version in the cache that was there last serves.
    """
    try:
        loaded = load(store)
    except StorageTimeoutError as error:
        latest = latest_version(base, origin)
        version = None if latest is None else IndexVersion.from_dict(latest.version)
        if latest is None or version is None:
            raise
        directory = CacheDirectory(base, latest, version.text)
        logger.warning("%s; using the index in the cache, %s", error, directory.path / INDEX_NAME)
        directory.hold()
        return LoadedIndex(load_index(open_store(directory.path)), version), directory, False
    known = replace(origin, version=loaded.version.as_dict())
    return loaded, CacheDirectory(base, known, loaded.version.text), True


def _side_index(home: Path, url: str) -> SideIndex:
    """The file that keeps a parsed index: in a directory of its own in the user's cache, never in the dataset."""

    def directory() -> Path:
        return default_cache(home.name, None, "index")

    def save(parts: Sequence[bytes | memoryview]) -> None:
        from stoker.catalog.unindexed.file_facts import save_side_file  # few indexes are kept, and by one process

        save_side_file(make_private(directory(), url), "index", parts)

    def turn() -> AbstractContextManager[bool]:
        from stoker.catalog.unindexed.file_facts import taking_turns

        return taking_turns([directory()], url, "index")

    return SideIndex(lambda: directory() / PRIVATE / "index", save, turn)


def _holds(base: Path, index: Index, store: Store) -> bool:
    """Return whether a directory holds files of this dataset: a copy of it, or the cache of another library.

    The indexes must be equal. If they have no hashes, the ends of three files are compared with the store, too.
    """
    try:
        found = Index.from_json(read_regular(base / INDEX_NAME), str(base))
    except (OSError, StokerError):
        return False
    if found.fingerprint != index.fingerprint or found.file_entries() != index.file_entries():
        return False
    unproven = [file for shard in index.shards if not shard.zip for file in shard.raw if not file.hashes]
    there = [file for file in unproven if _has(base, file.basename, file.bytes)]
    for file in (there[0], there[len(there) // 2], there[-1]) if there else ():
        first = max(0, file.bytes - _COMPARED)
        with open(base / file.basename, "rb") as copy:
            copy.seek(first)
            if copy.read() != bytes(store.get_ranges(file.basename, [first], [file.bytes])[0]):
                return False
    return True


def _has(base: Path, name: str, size: int) -> bool:
    with contextlib.suppress(OSError):
        return os.stat(base / name).st_size == size
    return False


def _keep_index(index: Index, cache: ShardCache, directory: CacheDirectory, copy: Path | None) -> None:
    """Write the index into the cache unless it is there. Shards of others that hashes prove the same are linked, and those of
    a directory that holds a copy of the dataset."""
    if os.path.exists(cache.root / INDEX_NAME):
        return
    if copy is not None:
        with contextlib.suppress(OSError, StokerError):
            directory.make()
            _link([name for name, size in index.file_sizes().items() if _has(copy, name, size)], copy, cache.root)
    new = {name: entry for name, entry in index.file_entries().items() if entry.hashes}
    for other in directory.others() if new else ():
        with contextlib.suppress(OSError, StokerError):
            old = Index.from_json(read_regular(other / INDEX_NAME), str(other)).file_entries()
            directory.make()
            _link([name for name, entry in new.items() if old.get(name) == entry], other, cache.root)
    try:
        cache.keep(INDEX_NAME, index.to_json())
    except (OSError, StokerError) as error:
        # A read-only cache may hold every shard all the same; a missing one gives its own error.
        logger.debug("can not keep the index in %s: %s", cache.root, error)


def _link(names: Iterable[str], source: Path, root: Path) -> None:
    """Give files of a directory a second name in another one, as far as file systems allow it."""
    for name in names:
        with contextlib.suppress(OSError):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(source / name, root / name)


def files_directory(base: Path, root: str, options: StorageOptions | None) -> CacheDirectory:
    """The directory of a cache for files without an index. There is one for all versions: names of files tell these."""
    return CacheDirectory(base, origin_of(root, options), "files")


def side_directories(
    root: str, cache_root: str | None, options: StorageOptions | None, *, beside: bool
) -> tuple[Path, ...]:
    """Directories for what was found out about files, the best first.

    ConfigError if the cache's directory is a dataset. ``cache_root``: the cache's directory, where one is named. ``beside``:
    whether it may lie among the files, where these are local.
    """
    directory = is_local(root)
    default = default_cache(root, options) if directory is None else default_cache(os.path.realpath(directory), None)
    first: list[Path] = []
    if cache_root is not None:
        base = Path(cache_root).absolute()
        if directory is None or os.path.realpath(directory) != os.path.realpath(base):
            refuse_dataset((base,), root)
            first = [files_directory(base, root, options).path]
        else:
            first = [base]
    elif beside and directory is not None:
        first = [directory]
    return tuple(dict.fromkeys([*first, default]))


def default_cache(url: str, options: StorageOptions | None, purpose: str = "") -> Path:
    """A directory of the user's own for this URL and endpoint, and this purpose."""
    return _own_directory(url, "" if is_local(url) is not None else open_store(url, options).endpoint(), purpose)


def caches_home() -> str:
    """The directory of the user's caches."""
    base = os.environ.get("STOKER_CACHE")
    if base:
        return base
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not user.startswith("~"):
        return os.path.join(user, "stoker")
    # A container whose user has no home: neither HOME nor an entry in the system's list.
    base = os.path.join(tempfile.gettempdir(), f"stoker-{os.geteuid()}")
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(base).st_uid != os.geteuid():
            raise CacheError(f"{base} would be the cache, as HOME is not set, and is another user's: set STOKER_CACHE")
    return base


def _own_directory(url: str, endpoint: str, purpose: str = "") -> Path:
    text = f"{url}\n{endpoint}\n{purpose}".encode(errors="surrogatepass")
    return Path(os.path.join(caches_home(), sha256(text).hexdigest()[:24]))
