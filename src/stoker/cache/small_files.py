"""Reads small files of a directory of this machine whole: a map of one costs more than its bytes do."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker.cache.range_fetch import check_file
from stoker.concurrency.request_observer import RequestObserver, observer
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.base import UNKNOWN, FileInfo, ShardInfo
from stoker.index.version import VersionWatch
from stoker.policy import READ_WHOLE, SMALL_PART
from stoker.storage.files.regular import READ_FLAGS

if TYPE_CHECKING:
    from stoker.index.file_index import FileShards


class SmallFileReader:
    """Reads files that lie where they are read, many at a time.

    What it does not give, :meth:`stoker.cache.base.ShardCache.open` must handle, and say what is wrong with it.
    """

    def __init__(self, folder: str, watch: VersionWatch | None) -> None:
        # As text: making a Path takes longer than all else that opening a small file takes.
        self.folder = folder
        self._watch = watch

    def read_listed(self, files: FileShards, numbers: Sequence[int], at_once: int) -> Iterator[tuple[int, str, bytes]]:
        """Those of some listed files that are the very ones that were listed: number, path below the directory, bytes.

        ``at_once``: how many may be open at the same time.
        """
        paths = [files.path(number) for number in numbers]
        sizes = [files.size(number) for number in numbers]
        wanted = [_Wanted(f"{self.folder}/{path}", 0, size + 1) for path, size in zip(paths, sizes, strict=True)]
        for number, path, size, found in zip(numbers, paths, sizes, _read_files(wanted, at_once), strict=True):
            if found is not None and len(found[0]) == size and files.is_same(number, found[1]):
                yield number, path, found[0]

    def read_shards(self, shards: Sequence[ShardInfo], at_once: int) -> Sequence[bytes | None]:
        """The raw file, or part of a file, of each shard that is a small one; ``None`` for others, and for changed files.

        ``at_once``: how many files may be open at the same time.
        """
        watch = self._watch
        if watch is not None and watch.version.files:
            return [None] * len(shards)
        chosen = [number for number, info in enumerate(shards) if small_bytes(info) is not None]
        files = [shards[number].raw[0] for number in chosen]
        found: list[bytes | None] = [None] * len(shards)
        for number, file, one in zip(
            chosen, files, _read_files([self._wanted(file) for file in files], at_once), strict=True
        ):
            if one is not None and self._is_same(file, *one):
                found[number] = one[0]
        try:
            if watch is not None:
                watch.look()  # once for all of them
        except StokerError:
            return [None] * len(shards)
        return found

    def _wanted(self, file: FileInfo) -> _Wanted:
        """The bytes to read of a file: of a whole one a byte more, which there may be."""
        path = f"{self.folder}/{file.basename}"
        if file.part is None:  # where a link leads may be old, and the link new
            return _Wanted(path, 0, file.bytes + 1, os.O_NOFOLLOW)
        first, end = file.part.window
        return _Wanted(path, first, end - first)

    def _is_same(self, file: FileInfo, data: bytes, status: os.stat_result) -> bool:
        """Whether what was read is of the file that the index describes."""
        if not stat.S_ISREG(status.st_mode):
            return False
        if file.part is not None:
            first, end = file.part.window
            try:
                check_file(file.basename, status, file.part)
            except CorruptDataError:
                return False
            return len(data) == end - first
        watch = self._watch
        older = watch is None or watch.is_older(status.st_ctime_ns or status.st_mtime_ns)
        return older and len(data) == file.bytes == status.st_size


def small_bytes(info: ShardInfo) -> int | None:
    """Bytes that are read of a shard that is one small file, or a small part of a file in place; ``None`` for others."""
    if len(info.raw) != 1 or info.zip:
        return None
    file = info.raw[0]
    part, size, most = file.part, file.bytes, READ_WHOLE
    if part is not None:
        if not part.in_place or part.size == UNKNOWN:
            return None
        first, end = part.window
        size, most = end - first, SMALL_PART
    return size if 0 < size <= most else None


class _Wanted(NamedTuple):
    """Bytes of a file that are read.

    Attributes:
        name: of the file.
        start: the first byte.
        size: how many there are, at most.
        flags: what ``os.open`` is given beside what reading needs.
    """

    name: str
    start: int
    size: int
    flags: int = 0


def _read_files(wanted: Sequence[_Wanted], at_once: int) -> Iterator[tuple[bytes, os.stat_result] | None]:
    """Bytes of files, each by one read, and the files' statuses; ``None`` for what is not read."""
    for first in range(0, len(wanted), at_once):
        yield from _read_together(wanted[first : first + at_once])


def _read_together(wanted: Sequence[_Wanted]) -> list[tuple[bytes, os.stat_result] | None]:
    """Files that are open at the same time: storage is asked for all of them before the first is waited for."""
    counts = observer()
    opened: list[tuple[int, tuple[int, int]] | None] = []
    try:
        for one in wanted:
            opened.append(_open(one, counts))  # noqa: PERF401 - all that are open are closed
        return [None if file is None else _read(*file, one, counts) for file, one in zip(opened, wanted, strict=True)]
    finally:
        for file in opened:
            if file is not None:
                os.close(file[0])


def _open(wanted: _Wanted, counts: RequestObserver | None) -> tuple[int, tuple[int, int]] | None:
    """Open a file, and have the kernel begin to read it; ``None`` where it can not be.

    Gives the descriptor, and where requests are counted the bytes that a device gave meanwhile, and the nanoseconds.
    """
    begun = (0, 0) if counts is None else counts.begin()
    try:
        descriptor = os.open(wanted.name, READ_FLAGS | wanted.flags)
    except OSError:
        return None
    try:
        os.posix_fadvise(descriptor, wanted.start, wanted.size, os.POSIX_FADV_WILLNEED)
    except OSError:  # it is no file
        os.close(descriptor)
        return None
    ended = (0, 0) if counts is None else counts.begin()
    return descriptor, (ended[0] - begun[0], ended[1] - begun[1])


def _read(
    descriptor: int, spent: tuple[int, int], wanted: _Wanted, counts: RequestObserver | None
) -> tuple[bytes, os.stat_result] | None:
    begun = (0, 0) if counts is None else counts.begin()
    try:
        # The status is asked last, as the file may be written over meanwhile.
        data, status = os.pread(descriptor, wanted.size, wanted.start), os.fstat(descriptor)
    except OSError:
        return None
    if counts is not None:
        counts.end((begun[0] - spent[0], begun[1] - spent[1]), len(data))
    return data, status
