"""Files of a cache on disk: there or not, mapped, in directories that are made when first needed; errors name the cache."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.directory import CacheDirectory
from stoker.cache.disk.in_use import hold
from stoker.cache.disk.quota import PART, remove_unlocked
from stoker.cache.origin import PRIVATE, remove_origin_part
from stoker.cache.range_fetch import check_file
from stoker.cache.small_files import SmallFileReader
from stoker.cached import cached_property
from stoker.errors import CacheError, CorruptDataError, StokerError, StorageFullError
from stoker.formats.base import UNKNOWN, FileInfo
from stoker.index.version import VersionWatch
from stoker.storage import Store
from stoker.storage.files.mapped import MappedFile, map_open_file
from stoker.storage.files.own import make_own_directory
from stoker.storage.files.regular import open_regular
from stoker.types import Buffer

# Seconds for which the directories of a cache that were there are taken to be there.
_TRUSTED: Final = 1.0


class DirectoryFiles(ShardCache):
    """The files of a cache below its directory.

    Args:
        root: the directory; made when first written to.
        store: where shards come from; ``None`` if the directory itself is the dataset.
        settings: see :class:`~stoker.cache.base.CacheSettings`.
        watch: see :class:`~stoker.cache.base.ShardCache`.
        directory: makes and holds the root; ``None`` where there is no store.
    """

    def __init__(
        self,
        root: Path,
        store: Store | None,
        settings: CacheSettings,
        watch: VersionWatch | None = None,
        directory: CacheDirectory | None = None,
    ) -> None:
        super().__init__(root, store, settings, watch)
        self.directory = directory
        # As text: making a Path takes longer than all else that opening a small file takes.
        self._folder = str(root)
        self.small_files = SmallFileReader(self._folder, watch) if store is None else None
        self._seen = False
        # Until when the directories for files are taken to be there, by that of the file itself.
        self._made_until: dict[str, float] = {}

    @cached_property
    def _private(self) -> Path:
        return self.root / PRIVATE

    def _present(self, file: FileInfo) -> bool:
        try:
            status = os.stat(f"{self._folder}/{file.basename}")
            return stat.S_ISREG(status.st_mode) and file.whole in (status.st_size, UNKNOWN)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _map(self, path: str, file: FileInfo, *, cut: bool = False) -> tuple[Buffer, os.stat_result] | None:
        """A file's bytes and status; ``None`` if it is missing or has a wrong size. One that is ``cut`` may be too short."""
        try:
            descriptor, status = open_regular(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, StokerError) and self.store is None:  # it exists, but is no regular file
                raise
            return None
        except OSError as error:
            raise _not_opened(error, path) from error
        try:
            first, end = 0, status.st_size
            if file.part is not None and file.part.in_place and self.store is None:
                try:
                    check_file(path, status, file.part)
                except CorruptDataError as error:
                    raise self._since_listed(path, error) from error
            elif file.whole not in (end, UNKNOWN) and not (cut and end < file.whole):
                return None
            if file.part is not None and file.part.in_place and file.whole != UNKNOWN:
                first, end = file.part.window
            if end <= first:
                return b"", status
            if self.store is None:
                return map_open_file(descriptor, first, end, path, status), status
            mapped = MappedFile(descriptor, first, end, path, status)
            mapped.copied = True
            hold(self.root, file.basename, mapped)
            if self.settings.limit is not None:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)  # eviction sorts by this time
            return mapped, status
        except OSError as error:
            if isinstance(error, StokerError):
                raise
            raise _not_opened(error, path) from error
        finally:
            os.close(descriptor)

    def _since_listed(self, path: str, error: CorruptDataError) -> CorruptDataError:
        """The error for a file in place that is not the one that was indexed. A remembered listing that has it is removed."""
        if self.remembered is None:
            return error
        with contextlib.suppress(OSError):
            listed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.stat(self.remembered).st_mtime))
            os.unlink(self.remembered)
            return CorruptDataError(
                f"{path} was written to after its directory was listed, which was at {listed}. The listing was remembered in "
                f"{self.remembered}, and taken as no folder has changed since; it is removed now. Open the dataset again, "
                "and the files are listed anew; a run that began with the old file can not continue with the new one. Rename "
                "new files into place: then a start sees that they changed"
            )
        return error

    def _have_directories(self, name: str) -> None:
        """Make the directories for a file, unless they were there a moment ago."""
        if time.monotonic() > self._made_until.get(os.path.dirname(name), 0.0):
            self._make_directories(self.root / name)
            self._made_until[os.path.dirname(name)] = time.monotonic() + _TRUSTED

    def _make_directories(self, target: Path) -> None:
        there = self._private.is_dir()
        if not (there and self._seen):
            make_own_directory(self._private)
            self._seen = True
        if not there:
            self.sweep()
        if self.directory is not None:
            self.directory.make()
        self._stay_inside(target)
        target.parent.mkdir(parents=True, exist_ok=True)

    def _stay_inside(self, path: Path) -> None:
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
    def _named_errors(self, doing: str) -> Iterator[None]:
        """Convert local file errors to stoker's own, with the remedy."""
        try:
            yield
        except StorageFullError as error:
            raise self._full() from error
        except StokerError:
            raise
        except OSError as error:
            raise self._named(error, doing) from error

    def _named(self, error: OSError, doing: str) -> StokerError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return self._full()
        message = (
            f"can not {doing} the cache {self.root}: {error.strerror}; choose another local= or mend its permissions"
        )
        return CacheError(message)

    def _full(self) -> StorageFullError:
        message = f"no space left in the cache {self.root}: free some, set cache_limit=, or put local= elsewhere"
        return StorageFullError(message, url=str(self.root))

    def sweep(self) -> None:
        """Remove part files whose process is gone."""
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self._private)):
                if entry.name.endswith(PART) and not remove_origin_part(self._private / entry.name):
                    remove_unlocked(self._private / entry.name)


def _not_opened(error: OSError, path: str) -> CacheError:
    remedy = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = ": something keeps all file descriptors that this process may have; raise the limit (ulimit -n)"
    elif error.errno == errno.ENOMEM:
        remedy = ": this process has no memory for it, or more maps than it may have; raise vm.max_map_count (sysctl)"
    return CacheError(f"can not open {path}: {os.strerror(error.errno or 0)}{remedy}")


def unlink(path: str | Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
