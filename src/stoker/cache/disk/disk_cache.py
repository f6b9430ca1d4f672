"""The cache on disk: whole, verified shard files, shared by every process of a node.

A shard's file is in the cache by rename, whole and verified, or it is not there. All coordination is between files:

* ``<root>/.stoker/<name>.part`` is a download under way. The process that writes it holds an exclusive ``flock``; the kernel
  drops that with the process, so a killed download is taken over, or removed by the next process that opens the cache.
* ``<root>/.stoker/claims`` has locks of the small files that are being fetched, see :mod:`.claims`; each is in
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
from collections.abc import Iterable, Sequence
from typing import Any

from stoker.cache.disk.fetches import Fetches
from stoker.concurrency.request_observer import fetched_by_thread, observer
from stoker.formats.base import ShardInfo
from stoker.storage.files.mapped import MappedFile
from stoker.storage.local import file_info
from stoker.types import Buffer


class DiskCache(Fetches):
    """Shard files of one dataset under one directory; arguments as of :class:`~stoker.cache.disk.fetches.Fetches`."""

    def __getstate__(self) -> dict[str, Any]:
        # The copy holds the directory by itself, and its part files have names of their own.
        return {**self.__dict__, "_made_until": {}, "_fresh": {}, "_random": os.urandom(4).hex()}

    def open_cut(self, info: ShardInfo) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: files that are read where they lie."""
        return None if self.store is not None or info.zip else self.open(info, cut=True)

    def open(self, info: ShardInfo, *, cut: bool = False) -> list[Buffer] | None:
        """See :class:`~stoker.cache.base.ShardCache`: the files are mapped, unless they were just fetched and are held."""
        if self._fresh and (held := self._take_fresh(info)) is not None:
            return held
        files: list[Buffer] = []
        for file in info.raw:
            path = f"{self._folder}/{file.basename}"
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
        if not info.raw:  # nothing of it comes here
            return str(info.detail)
        path = f"{self._folder}/{info.raw[0].basename}"
        if self.store is None:
            return path
        part = info.stored[0].part
        if part is not None:  # the file of the cache has a name that tells users nothing
            return self.store.url_of(part.key)
        return f"{path} (from {self.store.url_of(info.stored[0].basename)})"

    def discard(self, info: ShardInfo) -> bool:
        if self.store is None and not info.zip:
            return False
        for file in info.raw:
            self._stay_inside(self.root / file.basename)
            with self._named_errors("remove a corrupt shard from"), contextlib.suppress(FileNotFoundError):
                os.unlink(self.root / file.basename)
        return True

    def used(self, shards: Iterable[ShardInfo]) -> int:
        found = 0
        for name in {file.basename for info in shards for file in info.raw} if self.store is not None else ():
            with contextlib.suppress(OSError):
                found += (self.root / name).stat().st_size
        return found
