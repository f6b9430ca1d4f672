"""The caches of this machine: what they hold, of what, who uses them, and what of them may go.

Only files in a directory that stoker made and marked is ever removed (see :mod:`stoker.cache.directory`): copies
of a dataset's files, and what was computed from one. Files that a process uses stay; see :mod:`stoker.cache.disk.in_use`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.arguments import checked
from stoker.cache.directory import is_cache_directory, read_origin, remove_directory
from stoker.cache.disk.in_use import Users
from stoker.cache.disk.quota import files_below, shard_files
from stoker.catalog.location import caches_home
from stoker.errors import CacheError, ObjectNotFoundError, StokerError
from stoker.index.index import INDEX_NAME
from stoker.storage import is_local, open_store
from stoker.storage.files.own import CACHE_MARK, PRIVATE
from stoker.storage.files.part_files import PART, release, try_lock
from stoker.types import StorageOptions


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """One cache.

    Attributes:
        origin: URL or path that its files come from; ``None`` where nothing tells, and then nothing of it is removed.
        kept_bytes: bytes of what was worked out from the dataset and kept.
        used: when a file of it was last opened or written, in seconds since 1970, as far as the file system notes it;
            ``None`` for an empty one.
        in_use: whether a process has a file of it open.
    """

    path: str
    origin: str | None
    files: int
    bytes: int
    kept_bytes: int
    used: float | None
    in_use: bool
    downloads: int


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The directories and bytes that were removed.

    Attributes:
        left_bytes: bytes of shard files that are left in these caches.
        in_use: files that would have gone, but are in use.
        removed: directories that were removed whole.
        notes: what was left, and why.
        dry_run: whether nothing was done, only said.
    """

    files: int
    bytes: int
    left_bytes: int
    in_use: int
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _File:
    used: float
    size: int
    path: Path
    cache: Path


@checked
def list_caches(directories: Sequence[str | os.PathLike[str]] = ()) -> list[CacheFacts]:
    """The caches in the default directory, or in the directories given: each a cache, or a directory of caches.

    CacheError if a directory is not there.
    """
    return [_facts(root) for root in _roots(directories)]


@checked
def prune_caches(
    directories: Sequence[str | os.PathLike[str]] = (),
    *,
    limit: int | None = None,
    older_than: float | None = None,
    gone: bool = False,
    everything: bool = False,
    dry_run: bool = False,
    storage_options: StorageOptions | None = None,
) -> PruneReport:
    """Remove files from caches, the least recently used first. Files in use stay, and so does all that has no remote.

    Args:
        limit: remove until all of them together hold at most so many bytes of shard files.
        older_than: remove files that nobody has opened or written for so many seconds.
        gone: remove caches of datasets that are no longer where they were. A dataset that can not be asked for is not gone.
        storage_options: credentials and settings to ask whether remote datasets are there.

    Raises:
        CacheError: a directory is not there.
    """
    now = time.time()
    notes: list[str] = []
    files: list[_File] = []
    doomed: set[Path] = set()
    unused: list[Path] = []
    roots = _roots(directories)
    for root in roots:
        origin = read_origin(root / PRIVATE)
        if origin is None or not is_cache_directory(root) or _is_same(origin.url, root):
            notes.append(
                f"{root} holds no copies, as a dataset that is read in place, and is left alone. What stoker worked out from "
                f"it lies in {root / PRIVATE}, which may be removed"
            )
            continue
        found = list(_shard_files(root))
        files += found
        goes = everything or (gone and _is_gone(origin.url, storage_options, notes))
        if goes:
            doomed.update(file.path for file in found)
        if goes or found or (older_than is not None and now - (_last_used(root) or now) > older_than):
            unused.append(root)
    total = sum(file.size for file in files)
    left = total
    if older_than is not None:
        doomed.update(file.path for file in files if now - file.used > older_than)
    removed = freed = held = 0
    with Users() as users:
        for file in sorted(files, key=lambda file: (file.path not in doomed, file.used)):
            if file.path not in doomed and (limit is None or left <= limit):
                continue
            if users.uses(file.path) if dry_run else not users.remove(file.path):
                held += file.path.exists()
                continue
            removed, freed, left = removed + 1, freed + file.size, left - file.size
    emptied = [] if dry_run else [str(root) for root in reversed(unused) if _remove_empty(root)]
    return PruneReport(removed, freed, left, held, tuple(emptied), tuple(notes), dry_run)


