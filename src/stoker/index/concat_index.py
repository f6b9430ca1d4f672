"""Several indexes as one: the shards of one stream after those of another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from stoker.digests import blake2b
from stoker.formats.base import ShardInfo
from stoker.index.columnar_shards import LazyShards, shard_bytes
from stoker.index.index import Index, ShardList
from stoker.types import Ids


class ConcatShards(LazyShards):
    """Shards of several indexes, one after the other. ``firsts``: number of each part's first shard, and of all shards."""

    def __init__(self, parts: Sequence[Index], firsts: Sequence[int]) -> None:
        self._parts = parts
        self._firsts = firsts

    def __len__(self) -> int:
        return self._firsts[-1]

    def _get(self, number: int) -> ShardInfo:
        part = bisect_right(self._firsts, number) - 1
        return self._parts[part].shards[number - self._firsts[part]]

    def size(self, number: int) -> int:
        part = bisect_right(self._firsts, number) - 1
        return shard_bytes(self._parts[part].shards, number - self._firsts[part])

    def __iter__(self) -> Iterator[ShardInfo]:
        return chain.from_iterable(part.shards for part in self._parts)


class ConcatIndex(ShardList):
    """Shards of several indexes, numbered through. Names of files may repeat, as every part has a root of its own.

    ``parts``: the indexes. ``offsets``: number of each part's first shard; int64, shape ``(parts + 1,)``, read-only; the last
    entry is their count.
    """

    def __init__(self, parts: Sequence[Index]) -> None:
        self.parts = tuple(parts)
        self.offsets: Ids = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self.offsets.flags.writeable = False
        self._first: list[int] = self.offsets.tolist()
        super().__init__(ConcatShards(self.parts, self._first))

    def _set_shards(self, shards: Sequence[ShardInfo]) -> None:
        self.shards = shards
        self.sizes = np.concatenate([part.sizes for part in self.parts] or [np.zeros(0, np.int64)])
        self.sizes.flags.writeable = False

    @property
    def distinct_shards(self) -> Sequence[ShardInfo]:
        return [shard for part in self.parts for shard in part.distinct_shards]

    @property
    def total_bytes(self) -> int:
        """Bytes of all raw files, and of files that are read in part, of these parts."""
        return sum(part.total_bytes for part in self.parts)

    @property
    def largest_shard(self) -> int:
        """Bytes of the raw files of the largest shard, 0 without shards."""
        return max((part.largest_shard for part in self.parts), default=0)

    def part_of(self, shard: int) -> int:
        """Number of the index that has this shard."""
        return bisect_right(self._first, shard) - 1

    @property
    def extra(self) -> Mapping[str, Any]:
        """The parts' entries beyond shards: lists are concatenated, of other values the last one holds."""
        joined: dict[str, Any] = {}
        for part in self.parts:
            for name, value in part.extra.items():
                before = joined.get(name)
                joined[name] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
        return joined

    @property
    def fingerprint(self) -> str:
        """A hash of what the samples of all parts are, in order. A single part has its own."""
        if len(self.parts) == 1:
            return self.parts[0].fingerprint
        text = "\n".join(part.fingerprint for part in self.parts)
        return blake2b(text.encode(), 16).hexdigest()

    def __repr__(self) -> str:
        return f"<ConcatIndex of {len(self.parts)} indexes, {len(self)} shards, {self.samples} samples>"
