"""Before DataLoader workers run, their process fetches what their first batches need: a worker has no connection yet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from slow_store import asked, slow_store
from stoker import ReadOptions, Stream, StreamingDataLoader, StreamingDataset
from stoker.cache.disk.disk_cache import DiskCache
from stoker.formats.base import ShardInfo
from stoker.order.mixture.stream_locator import StreamLocator
from stoker.pipeline.first_fetches import FirstFetches
from support import write_columns

pytestmark = pytest.mark.processes

SAMPLES = 64


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_columns(folder / "mds", {"id": np.arange(SAMPLES)}, shard=1)
    return folder


def test_the_first_batch_of_many_streams_waits_for_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    join = StreamLocator._concatenate

    def noted(self: StreamLocator, passes: Sequence[tuple[int, int]]) -> list[int]:
        met.extend(number for number, _ in passes)
        return join(self, passes)

    monkeypatch.setattr(StreamLocator, "_concatenate", noted)
    made = {"samples": 100, "columns": {"id": "int"}}
    streams = [Stream(format="synthetic", name=str(number), format_options=made) for number in range(1000)]
    batches = iter(StreamingDataset(streams=streams, shuffle=True, batch_size=16).batches())
    next(batches)
    assert len(met) < 600
    for _ in range(50):
        next(batches)
    assert len(met) == 1000  # and then it is as far ahead as ever


@pytest.mark.parametrize("resumed", [False, True])
def test_first_batches_are_fetched_before_workers_ask(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    fetched: list[str] = []
    fetch = DiskCache.fetch

    def noted(self: DiskCache, info: ShardInfo, **settings: Any) -> bool:
        fetched.append(info.raw[0].basename)  # of this process: a worker's list is its own
        return fetch(self, info, **settings)

    monkeypatch.setattr(DiskCache, "fetch", noted)
    with slow_store(data, 0.01) as options:
        dataset = StreamingDataset(
            "s3://bucket/mds", storage_options=options, local=tmp_path, batch_size=4, shuffle=True
        )
        with StreamingDataLoader(
            dataset, batch_size=4, num_workers=2, columnar=True, multiprocessing_context="fork", timeout=PATIENCE
        ) as loader:
            if resumed:
                loader.set_epoch(3)
                loader.load_state_dict(loader.state_dict())
            batches = iter(loader)
            found = next(batches)["id"].tolist()
            deadline = time.monotonic() + PATIENCE
            while len(fetched) < 8 and time.monotonic() < deadline:
                time.sleep(0.05)
            found += [number for batch in batches for number in batch["id"].tolist()]
        _, sent = asked(options)
    assert len(fetched) == 8
    assert sorted(found) == list(range(SAMPLES))
    files = list((data / "mds").iterdir())
    # Each shard once, whoever fetched it, and the index.
    assert sent <= sum(path.stat().st_size for path in files) * 1.5


def test_what_has_not_begun_ends_with_the_iteration(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    go_on = threading.Event()
    fetch, pid = DiskCache.fetch, os.getpid()

    def held(self: DiskCache, info: ShardInfo, **settings: Any) -> bool:
        if os.getpid() == pid:
            begun.append(info.raw[0].basename)
            assert go_on.wait(PATIENCE)
        return fetch(self, info, **settings)

    monkeypatch.setattr(DiskCache, "fetch", held)
    with slow_store(data, 0.0) as options:
        dataset = StreamingDataset(
            "s3://bucket/mds",
            storage_options=options,
            local=tmp_path,
            batch_size=32,
            read=ReadOptions(download_threads=1),
        )
        pool = dataset.epoch_reader.pool
        with StreamingDataLoader(
            dataset, batch_size=32, num_workers=1, columnar=True, multiprocessing_context="fork", timeout=PATIENCE
        ) as loader:
            batches: Any = iter(loader)
            assert len(next(batches)["id"]) == 32
            batches.close()
            go_on.set()
            pool.prefetch([SAMPLES - 1])  # comes after all that was asked for before
            pool.get(SAMPLES - 1)
            assert len(begun) <= 2
            FirstFetches(dataset.epoch_reader, 1, 1).begin(dataset.upcoming(), 32)
            pool.prefetch([SAMPLES - 2])
            pool.get(SAMPLES - 2)
    assert len(begun) <= 2 + 8 + 1


def test_nothing_is_fetched_so_where_the_cache_is_limited(data: Path, tmp_path: Path) -> None:
    with slow_store(data, 0.0) as options:
        dataset = StreamingDataset(
            "s3://bucket/mds", storage_options=options, batch_size=4, shuffle=True, local=tmp_path, cache_limit="1mb"
        )
        asked(options)
        reader = dataset.epoch_reader
        FirstFetches(reader, 2, 1).begin(reader.resume.upcoming(), 4)
        reader.pool.close()
        assert asked(options) == (1, 0)
