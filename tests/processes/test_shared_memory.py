"""Shards in memory, in several processes of a node: each is fetched once, in the order as ever, whoever is killed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory_rank import WIDTH, check, row_of

from patience import PATIENCE
from slow_store import asked, slow_store
from stoker import MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset, StreamingParquetLoader, World
from stoker.cache import memory as memory_cache
from stoker.cache.memory import MemoryCache
from stoker.cache.node_shards import NodeShards, SharedAllocation, open_table
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.base import ShardInfo
from stoker.storage import ObjectInfo, Store
from support import start_script, write_columns

pytestmark = pytest.mark.processes

SAMPLES, EACH = 512, 16
RANK = Path(__file__).with_name("memory_rank.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    columns = {"id": np.arange(SAMPLES), "data": np.stack([row_of(number) for number in range(SAMPLES)])}
    write_columns(folder / "mds", columns, shard=EACH)
    return folder


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))


def bytes_of_shards(data: Path) -> int:
    return sum(path.stat().st_size for path in (data / "mds").glob("*.mds"))


def begin_together(folder: Path, workers: int, worker: int) -> None:
    """Wait for the other workers: what is in memory is there for processes that read it then."""
    (folder / f"worker-{worker}").touch()
    deadline = time.monotonic() + PATIENCE
    while len(list(folder.glob("worker-*"))) < workers and time.monotonic() < deadline:
        time.sleep(0.01)


def make(options: dict[str, str], *, views: bool = False, **settings: Any) -> StreamingDataset:
    return StreamingDataset(
        "s3://bucket/mds",
        storage_options=options,
        batch_size=4,
        shuffle=True,
        read=ReadOptions(cache="memory", views=views),
        **settings,
    )


def load(dataset: StreamingDataset, start: str, **settings: Any) -> StreamingDataLoader:
    return StreamingDataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        multiprocessing_context=start,
        timeout=PATIENCE,
        collate_fn=list,
        **settings,
    )


def ids_of(samples: list[dict[str, Any]]) -> list[int]:
    return check({"id": [one["id"] for one in samples], "data": [one["data"] for one in samples]})


def itself(batch: Any) -> Any:
    return batch


def kept_by(process: int) -> int:
    """Bytes of shards that a process keeps for others."""
    found = 0
    for number in os.listdir(f"/proc/{process}/fd"):
        path = f"/proc/{process}/fd/{number}"
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            if os.readlink(path).startswith("/memfd:stoker-shard-"):
                found += os.stat(path).st_blocks * 512
    return found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_loader_workers_fetch_each_shard_once_and_keep_the_order(start: str, data: Path) -> None:
    with slow_store(data, 0.0) as options:
        plain = [[int(sample["id"]) for sample in batch] for batch in _batches(iter(make(options)))]
        asked(options)
        dataset = make(options)
        _, index = asked(options)
        with load(dataset, start, persistent_workers=True) as loader:
            assert [ids_of(batch) for batch in loader] == plain
            _, sent = asked(options)
            assert sent == bytes_of_shards(data), index
            second = list(itertools.islice(loader, 7))  # is broken off
            loader.load_state_dict(loader.state_dict())
            rest = [ids_of(batch) for batch in loader]
            assert sorted(itertools.chain(*map(ids_of, second), *rest)) == list(range(SAMPLES))


def _batches(samples: Any) -> Any:
    while batch := list(itertools.islice(samples, 4)):
        yield batch


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_that_are_forked_while_their_parent_reads(data: Path) -> None:
    with slow_store(data, 0.0) as options:
        dataset = make(options, world=World(0, 2, 2), views=True)
        held = list(itertools.islice(dataset, 9))
        assert kept_by(os.getpid()) > 0
        with load(make(options, world=World(0, 2, 2)), "fork") as loader:
            found = [number for batch in loader for number in ids_of(batch)]
        assert len(set(found)) == SAMPLES // 2
        dataset.close()
        assert kept_by(os.getpid()) == 0
        assert ids_of(held) == found[:9]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_that_read_the_same_row_groups_fetch_them_once(start: str, tmp_path: Path) -> None:
    """Each worker decodes all that its rank reads."""
    folder = tmp_path / "data" / "tokens"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    table = pa.table({"input_ids": [rng.integers(0, 1000, 300) for _ in range(4000)]})
    pq.write_table(table, folder / "0.parquet", row_group_size=200, compression="none")

    def read(options: dict[str, str], workers: int) -> list[Any]:
        loader = StreamingParquetLoader(
            "s3://bucket/tokens", batch_size=4, seq_len=128, storage_options=options, read=ReadOptions(cache="memory")
        )
        with StreamingDataLoader(
            loader,
            num_workers=workers,
            multiprocessing_context=start if workers else None,
            collate_fn=itself,
            worker_init_fn=partial(begin_together, tmp_path, workers),
        ) as batches:
            return [np.asarray(batch.input_ids) for batch in batches]

    with slow_store(tmp_path / "data", 0.0) as options:
        read(options, 0)  # what is found out once
        asked(options)
        plain = read(options, 0)
        _, alone = asked(options)
        found = read(options, 2)
        _, together = asked(options)
    assert len(list(tmp_path.glob("worker-*"))) == 2  # both began together
    assert all(np.array_equal(*both) for both in zip(plain, found, strict=True))
    assert together == alone


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_main_process_fetches_for_workers_that_have_no_connection_yet(
    start: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    plain = MemoryCache.fetch_for_others

    def noted(self: MemoryCache, info: ShardInfo) -> None:
        fetched.append(info.raw[0].basename)
        plain(self, info)

    monkeypatch.setattr(MemoryCache, "fetch_for_others", noted)
    with slow_store(data, 0.0) as options:
        dataset = make(options)
        asked(options)
        with load(dataset, start) as loader:
            assert sorted(number for batch in loader for number in ids_of(batch)) == list(range(SAMPLES))
            assert kept_by(os.getpid()) <= 8 << 20
        assert asked(options)[1] == bytes_of_shards(data)
    assert 0 < len(fetched) <= 16


def test_memory_goes_back(data: Path) -> None:
    """What workers keep for each other between epochs has a bound, and nothing stays after them."""
    with slow_store(data, 0.0) as options:
        dataset = make(options, cache_limit=2_000_000)
        shared = []
        with load(dataset, "spawn", persistent_workers=True) as loader:
            for _ in range(3):
                assert sorted(number for batch in loader for number in ids_of(batch)) == list(range(SAMPLES))
                workers = [worker.pid for worker in loader._iterator._workers]  # type: ignore[union-attr]
                shared.append([kept_by(worker) for worker in workers])
        assert all(each <= 9 << 20 for kept in shared for each in kept)
        assert not any(Path("/proc", str(worker)).exists() for worker in workers)


def ranks(options: dict[str, str], tmp_path: Path, *arguments: Any) -> list[Any]:
    """Two ranks of a node, as torchrun starts them, which have no parent that knows of stoker."""
    return [
        start_script(
            RANK,
            json.dumps(options),
            *arguments,
            RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_WORLD_SIZE="2",
            STOKER_CACHE=str(tmp_path / "cache"),
        )
        for rank in (0, 1)
    ]


def finish(process: Any) -> list[int]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return [number for line in out.splitlines() for number in json.loads(line)]


def test_ranks_fetch_each_shard_once(data: Path, tmp_path: Path) -> None:
    with slow_store(data, 0.0) as options:
        make(options).close()
        _, index = asked(options)
        both = ranks(options, tmp_path)
        found = [finish(one) for one in both]
        assert sorted(itertools.chain(*found)) == list(range(SAMPLES))
        _, sent = asked(options)
        assert sent == bytes_of_shards(data) + 2 * index


def test_objects_of_one_name_on_two_servers_do_not_mix(tmp_path: Path) -> None:
    """Their sizes, times and ETags are the same."""
    for tag in (1, 2):
        write_columns(tmp_path / str(tag) / "mds", {"tag": np.full(SAMPLES, tag)}, size_limit=300, hashes=())
    with slow_store(tmp_path / "1", 0.0) as one, slow_store(tmp_path / "2", 0.0) as two:
        sets = [make(options, world=World(rank, 2, 2)) for options in (one, two) for rank in (0, 1)]
        samples = zip(*sets, strict=True)
        assert {tuple(int(one["tag"]) for one in rows) for rows in samples} == {(1, 1, 2, 2)}


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_goes_on_when_the_other_is_killed_or_stopped_while_it_fetches(
    sent: signal.Signals, data: Path, tmp_path: Path
) -> None:
    with slow_store(data, 0.3) as options:
        both = ranks(options, tmp_path, 1)
        try:
            for one in both:
                assert json.loads(one.stdout.readline())
            os.kill(both[0].pid, sent)  # about half of what is under way is its own
            found = finish(both[1])
        finally:
            both[0].kill()
            both[0].communicate()
    dataset = StreamingDataset(local=data / "mds", batch_size=4, shuffle=True, world=World(1, 2, 2))
    whole = [int(number) for batch in dataset.batches() for number in batch["id"]]
    assert len(found) > SAMPLES // 4
    assert found == whole[-len(found) :]  # less what was read of its output above


def test_where_memory_can_not_be_shared_each_fetches_and_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise StokerError("the reason")

    monkeypatch.setattr(memory_cache, "node_shards", refuse)
    with slow_store(data, 0.0) as options:
        found = [
            [number for batch in make(options, world=World(rank, 2, 2)).batches() for number in check(batch)]
            for rank in (0, 1)
        ]
    assert sorted(itertools.chain(*found)) == list(range(SAMPLES))
    assert caplog.text.count("2 processes of this node read the same dataset") == 2
    assert "as the reason" in caplog.text


@pytest.mark.parametrize("size", [EACH * WIDTH, 3 << 20])
def test_where_no_memory_can_be_shared_each_has_its_own(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Small shards take memory before they come, large ones as they come."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with MDSWriter({"id": "int", "data": "bytes"}, tmp_path / "data" / "mds", size_limit=None) as writer:
        writer.write({"id": 1, "data": bytes(size)})
    with slow_store(tmp_path / "data", 0.0) as options:
        dataset = make(options, world=World(0, 2, 2), remainder="uneven")
        monkeypatch.setattr(os, "posix_fallocate" if size < 1 << 20 else "ftruncate", full)
        (sample,) = dataset
        assert sample["data"] == bytes(size)
    assert "is not shared with other processes" in caplog.text


def test_a_shard_for_which_there_is_no_memory_after_a_corrupt_one_is_not_the_corrupt_one(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, allocate = Store.read_into, NodeShards.allocate
    damaged: set[str] = set()
    given: Counter[int] = Counter()  # of each thread

    def read_into(store: Store, key: str, into: memoryview, **named: Any) -> ObjectInfo:
        found = plain(store, key, into, **named)
        if key in damaged:
            return found
        damaged.add(key)
        into[len(into) // 2 :] = bytes(len(into) - len(into) // 2)
        raise CorruptDataError(f"{key} is damaged")

    def one_allocation(shards: NodeShards, size: int) -> SharedAllocation:
        thread = threading.get_ident()
        given[thread] += 1
        if given[thread] % 2:
            return allocate(shards, size)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "read_into", read_into)
    monkeypatch.setattr(NodeShards, "allocate", one_allocation)
    with slow_store(data, 0.0) as options:
        for rank in (0, 1):
            dataset = make(options, world=World(rank, 2, 2), predownload=4)
            assert len([number for batch in dataset.batches() for number in check(batch)]) == SAMPLES // 2
    assert len(damaged) == SAMPLES // EACH


def test_a_process_that_is_stopped_while_it_fetches_many_shards_is_waited_for_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(memory_cache, "time", clock)
    with slow_store(data, 0.0) as options:
        dataset = make(options)
        cache = dataset.epoch_reader.pool.caches[0]
        assert isinstance(cache, MemoryCache)
        cache.share(2, 0)
        stopped = NodeShards(open_table())
        shards = list(dataset.index.shards)
        assert all(stopped.claim(cache._key(info.raw[0])) for info in shards)
        for waits in (False, True):
            found = [cache.fetch(info, wait=waits) for info in shards]
            assert found == [waits] * len(shards)
        assert 60 < clock.now < 61
