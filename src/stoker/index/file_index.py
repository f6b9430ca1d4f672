"""The index of files that are a sample each: arrays that processes share, and no Python object a file."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from stoker.concurrency.shared.bytes import SharedBytes, cut_arrays
from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import identity_line, identity_text
from stoker.formats.common.file_shards import whole_file
from stoker.index.columnar_shards import LazyShards
from stoker.index.index import Index
from stoker.storage import ObjectInfo
from stoker.storage.versions import version_text
from stoker.types import Ids

_FACTS: Final = 4
WRITTEN: Final = 1
"""The column of :attr:`FileShards.facts` with the time of the last write."""
_CHUNK: Final = 4096


class SampleFiles(LazyShards):
    """Files that are a shard and a sample each, in the order of their paths. Immutable; picklable.

    ValueError if the memory does not hold such files. ``at``: where that begins in it; a multiple of 8. ``file_bytes``: bytes
    of each file; int64, shape ``(count,)``, read-only.
    """

    file_bytes: Ids

    def __init__(self, data: SharedBytes, at: int, count: int, format: str, spec: Mapping[str, Any]) -> None:  # noqa: A002
        if count < 1:
            raise ValueError(f"{count} files do not make a dataset")
        self._given = data, at, count, format, spec

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def __len__(self) -> int:
        return self._given[2]

    @property
    def format(self) -> str:
        """The files' format."""
        return self._given[3]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The description of the files that their format needs."""
        return self._given[4]

    @abstractmethod
    def lines(self, template: str) -> Iterator[str]:
        """Text about all files in order, in pieces of some thousand files.

        ``template``: what is said of a file, with ``%s`` for its path and ``%d`` for its bytes.
        """


class FileShards(SampleFiles):
    """Files of this machine.

    The memory holds the end of each file's path (int64), for each file its bytes, the times of its last write and of its
    last change of status in nanoseconds, and its inode (int64), and the paths as UTF-8, each ended by a zero byte.

    ``facts``: bytes, both times and inode of each file; int64, shape ``(count, 4)``, read-only.
    """

    def __init__(self, data: SharedBytes, at: int, count: int, format: str, spec: Mapping[str, Any]) -> None:  # noqa: A002
        super().__init__(data, at, count, format, spec)
        self._ends, self._one_facts, self._paths = cut_arrays(data.view, at, [("q", count), ("q", _FACTS * count)])
        self.facts: Ids = np.frombuffer(self._one_facts, np.int64).reshape(count, _FACTS)
        self.file_bytes = self.facts[:, 0]
        ends = np.frombuffer(self._ends, np.int64)
        if (
            min(self.facts[:, 0].min(), ends[0]) < 0
            or bool((ends[1:] <= ends[:-1]).any())
            or ends[-1] != len(self._paths) - 1
        ):
            raise ValueError("the arrays of files do not go together")

    @staticmethod
    def pack(paths: bytes | bytearray, facts: Ids) -> list[memoryview]:
        """The bytes that the memory holds, in parts.

        ``paths``: the paths as UTF-8, each ended by a zero byte. ``facts``: as the class has them.
        """
        ends = np.flatnonzero(np.frombuffer(paths, np.uint8) == 0).astype(np.int64)
        return [ends.data.cast("B"), facts.ravel().data.cast("B"), memoryview(paths)]

    def path(self, number: int) -> str:
        """A file's path below the root."""
        ends = self._ends
        return str(self._paths[ends[number - 1] + 1 if number else 0 : ends[number]], "utf-8")

    def size(self, number: int) -> int:
        """A file's bytes."""
        return self._one_facts[_FACTS * number]

    def is_same(self, number: int, status: os.stat_result) -> bool:
        """Whether a file's status is the very one that was listed."""
        at = _FACTS * number
        size, written, changed, inode = self._one_facts[at : at + _FACTS]
        return (
            status.st_mtime_ns == written
            and status.st_size == size
            and status.st_ctime_ns == changed
            and status.st_ino == inode
        )

    def lines(self, template: str, *more: int) -> Iterator[str]:
        """See :class:`SampleFiles`; ``more`` are columns of :attr:`facts`, with a further ``%d`` for each."""
        begin = 0
        for low in range(0, len(self), _CHUNK):
            high = min(len(self), low + _CHUNK)
            end = self._ends[high - 1]
            paths = str(self._paths[begin:end], "utf-8").split("\0")
            columns = [self.facts[low:high, fact].tolist() for fact in (0, *more)]
            yield template * (high - low) % tuple(chain.from_iterable(zip(paths, *columns, strict=True)))
            begin = end + 1

    def _get(self, number: int) -> ShardInfo:
        size, written, changed, inode = self._one_facts[_FACTS * number : _FACTS * (number + 1)]
        file = ObjectInfo(self.path(number), size, version_text(written, changed, inode))
        return ShardInfo(self.format, 1, (whole_file(file, in_place=True),), (), None, self.spec)


class FileIndex(Index):
    """The index of files that are a sample each.

    ``fingerprint``: see :attr:`~stoker.index.index.Index.fingerprint`; ``None`` where it is not known yet.
    """

    shards: SampleFiles

    def __init__(self, shards: SampleFiles, fingerprint: str | None = None) -> None:
        self._set_shards(shards)
        self.extra, self._fingerprint, self._content = {}, fingerprint, {}

    def _set_shards(self, shards: Sequence[ShardInfo]) -> None:
        assert isinstance(shards, SampleFiles)
        self.shards = shards
        self.sizes = np.ones(len(shards), np.int64)
        self.sizes.flags.writeable = False

    def _identity(self) -> Iterator[str]:
        yield identity_text(self.shards[0])
        yield from self.shards.lines(identity_line("%s\0%d", 1, 0))

    @property
    def distinct_shards(self) -> Sequence[ShardInfo]:
        return self.shards[:1]

    @property
    def total_bytes(self) -> int:
        return int(self.shards.file_bytes.sum())

    @property
    def largest_shard(self) -> int:
        return int(self.shards.file_bytes.max())
