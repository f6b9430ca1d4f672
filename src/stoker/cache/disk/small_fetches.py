"""Small objects of a store are put into a cache on disk: claimed, checked in memory, written and renamed into place.

By claims, processes and threads divide files that are being fetched. A claim is a lock of one byte of the file
``.stoker/claims``, whose offset is a hash of the file's name: one system call, where a part file with a lock of its own takes
four. The kernel drops the locks with the process, however it ends. What is fetched is in memory until it is whole, so a claim
has nothing else to keep.

Among a hundred threads it takes ten times as long to have Python's lock again as the kernel takes to answer. So it is kept
where the kernel can answer at once, and never where a device or a server might have to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from stoker.cache.directory import DirectoryFiles
from stoker.cache.disk.in_use import lock_offset
from stoker.concurrency.forks import NO_FILE, ProcessFile, ProcessLocal
from stoker.concurrency.shared.byte_locks import is_byte_locked, lock_byte, unlock_byte
from stoker.formats.base import FileInfo
from stoker.storage.files.copying import write_all
from stoker.storage.files.mounts import LOCAL_FILE_SYSTEMS, file_system_of
from stoker.storage.files.own import open_own
from stoker.storage.files.part_files import PART, unlink
from stoker.storage.types import BufferLike

_NAME: Final = "claims"

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o666
_keeping = ctypes.PyDLL(None, use_errno=True)


class Claims(ProcessLocal):
    """The claims of one cache. Thread-safe; a copy has none, as a forked child has none.

    ``folder``: the cache's private directory, which must be there when something is claimed. ``patience``: seconds after
    which the claim of another process is not respected any more, from when it was first met.

    Attributes:
        is_local: whether the folder is on a file system of this machine alone, where the kernel itself has locks and names;
            known once a file was claimed.
        in_memory: whether it is on one whose files are memory, where nothing waits for a device.
        random: a part of the names of this process's part files.
    """

    def __init__(self, folder: str, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._file = NO_FILE
        self.is_local = self.in_memory = False
        self.random = os.urandom(4).hex()
        self._lock = threading.Lock()
        self._mine: set[str] = set()
        # Since when others have been fetching what is waited for: if a process is stopped, all that it fetches stalls.
        self._met: dict[str, float] = {}

    def take(self, name: str) -> bool:
        """Claim a file, until :meth:`release` or the end of this process; whether nobody else does.

        OSError if the private directory is not there, or can not be written to.
        """
        with self._lock:
            if name in self._mine:
                return False
            if self._file.number < 0 or (not self._mine and not os.fstat(self._file.number).st_nlink):
                self._open()
            offset = lock_offset(name)
            # Where the file system has no such locks, no byte is ever locked by another.
            locked = lock_byte(self._file.number, offset, "exclusive", at_once=self.is_local)
            if not locked and is_byte_locked(self._file.number, offset):
                return False
            self._mine.add(name)
            self._met.pop(name, None)
            return True

    def _open(self) -> None:
        """Open the file, or open it again after the cache was removed."""
        self._file = ProcessFile(open_own(f"{self._folder}/{_NAME}"))
        kind = file_system_of(self._folder)
        self.is_local, self.in_memory = kind in LOCAL_FILE_SYSTEMS, kind == "tmpfs"

    def release(self, name: str) -> None:
        """Give up a claim."""
        with self._lock:
            self._mine.discard(name)
            with contextlib.suppress(OSError):
                unlock_byte(self._file.number, lock_offset(name), at_once=self.is_local)

    def is_stalled(self, name: str) -> bool:
        """Whether the claim of another process, for which this one waits, is older than it should be."""
        with self._lock:
            return time.monotonic() > self._met.setdefault(name, time.monotonic()) + self._patience


class FileCalls(NamedTuple):
    """Calls that make a file; errors are those of Python's.

    Attributes:
        create: a descriptor to write to a file that is not there yet.
        close: close a descriptor.
        rename: give a file another name, in place of one that may be there.
    """

    create: Callable[[str], int]
    close: Callable[[int], None]
    rename: Callable[[str, str], None]


def exists_at_once(path: str) -> bool:
    """Whether a path exists. Only for local file systems: the call keeps Python's global lock.

    An error is taken for yes: who asks then is to look with ``os.stat``.
    """
    return _keeping.access(os.fsencode(path), os.F_OK) == 0 or ctypes.get_errno() != errno.ENOENT


def _create(path: str) -> int:
    return os.open(path, _NEW_FILE, _MODE)


def _create_at_once(path: str) -> int:
    descriptor: int = _keeping.open(os.fsencode(path), _NEW_FILE, _MODE)
    if descriptor < 0:
        raise _error(path)
    return descriptor


def _close_at_once(descriptor: int) -> None:
    if _keeping.close(descriptor):
        raise _error(None)


def _rename_at_once(path: str, to: str) -> None:
    if _keeping.rename(os.fsencode(path), os.fsencode(to)):
        raise _error(path)


def _error(path: str | None) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), path)


FILE_CALLS: Final = FileCalls(_create, os.close, os.rename)
"""Python's own."""

HELD_CALLS: Final = FileCalls(_create_at_once, _close_at_once, _rename_at_once)
"""For file systems whose files are memory."""


class SmallFetches:
    """Fetches of small files: each is claimed, and what has arrived put into its place.

    ``claims``: the claims of the cache's files.
    """

    def __init__(self, files: DirectoryFiles, patience: float) -> None:
        self._files = files
        self.claims = Claims(str(files.private), patience)
        # Whether the small shard that was looked for last was not here: then the next is claimed before it is looked for.
        self._lacks = False

    def claim_each(self, files: Sequence[FileInfo]) -> list[bool]:
        """Say of files whether each is to be fetched here: until it is released, nobody else fetches it.

        CacheError if the cache can not be written to.
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
        mine = files.claimed(file.basename, partial(self.claims.take, file.basename))
        lacks = mine and not (self._may_be_there(file.basename) and files.has(file))
        if mine and not lacks:  # another process has just fetched it
            self.claims.release(file.basename)
        self._lacks = lacks
        return lacks

    def put(self, name: str, data: BufferLike) -> None:
        """Put a file that is claimed into its place. A killed process leaves a part file, which nobody else writes to."""
        self._files.have_directories(name)
        part = f"{self._files.private}/{lock_offset(name):016x}.{os.getpid():x}{self.claims.random}{PART}"
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
