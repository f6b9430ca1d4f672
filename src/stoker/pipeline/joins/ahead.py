"""Finds the samples of other datasets for chunks that come, so that their shards are fetched before they are needed."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.threads import Threads
from stoker.pipeline.joins.joined_reader import JoinedReader
from stoker.reading.sample_reader import OtherIds, SampleReader, SampleRows
from stoker.reading.samples import distinct_shards
from stoker.types import Ids


class ChunkOthers:
    """The samples of other datasets that belong to those of a chunk.

    Attributes:
        ids: see :data:`~stoker.reading.sample_reader.OtherIds`; ``None``: they are not known yet, or could not be found.
        shards: of each other dataset, the different shards.
        counted: whether these are counted as needed.
        work: finds them, where a thread does.
    """

    __slots__ = ("counted", "ids", "shards", "work")

    def __init__(self) -> None:
        self.ids: OtherIds | None = None
        self.shards: list[list[int]] = []
        self.counted = False
        self.work: Future[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return known_others, (self.await_ids(),)

    def await_ids(self) -> OtherIds | None:
        """The ids, once they are found; ``None`` where that failed: reading the samples raises the error."""
        if self.work is not None:
            try:
                self.work.result()
            except CancelledError:  # the iteration ends
                return None
        return self.ids


def known_others(ids: OtherIds | None) -> ChunkOthers:
    """Those of which only the ids are known, as in another process."""
    chunk = ChunkOthers()
    chunk.ids = ids
    return chunk


class OthersAhead:
    """Fetches shards of other datasets for one iteration.

    Where a column of keys is to be read first, a thread does that as shards arrive, in order: it waits for no more than the
    shards of the next chunk.

    Args:
        reader: of the samples; one without joins has nothing to fetch.
        sharers: processes on this node that read through the same caches.
        read_here: whether this process reads the samples, so that shards of this machine are opened ahead in it, too.

    Attributes:
        active: whether there is anything to find ahead.
    """

    def __init__(self, reader: SampleReader, sharers: int = 1, *, read_here: bool = True) -> None:
        self._reader = reader if isinstance(reader, JoinedReader) else None
        joins = self._reader.joins if self._reader is not None else ()
        self._others = [] if self._reader is None else [one.other for one in self._reader.readers]
        keyed = any(join.key is not None for join in joins)
        # Reading keys ahead, or what another process opens by itself, is of use only where there is something to fetch.
        near = all(other.amounts.near for other in self._others)
        self.active = bool(joins) and not (near and (keyed or not read_here))
        self._threads = Threads(1, "join") if self.active and keyed else None
        self._waiting: deque[ChunkOthers] = deque()
        self._closed = False
        self._needed: list[dict[int, int]] = [{} for _ in self._others]
        self._most = [max(1, other.amounts.most_shards // sharers) for other in self._others]
        if self.active:
            for other, needed in zip(self._others, self._needed, strict=True):
                other.pool.expect(needed.keys())
        self.after_fork()
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`."""
        self._lock = threading.Lock()

    def begin(self, shards: Ids, rows: Ids) -> ChunkOthers:
        """Begin to find and fetch what belongs to the samples of a chunk."""
        chunk = ChunkOthers()
        if self._threads is None:
            self._find(chunk, shards, rows)
        else:
            chunk.work = self._threads.submit(partial(self._find, chunk, shards, rows))
        return chunk

    def _find(self, chunk: ChunkOthers, shards: Ids, rows: Ids) -> None:
        assert self._reader is not None
        try:
            found = self._reader.others(SampleRows(shards, rows))
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

    def done(self, chunk: ChunkOthers | None) -> None:
        """Say that a chunk was read: shards that none ahead needs may go."""
        if chunk is None:
            return
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
        if self.active:
            for other in self._others:
                other.pool.expect(())
