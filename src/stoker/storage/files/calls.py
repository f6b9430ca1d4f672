"""Calls for small files: Python's, and the same without letting go of Python's lock.

Among a hundred threads it takes ten times as long to have that lock again as the kernel takes to answer. So it is kept where
the kernel can answer at once, and never where a device or a server might have to.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final, NamedTuple

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o666
_keeping = ctypes.PyDLL(None, use_errno=True)


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
    """Whether something is at a path, on a file system of this machine alone: asked without letting go of Python's lock.

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
