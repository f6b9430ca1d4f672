"""Replication: a worker keeps the shards of others' parts in its cache, so that it can take over from them at once.

Rendezvous hashing (D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998) says which: each
worker scores each shard, and the r best keep it. The names of the workers determine the holders. When one of n workers goes,
only the shards that it held, about r/n of all, get one new holder each; all else stays where it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from stoker.arguments import must_be
from stoker.concurrency.shared.counters import Count
from stoker.coordination import Coordination
from stoker.errors import ConfigError, StokerError
from stoker.integers import U64, finalise_array, mix_array
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import PoolSource, SampleSource, in_order
from stoker.types import Ids

logger = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
_TOGETHER: Final = 1 << 22


def holders(shards: Ids, workers: Sequence[int], replication: int) -> Ids:
    """The workers that hold each shard, the foremost first.

    The first of a row is whose shard it is; when it fails, the second is, with the same numbers for those that are left.
    Shards are of shape ``(n,)``, holders of ``(n, replication)``.
    """
    ranks = _checked(workers, replication)
    found = np.empty((shards.size, replication), dtype=np.int64)
    step = max(1, _TOGETHER // ranks.size)
    for first in range(0, shards.size, step):
        scores = _scores(shards[first : first + step], ranks)
        # Ties between 64-bit scores go to the lower rank, as ranks are sorted and the sort is stable.
        best = np.argsort(~scores, axis=1, kind="stable")[:, :replication]
        found[first : first + step] = ranks[best]
    return found


def _checked(workers: Sequence[int], replication: int) -> Ids:
    ranks: Ids = np.unique(np.asarray(workers, dtype=np.int64))
    if ranks.size != len(workers):
        raise ConfigError("a worker is named twice among those that may hold shards")
    known = 1 <= replication <= ranks.size
    must_be(f"between 1 and the number of workers, {ranks.size}", known, replication=replication)
    return ranks


def _scores(shards: Ids, ranks: Ids) -> U64:
    """Scores, shape ``(shards, workers)``: 64 bits of the pair."""
    of_ranks = finalise_array(ranks.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(1))
    return finalise_array(mix_array(0, shards)[:, None] + of_ranks[None, :])


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

    It continues only while the cache has free space, so that nothing is evicted for it. ``sample_source``: the shards.
    ``splits``: the epoch's positions. ``config``: this worker's settings. ``coordination``: the run.
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
