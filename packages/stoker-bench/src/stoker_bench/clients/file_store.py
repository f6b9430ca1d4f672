"""Local files that are read by calls into memory, not mapped: around the page cache by ``O_DIRECT``, or through it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stoker.concurrency.request_observer import observer
from stoker.errors import ConfigError
from stoker.storage.files.copying import fill, write_all
from stoker.storage.local import LocalStore, open_file
from stoker.storage.transfer import over_parts
from stoker.storage.types import PART, BufferLike

ALIGNED: Final = 4096
"""Alignment of offsets, sizes and memory for O_DIRECT: no device of today needs more."""
_BOUNCE: Final = 1 << 20
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class CalledStore(LocalStore):
    """The files under one folder, as ``storage_options`` with ``read_by`` have them: ``"direct"`` or ``"buffered"``.

    A file larger than ``part_size`` is read by ``part_requests`` calls at once, each in a thread. Memory that begins at a
    multiple of 4096 is read into without a copy.

    Found as the storage option by the entry points ``stoker.file_stores``.

    Errors: as of :class:`~stoker.storage.store.Store`, and :class:`ConfigError` where a file system refuses ``O_DIRECT``.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.transfer.read_by == "direct" and not _DIRECT:
            raise ConfigError("storage_options['read_by']: this system has no O_DIRECT")

    def _copy_all(self, fd: int, target: int, size: int, digest: Any) -> int:
        self._copy_part(fd, target, 0, size, 0, digest)
        return size

    def _copy_part(self, fd: int, target: int, start: int, end: int, at: int, digest: Any = None) -> None:
        os.lseek(target, at, os.SEEK_SET)
        memory = aligned_memory(min(PART, end - start))
        for first in range(start, end, PART):
            chunk = memory[: min(PART, end - first)]
            self._fill(fd, chunk, first, digest)
            write_all(target, chunk)

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a regular file."""
        direct = self.transfer.read_by == "direct"
        try:
            with open_file(path, _DIRECT if direct else 0) as opened:
                yield opened
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
