"""Settings of reading: which columns, how many at a time, and how far ahead their shards are fetched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.pipeline.by_shard import GROUP_BYTES
from stoker.types import Transform

# Bytes and samples that are read in one step: enough that NumPy's per-call costs vanish, few enough to stay in the
# processor's cache.
_CHUNK_BYTES = 2 << 20
_CHUNK_SAMPLES = 4096
# Bytes of samples whose shards are fetched ahead, and where the shards are at hand, opened ahead.
_AHEAD_BYTES = 1 << 30
_AHEAD_NEAR_BYTES = 1 << 28
# Where they are held in memory: enough for the shards that are fetched at once. Beyond that, memory is used again.
_AHEAD_HELD_BYTES = 1 << 29
# Small samples are located ahead no further than this: each takes 16 bytes of memory.
_AHEAD_SAMPLES = 1 << 20
# Shards at hand are opened ahead no further than this: a process may have only so many maps.
_AHEAD_NEAR_SHARDS = 1 << 12


@dataclass(frozen=True, slots=True)
class EpochReaderSettings:
    """Settings of an :class:`~stoker.pipeline.epoch_reader.EpochReader`; nothing here changes which samples come when.

    Attributes:
        columns: columns to read; ``None`` for all.
        transform: applied to each sample, on the reading threads.
        predownload: samples ahead of the current one whose shards are fetched; ``None``: as many as make sense.
        read_threads: threads that read ahead; 0 reads in the consumer's thread; ``None``: some if there is a transform.
        sample_bytes: bytes of an average sample.
        shard_bytes: bytes of an average shard.
        near: whether shards are read where they are, with nothing to fetch or decompress.
        held: whether they are held in this process's memory.
        limit: bytes that the cache may take, or ``None``.
        sharers: processes on this node that read through the same cache.
        by_shard: whether many samples are read together, shard by shard, as the order is too wide for the limit.
    """

    columns: Sequence[str] | None = None
    transform: Transform | None = None
    predownload: int | None = None
    read_threads: int | None = None
    sample_bytes: int = 1
    shard_bytes: int = 1
    near: bool = False
    held: bool = False
    limit: int | None = None
    sharers: int = 1
    by_shard: bool = False

    @property
    def most_shards(self) -> int:
        """Shards that this process may have open: with a limit, its part of half the cache. The rest is for eviction."""
        if self.limit is None:
            return _AHEAD_NEAR_SHARDS if self.near else sys.maxsize
        return max(1, self.limit // 2 // max(1, self.shard_bytes) // self.sharers)

    @property
    def group_bytes(self) -> int:
        """Bytes of samples that this process holds where it reads shard by shard."""
        ahead = GROUP_BYTES if self.predownload is None else self.predownload * max(1, self.sample_bytes)
        return ahead // self.sharers

    def lookahead(self, batch_size: int) -> int:
        """Samples ahead of the one delivered whose shards are fetched, or opened and read into the page cache."""
        if self.predownload is not None:
            return max(1, self.predownload)
        most = _AHEAD_NEAR_BYTES if self.near else _AHEAD_HELD_BYTES if self.held else _AHEAD_BYTES
        ahead = most // max(1, self.sample_bytes) // self.sharers
        return max(8 * batch_size, min(ahead, _AHEAD_SAMPLES))

    def chunk(self, batch_size: int, *, one_by_one: bool) -> int:
        """Samples that are read in one step.

        Samples that are made as they are asked for (``one_by_one``) take no memory ahead; but all shards of a chunk must be
        there before its first sample, so where they come from afar a chunk stays small. And all of its shards are open, and
        so can not be evicted, at once.
        """
        size = _CHUNK_BYTES if not one_by_one else sys.maxsize if self.near else 8 * _CHUNK_BYTES
        chunk = min(_CHUNK_SAMPLES, max(1, size // max(1, self.sample_bytes)), self.most_shards)
        return chunk if self.near else min(chunk, max(1, self.lookahead(batch_size) // 2))
