"""Opens the kind of cache that the settings of a dataset ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.directory import CacheDirectory
from stoker.cache.disk.disk_cache import DiskCache
from stoker.errors import ConfigError
from stoker.index.version import VersionWatch
from stoker.storage import Store


def make_cache(
    root: Path | CacheDirectory,
    store: Store | None,
    settings: CacheSettings,
    known: Callable[[], Mapping[str, int]] | None = None,
    watch: VersionWatch | None = None,
) -> ShardCache:
    """The cache that the settings ask for; files that are read where they lie (no ``store``) are mapped in any case.

    ``root``: the directory of files that are read where they lie, or of the cache.
    """
    directory, path = (root, root.path) if isinstance(root, CacheDirectory) else (None, root)
    if settings.in_memory and store is not None:
        from stoker.cache.memory import MemoryCache

        return MemoryCache(path, store, settings, watch)
    if store is not None and store.transfer.read_by is not None:
        raise ConfigError(
            f"storage_options['read_by'] of {store.url} needs ReadOptions(cache='memory'), which files are read into"
        )
    return DiskCache(path, store, settings, known, watch, directory)


def check_memory(remote: object, local: object, keep_zip: bool = False) -> None:
    """Check that nothing is asked to be kept, as shards are held in memory."""
    if remote is not None and (local is not None or keep_zip):
        given = f"local={os.fspath(local)!r}" if isinstance(local, str | os.PathLike) else "keep_zip=True"
        raise ConfigError(
            f"{given} says where shards are kept, and ReadOptions(cache='memory') keeps none: leave out one of them"
        )
