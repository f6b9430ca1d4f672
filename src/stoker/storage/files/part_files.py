"""Files that are being made: locked by their maker, so that others tell them from what a killed process left.

The kernel drops the lock (``flock``) with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stoker.storage.files.own import open_own

PART: Final = ".part"
"""The end of the name of a file that is being made."""


def part_name(basename: str, mark: str = "") -> str:
    """Name of the file in which a shard's file is made. A mark of 16 hex digits makes the name unique."""
    return quote(basename, safe="") + (f".{mark}" if mark else "") + PART


def try_lock(descriptor: int, kind: int) -> bool:
    """Try to take a ``flock``. On file systems without locks it always succeeds."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return True


def claim(part: Path) -> int | None:
    """Create and lock a part file; its descriptor, or ``None`` while another process holds it."""
    while True:
        descriptor = open_own(part)
        if not try_lock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return None
        # The file may have been renamed or removed between open and lock.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(part).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def release(descriptor: int) -> None:
    """Unlock and close. Closing is not enough: a process that was forked since has the descriptor, too, and so the lock."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def lock_existing(path: Path, kind: int) -> int | None:
    """Lock a file that is there; its descriptor, or ``None`` where it is not, or a process holds it or removes it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if try_lock(descriptor, kind) and os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    release(descriptor)
    return None


def remove_unlocked(path: Path) -> bool:
    """Unlink a file unless a process holds a lock on it; returns whether this call removed it."""
    descriptor = lock_existing(path, fcntl.LOCK_EX)
    if descriptor is None:
        return False
    try:
        os.unlink(path)
    except OSError:
        return False
    finally:
        release(descriptor)
    return True


def unlink(path: str | Path) -> None:
    """Remove a file, if that can be done."""
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def new_part(private: Path, name: str) -> Iterator[tuple[Path, int]]:
    """A locked part file of a name that no other has, and its descriptor. In the end it is gone, unless it was renamed."""
    held = None
    while held is None:  # another process that removes leftovers may have it locked for a moment
        part = private / part_name(name, os.urandom(8).hex())
        held = claim(part)
    try:
        yield part, held
    finally:
        unlink(part)
        release(held)


class PartWatch:
    """Notices when a part file has stopped growing: its maker is alive, and stopped.

    ``patience``: seconds for which it may stay as it is.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path, self._patience = path, patience
        self._seen: tuple[int, int, int] | None = None
        self._since = time.monotonic()

    def stalled(self) -> bool:
        """Whether it has stayed as it is for too long."""
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            seen = (0, 0, 0)
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > self._patience
