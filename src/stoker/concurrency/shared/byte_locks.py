"""Locks of single bytes of a file, which belong to an open file description (``F_OFD_SETLK``).

The kernel drops them when the last descriptor of that description is closed, so at the latest with the process, however it
ends. Locks of ``lockf`` belong to the process: it loses them as soon as it closes any descriptor or map of the file. On a
file system without such locks no byte is ever locked.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from typing import Final, Literal

_NO_LOCKS: Final = frozenset([errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
_FLOCK: Final = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_KINDS: Final = {"shared": fcntl.F_RDLCK, "exclusive": fcntl.F_WRLCK}
# Calls of it keep Python's lock.
_KEEPING: Final = ctypes.PyDLL(None, use_errno=True)


def lock_byte(descriptor: int, offset: int, kind: Literal["shared", "exclusive"], *, at_once: bool = False) -> bool:
    """Lock the byte at ``offset``, without waiting; whether it is locked now. The file need not be that long.

    OSError if the descriptor is closed, or not open for what ``kind`` needs: reading for ``shared``, writing for
    ``exclusive``. ``kind``: ``shared`` locks exclude ``exclusive`` ones, ``exclusive`` locks exclude all. ``at_once``: the
    kernel answers by itself, as for a file system of this machine alone: Python's lock is kept, which among many threads
    costs ten times as much to take again.
    """
    try:
        return _ask(descriptor, fcntl.F_OFD_SETLK, _KINDS[kind], offset, at_once) != fcntl.F_UNLCK
    except (BlockingIOError, PermissionError):  # EAGAIN and EACCES, as the file system likes
        return False


def unlock_byte(descriptor: int, offset: int, *, at_once: bool = False) -> None:
    """Unlock the byte at ``offset``, if the description has a lock there; ``at_once`` is that of :func:`lock_byte`.

    OSError if the descriptor is closed.
    """
    _ask(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, offset, at_once)


def is_byte_locked(descriptor: int, offset: int) -> bool:
    """Return whether another open file description has any lock on the byte at ``offset``.

    OSError if the descriptor is closed.
    """
    return _ask(descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, offset) != fcntl.F_UNLCK


def _ask(descriptor: int, command: int, kind: int, offset: int, at_once: bool = False) -> int:
    """Have the kernel carry out a command; the kind of lock in its answer, ``F_UNLCK`` where there are no locks."""
    asked = _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)
    try:
        if at_once:
            answer = ctypes.create_string_buffer(asked, _FLOCK.size)
            if _KEEPING.fcntl(descriptor, command, answer):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            found = answer.raw
        else:
            found = fcntl.fcntl(descriptor, command, asked)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return fcntl.F_UNLCK
        raise
    return int(_FLOCK.unpack(found)[0])