def _roots(directories: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Directories of caches."""
    base = Path(caches_home())
    if not directories:
        return list(_below(base)) if base.is_dir() else []
    roots: list[Path] = []
    for given in directories:
        path = Path(os.path.expanduser(given)).absolute()
        if not path.is_dir():
            raise CacheError(f"{path} is not a directory: give the local= directory of datasets, or one above it")
        roots += [path] if (path / PRIVATE).is_dir() else []
        roots += [] if is_cache_directory(path) else _below(path)
    return list(dict.fromkeys(roots))


def _below(directory: Path) -> Iterator[Path]:
    """The caches in a directory, those of splits in directories of their own."""
    for path in sorted(directory.iterdir()):
        if path.name == PRIVATE or not path.is_dir() or path.is_symlink():
            continue
        if (path / PRIVATE).is_dir():
            yield path
        if (path / INDEX_NAME).exists() and (path / PRIVATE).is_dir():
            continue  # of one version: no caches lie in it
        with contextlib.suppress(OSError):
            yield from _below(path)


def _facts(root: Path) -> CacheFacts:
    files = list(_shard_files(root)) if is_cache_directory(root) else []
    private = list(files_below(root / PRIVATE))
    parts = [path for path, _ in private if path.name.endswith(PART)]
    origin = read_origin(root / PRIVATE)
    with Users() as users:
        in_use = _is_locked(root / PRIVATE / CACHE_MARK) or any(users.uses(file.path) for file in files)
    return CacheFacts(
        str(root),
        None if origin is None else origin.url,
        len(files),
        sum(file.size for file in files),
        sum(status.st_size for path, status in private if not path.name.endswith(PART)),
        max((file.used for file in files), default=_last_used(root)),
        in_use,
        sum(_is_locked(path) for path in parts),
    )


def _shard_files(root: Path) -> Iterator[_File]:
    """Copies of a dataset's files."""
    inner = [path for path in root.iterdir() if is_cache_directory(path)]
    for path, status in shard_files(root):
        if not any(path.is_relative_to(one) for one in inner):
            yield _File(max(status.st_atime, status.st_mtime), status.st_size, path, root)


def _last_used(root: Path) -> float | None:
    """When something that was kept of a dataset was last opened or written."""
    times = (max(status.st_atime, status.st_mtime) for _, status in files_below(root / PRIVATE))
    return max(times, default=None)


def _is_same(origin: str, root: Path) -> bool:
    """Whether a cache lies in what it claims to be a copy of."""
    directory = is_local(origin)
    return directory is not None and Path(os.path.realpath(root)).is_relative_to(os.path.realpath(directory))


def _is_gone(origin: str, options: StorageOptions | None, notes: list[str]) -> bool:
    """Whether a dataset is not where it was. Only an answer counts, not that there is none."""
    directory = is_local(origin)
    try:
        if directory is not None:
            return not directory.exists()
        store = open_store(origin, options)
        return not store.exists(INDEX_NAME) and next(iter(store.list()), None) is None
    except ObjectNotFoundError:
        return True
    except (StokerError, OSError) as error:
        notes.append(f"whether {origin} is gone is not known: {error}")
        return False


def _is_locked(path: Path) -> bool:
    """Whether a process has the ``flock`` of a file that is being made."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        release(descriptor)


def _remove_empty(root: Path) -> bool:
    """Remove a cache's directory if it holds no copy of a file any more and nobody uses it; whether it went."""
    if any(map(is_cache_directory, root.iterdir())) or next(_shard_files(root), None) is not None:
        return False
    if not remove_directory(root):
        return False
    if root.parent.parent == Path(caches_home()):
        with contextlib.suppress(OSError):
            os.rmdir(root.parent)
    return True
