"""The caches of this machine: what they hold, of what, who uses them, and what of them may go.

Only files that have a remote are ever removed: a cache says where its files come from (see :mod:`stoker.dataset.origin`), and
a directory that does not say so is left alone. So is every file that a process has in use; see :mod:`stoker.dataset.inuse`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stoker.arguments import checked
from stoker.dataset.foreign import cached_names
from stoker.dataset.foreign_facts import load_facts
from stoker.dataset.index import INDEX_NAME, Index
from stoker.dataset.inuse import Users
from stoker.dataset.origin import read_origin
from stoker.dataset.place import default_cache
from stoker.dataset.room import PART, files_below, release, try_lock
from stoker.errors import CacheError, ObjectNotFoundError, StokerError
from stoker.storage import is_local, open_store
from stoker.storage.files import read_regular
from stoker.types import StorageOptions

__all__ = ["CacheFacts", "PruneReport", "list_caches", "prune_caches"]

_PRIVATE: Final = ".stoker"
_DEFAULT_NAME = re.compile("[0-9a-f]{24}")
_FACTS_NAME = re.compile(r"(?P<format>[a-z0-9_]+)\.[0-9a-f]{24}\.json")
_CHUNKS = re.compile(r".+/[0-9]+-[0-9]+-[0-9a-f]{16}\.chunks")


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """One cache.

    Attributes:
        path: its directory.
        origin: URL or path that its files come from; ``None`` where nothing tells, and then nothing of it is removed.
        files: files of shards.
        bytes: bytes of them.
        kept_bytes: bytes of what was worked out from the dataset and kept.
        used: when a file of it was last opened or written, in seconds since 1970, as far as the file system notes it;
            ``None`` for an empty one.
        in_use: whether a process has a file of it open.
        downloads: downloads under way.
    """

    path: str
    origin: str | None
    files: int
    bytes: int
    kept_bytes: int
    used: float | None
    in_use: bool
    downloads: int

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What was removed.

    Attributes:
        files: files that were removed.
        bytes: bytes of them.
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

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _File:
    used: float
    size: int
    path: Path
    cache: Path


@checked
def list_caches(directories: Sequence[str | os.PathLike[str]] = ()) -> list[CacheFacts]:
    """The caches in the default place, or in the directories given: each a cache, or a directory of caches.

    Raises:
        CacheError: a directory is not there.
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
        directories: as for :func:`list_caches`.
        limit: remove until all of them together hold at most so many bytes of shard files.
        older_than: remove files that nobody has opened or written for so many seconds.
        gone: remove caches of datasets that are no longer where they were. A dataset that can not be asked for is not gone.
        everything: remove all.
        dry_run: only say what would be removed.
        storage_options: credentials and settings to ask whether remote datasets are there.

    Raises:
        CacheError: a directory is not there.
    """
    now = time.time()
    notes: list[str] = []
    files: list[_File] = []
    doomed: set[Path] = set()
    roots = _roots(directories)
    for root in roots:
        origin = read_origin(root / _PRIVATE)
        if origin is None or _is_same(origin, root):
            notes.append(f"{root} does not say where its files come from, and is left alone")
            continue
        found = list(_shard_files(root))
        files += found
        if everything or (gone and _is_gone(origin, storage_options, notes)):
            doomed.update(file.path for file in found)
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
    emptied = [] if dry_run else [str(root) for root in roots if _tidy(root)]
    return PruneReport(removed, freed, left, held, tuple(emptied), tuple(notes), dry_run)


def _roots(directories: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Directories of caches."""
    base = default_cache("", None).parent
    if not directories:
        return list(_below(base)) if base.is_dir() else []
    roots: list[Path] = []
    for given in directories:
        path = Path(os.path.expanduser(given)).absolute()
        if not path.is_dir():
            raise CacheError(f"{path} is no directory")
        roots += [path] if (path / _PRIVATE).is_dir() else _below(path)
    return list(dict.fromkeys(roots))


def _below(directory: Path) -> Iterator[Path]:
    """The caches in a directory, those of splits in directories of their own."""
    for path in sorted(directory.iterdir()):
        if not path.is_dir() or path.is_symlink():
            continue
        if (path / _PRIVATE).is_dir():
            yield path
        else:
            yield from _below(path)


def _facts(root: Path) -> CacheFacts:
    files = list(_shard_files(root))
    private = list(files_below(root / _PRIVATE))
    parts = [path for path, _ in private if path.name.endswith(PART)]
    with Users() as users:
        in_use = any(users.uses(file.path) for file in files)
    return CacheFacts(
        str(root),
        read_origin(root / _PRIVATE),
        len(files),
        sum(file.size for file in files),
        sum(status.st_size for path, status in private if not path.name.endswith(PART)),
        max((file.used for file in files), default=None),
        in_use,
        sum(_is_locked(path) for path in parts),
    )


def _shard_files(root: Path) -> Iterator[_File]:
    """Files of shards: all in a directory that stoker made for itself, and in others those that it knows."""
    known = None if _is_default(root) else _known(root)
    for path, status in files_below(root):
        name = path.relative_to(root).as_posix()
        if name == INDEX_NAME or name.startswith(f"{_PRIVATE}/"):
            continue
        if known is None or name in known or _CHUNKS.fullmatch(name):
            yield _File(max(status.st_atime, status.st_mtime), status.st_size, path, root)


def _known(root: Path) -> set[str]:
    """Names of a dataset's files, by the index in its cache, or by what is kept of files without one."""
    names: set[str] = set()
    with contextlib.suppress(OSError, StokerError):
        names.update(Index.from_json(read_regular(root / INDEX_NAME), str(root)).file_entries())
    for path, _ in files_below(root / _PRIVATE):
        match = _FACTS_NAME.fullmatch(path.name)
        if match is not None:
            with contextlib.suppress(StokerError):
                names.update(cached_names(match["format"], list(load_facts([root], path.name).values())))
    return names


def _is_default(root: Path) -> bool:
    return root.parent == default_cache("", None).parent and _DEFAULT_NAME.fullmatch(root.name) is not None


def _is_same(origin: str, root: Path) -> bool:
    directory = is_local(origin)
    return directory is not None and os.path.realpath(directory) == os.path.realpath(root)


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


def _tidy(root: Path) -> bool:
    """Remove directories that hold nothing, and a default cache with its index that holds no shard; whether that went."""
    for directory, _, _ in os.walk(root, topdown=False):
        if not Path(directory).is_relative_to(root / _PRIVATE) and Path(directory) != root:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    if not _is_default(root) or read_origin(root / _PRIVATE) is None:
        return False
    left = [path for path, _ in files_below(root)]
    shards = [path for path in left if path != root / INDEX_NAME and not path.is_relative_to(root / _PRIVATE)]
    with Users() as users:
        if shards or any(_is_locked(path) or users.uses(path) for path in left):
            return False
    shutil.rmtree(root, ignore_errors=True)
    return not root.exists()
