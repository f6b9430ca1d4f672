"""Claims of small files that are being fetched into a cache, by which processes and threads divide them.

A claim is a lock of one byte of the file ``.stoker/claims``, whose offset is a hash of the file's name: one system call,
where a part file with a lock of its own takes four. The kernel drops the locks with the process, however it ends. What is
fetched is in memory until it is whole, so a claim has nothing else to keep.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Final

from stoker.cache.disk.in_use import lock_offset
from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.shared.byte_locks import is_byte_locked, lock_byte, unlock_byte
from stoker.storage.files.mounts import LOCAL_FILE_SYSTEMS, file_system_of
from stoker.storage.files.own import open_own

_NAME: Final = "claims"


class Claims:
    """The claims of one cache. Thread-safe; picklable: a copy has none, as a forked child has none.

    Args:
        folder: the cache's private directory, which must be there when something is claimed.
        patience: seconds after which the claim of another process is not respected any more, from when it was first met.

    Attributes:
        is_local: whether the folder is on a file system of this machine alone, where the kernel itself has locks and names;
            known once a file was claimed.
        in_memory: whether it is on one whose files are memory, where nothing waits for a device.
    """

    def __init__(self, folder: str, patience: float) -> None:
        self._folder, self._patience = folder, patience
        self._descriptor = -1
        self.is_local = self.in_memory = False
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._mine: set[str] = set()
        # Since when others have been fetching what is waited for: if a process is stopped, all that it fetches stalls.
        self._met: dict[str, float] = {}

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: closing a copy of the descriptor ends no lock of the parent's."""
        self.__del__()
        self._reset()

    def __getstate__(self) -> tuple[str, float]:
        return self._folder, self._patience

    def __setstate__(self, state: tuple[str, float]) -> None:
        Claims.__init__(self, *state)

    def take(self, name: str) -> bool:
        """Claim a file, until :meth:`release` or the end of this process; whether nobody else does.

        Raises:
            OSError: the private directory is not there, or can not be written to.
        """
        with self._lock:
            if name in self._mine:
                return False
            if self._descriptor < 0 or (not self._mine and not os.fstat(self._descriptor).st_nlink):
                self._open()
            offset = lock_offset(name)
            # Where the file system has no such locks, no byte is ever locked by another.
            locked = lock_byte(self._descriptor, offset, "exclusive", at_once=self.is_local)
            if not locked and is_byte_locked(self._descriptor, offset):
                return False
            self._mine.add(name)
            self._met.pop(name, None)
            return True

    def _open(self) -> None:
        """Open the file: anew where the cache was removed since."""
        self.__del__()
        self._descriptor = open_own(f"{self._folder}/{_NAME}")
        kind = file_system_of(self._folder)
        self.is_local, self.in_memory = kind in LOCAL_FILE_SYSTEMS, kind == "tmpfs"

    def release(self, name: str) -> None:
        """Give up a claim."""
        with self._lock:
            self._mine.discard(name)
            with contextlib.suppress(OSError):
                unlock_byte(self._descriptor, lock_offset(name), at_once=self.is_local)

    def is_stalled(self, name: str) -> bool:
        """Whether another process has had a claim for too long, which this one waits for."""
        with self._lock:
            return time.monotonic() > self._met.setdefault(name, time.monotonic()) + self._patience

    # Bound as a default: at the interpreter's end a module's names are gone.
    def __del__(self, close: Any = os.close) -> None:
        # Not twice: a process that is forked in between would close what has the number by then.
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                close(descriptor)
