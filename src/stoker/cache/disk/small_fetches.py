"""Small objects of a store are put into a cache on disk: claimed, checked in memory, written and renamed into place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stoker.cache.base import CacheSettings
from stoker.cache.directory import CacheDirectory
from stoker.cache.disk.claims import Claims
from stoker.cache.disk.directory_files import DirectoryFiles, unlink
from stoker.cache.disk.in_use import lock_offset
from stoker.cache.disk.quota import PART
from stoker.errors import StokerError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.index.version import VersionWatch
from stoker.storage import Store
from stoker.storage.files.calls import FILE_CALLS, HELD_CALLS, exists_at_once
from stoker.storage.files.copying import write_all
from stoker.storage.types import Arrival, BufferLike
from stoker.types import Buffer, HeldBytes


class SmallFetches(DirectoryFiles):
    """Fetches files that are small; see :mod:`.claims`."""

    def __init__(
        self,
        root: Path,
        store: Store | None,
        settings: CacheSettings,
        watch: VersionWatch | None = None,
        directory: CacheDirectory | None = None,
    ) -> None:
        super().__init__(root, store, settings, watch, directory)
        self._claims = Claims(str(self._private), settings.stall_timeout)
        # Whether the small shard that was looked for last was not here: then the next is claimed before it is looked for.
        self._lacks = False
        # A part of the names of this process's part files.
        self._random = os.urandom(4).hex()

    def claim_small(self, infos: Sequence[ShardInfo]) -> Sequence[bool]:
        """See :class:`~stoker.cache.base.ShardCache`."""
        found: list[bool] = []
        try:
            for info in infos:
                found.append(self._claim_small(info.raw[0]))  # noqa: PERF401 - those claimed are released after an error
        except BaseException:
            for info, mine in zip(infos, found, strict=False):
                if mine:
                    self._claims.release(info.raw[0].basename)
            raise
        return found

    def _claim_small(self, file: FileInfo) -> bool:
        if not self._lacks and self._present(file):
            return False
        with self._named_errors("write to"):
            self._have_directories(file.basename)
            try:
                mine = self._claims.take(file.basename)
            except FileNotFoundError:  # someone has removed the cache
                self._make_directories(self.root / file.basename)
                mine = self._claims.take(file.basename)
        lacks = mine and not (self._may_be_there(file.basename) and self._present(file))
        if mine and not lacks:  # another process has just fetched it
            self._claims.release(file.basename)
        self._lacks = lacks
        return lacks

    def take_small(
        self, infos: Sequence[ShardInfo], answers: Sequence[Arrival | Exception | None]
    ) -> list[Buffer | Exception | None]:
        """See :class:`~stoker.cache.base.ShardCache`."""
        found: list[Buffer | Exception | None] = []
        try:
            for info, answer in zip(infos, answers, strict=True):
                found.append(None if answer is None else self._take_small(info.raw[0], answer))
                self._claims.release(info.raw[0].basename)
        finally:
            for info in infos[len(found) :]:  # none but for an interrupt
                self._claims.release(info.raw[0].basename)
        return found

    def _take_small(self, file: FileInfo, answer: Arrival | Exception) -> Buffer | Exception:
        try:
            data = self._checked(file, answer)
            try:
                self._write_small(file.basename, data)
            except FileNotFoundError:  # someone has removed the cache, or leftovers of others
                self.keep(file.basename, bytes(data))
        except OSError as error:
            return error if isinstance(error, StokerError) else self._named(error, "write to")
        except Exception as error:  # noqa: BLE001 - it belongs to the shard
            return error
        return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8).view(HeldBytes)

    def _write_small(self, name: str, data: BufferLike) -> None:
        """Put a file that is claimed into its place. A killed process leaves a part file, which nobody else writes to."""
        self._have_directories(name)
        part = f"{self._private}/{lock_offset(name):016x}.{os.getpid():x}{self._random}{PART}"
        calls = HELD_CALLS if self._claims.in_memory else FILE_CALLS
        descriptor = calls.create(part)
        try:
            try:
                write_all(descriptor, data)
            finally:
                calls.close(descriptor)
            calls.rename(part, f"{self._folder}/{name}")
        except BaseException:
            unlink(part)
            raise

    def _may_be_there(self, name: str) -> bool:
        """Whether a file may be there. Where the kernel can tell, Python's lock is kept, which other threads would take."""
        return not self._claims.is_local or exists_at_once(f"{self._folder}/{name}")
