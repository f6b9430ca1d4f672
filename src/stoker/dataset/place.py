"""Where a dataset's index and shards are: the remote, the local cache, and which of them is the truth."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.dataset.cache import CacheSettings, ShardCache
from stoker.dataset.caches import make_cache
from stoker.dataset.index import INDEX_NAME, Index, load_index
from stoker.errors import CacheError, ConfigError, ObjectNotFoundError, StokerError, StorageTimeoutError
from stoker.storage import RetryPolicy, Store, is_local, join_url, open_store
from stoker.storage.files import read_regular
from stoker.types import StorageOptions

__all__ = ["Address", "Place", "address_of", "default_cache", "open_place"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """An opened dataset location.

    Attributes:
        index: the dataset's index.
        cache: the directory its shard files are read from, and how they get there.
        keep: directories for what is computed from all of the dataset, the best first; the next serves where one can
            not be written to.
    """

    index: Index
    cache: ShardCache
    keep: tuple[Path, ...] = ()

    def limited(self, limit: int | None) -> Place:
        """The same place with another ``cache_limit``.

        Raises:
            ConfigError: a limit, and no remote to fetch evicted shards from again.
        """
        cache = self.cache
        known = None if cache.store is None else self.index.file_sizes
        settings = replace(cache.settings, limit=limit)
        limited = make_cache(cache.root, cache.store, settings, known)
        limited.early = cache.early
        return replace(self, cache=limited)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a dataset lies, by what the caller gave, before anything is read.

    Attributes:
        source: URL or directory of the remote, split included; ``None`` if there is no remote.
        root: absolute path of the directory that shards are read from.
        in_place: whether the root is the dataset itself, not a cache.
    """

    source: str | None
    root: Path
    in_place: bool

    def identity(self, storage_options: StorageOptions | None) -> tuple[str, str]:
        """What tells datasets apart: where the data comes from, and by which endpoint."""
        if self.in_place:
            return os.path.realpath(self.root), ""
        directory = is_local(str(self.source))
        if directory is not None:
            return os.path.realpath(directory), ""
        return open_store(str(self.source)).url, _endpoint(storage_options)


def address_of(
    remote: str | os.PathLike[str] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    storage_options: StorageOptions | None = None,
) -> Address:
    """Where the dataset lies.

    Raises:
        ConfigError: neither ``remote`` nor ``local``, or a ``split`` that leaves them.
    """
    if remote is None and local is None:
        raise ConfigError("give remote= (a URL or directory that holds an index.json), local= (a directory), or both")
    if split and (os.path.isabs(split) or ".." in Path(split).parts or "\0" in split):
        raise ConfigError(f"split must be a sub-directory of the dataset, got {split!r}")
    source = None if remote is None else join_url(remote, *([split] if split else []))
    root = None if local is None else Path(os.path.expanduser(local)) / (split or "")
    directory = None if source is None else is_local(source)
    if root is None:
        root = directory if directory is not None else default_cache(str(source), storage_options)
    root = root.absolute()
    return Address(source, root, source is None or (directory is not None and _same(directory, root)))


def open_place(
    remote: str | os.PathLike[str] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    *,
    settings: CacheSettings,
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
    load: Callable[[Store], Index] = load_index,
) -> Place:
    """Find the index and set up the cache.

    With only ``local`` (or a remote that is a directory, and no ``local``), shards are read where they lie. With a
    remote, its index is fetched each time, so that a dataset that was written anew is noticed; where the store can not be
    reached, an index in the cache serves.

    Args:
        remote, local, split: where the dataset is, and its cache; see :class:`~stoker.dataset.streams.Stream`.
        settings: how the cache behaves.
        storage_options, retry, stall_timeout: see :func:`stoker.storage.open_store`.
        load: gives the index of the dataset in a store.

    Raises:
        ConfigError: neither ``remote`` nor ``local``, or a ``split`` that leaves them.
        ObjectNotFoundError: there is no index.
        IndexFileError: the index is not valid.
    """
    address = address_of(remote, local, split, storage_options)
    source, root = address.source, address.root
    if address.in_place:
        index = load(open_store(root))
        if local is not None or not index.compressed:
            # What is given as the remote is not written to.
            beside = (root,) if local is not None else ()
            keep = (*beside, default_cache(os.path.realpath(root), None))
            return Place(index, make_cache(root, None, settings), keep)
        # A remote is not written to: its shards are decompressed into a cache.
        root = default_cache(str(source), None)
    assert source is not None  # without a remote we have returned
    store = open_store(source, storage_options, retry=retry, stall_timeout=stall_timeout)
    index = _fetch_index(store, root, load)
    cache = make_cache(root, store, settings, index.file_sizes)
    if cache.keeps:
        _keep_index(index, cache)
    with contextlib.suppress(OSError):
        cache.sweep()
    return Place(index, cache, tuple(dict.fromkeys((root, default_cache(source, storage_options)))))


def _fetch_index(store: Store, root: Path, load: Callable[[Store], Index]) -> Index:
    """The remote's index; the cache's where the remote can not be reached."""
    path = root / INDEX_NAME
    try:
        return load(store)
    except (StorageTimeoutError, ObjectNotFoundError) as error:
        if not path.exists() or isinstance(error, ObjectNotFoundError):
            raise
        logger.warning("%s; going on with the index in the cache, %s", error, path)
        return load_index(open_store(root))


def _keep_index(index: Index, cache: ShardCache) -> None:
    """Write the index into the cache unless it is there, after removing cached shards that are not this dataset's.

    Where the cache holds another index, only files whose entry, with hashes, is the same in both can be trusted.
    """
    path = cache.root / INDEX_NAME
    data = index.to_json()
    with contextlib.suppress(OSError):
        if read_regular(path) == data:
            return
    try:
        old: Mapping[str, object] = {}
        if path.exists():
            with contextlib.suppress(StokerError):
                old = Index.from_json(read_regular(path), str(path)).file_entries()
        new = index.file_entries()
        for basename, entry in old.items():
            same = basename in new and new[basename] == entry and bool(getattr(entry, "hashes", None))
            if not same:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path.parent / basename)
        cache.keep(INDEX_NAME, data)
    except (OSError, StokerError) as error:
        if path.exists():
            raise CacheError(
                f"the cache {path.parent} holds another dataset's index and can not be changed ({error}): choose "
                "another local="
            ) from error
        # A read-only cache may hold every shard all the same; a missing one gives its own error.
        logger.debug("can not keep the index in %s: %s", path.parent, error)


def default_cache(url: str, options: StorageOptions | None) -> Path:
    """A directory of the user's own for this URL and endpoint."""
    base = os.environ.get("STOKER_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stoker")
    return Path(base) / hashlib.sha256(f"{url}\n{_endpoint(options)}".encode()).hexdigest()[:24]


def _endpoint(options: StorageOptions | None) -> str:
    return next((str(value) for name, value in (options or {}).items() if "endpoint" in name.lower()), "")


def _same(first: Path, second: Path) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)
