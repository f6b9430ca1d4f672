"""Reads an order that is too wide for a limited cache: many samples at a time, shard by shard, each shard fetched once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import CacheError, StokerError, StorageError
from stoker.formats.unstacked import check_types, copied, scatter
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.columns import bytes_of
from stoker.policy import GROUP_BYTES
from stoker.reading.samples import distinct, iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids

# A group has so many times the samples of the one before it, so that the first batch waits for few shards.
_GROWTH: Final = 8
_USUAL_BATCH: Final = 256
_MOST_SAMPLES: Final = 1 << 20


def expected_fetches(samples: int, shards: int, sample_bytes: int, group_bytes: int = GROUP_BYTES) -> float:
    """Shards that one process fetches in an epoch of so many samples, each in any of the shards, with nothing cached."""
    group, most = _USUAL_BATCH, max(1, min(group_bytes // max(1, sample_bytes), _MOST_SAMPLES))
    fetches = 0.0
    while samples > 0:
        count = 1.0
        if group >= most:
            group, count = most, samples / most
        each = min(group, samples)
        fetches += count * (shards if shards < 2 else -shards * math.expm1(each * math.log1p(-1 / shards)))
        samples -= math.ceil(count * group)
        group *= _GROWTH
    return fetches


class ShardByShard:
    """Reads groups of samples, each shard by shard, while the shards of the group that come next are fetched.

    Args:
        columns: names to read, default all.
        whole: read samples as columns; otherwise one by one.
        most_shards: shards that may be open at once.
        most_bytes: bytes of samples that a group may have.
        sample_bytes: bytes of a stored sample.

    ``next_samples``: samples that the next group may have. It grows from group to group, as far as there is memory for what
    samples take once they are decoded.
    """

    def __init__(
        self,
        pool: ShardPool,
        columns: Sequence[str] | None,
        *,
        whole: bool,
        most_shards: int,
        most_bytes: int,
        sample_bytes: int,
    ) -> None:
        self.next_samples = 1
        self._pool = pool
        self._columns = columns
        self._whole = whole
        # One half is read while the other is fetched.
        self._width = max(1, most_shards // 2)
        self._most_bytes = most_bytes
        self._sample_bytes = sample_bytes
        self._rising = True
        self._soon: set[int] = set()

    def read(self, shards: Ids, rows: Ids) -> Batch | list[Any]:
        """The samples at ``(shards[i], rows[i])``, in that order: as columns, or one by one.

        Errors are those of :func:`~stoker.reading.samples.read_samples`.
        """
        pool, width = self._pool, self._width
        numbers, which = distinct(shards, len(pool.index))
        order = np.argsort(which, kind="stable")
        ends = np.concatenate(([0], np.cumsum(np.bincount(which))))
        runs = [
            (order[ends[first] : ends[min(first + width, len(numbers))]], numbers[first : first + width].tolist())
            for first in range(0, len(numbers), width)
        ]
        # The shards that this group ends with may still be in the cache when the next one begins with them.
        runs = runs if self._rising else runs[::-1]
        self._rising = not self._rising
        self._soon.clear()  # of a group that could not be read
        pool.expect(self._soon)
        parts: list[tuple[Ids, Any]] = []
        layouts: list[Any] = []
        for number, (at, here) in enumerate(runs):
            for _, coming in runs[number : number + 2]:
                self._soon.update(coming)
                pool.prefetch(coming)
            with pool.counted(shards[:0], here):
                layouts.append(pool.get(here[0]).layout)
                parts.append((at, self._read_run(shards[at], rows[at])))
            self._soon.difference_update(here)
            for shard in here:
                pool.done_with(shard)
        if self._whole:
            others = [n for n, layout in enumerate(layouts) if n == 0 or layout != layouts[0]]
            check_types([parts[n][1] for n in others], [self._name(runs[n][1][0]) for n in others])
        values: Batch | list[Any] = scatter(parts, len(rows)) if self._whole else _in_order(parts, len(rows))
        each = max(self._sample_bytes, bytes_of(values) // len(rows), 1)
        self.next_samples = max(1, min(_GROWTH * len(rows), self._most_bytes // each, _MOST_SAMPLES))
        return values

    def _name(self, shard: int) -> str:
        return self._pool.cache_of(shard).describe(self._pool.index.shards[shard])

    def _read_run(self, shards: Ids, rows: Ids) -> Batch | list[Any]:
        if self._whole:
            return read_samples(self._pool, shards, rows, self._columns)
        with span(Stage.DECODE, len(rows)):
            return list(iterate_samples(self._pool, shards, rows, self._columns).samples)


def _in_order(parts: Sequence[tuple[Ids, list[Any]]], count: int) -> list[Any]:
    values: list[Any] = [None] * count
    for at, samples in parts:
        for number, sample in zip(at.tolist(), samples, strict=True):
            values[number] = sample
    return values


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
