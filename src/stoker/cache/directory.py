"""Directories of caches: one for each version of each dataset, so that the path of a cache tells its version.

``<local>/<split>/<identity>/`` holds a version. The identity, 24 hex digits, is made of where the dataset lies and of its
version; ``<identity>/.stoker/origin`` says both: without this note, nobody removes any of the files. A process that uses the
directory holds a shared ``flock`` on it. Once a newer version was opened, directories of older ones that nobody holds are
removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.concurrency.forks import NO_FILE, OpenFile
from stoker.digests import sha256
from stoker.errors import CacheError, ConfigError, StokerError, StorageFullError
from stoker.formats.base import UNKNOWN, FileInfo
from stoker.index.index import INDEX_NAME
from stoker.lazy import cached_property
from stoker.storage.files.own import CACHE_MARK, CACHE_NAME, PRIVATE, REMOVED_CACHE, make_own_directory, open_own
from stoker.storage.files.part_files import PART, lock_existing, release, remove_unlocked
from stoker.storage.files.regular import read_regular

_TRIES: Final = 200


@dataclass(frozen=True, slots=True)
class CacheOrigin:
    """The dataset that the files of a cache are copies of.

    Attributes:
        url: URL of the dataset, or the real path of its directory.
        endpoint: the server or account, where the URL does not name it; see :meth:`stoker.storage.Store.endpoint`.
        version: of the dataset, as :meth:`stoker.index.version.IndexVersion.as_dict` gives it; empty for files without an
            index, whose names in the cache have a version each.
    """

    url: str
    endpoint: str = ""
    version: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Text that is another for another dataset, whatever its version."""
        return f"{self.url}\n{self.endpoint}"

    @property
    def prefix(self) -> str:
        """12 hex digits that all versions of a dataset have in common."""
        return sha256(self.text.encode(errors="surrogatepass")).hexdigest()[:12]

    def same_dataset(self, other: CacheOrigin) -> bool:
        """Return whether both are versions of one dataset."""
        return (self.url, self.endpoint) == (other.url, other.endpoint)


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
        self._held: OpenFile = NO_FILE

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": NO_FILE}

    def make(self) -> None:
        """Make the directory and its note if need be, and hold it.

        CacheError if the directory is another dataset's. OSError if it can not be made.
        """
        for _ in range(_TRIES):
            if self._held.number >= 0 and os.path.exists(self._note):
                return
            make_own_directory(self._note.parent)
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                write_origin(self._note.parent, self.origin)
                self.hold()
                if self._held.number < 0:  # another process is about to remove it, or was stopped while it did
                    time.sleep(0.005)

    def hold(self) -> None:
        """Hold the directory if it is there, so that nobody removes it while this process lives."""
        self._held.close()
        # A process that has it locked exclusively removes it.
        self._held = OpenFile(lock_existing(self._note, fcntl.LOCK_SH))

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
    descriptor = lock_existing(path / PRIVATE / CACHE_MARK, fcntl.LOCK_EX)
    if descriptor is None:
        return False
    aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}.removed")
    try:
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


