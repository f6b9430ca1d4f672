"""Several indexes as one: the shards of one stream after those of another."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.formats.base import ShardInfo
from stoker.index.index import Index
from stoker.types import Ids

__all__ = ["JoinedIndex"]


class JoinedIndex:
    """Shards of several indexes, numbered through. Immutable; reads like an :class:`~stoker.index.index.Index`.

    Attributes:
        parts: the indexes.
        shards: all shards' descriptions. Names of files may repeat, as every part has a root of its own.
        sizes: samples in each shard; int64, shape ``(shards,)``, read-only.
        offsets: number of each part's first shard; int64, shape ``(parts + 1,)``, read-only; the last entry is their count.
    """

    def __init__(self, parts: Sequence[Index]) -> None:
        self.parts = tuple(parts)
        self.shards: Sequence[ShardInfo] = tuple(shard for part in parts for shard in part.shards)
        self.sizes: Ids = np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)])
        self.offsets: Ids = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self.sizes.flags.writeable = False
        self.offsets.flags.writeable = False
        self._first: list[int] = self.offsets.tolist()

    def part_of(self, shard: int) -> int:
        """Number of the index that has this shard."""
        return bisect_right(self._first, shard) - 1

    @property
    def samples(self) -> int:
        """Number of samples in all shards."""
        return int(self.sizes.sum())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that every shard has, in the order of the first part that has shards."""
        names = [part.columns for part in self.parts if len(part)]
        if not names:
            return ()
        common = set.intersection(*map(set, names))
        return tuple(name for name in names[0] if name in common)

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
    def compressed(self) -> bool:
        """Whether any shard is stored compressed."""
        return any(part.compressed for part in self.parts)

    @property
    def total_bytes(self) -> int:
        """Bytes of all raw files."""
        return sum(part.total_bytes for part in self.parts)

    @property
    def largest_shard(self) -> int:
        """Bytes of the raw files of the largest shard, 0 without shards."""
        return max((part.largest_shard for part in self.parts), default=0)

    @property
    def fingerprint(self) -> str:
        """A hash of what the samples of all parts are, in order. A single part has its own."""
        if len(self.parts) == 1:
            return self.parts[0].fingerprint
        text = "\n".join(part.fingerprint for part in self.parts)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.shards)

    def __repr__(self) -> str:
        return f"<JoinedIndex of {len(self.parts)} indexes, {len(self)} shards, {self.samples} samples>"
