"""Local files as a store. No thread pool and no locks, so a fork does it no harm."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from stoker.concurrency.request_observer import observer
from stoker.errors import ObjectNotFoundError, StorageError
from stoker.storage.files.copying import copy_all, copy_hashed, copy_part, fill, write_all
from stoker.storage.files.file_errors import file_errors, open_target
from stoker.storage.files.regular import check_regular, open_regular
from stoker.storage.store import Store
from stoker.storage.types import (
    Arrival,
    BufferLike,
    Chunks,
    Made,
    NewHash,
    ObjectInfo,
    PutData,
    as_parts,
    at_hand,
    check_range,
    check_ranges,
    check_size,
)
from stoker.storage.url import check_key, check_prefix
from stoker.storage.versions import local_version, same_version

TEMPORARY = ".stoker-put-"
"""Prefix of the names of files that are being written. No listing shows them."""
# Bytes of ranges behind which the kernel need not read on. Of more, its read-ahead is a part worth having.
_FEW: Final = 1 << 20
# Where unnamed files do not exist (NFS, old kernels), these are the answers to asking for one.
_NO_TMPFILE = frozenset([errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS])


class LocalStore(Store):
    """The files under one folder. An object is a regular file; folders come and stay as needed."""

    def read(self, key: str, *, max_bytes: int) -> tuple[bytes, ObjectInfo]:
        path = self._path(key)
        with file_errors(path), self._opened(path) as (fd, size):
            check_size(size, max_bytes, path)
            info = file_info(key, os.fstat(fd), path)
            return bytes(self._part(fd, 0, size)), info

    def request(self, key: str, *, max_bytes: int) -> Arrival:
        return at_hand(self.read(key, max_bytes=max_bytes))

    def get_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int], *, version: str = ""
    ) -> list[BufferLike]:
        path = self._path(key)
        check_ranges(starts, ends, path)
        with file_errors(path), self._opened(path) as (fd, size):
            for start, end in zip(starts, ends, strict=True):
                check_range(start, end, size, path)
            if sum(ends) - sum(starts) <= _FEW:
                _read_no_more(fd)
            parts = [self._part(fd, start, end - start) for start, end in zip(starts, ends, strict=True)]
            check_local_version(fd, version, path)  # asked last, as the file may be written over meanwhile
            return parts

    @contextlib.contextmanager
    def opened_ranges(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        """See :class:`~stoker.storage.store.Store`: the file is open meanwhile, and no more of it is read."""
        path = self._path(key)
        with file_errors(path), self._opened(path) as (fd, size):
            _read_no_more(fd)

            def read(start: int, end: int) -> bytes:
                check_range(start, end, size, path)
                return bytes(self._part(fd, start, end - start))

            yield read

    def read_into(
        self,
        key: str,
        into: memoryview,
        *,
        start: int | None = None,
        version: str = "",
        new_hash: NewHash | None = None,
    ) -> ObjectInfo:
        path = self._path(key)
        with file_errors(path), self._opened(path) as (fd, size):
            digest = None
            if start is not None or size == len(into):
                first = start or 0
                check_range(first, first + len(into), size, path)
                digest = None if new_hash is None else new_hash()
                self._fill(fd, into, first, digest)
            check_local_version(fd, version, path)  # asked last, as the file may be written over meanwhile
            return file_info(key, os.fstat(fd), path).with_digest(digest)

    def download(
        self, key: str, path: Path, *, max_bytes: int | None = None, new_hash: NewHash | None = None
    ) -> ObjectInfo:
        source = self._path(key)
        with file_errors(source), self._opened(source) as (fd, size):
            check_size(size, max_bytes, source)
            with open_target(path) as target:
                digest = None if new_hash is None else new_hash()
                done = self._copy_all(fd, target, size, digest)
                os.ftruncate(target, done)  # at the end: what the file had before is written over, not freed first
            # Asked last, as the file may be written over meanwhile.
            return replace(file_info(key, os.fstat(fd), source), size=done).with_digest(digest)

    def download_range(self, key: str, path: Path, start: int, end: int, *, at: int = 0, version: str = "") -> None:
        source = self._path(key)
        check_ranges([start], [end], source)
        with file_errors(source), self._opened(source) as (fd, size):
            check_range(start, end, size, source)
            with open_target(path) as target:
                self._copy_part(fd, target, start, end, at)
            check_local_version(fd, version, source)  # asked last, as the file may be written over meanwhile

    def put(self, key: str, data: PutData) -> None:
        target, parts = self._path(key), as_parts(data)

        def write(fd: int) -> None:
            for part in parts:
                write_all(fd, part)

        _appear(target, write)

    def put_file(self, key: str, path: Path) -> None:
        target = self._path(key)
        with file_errors(path), open_file(path) as (source, _):

            def write(fd: int) -> None:
                copy_all(source, fd)

            _appear(target, write)

    def put_stream(self, key: str, chunks: Chunks) -> None:
        target, made = self._path(key), Made(chunks)

        def write(fd: int) -> None:
            for chunk in made:
                write_all(fd, chunk)

        try:
            _appear(target, write)
        except StorageError:
            if made.error is not None:  # an OSError of the caller's is none of this file's
                raise made.error from None
            raise

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = f"{check_prefix(prefix)}/" if prefix else ""
        root = self._path(folder[:-1]) if prefix else self.url
        from stoker.storage.files.walk import walk_files

        with file_errors(root):
            files = walk_files(root, lambda name: not name.startswith(TEMPORARY))
            found = [file_info(folder + name, status) for name, status in files]
        return iter(sorted(found, key=attrgetter("key")))

    def keys_named(self, name: str) -> Iterator[str]:
        from stoker.storage.files.walk import walk_named

        with file_errors(self.url):
            yield from walk_named(self.url, name, lambda one: not one.startswith(TEMPORARY))

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with file_errors(path):
            status = os.stat(path)
        check_regular(path, status)
        return file_info(key, status, path)

    def exists(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        path = self._path(key)
        with file_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    def _opened(self, path: str) -> AbstractContextManager[tuple[int, int]]:
        """Descriptor and size of a regular file that is to be read."""
        return open_file(path)

    def _part(self, fd: int, start: int, size: int) -> BufferLike:
        """``size`` bytes of a file from ``start`` on."""
        counts = observer()
        begun = None if counts is None else counts.begin()
        data = _read(fd, start, size)
        if counts is not None and begun is not None:
            counts.end(begun, len(data))
        return data

    def _copy_all(self, fd: int, target: int, size: int, digest: Any) -> int:  # noqa: ARG002 - as it is by now counts
        """Copy a file to the start of another, and hash it on the way; returns the bytes."""
        return copy_all(fd, target) if digest is None else copy_hashed(fd, target, digest)

    def _copy_part(self, fd: int, target: int, start: int, end: int, at: int) -> None:
        """Copy bytes ``[start, end)`` of a file to an offset in another."""
        copy_part(fd, target, start, end, at)

    def _fill(self, fd: int, into: memoryview, start: int, digest: Any) -> None:
        """Read a file's bytes from ``start`` on into memory, and add them to a hash object, if one is given."""
        fill(fd, into, start, digest)

    def _path(self, key: str) -> str:
        return f"{self.url.rstrip('/')}/{check_key(key)}"


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing into this folder.

    Only for a folder that nobody else writes to: a file that is being written can not be told apart.
    """
    for path in folder.glob(f"{TEMPORARY}*"):
        with file_errors(path):
            path.unlink(missing_ok=True)


def _appear(path: str, write: Callable[[int], None]) -> None:
    """Give a file the bytes that ``write`` writes, at once and durably.

    The file has no name while it is written, where the file system can do that, so that a process
    killed in the middle leaves nothing; elsewhere it has a name that no listing shows.
    """
    folder = os.path.dirname(path)
    with file_errors(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        os.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"
        fd, named = _unnamed(folder), False
        if fd is None:
            fd, named = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), True
        try:
            write(fd)
            os.fsync(fd)
            if not named and not _link(fd, path):
                # linkat() can not replace a file, so there is a moment with a temporary name.
                _link(fd, temporary)
                named = True
            if named:
                os.replace(temporary, path)
                named = False
        finally:
            os.close(fd)
            if named:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # some network file systems can not
                os.fsync(folder_fd)
        finally:
            os.close(folder_fd)


def _link(fd: int, path: str) -> bool:
    """Give an unnamed file a name; ``False`` if there is such a file already."""
    try:
        # Naming a src_dir_fd, which an absolute path does not use, makes it linkat(), which can follow.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str], flags: int = 0) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a regular file."""
    fd, status = open_regular(path, flags)
    try:
        yield fd, status.st_size
    finally:
        os.close(fd)


