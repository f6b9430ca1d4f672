"""Local files in memory: mapped without keeping a descriptor, or read where they are small."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from stoker.concurrency.request_observer import RequestObserver, observer
from stoker.errors import CorruptDataError
from stoker.policy import READ_WHOLE
from stoker.storage.files.regular import open_regular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POPULATE_READ: Final = 22
_ENDS: Final = 1 << 20
"""Bytes at the begin and at the end of a file in which its headers are, nearly always."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FAILED: Final = ctypes.c_void_p(-1).value


class MappedFile(mmap.mmap):
    """A window of a file, mapped read-only. Unlike :class:`mmap.mmap` it holds no descriptor.

    Python's map keeps a duplicate of the descriptor, so that open shards would count against ``RLIMIT_NOFILE``. Here an
    anonymous map reserves the addresses, and the file is mapped over it.

    ``descriptor``: of the file; it may be closed afterwards. ``start``: the window's first byte, a multiple of
    :data:`mmap.ALLOCATIONGRANULARITY`. ``end``: the byte after the window, more than ``start``.

    Attributes:
        path: names the file.
        copied: whether it lies in a cache, as a copy of a shard.
        fetched: whether its read-ahead had the kernel fetch anything from a device; known only where requests are counted.
    """

    path: str
    copied: bool = False
    fetched: bool = False
    _awaited: tuple[int, int] = (0, 0)
    _end: int
    _file: tuple[int, int]

    def __new__(cls, descriptor: int, start: int, end: int, path: str, status: os.stat_result) -> Self:
        import numpy as np  # who only looks at URLs does without

        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self = super().__new__(cls, -1, end - start, flags=flags, prot=mmap.PROT_READ)
        self.path, self._end, self._file = path, end, (status.st_dev, status.st_ino)
        address: int = np.frombuffer(self, np.uint8).ctypes.data
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _libc.mmap(address, end - start, mmap.PROT_READ, flags, descriptor, start) == _FAILED:
            error = ctypes.get_errno()
            # The kernel may have dropped the reservation: freeing it later could unmap what took its place meanwhile.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            raise OSError(error, os.strerror(error), path)
        return self

    def await_headers(self, *, first: bool) -> None:
        """Wait until the first page, or the begin and the end of the window, are in memory, without Python's lock.

        Where the first to touch a page is Python code, no other thread runs until storage has given it.
        """
        import numpy as np

        whole, counts = np.frombuffer(self, np.uint8), observer()
        begun = None if counts is None else counts.begin()
        await_pages(whole[: 1 if first else _ENDS])
        if len(whole) > _ENDS and not first:
            await_pages(whole[max(_ENDS, len(whole) - _ENDS) :])
        if counts is not None and begun is not None:
            ended = counts.begin()
            self._awaited = ended[0] - begun[0], ended[1] - begun[1]

    def begin_request(self, counts: RequestObserver) -> tuple[int, int]:
        """The begin of a request for bytes of the file, to be given to ``counts.end``.

        The first request of a file began so much earlier as opening it has waited for headers, which of a small file are
        all of its pages.
        """
        begun, (fetched, waited) = counts.begin(), self.__dict__.pop("_awaited", (0, 0))  # one thread gets it
        return begun[0] - fetched, begun[1] - waited

    def check(self) -> None:
        """Check that the file was not cut since it was mapped: touching what is past its end kills the process (SIGBUS).

        CorruptDataError if it was. A file that was removed or replaced by another of its name stays whole for its maps.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return
        if status.st_size < self._end and (status.st_dev, status.st_ino) == self._file:
            raise CorruptDataError(
                f"{self.path} was cut to {status.st_size} bytes while it is being read; its first {self._end} bytes are in "
                "use. Restore the file, and replace files by renaming new ones into their place"
            )

    def __reduce__(self) -> Any:
        raise TypeError("a mapped file can not be pickled")


def await_pages(data: NDArray[np.uint8]) -> None:
    """Wait until memory that may be of a mapped file is there, without Python's lock: contiguous, of shape ``(n,)``.

    Linux before 5.14 refuses it: the pages come when they are touched then. It also refuses what a file no longer has.
    """
    address: int = data.ctypes.data
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + len(data) - first), _POPULATE_READ)


def map_open_file(descriptor: int, start: int, end: int, path: str, status: os.stat_result) -> MappedFile | bytes:
    """Bytes ``[start, end)`` of an open file: mapped, or read where they are few.

    ``descriptor``: of the file; it may be closed afterwards. ``start``: a multiple of :data:`mmap.ALLOCATIONGRANULARITY`.
    """
    if end - start > READ_WHOLE:
        return MappedFile(descriptor, start, end, path, status)
    if end <= start:
        return b""
    counts = observer()
    begun = None if counts is None else counts.begin()
    data = os.pread(descriptor, end - start, start)
    if counts is not None and begun is not None:
        counts.end(begun, len(data))
    if len(data) != end - start:
        raise CorruptDataError(f"{path} ends at byte {start + len(data)}: it was cut while it was opened")
    return data


def map_file(path: str | os.PathLike[str]) -> MappedFile | bytes:
    """A whole regular file, mapped read-only, or read where it is small. No descriptor is kept.

    ObjectNotFoundError if the path leads to no regular file. CorruptDataError if it was cut meanwhile. OSError if it can not
    be read.
    """
    descriptor, status = open_regular(path)
    try:
        return map_open_file(descriptor, 0, status.st_size, os.fspath(path), status)
    finally:
        os.close(descriptor)


def check_mapped(files: Iterable[object]) -> None:
    """See of those of some buffers that are mapped files that none was cut; see :meth:`MappedFile.check`."""
    for file in files:
        if isinstance(file, MappedFile):
            file.check()
