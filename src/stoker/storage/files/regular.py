"""Local files that others made: opened only where they are regular files."""

from __future__ import annotations

import os
import stat
from typing import Final

from stoker.errors import ObjectNotFoundError

READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Flags of ``os.open`` for a file to read, by which opening a named pipe does not wait."""

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def what_it_is(mode: int) -> str:
    """The kind of a path that is no regular file, in words, by its ``st_mode``."""
    return next((name for test, name in _KINDS if test(mode)), "no regular file")


def check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """See by a file's status that it is a regular file."""
    if not stat.S_ISREG(status.st_mode):
        name = os.fspath(path)
        raise ObjectNotFoundError(f"{name}: not a file but {what_it_is(status.st_mode)}. Check the path.", url=name)


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> tuple[int, os.stat_result]:
    """Open a regular file to read it. Opening never waits, as opening a named pipe would.

    ObjectNotFoundError if the path leads to something else: a directory, a named pipe, a device. OSError if it can not be
    opened. ``flags``: what ``os.open`` is given beside what reading needs. Gives a descriptor, which the caller closes, and
    the file's status.
    """
    descriptor = os.open(path, READ_FLAGS | flags)
    try:
        status = os.fstat(descriptor)
        check_regular(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All of a regular file. ObjectNotFoundError if the path leads to something else. OSError if it can not be read."""
    descriptor, _ = open_regular(path)
    with open(descriptor, "rb") as file:
        return file.read()
