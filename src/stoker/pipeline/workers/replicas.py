"""Replication: a worker keeps the shards of others' parts in its cache, so that it can take over from them at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np

from stoker.concurrency.shared.counters import Count
from stoker.coordination import Coordination
from stoker.coordination.replication import holders
from stoker.errors import StokerError
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import PoolSource, SampleSource, in_order

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16


def lanes_held(rank: int, lanes: int, world_size: int, replication: int) -> list[int]:
    """The lanes whose shards a worker keeps for others: not its own, by rendezvous hashing.

    Lane k is worker ``k``'s, who is its first holder; the others are the best of rendezvous hashing among the rest.
    """
    if replication < 2 or not 0 < lanes <= world_size:
        return []
    # One more than needed, as the owner may be among them.
    most = min(replication, world_size)
    found = holders(np.arange(lanes, dtype=np.int64), range(world_size), most)
    held = []
    for lane in range(lanes):
        others = [int(worker) for worker in found[lane] if worker != lane][: replication - 1]
        if rank in others:
            held.append(lane)
    return held


class Replicas:
    """Fetches shards that this worker holds for others, one at a time, in the order in which their owners come to them.

    It continues only while the cache has free space, so that nothing is evicted for it.

    Args:
        sample_source: the shards.
        splits: the epoch's positions.
        config: this worker's settings.
        coordination: the run.
    """

    def __init__(
        self, sample_source: SampleSource, splits: Splits, config: StreamingConfig, coordination: Coordination
    ) -> None:
        self._sample_source = sample_source
        self._splits = splits
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(sample_source, PoolSource):
            starts = coordination.epoch.starts
            lanes = lanes_held(config.rank, len(starts) - 1, config.world_size, config.replication_factor)
            spans = [(starts[lane], starts[lane + 1]) for lane in lanes]
            self._thread = threading.Thread(
                target=self._fetch, args=(sample_source, spans), name="stoker-replicas", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop, after the shard that is being fetched."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _fetch(self, sample_source: PoolSource, spans: list[tuple[int, int]]) -> None:
        pool = sample_source.pool
        seen = np.zeros(sample_source.shards, dtype=np.bool_)
        try:
            for shard in self._shards(spans, seen):
                info, cache = pool.index.shards[shard], pool.cache_of(shard)
                if cache.store is None or not cache.keeps or self._closed.is_set():
                    return
                if cache.open(info) is not None:
                    continue
                if not cache.fetch(info, wait=False, if_full="give up"):
                    # Another thread is fetching it, which is waited for, and counts it; or the cache is full.
                    if cache.fetch(info, if_full="give up"):
                        continue
                    logger.info("the cache has no space for more replicas")
                    return
                sample_source.counts.add(Count.REPLICATED_SHARDS, 1)
                sample_source.counts.add(Count.REPLICATED_BYTES, sum(file.bytes for file in info.stored))
        except StokerError as error:
            logger.warning("replicas are no longer fetched: %s", error)

    def _shards(self, spans: list[tuple[int, int]], seen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[int]:
        """Shards in the order in which the lanes come to them, a chunk of each lane in turn."""
        longest = max((end - begin for begin, end in spans), default=0)
        for offset in range(0, longest, _CHUNK):
            for begin, end in spans:
                first = begin + offset
                if self._closed.is_set() or first >= end:
                    continue
                shards, _ = self._splits.locate(first, min(end, first + _CHUNK))
                for shard in in_order(shards):
                    if not seen[shard]:
                        seen[shard] = True
                        yield shard
