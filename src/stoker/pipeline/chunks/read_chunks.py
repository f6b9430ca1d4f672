"""Chunks whose samples are read many together, shard by shard, before they are delivered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stoker.errors import CacheError, StokerError, StorageError
from stoker.formats.unstacked import copied
from stoker.pipeline.chunks.by_shard import ShardByShard
from stoker.pipeline.chunks.chunk import Chunk
from stoker.reading.shard_pool import ShardPool


def read_chunks(pool: ShardPool, reader: ShardByShard, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Chunks in order with their samples, which were read in groups.

    One of which a sample can not be read goes without them, and those before it with. ``pool``: the dataset's open shards.
    ``reader``: reads the samples of a group. ``chunks``: without samples.
    """
    following = next(chunks, None)
    while following is not None:
        group, size = [following], len(following.rows)
        while (following := next(chunks, None)) is not None and size + len(following.rows) <= reader.next_samples:
            group.append(following)
            size += len(following.rows)
        yield from _read_group(pool, reader, group)


def _read_group(pool: ShardPool, reader: ShardByShard, group: Sequence[Chunk]) -> Iterator[Chunk]:
    begun, values = time.perf_counter_ns(), None
    try:
        values = reader.read(
            np.concatenate([chunk.shards for chunk in group]), np.concatenate([chunk.rows for chunk in group])
        )
    except (CacheError, StorageError):  # may have taken a timeout: not once more for each part of the group
        raise
    except StokerError:  # is raised again where the chunk is read alone
        pass
    pool.counts.waited(time.perf_counter_ns() - begun)
    if values is None and len(group) == 1:
        pool.expect(())
        yield replace(group[0], distinct=())
        return
    if values is None:
        half = len(group) // 2
        yield from _read_group(pool, reader, group[:half])
        yield from _read_group(pool, reader, group[half:])
        return
    start = 0
    for chunk in group:
        here = slice(start, start + len(chunk.rows))
        start = here.stop
        if isinstance(values, list):
            yield replace(chunk, distinct=(), values=values[here])
        else:  # copies: a batch that is kept must not keep all of them
            part = {name: copied(one, here) for name, one in values.items()}
            yield replace(chunk, distinct=(), values=part)
