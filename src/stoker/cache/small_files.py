"""Reads small files of a directory of this machine whole: a map of one costs more than its bytes do."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.concurrency.request_observer import RequestObserver, observer
from stoker.errors import StokerError
from stoker.formats.base import ShardInfo
from stoker.index.file_index import FileShards
from stoker.index.version import VersionWatch
from stoker.policy import READ_WHOLE
from stoker.storage.files import READ_FLAGS


class SmallFileReader:
    """Reads files that lie where they are read, many at a time.

    What it does not give, :meth:`stoker.cache.base.ShardCache.open` must handle, and say what is wrong with it.

    Args:
        folder: the directory.
        watch: see :class:`~stoker.cache.base.ShardCache`.
    """

    def __init__(self, folder: str, watch: VersionWatch | None) -> None:
        # As text: making a Path takes longer than all else that opening a small file takes.
        self.folder = folder
        self._watch = watch

    def read_listed(self, files: FileShards, numbers: Sequence[int], at_once: int) -> Iterator[tuple[int, str, bytes]]:
        """Those of some listed files that are the very ones that were listed: number, path below the directory, bytes.

        Args:
            files: the files that were listed.
            numbers: of the files to read.
            at_once: how many may be open at the same time.
        """
        paths = [files.path(number) for number in numbers]
        sizes = [files.size(number) for number in numbers]
        for number, path, size, found in zip(numbers, paths, sizes, self._read(paths, sizes, at_once), strict=True):
            if found is not None and len(found[0]) == size and files.is_same(number, found[1]):
                yield number, path, found[0]

    def read_shards(self, shards: Sequence[ShardInfo], at_once: int) -> Sequence[bytes | None]:
        """The raw file of each shard that is one small file; ``None`` for others, and where the index was written anew.

        Args:
            shards: the shards.
            at_once: how many files may be open at the same time.
        """
        watch = self._watch
        if watch is not None and watch.version.files:
            return [None] * len(shards)
        chosen = [number for number, info in enumerate(shards) if _is_one_small_file(info)]
        files = [shards[number].raw[0] for number in chosen]
        # Where a link leads may be old, and the link new.
        read = self._read([file.basename for file in files], [file.bytes for file in files], at_once, os.O_NOFOLLOW)
        found: list[bytes | None] = [None] * len(shards)
        for number, file, one in zip(chosen, files, read, strict=True):
            if one is None:
                continue
            data, status = one
            same = len(data) == file.bytes == status.st_size and stat.S_ISREG(status.st_mode)
            if same and (watch is None or watch.is_older(status.st_ctime_ns or status.st_mtime_ns)):
                found[number] = data
        try:
            if watch is not None:
                watch.look()  # once for all of them
        except StokerError:
            return [None] * len(shards)
        return found

    def _read(
        self, paths: Sequence[str], sizes: Sequence[int], at_once: int, flags: int = 0
    ) -> Iterator[tuple[bytes, os.stat_result] | None]:
        """Files, each by one read of up to a byte more than its size, and their statuses; ``None`` for what is not read."""
        for first in range(0, len(paths), at_once):
            names = [f"{self.folder}/{path}" for path in paths[first : first + at_once]]
            yield from _read_together(names, sizes[first : first + at_once], READ_FLAGS | flags)


def _is_one_small_file(info: ShardInfo) -> bool:
    return len(info.raw) == 1 and not info.zip and info.raw[0].part is None and 0 < info.raw[0].bytes <= READ_WHOLE


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """A file that is open.

    Attributes:
        descriptor: of the file.
        fetched: bytes that the kernel fetched from a device while it was opened; only where requests are counted.
        nanoseconds: that it took, likewise.
    """

    descriptor: int
    fetched: int = 0
    nanoseconds: int = 0


def _read_together(names: Sequence[str], sizes: Sequence[int], flags: int) -> list[tuple[bytes, os.stat_result] | None]:
    """Files that are open at the same time: storage is asked for all of them before the first is waited for."""
    counts = observer()
    opened: list[_OpenFile | None] = []
    try:
        for name in names:
            opened.append(_open(name, flags, counts))  # noqa: PERF401 - all that are open are closed
        return [None if one is None else _read(one, size, counts) for one, size in zip(opened, sizes, strict=True)]
    finally:
        for one in opened:
            if one is not None:
                os.close(one.descriptor)


def _open(name: str, flags: int, counts: RequestObserver | None) -> _OpenFile | None:
    """Open a file, and have the kernel begin to read it; ``None`` where it can not be."""
    begun = (0, 0) if counts is None else counts.begin()
    try:
        descriptor = os.open(name, flags)
    except OSError:
        return None
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    except OSError:  # it is no file
        os.close(descriptor)
        return None
    if counts is None:
        return _OpenFile(descriptor)
    ended = counts.begin()
    return _OpenFile(descriptor, ended[0] - begun[0], ended[1] - begun[1])


def _read(file: _OpenFile, size: int, counts: RequestObserver | None) -> tuple[bytes, os.stat_result] | None:
    begun = (0, 0) if counts is None else counts.begin()
    try:
        # The status is asked last, as the file may be written over meanwhile.
        data, status = os.read(file.descriptor, size + 1), os.fstat(file.descriptor)
    except OSError:
        return None
    if counts is not None:
        counts.end((begun[0] - file.fetched, begun[1] - file.nanoseconds), len(data))
    return data, status