def read_origin(private: Path) -> CacheOrigin | None:
    """Read a cache's note; ``None`` where there is none. ``private``: the cache's directory ``.stoker``."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(private / CACHE_MARK))
        if isinstance(found, dict) and isinstance(found.get("url"), str) and found["url"]:
            version = found.get("version")
            return CacheOrigin(
                found["url"], str(found.get("endpoint", "")), version if isinstance(version, dict) else {}
            )
    return None


def write_origin(private: Path, origin: CacheOrigin) -> None:
    """Write the note unless it is there; it appears whole, and is never replaced, for processes hold locks on it.

    CacheError if the note is there, and is of another dataset. OSError if it can not be written. ``private``: the cache's
    directory ``.stoker``, which is there.
    """
    path = private / CACHE_MARK
    if not path.exists():
        beside = private / f"{CACHE_MARK}.{os.urandom(8).hex()}{PART}"
        text = {"url": origin.url, "endpoint": origin.endpoint, "version": dict(origin.version)}
        try:
            with open(open_own(beside, os.O_EXCL), "wb") as file:
                file.write(json.dumps(text).encode())
            try:
                os.link(beside, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                os.rename(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    found = read_origin(private)
    if found is not None and not found.same_dataset(origin):
        raise CacheError(
            f"the cache {private.parent} is one of {found.url}, not of {origin.url}: choose another local="
        )


def remove_origin_part(path: Path) -> bool:
    """Remove a file in which a note was made, if it is a second name of the note; whether it was one.

    A process that was killed leaves it so. Processes that use the cache have the note locked, and with it this name of it.
    """
    note = path.parent / CACHE_MARK
    with contextlib.suppress(OSError):
        if path.name.startswith(f"{CACHE_MARK}.") and os.path.samestat(os.lstat(path), os.lstat(note)):
            os.unlink(path)
            return True
    return False


def make_private(directory: Path, url: str) -> Path:
    """The private directory for what is computed from a dataset, made if need be; marked unless it lies in the dataset."""
    private = directory / PRIVATE
    make_own_directory(private)
    if read_origin(private) is None and os.path.realpath(url) != os.path.realpath(directory):
        write_origin(private, CacheOrigin(url))
    return private


# -- the files of a directory -----------------------------------------------------------------------------------------------

_T = TypeVar("_T")

# Seconds for which the directories of a cache that were there are taken to be there.
_TRUSTED: Final = 1.0


class DirectoryFiles:
    """The files of a cache below its directory: nothing outside of it is written to, and errors name the cache.

    ``root``: the directory; made when first written to. ``directory``: makes and holds the root; ``None`` where that is no
    directory of one version. ``folder``: the root as text.
    """

    def __init__(self, root: Path, directory: CacheDirectory | None) -> None:
        self.root, self.directory = root, directory
        # As text: making a Path takes longer than all else that opening a small file takes.
        self.folder = str(root)
        self._seen = False
        # Until when the directories for files are taken to be there, by that of the file itself.
        self._made_until: dict[str, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made_until": {}}  # the copy holds the directory by itself

    @cached_property
    def private(self) -> Path:
        """The private directory, where files are made."""
        return self.root / PRIVATE

    def has(self, file: FileInfo) -> bool:
        """Return whether the cache has a file, with the right size."""
        try:
            status = os.stat(f"{self.folder}/{file.basename}")
            return stat.S_ISREG(status.st_mode) and file.whole in (status.st_size, UNKNOWN)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self.named(error, "read") from error

    def have_directories(self, name: str) -> None:
        """Make the directories for a file, unless they were there a moment ago."""
        if time.monotonic() > self._made_until.get(os.path.dirname(name), 0.0):
            self.make_directories(self.root / name)
            self._made_until[os.path.dirname(name)] = time.monotonic() + _TRUSTED

    def claimed(self, name: str, claim: Callable[[], _T]) -> _T:
        """The result of ``claim``, which makes a file in the private directory. Directories for ``name`` are made before."""
        with self.named_errors("write to"):
            self.have_directories(name)
            try:
                return claim()
            except FileNotFoundError:  # someone has removed the cache
                self.make_directories(self.root / name)
                return claim()

    def make_directories(self, target: Path) -> None:
        """Make the root, the private directory and those for a file."""
        there = self.private.is_dir()
        if not (there and self._seen):
            make_own_directory(self.private)
            self._seen = True
        if not there:
            self.sweep()
        if self.directory is not None:
            self.directory.make()
        self.stay_inside(target)
        target.parent.mkdir(parents=True, exist_ok=True)

    def stay_inside(self, path: Path) -> None:
        """Check that no symbolic link on the way to a file of the cache leads out of it, before it is written or removed."""
        parent = path.parent
        if parent == self.root:
            return
        top, found = os.path.realpath(self.root), os.path.realpath(parent)
        if os.path.commonpath([top, found]) != top:
            raise CacheError(
                f"{path} would be in {found}, out of the cache {self.root}, by a symbolic link: remove the link, or choose "
                "another local="
            )

    @contextlib.contextmanager
    def named_errors(self, doing: str) -> Iterator[None]:
        """Convert local file errors to stoker's own, with the remedy."""
        try:
            yield
        except StorageFullError as error:
            raise self._full() from error
        except StokerError:
            raise
        except OSError as error:
            raise self.named(error, doing) from error

    def named(self, error: OSError, doing: str) -> StokerError:
        """The error of stoker's own for one of a local file."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return self._full()
        return CacheError(f"can not {doing} the cache {self.root}: {error.strerror}{_remedy(error)}")

    def _full(self) -> StorageFullError:
        message = f"no space left in the cache {self.root}: free some, set cache_limit=, or put local= elsewhere"
        return StorageFullError(message, url=str(self.root))

    def sweep(self) -> None:
        """Remove part files whose process is gone."""
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self.private)):
                if entry.name.endswith(PART) and not remove_origin_part(self.private / entry.name):
                    remove_unlocked(self.private / entry.name)


def not_opened(error: OSError, path: str) -> CacheError:
    """The error for a file that is there, and can not be opened or mapped."""
    return CacheError(f"can not open {path}: {os.strerror(error.errno or 0)}{_remedy(error)}")


def _remedy(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ": something keeps all file descriptors that this process may have; raise the limit (ulimit -n)"
    if error.errno == errno.ENOMEM:
        return ": this process has no memory for it, or more maps than it may have; raise vm.max_map_count (sysctl)"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "; choose another local= (or STOKER_CACHE), or mend its permissions"
    return "; choose another local= (or STOKER_CACHE)"
