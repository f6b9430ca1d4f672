"""Several indexes as one: the shards of one stream after those of another."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.index.index import Index, ShardList
from stoker.types import Ids


class JoinedIndex(ShardList):
    """Shards of several indexes, numbered through. Names of files may repeat, as every part has a root of its own.

    Attributes:
        parts: the indexes.
        offsets: number of each part's first shard; int64, shape ``(parts + 1,)``, read-only; the last entry is their count.
    """

    def __init__(self, parts: Sequence[Index]) -> None:
        self.parts = tuple(parts)
        super().__init__(shard for part in parts for shard in part.shards)
        self.offsets: Ids = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self.offsets.flags.writeable = False
        self._first: list[int] = self.offsets.tolist()

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
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"<JoinedIndex of {len(self.parts)} indexes, {len(self)} shards, {self.samples} samples>"
