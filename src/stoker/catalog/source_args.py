"""Resolves ``remote=``, ``local=`` and ``split=`` of files without an index, and the directory for data derived from them."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.cache.directory import CacheDirectory, refuse_dataset
from stoker.catalog.location import default_cache, origin_of
from stoker.catalog.unindexed.files_location import Files, FilesLocation, source_of
from stoker.errors import ConfigError
from stoker.storage import is_local, join_url
from stoker.types import StorageOptions


def files_location(
    remote: Files | FilesLocation | None, local: str | os.PathLike[str] | None, split: str | None
) -> tuple[FilesLocation, str | None]:
    """The files, and the cache's directory where one is named.

    Args:
        remote: a directory or URL prefix, a file, a pattern, or a list of files; or what was made of these.
        local: the directory of the cache; without ``remote`` that of the files.
        split: a sub-directory of both.

    Raises:
        ConfigError: neither is given, or ``split`` goes with a list.
    """
    given = local if remote is None else remote
    if given is None:
        raise ConfigError("give remote= or local=: where the files are")
    if split is not None:
        if not isinstance(given, str | os.PathLike):
            raise ConfigError("split= needs one directory, not a list of files")
        given = join_url(given, split)
    cache_root = None if local is None or remote is None else os.path.join(os.path.expanduser(local), split or "")
    return given if isinstance(given, FilesLocation) else source_of(given), cache_root


def files_directory(base: Path, root: str, options: StorageOptions | None) -> CacheDirectory:
    """The directory of a cache for files without an index. There is one for all versions: names of files tell these.

    Args:
        base: the directory of the caches.
        root: directory or URL of the files.
        options: as :func:`stoker.storage.open_store` has them.
    """
    return CacheDirectory(base, origin_of(root, options), "files")


def side_directories(
    root: str, cache_root: str | None, options: StorageOptions | None, *, beside: bool
) -> tuple[Path, ...]:
    """Directories for what was found out about files, the best first.

    Args:
        root: the files' directory or URL.
        cache_root: the cache's directory, where one is named.
        options: as :func:`stoker.storage.open_store` has them.
        beside: whether it may lie among the files, where these are local.

    Raises:
        ConfigError: the cache's directory is a dataset.
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
