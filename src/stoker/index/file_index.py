"""The index of files of this machine that are a sample each: arrays that processes share, and no object a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from stoker.concurrency.shared_bytes import SharedBytes
from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import identity_of
from stoker.formats.common.file_shards import whole_file
from stoker.index.index import Index
from stoker.index.packed_shards import LazyShards
from stoker.storage import ObjectInfo
from stoker.storage.versions import version_text
from stoker.types import Ids

_FACTS: Final = 4
_CHUNK: Final = 4096


class FileShards(LazyShards):
    """Files that are a shard and a sample each, in the order of their paths. Immutable; picklable.

    The memory holds the end of each file's path (int64), for each file its bytes, the times of its last write and of its
    last change of status in nanoseconds, and its inode (int64), and the paths as UTF-8, each ended by a zero byte.

    Args:
        data: memory that holds them.
        at: where they begin in it; a multiple of 8.
        count: number of files, at least 1.
        format: their format.
        spec: what it needs to read them.

    Raises:
        ValueError: the memory does not hold such files.

    Attributes:
        facts: bytes, both times and inode of each file; int64, shape ``(count, 4)``, read-only.
    """

    def __init__(self, data: SharedBytes, at: int, count: int, format: str, spec: Mapping[str, Any]) -> None:  # noqa: A002
        if count < 1:
            raise ValueError(f"{count} files are no dataset")
        self._given = data, at, count, format, spec
        facts_at = at + 8 * count
        paths_at = facts_at + 8 * _FACTS * count
        self.facts: Ids = np.frombuffer(data.view, np.int64, _FACTS * count, facts_at).reshape(count, _FACTS)
        # What single elements are taken from: four times as fast as arrays.
        self._ends = data.view[at:facts_at].cast("q")
        self._one_facts = data.view[facts_at:paths_at].cast("q")
        self._paths = data.view[paths_at:]
        ends = np.frombuffer(data.view, np.int64, count, at)
        if (
            min(self.facts[:, 0].min(), ends[0]) < 0
            or bool((ends[1:] <= ends[:-1]).any())
            or ends[-1] != len(self._paths) - 1
        ):
            raise ValueError("the arrays of files do not go together")

    @staticmethod
    def pack(paths: bytes, facts: Ids) -> list[bytes]:
        """The bytes that the memory holds, in parts.

        Args:
            paths: the paths as UTF-8, each ended by a zero byte.
            facts: see above.
        """
        ends = np.flatnonzero(np.frombuffer(paths, np.uint8) == 0).astype(np.int64)
        return [ends.tobytes(), facts.tobytes(), paths]

    def __reduce__(self) -> tuple[Any, ...]:
        return FileShards, self._given

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

    def files(self) -> Iterator[tuple[str, int, int]]:
        """Path, size and time of the last write, in nanoseconds, of all files in order."""
        begin = 0
        for low in range(0, len(self), _CHUNK):
            high = min(len(self), low + _CHUNK)
            end = self._ends[high - 1]
            paths = str(self._paths[begin:end], "utf-8").split("\0")
            yield from zip(paths, self.facts[low:high, 0].tolist(), self.facts[low:high, 1].tolist(), strict=True)
            begin = end + 1

    def _get(self, number: int) -> ShardInfo:
        size, written, changed, inode = self._one_facts[_FACTS * number : _FACTS * (number + 1)]
        file = ObjectInfo(self.path(number), size, version_text(written, changed, inode))
        return ShardInfo(self.format, 1, (whole_file(file, in_place=True),), (), None, self.spec)


class FileIndex(Index):
    """The index of files of this machine that are a sample each, and are read where they lie.

    Args:
        shards: the files.
        fingerprint: see :attr:`~stoker.index.index.Index.fingerprint`; ``None`` where it is not known yet.
    """

    shards: FileShards

    def __init__(self, shards: FileShards, fingerprint: str | None = None) -> None:
        self._set_shards(shards)
        self.extra, self._fingerprint, self._content = {}, fingerprint, {}

    def _set_shards(self, shards: Sequence[ShardInfo]) -> None:
        assert isinstance(shards, FileShards)
        self.shards = shards
        self.sizes = np.ones(len(shards), np.int64)
        self.sizes.flags.writeable = False

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            digest = hashlib.blake2b(json.dumps(identity_of(self.shards[0]), sort_keys=True).encode(), digest_size=16)
            lines = (f"{path}\0{size}\0001\0000\n" for path, size, _ in self.shards.files())
            while text := "".join(islice(lines, _CHUNK)):
                digest.update(text.encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    @property
    def kinds(self) -> Sequence[ShardInfo]:
        return self.shards[:1]

    @property
    def total_bytes(self) -> int:
        return int(self.shards.facts[:, 0].sum())

    @property
    def largest_shard(self) -> int:
        return int(self.shards.facts[:, 0].max())
