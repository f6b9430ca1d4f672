"""Bytes from one file to another, or from memory to a file, by descriptors."""

from __future__ import annotations

import errno
import os
from typing import Any, Final

_CHUNK: Final = 1 << 30
# Stays in the processor's cache.
_BLOCK: Final = 1 << 18
_CAN_NOT_COPY: Final = frozenset([errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF])


def write_all(fd: int, data: memoryview | bytes) -> int:
    """Write all of ``data`` at the file's position, and return its length in bytes."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.write(fd, view[done:] if done else view)
    return done


def fill(fd: int, into: memoryview, start: int, digest: Any = None) -> None:
    """Read as many bytes as ``into`` has, from byte ``start`` of a file on, and hash them on the way."""
    done = 0
    while done < len(into):
        wanted = into[done:] if digest is None else into[done : done + _BLOCK]
        count = os.preadv(fd, [wanted], start + done)  # at most 2 GiB
        if not count:
            raise OSError(errno.EIO, "the file shrank while it was read")
        if digest is not None:
            digest.update(wanted[:count])
        done += count


def copy_part(source: int, target: int, start: int, end: int, at: int) -> None:
    """Copy a part of a file to an offset in another, by way of this process's memory."""
    while start < end:
        data = os.pread(source, min(1 << 20, end - start), start)
        if not data:
            raise OSError(errno.EIO, "the file shrank while it was read")
        done = 0
        while done < len(data):
            done += os.pwrite(target, data[done:], at + done)
        start, at = start + len(data), at + len(data)


def copy_all(source: int, target: int) -> int:
    """Copy a file from its start to the start of another, inside the kernel where it can, and return the bytes."""
    os.lseek(target, 0, os.SEEK_SET)
    done = 0
    ways = [_copy_range, _send, _read_write]
    while True:
        try:
            count = ways[0](source, target, done)
        except OSError as error:
            if len(ways) == 1 or error.errno not in _CAN_NOT_COPY:
                raise
            ways.pop(0)
            continue
        if count == 0:
            # Some kernels answer 0 for files that they can not copy, so a second way must agree.
            if done or len(ways) == 1:
                return done
            ways.pop(0)
        done += count


def copy_hashed(source: int, target: int, digest: Any) -> int:
    """As :func:`copy_all`, by way of a small part of memory, from where it is hashed, too."""
    os.lseek(target, 0, os.SEEK_SET)
    block = memoryview(bytearray(_BLOCK))
    done = 0
    while count := os.preadv(source, [block], done):
        digest.update(block[:count])
        done += write_all(target, block[:count])
    return done


def _copy_range(source: int, target: int, done: int) -> int:
    return os.copy_file_range(source, target, _CHUNK, done)


def _send(source: int, target: int, done: int) -> int:
    return os.sendfile(target, source, done, _CHUNK)


def _read_write(source: int, target: int, done: int) -> int:
    return write_all(target, os.pread(source, 1 << 20, done))
