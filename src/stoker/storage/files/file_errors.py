"""Errors of local files as stoker's own."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StokerError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
)


@contextlib.contextmanager
def file_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn each ``OSError`` of the block into stoker's error for a file; stoker's own errors pass.

    StorageError if the block failed on a file; names the file below ``path`` that the system names, else ``path``. ``path``:
    the file, or the directory that holds the files which the block uses.
    """
    try:
        yield
    except StokerError:
        raise
    except OSError as error:
        name, inner = os.fspath(path), error.filename
        blamed = inner if isinstance(inner, str) and inner.startswith(f"{name}/") else name
        raise _file_error(error, blamed) from error


@contextlib.contextmanager
def open_target(path: Path) -> Iterator[int]:
    """Descriptor of a local file to be written, made if need be. Errors are those of :func:`file_errors`."""
    with file_errors(path):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            yield target
        finally:
            os.close(target)


def _file_error(error: OSError, path: str) -> StorageError:
    """stoker's error for a failed operation on a local file."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return ObjectNotFoundError(f"{path}: no such file. Check the path.", url=path)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return AccessDeniedError(f"{path}: {reason}. Check its permissions and those of its folder.", url=path)
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StorageFullError(f"{path}: {reason}. Free some space there, or choose another place.", url=path)
        case errno.ETIMEDOUT | errno.ESTALE:
            return StorageTimeoutError(f"{path}: {reason}. The file system behind it fails.", url=path)
    return StorageError(f"{path}: {reason}.", url=path)
