"""Files of a cache on disk: there or not, mapped, in directories that are made when first needed; errors name the cache."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.cache.directory import CacheDirectory, remove_origin_part
from stoker.errors import CacheError, StokerError, StorageFullError
from stoker.formats.base import UNKNOWN, FileInfo
from stoker.lazy import cached_property
from stoker.storage.files.own import PRIVATE, make_own_directory
from stoker.storage.files.part_files import PART, remove_unlocked

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
        """Whether a file is there with the right size."""
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
