"""Small objects of a store are put into a cache on disk: claimed, checked in memory, written and renamed into place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.cache.disk.claims import Claims
from stoker.cache.disk.directory_files import DirectoryFiles, unlink
from stoker.cache.disk.in_use import lock_offset
from stoker.cache.disk.quota import PART
from stoker.formats.base import FileInfo
from stoker.storage.files.calls import FILE_CALLS, HELD_CALLS, exists_at_once
from stoker.storage.files.copying import write_all
from stoker.storage.types import BufferLike


class SmallFetches:
    """Fetches of small files: each is claimed, and what has arrived put into its place; see :mod:`.claims`.

    Args:
        files: of the cache.
        patience: see :class:`~stoker.cache.disk.claims.Claims`.

    Attributes:
        claims: the claims of the cache's files.
    """

    def __init__(self, files: DirectoryFiles, patience: float) -> None:
        self._files = files
        self.claims = Claims(str(files.private), patience)
        # Whether the small shard that was looked for last was not here: then the next is claimed before it is looked for.
        self._lacks = False
        # A part of the names of this process's part files.
        self._random = os.urandom(4).hex()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_random": os.urandom(4).hex()}  # part files of the copy have names of their own

    def claim_each(self, files: Sequence[FileInfo]) -> list[bool]:
        """Say of files whether each is to be fetched here: until it is released, nobody else fetches it.

        Raises:
            CacheError: the cache can not be written to.
        """
        found: list[bool] = []
        try:
            for file in files:
                found.append(self.claim(file))  # noqa: PERF401 - those claimed are released after an error
        except BaseException:
            for file, mine in zip(files, found, strict=False):
                if mine:
                    self.claims.release(file.basename)
            raise
        return found

    def claim(self, file: FileInfo) -> bool:
        """The same for one."""
        files = self._files
        if not self._lacks and files.has(file):
            return False
        with files.named_errors("write to"):
            files.have_directories(file.basename)
            try:
                mine = self.claims.take(file.basename)
            except FileNotFoundError:  # someone has removed the cache
                files.make_directories(files.root / file.basename)
                mine = self.claims.take(file.basename)
        lacks = mine and not (self._may_be_there(file.basename) and files.has(file))
        if mine and not lacks:  # another process has just fetched it
            self.claims.release(file.basename)
        self._lacks = lacks
        return lacks

    def put(self, name: str, data: BufferLike) -> None:
        """Put a file that is claimed into its place. A killed process leaves a part file, which nobody else writes to."""
        self._files.have_directories(name)
        part = f"{self._files.private}/{lock_offset(name):016x}.{os.getpid():x}{self._random}{PART}"
        calls = HELD_CALLS if self.claims.in_memory else FILE_CALLS
        descriptor = calls.create(part)
        try:
            try:
                write_all(descriptor, data)
            finally:
                calls.close(descriptor)
            calls.rename(part, f"{self._files.folder}/{name}")
        except BaseException:
            unlink(part)
            raise

    def _may_be_there(self, name: str) -> bool:
        """Whether a file may be there. Where the kernel can tell, Python's lock is kept, which other threads would take."""
        return not self.claims.is_local or exists_at_once(f"{self._files.folder}/{name}")
