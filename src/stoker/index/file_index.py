"""Files that are a sample each: arrays that processes share, and no Python object a file."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.shared.bytes import SharedBytes, cut_arrays
from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import identity_line, identity_text
from stoker.formats.common.file_shards import whole_file
from stoker.index.columnar_shards import ArrayShards
from stoker.storage import ObjectInfo
from stoker.storage.versions import version_text
from stoker.types import Ids

WRITTEN: Final = 1
"""The column of the facts of a :class:`FileShards` with the time of the last write."""
_CHUNK: Final = 4096


class SampleFiles(ArrayShards):
    """Files that are a shard and a sample each, in the order of their paths.

    The memory holds the end of each file's text (int64), its facts (int64, ``width`` a file, of which the first is its
    bytes), and the texts as UTF-8: ``words`` a file, the first of them its path, each ended by a zero byte.

    ValueError if the memory does not hold such files. ``at``: where that begins in it; a multiple of 8.

    ``facts``: of each file; int64, shape ``(count, width)``, read-only.
    """

    width: ClassVar[int]
    words: ClassVar[int]

    def __init__(self, data: SharedBytes, at: int, count: int, format: str, spec: Mapping[str, Any]) -> None:  # noqa: A002
        if count < 1:
            raise ValueError(f"{count} files do not make a dataset")
        self._given = data, at, count, format, spec
        self._ends, self._one_facts, self._texts = cut_arrays(data.view, at, [("q", count), ("q", self.width * count)])
        self.facts: Ids = np.frombuffer(self._one_facts, np.int64).reshape(count, self.width)
        self.samples = np.ones(count, np.int64)
        self.samples.flags.writeable = False
        ends = np.frombuffer(self._ends, np.int64)
        if (
            min(self.raw_bytes.min(), ends[0]) < 0
            or bool((ends[1:] <= ends[:-1]).any())
            or ends[-1] != len(self._texts)
        ):
            raise ValueError("the arrays of files do not go together")

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

    def of_format(self, name: str) -> Self:
        """The same files, read as another format."""
        data, at, count, _, spec = self._given
        return type(self)(data, at, count, name, spec)

    @property
    def raw_bytes(self) -> Ids:
        return self.facts[:, 0]

    @property
    def distinct(self) -> Sequence[ShardInfo]:
        return self[:1]

    def identity(self) -> Iterator[str]:
        yield identity_text(self[0])
        yield from self.lines(identity_line("%s\0%d", 1, 0))

    @classmethod
    def pack(cls, texts: Sequence[bytes | bytearray], facts: Sequence[Ids]) -> list[Any]:
        """The bytes that the memory holds, in parts.

        ``texts``, ``facts``: of all files, as the class has them, in any number of pieces of whole files.
        """
        ends, begin = [], 0
        for piece in texts:
            zeros = np.flatnonzero(np.frombuffer(piece, np.uint8) == 0)
            ends.append(zeros[cls.words - 1 :: cls.words] + (begin + 1))
            begin += len(piece)
        return [*(one.astype(np.int64, copy=False).ravel().data.cast("B") for one in (*ends, *facts)), *texts]

    def path(self, number: int) -> str:
        """A file's path below the root."""
        return self.text(number)[0]

    def text(self, number: int) -> list[str]:
        """A file's words."""
        begin = self._ends[number - 1] if number else 0
        return str(self._texts[begin : self._ends[number] - 1], "utf-8").split("\0")

    def size(self, number: int) -> int:
        return self._one_facts[self.width * number]

    def chunks(self) -> Iterator[tuple[list[str], NDArray[np.int64]]]:
        """Words and facts of some thousand files at a time, all in order."""
        begin = 0
        for low in range(0, len(self), _CHUNK):
            facts = self.facts[low : low + _CHUNK]
            end = self._ends[low + len(facts) - 1]
            yield str(self._texts[begin : end - 1], "utf-8").split("\0"), facts
            begin = end

    def lines(self, template: str, *more: int) -> Iterator[str]:
        """Text about all files in order, in pieces of some thousand files.

        ``template``: what is said of a file, with ``%s`` for its path, ``%d`` for its bytes, and a further ``%d`` for each
        of ``more``, which are columns of :attr:`facts`.
        """
        for words, facts in self.chunks():
            columns = [facts[:, fact].tolist() for fact in (0, *more)]
            told = zip(words[:: self.words], *columns, strict=True)
            yield template * len(facts) % tuple(chain.from_iterable(told))

    @abstractmethod
    def objects(self) -> Iterator[tuple[str, int, str]]:
        """Path, bytes and version of each."""

    def _info(self, file: ObjectInfo, *, in_place: bool) -> ShardInfo:
        return ShardInfo(self.format, 1, (whole_file(file, in_place=in_place),), (), None, self.spec)


class FileShards(SampleFiles):
    """Files of this machine.

    Their facts are bytes, the times of the last write and of the last change of status in nanoseconds, and the inode.
    """

    width = 4
    words = 1

    def is_same(self, number: int, status: os.stat_result) -> bool:
        """Whether a file's status is the very one that was listed."""
        size, written, changed, inode = self._one_facts[4 * number : 4 * number + 4]
        return (
            status.st_mtime_ns == written
            and status.st_size == size
            and status.st_ctime_ns == changed
            and status.st_ino == inode
        )

    def objects(self) -> Iterator[tuple[str, int, str]]:
        for words, facts in self.chunks():
            for path, (size, *times) in zip(words, facts.tolist(), strict=True):
                yield path, size, version_text(*times)

    def _get(self, number: int) -> ShardInfo:
        size, written, changed, inode = self._one_facts[4 * number : 4 * number + 4]
        version = version_text(written, changed, inode)
        return self._info(ObjectInfo(self.path(number), size, version), in_place=True)


class ObjectShards(SampleFiles):
    """Objects of a store, by key. Their second word is the version."""

    width = 1
    words = 2

    def objects(self) -> Iterator[tuple[str, int, str]]:
        for words, sizes in self.chunks():
            yield from zip(words[::2], sizes[:, 0].tolist(), words[1::2], strict=True)

    def _get(self, number: int) -> ShardInfo:
        key, version = self.text(number)
        return self._info(ObjectInfo(key, self.size(number), version), in_place=False)
