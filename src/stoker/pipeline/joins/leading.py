"""The zips and joins that a chain begins with: which samples belong together is known before they are read.

So the shards of other datasets can be fetched before they are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from stoker.concurrency.forks import ProcessLock
from stoker.concurrency.threads import Threads
from stoker.formats.unstacked import spread
from stoker.pipeline.chunks.chunk import ChunkOthers, OtherIds
from stoker.pipeline.joins.other_reader import OtherReader
from stoker.reading.projection import LeadingJoin
from stoker.reading.samples import distinct_shards, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Column, Ids


class LeadingJoins:
    """Finds the samples of other datasets that belong to those of a dataset, of which only columns of keys are read.

    ``pool``: the dataset's open shards. ``joins``: the zips and joins. ``readers``: of the other dataset of each.
    """

    def __init__(self, pool: ShardPool, joins: Sequence[LeadingJoin], readers: Sequence[OtherReader]) -> None:
        self._pool, self.joins, self.readers = pool, tuple(joins), tuple(readers)

    def others(self, shards: Ids, rows: Ids) -> OtherIds:
        """For each zip and join, the ids of the samples that belong to these; -1 where there is none.

        StokerError if a key can not be read, or is none.
        """
        found: list[Ids] = []
        for join, reader in zip(self.joins, self.readers, strict=True):
            if join.key is None:
                found.append(self._pool.index.table.ids(shards, rows))
                continue
            source, column = join.key
            keys = self._keys_of(source, found, column) if source else self._own_keys(shards, rows, column)
            found.append(reader.find(join.step.on[1], keys, f"{join.step.told}: column {join.step.on[0]!r}"))
        return tuple(found)

    def _own_keys(self, shards: Ids, rows: Ids, column: str) -> Column:
        if column == self._pool.ids:
            return self._pool.index.table.ids(shards, rows)
        return read_samples(self._pool, shards, rows, [column])[column]

    def _keys_of(self, source: int, found: Sequence[Ids], column: str) -> Column:
        """Keys that are columns of another dataset; ``None`` where it has no sample."""
        ids = found[source - 1]
        there = np.flatnonzero(ids >= 0)
        reader = self.readers[source - 1].some(((column, column),))
        keys: Column = reader.read(ids[there], columns=True).check().values[column]
        return keys if len(there) == len(ids) else spread(keys, there.tolist(), len(ids))

    @property
    def leave_out(self) -> list[int]:
        """Numbers of the joins that drop samples for which they have none."""
        joins = enumerate(self.joins)
        return [number for number, join in joins if join.known and join.step.missing == "leave_out"]


class JoinPrefetch:
    """Fetches shards of other datasets for one iteration.

    Where a column of keys is to be read first, a thread does that as shards arrive, in order: it waits for no more than the
    shards of the next chunk.

    ``leading``: the zips and joins that a chain begins with. ``sharers``: processes on this node that read through the same
    caches. ``keyed``: whether any of them finds samples by a key.
    """

    def __init__(self, leading: LeadingJoins, sharers: int, *, keyed: bool) -> None:
        self._leading = leading
        self._others = [one.other for one in leading.readers]
        self._threads = Threads(1, "join") if keyed else None
        self._waiting: deque[ChunkOthers] = deque()
        self._closed = False
        self._needed: list[dict[int, int]] = [{} for _ in self._others]
        self._most = [max(1, other.settings.amounts.most_shards // sharers) for other in self._others]
        for other, needed in zip(self._others, self._needed, strict=True):
            other.pool.expect(needed.keys())
        self._lock = ProcessLock()

    def begin(self, shards: Ids, rows: Ids) -> ChunkOthers:
        """Begin to find and fetch what belongs to the samples of a chunk."""
        chunk = ChunkOthers()
        if self._threads is None:
            self._find(chunk, shards, rows)
        else:
            chunk.work = self._threads.submit(partial(self._find, chunk, shards, rows))
        return chunk

    def _find(self, chunk: ChunkOthers, shards: Ids, rows: Ids) -> None:
        try:
            found = self._leading.others(shards, rows)
        except Exception:  # noqa: BLE001 - is raised again where the samples are read
            return
        for other, ids, most in zip(self._others, found, self._most, strict=True):
            needed = distinct_shards(other.table.locate(ids[ids >= 0])[0], len(other.table))
            # More than its cache holds are fetched where they are read, one after the other.
            chunk.shards.append(needed if len(needed) <= most else [])
        chunk.ids = found
        with self._lock:
            self._waiting.append(chunk)
        self._fetch()

    def _exceeds(self, chunk: ChunkOthers) -> bool:
        """Whether more shards would be open with those of a chunk than may be."""
        return any(
            needed and len(needed) + len(shards) > most and len(needed.keys() | set(shards)) > most
            for shards, needed, most in zip(chunk.shards, self._needed, self._most, strict=True)
        )

    def _fetch(self) -> None:
        """Have the shards of further chunks fetched, as far as those of all that wait may be open."""
        asked: list[list[list[int]]] = []
        with self._lock:
            while self._waiting and not self._closed and not self._exceeds(self._waiting[0]):
                chunk = self._waiting.popleft()
                chunk.counted = True
                for shards, needed in zip(chunk.shards, self._needed, strict=True):
                    for shard in shards:
                        needed[shard] = needed.get(shard, 0) + 1
                asked.append(chunk.shards)
        for each in asked:
            for other, shards in zip(self._others, each, strict=True):
                other.pool.prefetch(shards)

    def done(self, chunk: ChunkOthers) -> None:
        """Say that a chunk was read: shards that none ahead needs may go."""
        gone: list[tuple[int, int]] = []
        with self._lock:
            if chunk.counted:
                for number, (shards, needed) in enumerate(zip(chunk.shards, self._needed, strict=True)):
                    for shard in shards:
                        needed[shard] -= 1
                        if not needed[shard]:
                            del needed[shard]
                            gone.append((number, shard))
            elif chunk in self._waiting:
                self._waiting.remove(chunk)
        for number, shard in gone:
            self._others[number].pool.done_with(shard)
        self._fetch()

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        if self._threads is not None:
            self._threads.close(patience=0.0)
        for other in self._others:
            other.pool.expect(())


def join_prefetch(leading: LeadingJoins, sharers: int, *, read_here: bool) -> JoinPrefetch | None:
    """An object that fetches shards of other datasets ahead; ``None`` where that is of no use.

    ``leading``, ``sharers``: see :class:`JoinPrefetch`. ``read_here``: whether this process reads the samples, so that shards
    of this machine are opened ahead in it, too.
    """
    keyed = any(join.key is not None for join in leading.joins)
    # Reading keys ahead, or what another process opens by itself, is of use only where there is something to fetch.
    near = all(reader.other.settings.amounts.near for reader in leading.readers)
    return None if near and (keyed or not read_here) else JoinPrefetch(leading, sharers, keyed=keyed)
