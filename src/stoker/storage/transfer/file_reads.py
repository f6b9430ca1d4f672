"""Local files that are read by calls into memory, not mapped: around the page cache by ``O_DIRECT``, or through it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stoker.concurrency.request_observer import observer
from stoker.errors import ConfigError
from stoker.storage.files.copying import fill, write_all
from stoker.storage.files.file_errors import file_errors, open_target
from stoker.storage.files.regular import open_regular
from stoker.storage.local import LocalStore, check_local_version, file_info
from stoker.storage.transfer.settings import over_parts
from stoker.storage.types import PART, BufferLike, NewHash, ObjectInfo, check_range, check_ranges, check_size

ALIGNED: Final = 4096
"""Alignment of offsets, sizes and memory for O_DIRECT: no device of today needs more."""
_BOUNCE: Final = 1 << 20
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class CalledStore(LocalStore):
    """The files under one folder, as ``storage_options`` with ``read_by`` have them: ``"direct"`` or ``"buffered"``.

    A file larger than ``part_size`` is read by ``part_requests`` calls at once, each in a thread. Memory that begins at a
    multiple of 4096 is read into without a copy.

    Errors: as of :class:`~stoker.storage.store.Store`, and :class:`ConfigError` where a file system refuses ``O_DIRECT``.
    """

    def download(
        self, key: str, path: Path, *, max_bytes: int | None = None, new_hash: NewHash | None = None
    ) -> ObjectInfo:
        source = self._path(key)
        with file_errors(source), self._opened(source) as (fd, size):
            check_size(size, max_bytes, source)
            with open_target(path) as target:
                digest = None if new_hash is None else new_hash()
                for chunk in self._chunks(fd, 0, size):
                    if digest is not None:
                        digest.update(chunk)
                    write_all(target, chunk)
                os.ftruncate(target, size)
            return replace(file_info(key, os.fstat(fd), source), size=size).with_digest(digest)

    def download_range(self, key: str, path: Path, start: int, end: int, *, at: int = 0, version: str = "") -> None:
        source = self._path(key)
        check_ranges([start], [end], source)
        with file_errors(source), self._opened(source) as (fd, size):
            check_range(start, end, size, source)
            with open_target(path) as target:
                os.lseek(target, at, os.SEEK_SET)
                for chunk in self._chunks(fd, start, end):
                    write_all(target, chunk)
            check_local_version(fd, version, source)

    def _chunks(self, fd: int, start: int, end: int) -> Iterator[memoryview]:
        """Bytes ``[start, end)``, in memory that is written over for the next chunk."""
        memory = aligned_memory(min(PART, end - start))
        for first in range(start, end, PART):
            chunk = memory[: min(PART, end - first)]
            self._fill(fd, chunk, first, None)
            yield chunk

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a regular file."""
        direct = self.transfer.read_by == "direct"
        try:
            fd, status = open_regular(path, _DIRECT if direct else 0)
            try:
                yield fd, status.st_size
            finally:
                os.close(fd)
        except OSError as error:
            if direct and error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                raise ConfigError(
                    f"the file system of {path} refuses O_DIRECT: read by other means there "
                    "(storage.client=buffered or mmap, storage_options read_by='buffered')"
                ) from None
            raise

    def _part(self, fd: int, start: int, size: int) -> BufferLike:
        into = aligned_memory(size)
        self._fill(fd, into, start, None)
        return into

    def _fill(self, fd: int, into: memoryview, start: int, digest: Any) -> None:
        read = fill_direct if self.transfer.read_by == "direct" else fill

        def part(first: int, last: int) -> None:
            counts = observer()
            begun = None if counts is None else counts.begin()
            read(fd, into[first - start : last - start], first)
            if counts is not None and begun is not None:
                counts.end(begun, last - first)

        over_parts(start, start + len(into), self.transfer, part)
        if digest is not None:
            digest.update(into)


def aligned_memory(size: int) -> memoryview:
    """Writable memory of so many bytes that begins at a page's first byte, as O_DIRECT wants it."""
    return memoryview(mmap.mmap(-1, size))[:size] if size else memoryview(bytearray())


def fill_direct(fd: int, into: memoryview, start: int) -> None:
    """As :func:`~stoker.storage.files.copying.fill`, by a descriptor with ``O_DIRECT``: unaligned parts are copied twice."""
    done = 0
    if len(into) >= ALIGNED and not start % ALIGNED:
        address = ctypes.addressof(ctypes.c_char.from_buffer(into))
        whole = 0 if address % ALIGNED else len(into) // ALIGNED * ALIGNED
        while done < whole:
            count = os.preadv(fd, [into[done:whole]], start + done) // ALIGNED * ALIGNED  # at most 2 GiB
            if not count:
                raise OSError(errno.EIO, "the file shrank while it was read")
            done += count
    if done == len(into):
        return
    with (
        mmap.mmap(-1, min(_BOUNCE, -(-len(into) // ALIGNED) * ALIGNED + ALIGNED)) as memory,
        memoryview(memory) as bounce,
    ):
        while done < len(into):
            at = start + done
            first = at // ALIGNED * ALIGNED
            wanted = min(len(bounce), -(-(start + len(into) - first) // ALIGNED) * ALIGNED)
            count = os.preadv(fd, [bounce[:wanted]], first) - (at - first)
            if count <= 0:
                raise OSError(errno.EIO, "the file shrank while it was read")
            count = min(count, len(into) - done)
            into[done : done + count] = bounce[at - first : at - first + count]
            done += count
