"""The cache on disk: whole, verified shard files, shared by every process of a node.

A shard's file is in the cache by rename, whole and verified, or it is not there. All coordination is between files:

* ``<root>/.stoker/<name>.part`` is a download under way. The process that writes it holds an exclusive ``flock``; the kernel
  drops that with the process, so a killed download is taken over, or removed by the next process that opens the cache.
* ``<root>/.stoker/claims`` has locks of the small files that are being fetched, see :mod:`.small_fetches`; each is in
  memory until it is whole and verified, and has a part file but for a moment.
* ``<root>/.stoker/room``, only with a limit, counts the bytes that files have or will have; see :mod:`.quota`.
* ``<root>/<basename>`` is a shard file. A process that has it mapped holds a lock that stands for it, see
  :mod:`.in_use`; eviction passes over files in use. A file that is unlinked while mapped stays readable to
  those who mapped it.

Readers of present shards take no lock that anyone waits for.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterable, Sequence

from stoker.cache.disk.directory_files import not_opened
from stoker.cache.disk.fetches import Fetches
from stoker.cache.disk.in_use import hold
from stoker.cache.range_fetch import check_file
from stoker.concurrency.request_observer import fetched_by_thread, observer
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.base import UNKNOWN, FileInfo, ShardInfo
from stoker.storage.files.mapped import MappedFile, map_open_file
from stoker.storage.files.regular import open_regular
from stoker.storage.local import file_info
from stoker.types import Buffer


class DiskCache(Fetches):
    """Shard files of one dataset under one directory; arguments as of :class:`~stoker.cache.disk.fetches.Fetches`."""

    def open_cut(self, info: ShardInfo) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: files that are read where they lie."""
        return None if self.store is not None or info.zip else self.open(info, cut=True)

    def open(self, info: ShardInfo, *, cut: bool = False) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: the files are mapped."""
        files: list[Buffer] = []
        for file in info.raw:
            path = f"{self.files.folder}/{file.basename}"
            found = self._map(path, file, cut=cut)
            if found is None:
                return None
            data, status = found
            if self.store is None and not info.zip and self.watch is not None:
                self._check_opened(file, data, file_info(file.basename, status, path))
            files.append(data)
        if self.store is None and self.watch is not None and info.zip:
            self.watch.look()
        return files

    def read_ahead(self, files: Sequence[Buffer]) -> None:
        """Have the kernel read whole mapped files from disk in the background, before their pages are needed."""
        for data in files:
            if isinstance(data, MappedFile):
                counted = observer() is not None
                before = fetched_by_thread() if counted else 0
                with contextlib.suppress(OSError):
                    data.madvise(mmap.MADV_WILLNEED)
                data.fetched = counted and fetched_by_thread() > before

    def validate(self, info: ShardInfo, files: Sequence[Buffer]) -> None:
        if isinstance(self.settings.validate_hash, str) or self.settings.validate_hash is True:
            for file, data in zip(info.raw, files, strict=True):
                self._check(file, data, self.root / file.basename)

    def describe(self, info: ShardInfo) -> str:
        url = self.url_of(info)
        # The name of a part's copy tells users nothing.
        if self.store is None or not info.raw or info.stored[0].part is not None:
            return url
        return f"{self.files.folder}/{info.raw[0].basename} (from {url})"

    def discard(self, info: ShardInfo) -> bool:
        if self.store is None and not info.zip:
            return False
        self._remove(info.raw)
        return True

    def evict(self, info: ShardInfo) -> None:
        """See :class:`~stoker.cache.base.ShardCache`; with ``keep_zip`` there are compressed files, too."""
        self._remove((*info.raw, *info.zip))

    def _remove(self, files: Iterable[FileInfo]) -> None:
        for file in files:
            self.files.stay_inside(self.root / file.basename)
            with self.files.named_errors("remove a corrupt shard from"), contextlib.suppress(FileNotFoundError):
                os.unlink(self.root / file.basename)

    def used(self, shards: Iterable[ShardInfo]) -> int:
        found = 0
        for name in {file.basename for info in shards for file in info.raw} if self.store is not None else ():
            with contextlib.suppress(OSError):
                found += (self.root / name).stat().st_size
        return found

    def _map(self, path: str, file: FileInfo, *, cut: bool = False) -> tuple[Buffer, os.stat_result] | None:
        """A file's bytes and status; ``None`` if it is missing or has a wrong size. One that is ``cut`` may be too short."""
        try:
            descriptor, status = open_regular(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, StokerError) and self.store is None:  # it exists, but is no regular file
                raise
            return None
        except OSError as error:
            raise not_opened(error, path) from error
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
            raise not_opened(error, path) from error
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
                f"{path} was written to after its directory was listed, which was at {listed}. The listing was "
                f"remembered in {self.remembered}, and used because no folder has changed since; it is removed now. Open "
                "the dataset again, and the files are listed again; a run that began with the old file can not continue "
                "with the new one. Rename new files into place: then a start sees that they changed"
            )
        return error
