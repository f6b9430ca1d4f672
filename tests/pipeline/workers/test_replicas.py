"""A worker fetches the shards that it holds for others, also one that another thread is fetching, if the cache has room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from stoker.cache.base import CacheSettings
from stoker.cache.disk.small_fetches import Claims
from stoker.catalog.location import open_indexed
from stoker.cluster import World
from stoker.concurrency.shared.counters import Count
from stoker.coordination import Coordination
from stoker.order.native import NativeOrder
from stoker.order.partition_strategies import Contiguous
from stoker.order.selection import Everything
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.pipeline.workers.adaptive import Adaptive, Splits, adaptive_order
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.replicas import Replicas
from stoker.pipeline.workers.sample_source import PoolSource, in_order
from stoker.reading.shard_pool import ShardPool
from stoker.storage import ObjectInfo
from stoker.storage.local import LocalStore
from support import make_dataset

SAMPLES = 600
SHARD = 4096
LEASED = Adaptive(Contiguous())


class HoldingStore(LocalStore):
    """A store that holds back one file until it is told to go on."""

    def __init__(self, url: str, held: str) -> None:
        super().__init__(url)
        self._held = held
        self.begun, self.go_on = threading.Event(), threading.Event()

    def download(self, key: str, path: Path, **options: Any) -> ObjectInfo:
        if key == self._held:
            self.begun.set()
            assert self.go_on.wait(PATIENCE)
        return super().download(key, path, **options)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the thread of replicas has found a file claimed, which another thread is fetching."""
    found, take = threading.Event(), Claims.take

    def watched(claims: Claims, name: str) -> bool:
        taken = take(claims, name)
        if not taken and threading.current_thread().name == "stoker-replicas":
            found.set()
        return taken

    monkeypatch.setattr(Claims, "take", watched)
    return found


@contextmanager
def worker(folder: Path, limit: int | None = None) -> Iterator[tuple[ShardPool, list[int], Callable[[], Replicas]]]:
    """Rank 0 of two with a replication of two: its open shards, those of rank 1's lane in order, and what starts replicas."""
    make_dataset(folder / "data", SAMPLES, size_limit=SHARD)
    place = open_indexed(folder / "data", folder / "cache", None, settings=CacheSettings(limit=limit))
    pool = ShardPool(place.index, place.cache)
    table = ShardTable(place.index.sizes)
    sample_order = NativeOrder([StreamSource("data", table, Everything(table))], NativeSettings(partition=LEASED.base))
    reader = EpochReader(pool, sample_order, EpochReaderSettings(), DataRankFinder(World(0, 1)))
    splits = Splits(adaptive_order(sample_order, LEASED), 0, 2)
    url = f"memory://{folder}"
    config = StreamingConfig(2, 0, LEASED, coordinator=url, fault_tolerant=True, replication_factor=2)
    run = config.coordination._replace(threshold=LEASED.rebalance_threshold)
    with Coordination(url, "run", rank=0, world_size=2, positions=splits.parts, settings=run) as coordination:
        coordination.begin_epoch(0)
        lane = in_order(splits.locate(splits.parts[0], splits.total)[0])
        yield pool, lane, lambda: Replicas(PoolSource(reader), splits, config, coordination)
    pool.close()


def wait_for(replicas: Replicas) -> None:
    """Until all is fetched that will be."""
    assert replicas._thread is not None
    replicas._thread.join(PATIENCE)
    assert not replicas._thread.is_alive()


def present(pool: ShardPool) -> list[int]:
    return [number for number, info in enumerate(pool.index.shards) if pool.caches[0].open(info) is not None]


def test_a_shard_that_another_thread_is_fetching_is_waited_for(tmp_path: Path, refused: threading.Event) -> None:
    with worker(tmp_path) as (pool, lane, start):
        info = pool.index.shards[lane[1]]
        pool.caches[0].store = store = HoldingStore(str(tmp_path / "data"), info.raw[0].basename)
        other = threading.Thread(target=pool.caches[0].fetch, args=(info,))
        other.start()
        try:
            assert store.begun.wait(PATIENCE)
            replicas = start()
            assert refused.wait(PATIENCE)
        finally:
            store.go_on.set()
            other.join()
        wait_for(replicas)
        assert len(lane) > 3
        assert present(pool) == sorted(lane)
        # The other thread may end between the look at its lock and the look at its file: then its shard counts, too.
        assert pool.counts.totals()[0][Count.REPLICATED_SHARDS] >= len(lane) - 1


@pytest.mark.parametrize("in_use", [True, False])
def test_nothing_makes_way_for_replicas(tmp_path: Path, caplog: pytest.LogCaptureFixture, in_use: bool) -> None:
    caplog.set_level("INFO", logger="stoker")
    with worker(tmp_path, limit=5 * SHARD) as (pool, lane, start):
        own = [number for number in range(len(pool.index)) if number not in lane][:5]
        for number in own:
            if in_use:
                pool.get(number)
            else:
                pool.caches[0].fetch(pool.index.shards[number])
        wait_for(start())
        assert present(pool) == own
        assert pool.counts.totals()[0][Count.REPLICATED_SHARDS] == 0
    assert "the cache has no space for more replicas" in caplog.text
