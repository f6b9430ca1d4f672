"""Files and directories of stoker's own: what they are called, and that nobody can have them lead elsewhere."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import Final

from stoker.errors import StorageError
from stoker.storage.files.regular import check_regular

PRIVATE: Final = ".stoker"
"""Directory in which stoker keeps files of its own, in a cache or a dataset."""

CACHE_MARK: Final = "origin"
"""File in a cache's private directory that says which dataset the cache is a copy of."""

CACHE_NAME: Final = re.compile("[0-9a-f]{24}")
"""Names of the directories of caches."""

REMOVED_CACHE: Final = re.compile(r"[0-9a-f]{24}\.[0-9a-f]{16}\.removed")
"""Names of such directories while they are removed."""


def open_own(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a file of stoker's own to read and write it, made if need be; through no symbolic link.

    StorageError if there is a symbolic link, or what is no file. OSError if it can not be opened. ``flags``: what ``os.open``
    is given beside: ``O_EXCL`` where it must be new. Gives a descriptor, which the caller closes.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            name = os.fspath(path)
            raise StorageError(
                f"{name} is a symbolic link, which stoker never makes, and does not write through. Remove it, and check "
                "who may write to that directory",
                url=name,
            ) from error
        raise
    try:
        check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_own_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory for files of stoker's own, unless it is there, and see that not everyone may put files into it.

    StorageError if it is a symbolic link, or everyone may write to it, and it is not ours to change that. OSError if it can
    not be made.
    """
    name = os.fspath(path)
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o775)  # less what umask says: a group may share it, everyone may not
    status = os.lstat(name)
    if stat.S_ISLNK(status.st_mode):
        raise StorageError(
            f"{name} is a symbolic link: it must be a directory, so that stoker writes nowhere else. Remove it",
            url=name,
        )
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    if not status.st_mode & stat.S_IWOTH:
        return
    if status.st_uid == os.geteuid():
        with contextlib.suppress(OSError):  # file systems without modes say that everyone may, and refuse this
            os.chmod(name, stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)
    elif status.st_uid:
        raise StorageError(
            f"everyone may write to {name}, which belongs to user {status.st_uid}: let its owner run chmod o-w (a group "
            "may still share it), or choose another directory",
            url=name,
        )
