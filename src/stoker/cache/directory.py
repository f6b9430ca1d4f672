"""Directories of caches: one for each version of each dataset, so that the path of a cache tells its version.

``<local>/<split>/<identity>/`` holds a version. The identity, 24 hex digits, is made of where the dataset lies and of its
version; ``<identity>/.stoker/origin`` says both. A process that uses the directory holds a shared ``flock`` on that note.
Once a newer version was opened, directories of older ones that nobody holds are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from stoker.cache.disk.quota import release, try_lock
from stoker.cache.origin import CacheOrigin, read_origin, write_origin
from stoker.digests import sha256
from stoker.errors import ConfigError
from stoker.index.index import INDEX_NAME
from stoker.storage.files.own import CACHE_MARK, CACHE_NAME, PRIVATE, REMOVED_CACHE, make_own_directory

_TRIES: Final = 200


class CacheDirectory:
    """The directory of a cache that holds one version of one dataset.

    Picklable; the copy holds the directory by itself. A forked process shares the hold. ``base``: the directory that the user
    named, split included. ``origin``: the dataset and its version. ``version``: text that tells the version from others.
    ``path``: the directory itself.
    """

    def __init__(self, base: Path, origin: CacheOrigin, version: str) -> None:
        self.origin = origin
        self.path = base / (origin.prefix + sha256(version.encode()).hexdigest()[:12])
        self._note = self.path / PRIVATE / CACHE_MARK
        self._held: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    # Bound as defaults: at the interpreter's end a module's names are gone.
    def __del__(
        self, close: Callable[[int], None] = os.close, suppress: type[contextlib.suppress] = contextlib.suppress
    ) -> None:
        held, self._held = getattr(self, "_held", None), None
        if held is not None:
            with suppress(OSError):
                close(held)

    def make(self) -> None:
        """Make the directory and its note if need be, and hold it.

        CacheError if the directory is another dataset's. OSError if it can not be made.
        """
        for _ in range(_TRIES):
            if self._held is not None and os.path.exists(self._note):
                return
            make_own_directory(self._note.parent)
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                write_origin(self._note.parent, self.origin)
                self.hold()
                if self._held is None:  # another process is about to remove it, or was stopped while it did
                    time.sleep(0.005)

    def hold(self) -> None:
        """Hold the directory if it is there, so that nobody removes it while this process lives."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)
        try:
            descriptor = os.open(self._note, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        with contextlib.suppress(OSError):
            # A process that has it locked exclusively removes it.
            if try_lock(descriptor, fcntl.LOCK_SH) and os.path.samestat(os.stat(self._note), os.fstat(descriptor)):
                self._held = descriptor
                return
        os.close(descriptor)

    def seen(self) -> None:
        """Note that this is the newest version now, and remove directories of older ones that nobody uses."""
        with contextlib.suppress(OSError):
            os.utime(self._note)
        for path in self.others():
            remove_directory(path)
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path.parent):
                if REMOVED_CACHE.fullmatch(entry.name) and entry.name.startswith(self.origin.prefix):
                    _remove_tree(Path(entry.path))

    def others(self) -> list[Path]:
        """Directories of other versions of the dataset."""
        return [path for path in _versions(self.path.parent, self.origin) if path != self.path]


def is_cache_directory(path: Path) -> bool:
    """Whether a directory was made by :class:`CacheDirectory`: all in it may be removed."""
    return CACHE_NAME.fullmatch(path.name) is not None and read_origin(path / PRIVATE) is not None


def latest_version(base: Path, origin: CacheOrigin) -> CacheOrigin | None:
    """The version of a dataset that was last found at its origin, among those with an index in a cache."""
    found = [path for path in _versions(base, origin) if os.path.exists(path / INDEX_NAME)]
    if not found:
        return None
    latest = max(found, key=lambda path: os.stat(path / PRIVATE / CACHE_MARK).st_mtime_ns)
    return read_origin(latest / PRIVATE)


def refuse_dataset(bases: tuple[Path, ...], source: str) -> None:
    """Check that what is to be a cache is not a dataset, whose files are not ours.

    ``bases``: the directory that the user named, and the one of the split.
    """
    for base in bases:
        if os.path.lexists(base / INDEX_NAME):
            raise ConfigError(
                f"{base} can not be the cache of {source}, for it holds an {INDEX_NAME} of its own: it is a dataset, or a "
                "cache of another library or of an earlier version of this one. Choose an empty directory for local=, or "
                f"give local={str(base)!r} without remote= to read the files there"
            )


def remove_directory(path: Path) -> bool:
    """Remove a directory that :class:`CacheDirectory` made, unless a process holds it; whether it is gone."""
    note = path / PRIVATE / CACHE_MARK
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not try_lock(descriptor, fcntl.LOCK_EX) or not os.path.samestat(os.stat(note), os.fstat(descriptor)):
            return False
        aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}.removed")
        os.rename(path, aside)
    except OSError:
        return False
    finally:
        release(descriptor)
    _remove_tree(aside)
    return True


def _remove_tree(path: Path) -> None:
    """Remove a directory with all in it, its note last: what a killed process leaves of it can still be told."""
    if read_origin(path / PRIVATE) is not None:
        with contextlib.suppress(OSError):
            for entry in (*os.scandir(path), *os.scandir(path / PRIVATE)):
                if entry.name in (PRIVATE, CACHE_MARK):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
            os.unlink(path / PRIVATE / CACHE_MARK)
    with contextlib.suppress(OSError):
        os.rmdir(path / PRIVATE)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _versions(base: Path, origin: CacheOrigin) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            if CACHE_NAME.fullmatch(entry.name) and entry.name.startswith(origin.prefix):
                found = read_origin(Path(entry.path) / PRIVATE)
                if found is not None and found.same_dataset(origin):
                    yield Path(entry.path)