def file_info(key: str, status: os.stat_result, path: str | os.PathLike[str] | None = None) -> ObjectInfo:
    """The :class:`ObjectInfo` of a local file; with its path, a symbolic link there counts as modified when it was made."""
    modified = status.st_ctime_ns or status.st_mtime_ns  # some file systems keep no time of a change of status
    if path is not None:
        with contextlib.suppress(OSError):  # gone since
            link = os.lstat(path)
            if stat.S_ISLNK(link.st_mode):
                modified = max(modified, link.st_ctime_ns)
    return ObjectInfo(key, status.st_size, local_version(status), modified)


def check_local_version(fd: int, version: str, path: str) -> None:
    """See that an open file is of a version, unless that is empty."""
    if version and not same_version(version, local_version(os.fstat(fd))):
        raise StorageError(f"{path}: the file was written to since its version {version}.", url=path)


def _read(fd: int, start: int, size: int) -> bytes:
    """``size`` bytes from ``start``; fewer only if the file shrank meanwhile."""
    data = os.pread(fd, size, start)
    if len(data) == size:
        return data
    parts, done = [data], len(data)
    while done < size and parts[-1]:  # a read is at most 2 GiB
        parts.append(os.pread(fd, size - done, start + done))
        done += len(parts[-1])
    return b"".join(parts)


def _read_no_more(fd: int) -> None:
    """Have the kernel read of an open file what is asked for: it may read megabytes ahead, of which a header is a few kB."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def _unnamed(folder: str) -> int | None:
    try:
        return os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
        return None
