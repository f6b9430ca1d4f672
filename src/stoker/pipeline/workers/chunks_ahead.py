"""Samples of ranges that processes read ahead of need, where a worker leases its work or shares it by a plan."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import TypeAlias, TypeVar

from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.runner import Runner
from stoker.reading.samples import distinct_shards
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids

_Label = TypeVar("_Label")
_Made = TypeVar("_Made")

Places: TypeAlias = tuple[Ids, Ids, Ids]
"""Positions, shards and rows of samples, int64 of shape ``(n,)``, n ≥ 1."""


class ChunksAhead:
    """Has samples read by a runner, in order.

    ``pool``: the dataset's open shards, which this process fetches. ``runner``: executes chunks. ``most``: chunks that may be
    read ahead of the one whose result is taken.

    ``most``: as given, or fewer where the runner needs no more.
    """

    def __init__(self, pool: ShardPool, runner: Runner[Chunk], most: int) -> None:
        self._pool, self._runner = pool, runner
        self.most = most
        self._needed: Counter[int] = Counter()

    def read(self, places: Iterable[tuple[_Label, Places]], made: Callable[[_Label, Chunk], _Made]) -> Iterator[_Made]:
        """The results for the samples at places, in order.

        ``places``: each with a label; taken as samples are delivered, no more than ``most`` ahead of these. ``made``: called
        with the label and what was made of the chunk.
        """
        running: deque[tuple[_Label, Chunk, Callable[[], Chunk]]] = deque()
        try:
            for one in chain(places, repeat(None)):
                if one is not None:
                    label, chunk = one[0], self._chunk(*one[1])
                    self._needed.update(chunk.distinct)
                    running.append((label, chunk, self._runner.submit(chunk)))
                elif not running:
                    return
                while running and (one is None or len(running) > min(self.most, self._runner.ahead)):
                    label, chunk, take = running.popleft()
                    begun = time.perf_counter_ns()
                    found = take()
                    self._pool.counts.waited(time.perf_counter_ns() - begun)
                    yield made(label, found)
                    del found, take  # frees their memory for the next chunk
                    self._done(chunk)
        finally:
            for _, chunk, _ in running:
                self._done(chunk)

    def close(self) -> None:
        """End what reads: what was not delivered is dropped."""
        self._runner.close()

    def _chunk(self, positions: Ids, shards: Ids, rows: Ids) -> Chunk:
        different = distinct_shards(shards, len(self._pool.index))
        return Chunk([len(rows)], positions, shards, rows, tuple(different))

    def _done(self, chunk: Chunk) -> None:
        """Let go of shards that no chunk ahead needs; those that this process fetches for later ones stay."""
        for shard in chunk.distinct:
            self._needed[shard] -= 1
            if not self._needed[shard]:
                del self._needed[shard]
                self._runner.done_with(shard)
