"""Fetches what the first batches of DataLoader workers need, in the process that starts the workers."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

import numpy as np

from stoker.order.native import NativeOrder
from stoker.order.sample_order import EpochPosition
from stoker.pipeline.epoch_reader import EpochReader
from stoker.policy import FETCHED_FOR_WORKER


class FirstFetches:
    """Brings the shards of workers' first batches into the caches that they read: a worker that starts has no connection yet.

    No shard is opened here. Errors are not told: the workers meet them. ``reader``: of the dataset that the workers read.
    ``workers``: how many there are. ``local_world_size``: processes of this node that start so many.
    """

    def __init__(self, reader: EpochReader, workers: int, local_world_size: int) -> None:
        self._reader = reader
        self._workers = workers
        self._local_world_size = local_world_size
        self._fetches: list[Future[None]] = []

    def begin(self, point: EpochPosition, batch_size: int) -> None:
        """Begin to fetch for the epoch from ``point`` on, with batches of ``batch_size`` samples for each worker."""
        pool, order = self._reader.pool, self._reader.sample_order
        pool.share(self._workers * self._local_world_size)
        if not all(cache.for_others for cache in pool.caches) or not isinstance(order, NativeOrder):
            return
        run = order.run(point, self._reader.data_rank(batch_size))
        for batches in run.plan.chunks(self._workers * batch_size, 0, 1, 0):
            shards = dict.fromkeys(run.order.locate(np.concatenate(batches[: self._workers]))[0].tolist())
            self._fetch(list(shards)[: FETCHED_FOR_WORKER * self._workers])
            return

    def _fetch(self, shards: Iterable[int]) -> None:
        pool, size = self._reader.pool, 0
        for shard in shards:
            size += pool.index.shards[shard].size
            if size <= pool.cache_of(shard).for_others:
                self._fetches.append(pool.fetch_for_others(shard))

    def end(self) -> None:
        """Begin no more, and keep nothing of it in memory: the workers' iteration has ended."""
        for fetch in self._fetches:
            fetch.cancel()
        self._fetches = []
        self._reader.pool.share(self._local_world_size)
