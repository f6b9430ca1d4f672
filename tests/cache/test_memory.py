"""Shards in memory: the same samples, nothing written, nothing kept that nobody reads, each byte fetched once."""

from __future__ import annotations

import gc
import json
import pickle
import resource
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from patience import PATIENCE
from s3server import Bucket
from stoker import (
    ReadOptions,
    StreamingConfig,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)
from stoker.cache import memory as memory_cache
from stoker.cache.memory import MemoryCache
from stoker.errors import ConfigError, CorruptDataError, DatasetChangedError, ObjectNotFoundError
from stoker.storage import ObjectInfo, Store, open_store
from stoker.storage.types import Arrival
from support import write_samples

HELD = ReadOptions(cache="memory")

ROWS = 400


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def remote() -> str:
    return f"memory://{secrets.token_hex(8)}/data"


def written(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def write(out: str, *, rows: int = ROWS, width: int = 64, **options: Any) -> list[bytes]:
    """About 20 shards."""
    rng = np.random.default_rng(0)
    data = [rng.bytes(width) for _ in range(rows)]
    rows_there = ({"id": number, "data": row} for number, row in enumerate(data))
    write_samples(out, rows_there, size_limit=32 * width, **options)
    return data


def write_parquet(out: str, *, files: int = 3, groups: int = 8, rows: int = 50, width: int = 4096) -> None:
    rng = np.random.default_rng(0)
    for number in range(files):
        first = number * groups * rows
        table = pa.table(
            {"id": np.arange(first, first + groups * rows), "data": [rng.bytes(width) for _ in range(groups * rows)]}
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=rows, compression="none")
        open_store(out).put(f"{number}.parquet", sink.getvalue().to_pybytes())


class Reads:
    """What is read into memory from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[str] = []
        self.bytes = 0
        plain, request = Store.read_into, Store.request

        def read_into(store: Store, key: str, into: memoryview, **named: Any) -> ObjectInfo:
            self.keys.append(key)
            self.bytes += len(into)
            return plain(store, key, into, **named)

        def counted(store: Store, key: str, *, max_bytes: int) -> Arrival:
            self.keys.append(key)
            self.bytes += max_bytes
            return request(store, key, max_bytes=max_bytes)

        monkeypatch.setattr(Store, "read_into", read_into)
        monkeypatch.setattr(Store, "request", counted)


def living(dataset: StreamingDataset) -> int:
    """Bytes of shards that are held."""
    gc.collect()
    total = 0
    for cache in dataset.epoch_reader.pool.caches:
        assert isinstance(cache, MemoryCache)
        with cache._mine.lock:
            total += sum(data.nbytes for data in cache._mine.shards.values())
    return total


@pytest.mark.parametrize("hashes", [None, ["sha1", "xxh64"]])
@pytest.mark.parametrize("compression", [None, "zstd", "gz"])
def test_each_epoch_fetches_each_shard_once_and_writes_nothing(
    compression: str | None, hashes: list[str] | None, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write(remote, compression=compression, hashes=hashes)
    reads = Reads(monkeypatch)
    dataset = StreamingDataset(remote=remote, read=HELD, shuffle=True, batch_size=16)
    shards = len(dataset.index)
    for epoch in (1, 2):
        assert {sample["id"]: sample["data"] for sample in dataset} == dict(enumerate(rows))
        if compression is None:
            assert len(reads.keys) == epoch * shards
        assert living(dataset) == 0
    assert dataset.stats().cache_misses == 2 * shards
    assert not written(tmp_path)


def test_shards_without_hashes_take_one_request_each(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that has the bytes tells the version, too."""
    rows = write(remote, hashes=())
    dataset = StreamingDataset(remote=remote, read=HELD)
    asked: dict[str, list[str]] = {"get": [], "head": []}

    def count(name: str) -> None:
        plain = getattr(obstore, name)

        def counted(client: Any, path: str, **named: Any) -> Any:
            asked[name].append(Path(path).name)
            return plain(client, path, **named)

        monkeypatch.setattr(obstore, name, counted)

    for name in asked:
        count(name)
    assert [sample["data"] for sample in dataset] == rows
    assert sorted(asked["get"]) == [shard.raw[0].basename for shard in dataset.index.shards]
    assert set(asked["head"]) <= {"index.json"}


def test_a_shard_that_is_replaced_after_it_was_listed_is_an_error(remote: str) -> None:
    """Nothing but its ETag and time tell: there is no index, no hash, and the size is the same."""
    rows = write(remote, hashes=())
    store = open_store(remote)
    store.delete("index.json")
    dataset = StreamingDataset(remote=remote, format="mds", read=HELD, predownload=1)
    samples = iter(dataset)
    assert next(samples)["data"] == rows[0]
    key = dataset.index.shards[-2].raw[0].basename
    store.put(key, store.get(key, max_bytes=1 << 20))
    with pytest.raises(DatasetChangedError, match=rf"{key} is not the file that was listed: its size, ETag or time"):
        list(samples)


def test_what_is_ahead_is_held_and_no_more(remote: str) -> None:
    write(remote)
    dataset = StreamingDataset(remote=remote, read=HELD, batch_size=4, predownload=60)
    most = 0
    for number, _ in enumerate(dataset):
        if number % 40 == 39:
            most = max(most, living(dataset))
    largest = dataset.index.largest_shard
    assert largest <= most <= 8 * largest
    assert len(dataset.index) > 15


def test_an_epoch_that_is_left_holds_nothing(remote: str) -> None:
    write(remote)
    dataset = StreamingDataset(remote=remote, read=HELD, batch_size=4)
    for _ in range(3):
        iterator = iter(dataset)
        next(iterator)
        assert living(dataset) > 0
        iterator.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + PATIENCE
        while living(dataset) and time.monotonic() < deadline:  # what is under way comes to its end
            time.sleep(0.01)
        assert living(dataset) == 0


def test_samples_by_id_hold_no_more_than_the_limit(remote: str) -> None:
    rows = write(remote)
    dataset = StreamingDataset(remote=remote, read=HELD, cache_limit=10_000)
    for number in np.random.default_rng(1).permutation(ROWS)[:60].tolist():
        assert dataset[number]["data"] == rows[number]
        assert living(dataset) <= 10_000


def test_views_outlive_their_shard(remote: str) -> None:
    """Memory that a view looks at is not given to the next shard; what nobody looks at is."""
    rows = write(remote, width=1 << 16)
    blocks = memory_cache._BLOCKS
    kept = list(StreamingDataset(remote=remote, read=ReadOptions(cache="memory", views=True), predownload=1))
    gc.collect()
    assert [bytes(sample["data"]) for sample in kept] == rows
    before = blocks.kept
    del kept
    gc.collect()
    assert blocks.kept > before
    before = blocks.kept
    for number, sample in enumerate(
        StreamingDataset(remote=remote, read=ReadOptions(cache="memory", views=True), predownload=1)
    ):
        assert bytes(sample["data"]) == rows[number]
        assert blocks.kept < before
    del sample
    gc.collect()
    assert blocks.kept == before


def test_small_files_take_their_own_size(remote: str) -> None:
    """As many as are read ahead, where each is a shard."""
    store = open_store(remote)
    for number in range(300):
        store.put(f"{number:03}.bin", bytes([number % 256]) * 1000)
    dataset = StreamingDataset(remote=remote, format="files", read=HELD)
    base = resident()
    iterator = iter(dataset)
    assert [next(iterator)["data"][0] for _ in range(3)] == [0, 1, 2]
    deadline = time.monotonic() + PATIENCE
    while living(dataset) < 200 * 1000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 200 * 1000 <= living(dataset) <= 300 * 1000
    assert resident() - base < 64 << 20
    assert [sample["data"] for sample in iterator] == [bytes([number % 256]) * 1000 for number in range(3, 300)]


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_row_groups_are_fetched_by_themselves(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On disk, small ones share a file; in memory that would be fetched for each."""
    write_parquet(remote)
    reads = Reads(monkeypatch)
    dataset = StreamingDataset(remote=remote, format="parquet", read=HELD, shuffle=True, predownload=100)
    plain = StreamingDataset(remote=remote, format="parquet", shuffle=True)
    assert dataset.index.fingerprint == plain.index.fingerprint
    assert [sample["id"] for sample in dataset] == [sample["id"] for sample in plain]
    assert len(reads.keys) == len(dataset.index) == 24
    assert reads.bytes <= 1.001 * sum(info.size for info in open_store(remote).list())
    assert living(dataset) == 0


def test_shards_of_one_file_share_what_is_held(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads want it at once; one of them fetches."""
    write_parquet(remote)
    place = StreamingDataset(remote=remote, format="parquet")
    (first, second, *_), store = place.index.shards, open_store(remote)
    assert first.raw == second.raw
    cache = MemoryCache(Path("nowhere"), store, place.epoch_reader.pool.caches[0].settings)
    reads = Reads(monkeypatch)
    threads = [threading.Thread(target=cache.fetch, args=(info,)) for info in (first, second) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads.keys) == 1
    held, other = cache.open(first), cache.open(second)
    assert held is not None
    assert other is not None
    assert held[0] is other[0]
    del held, other
    gc.collect()
    assert cache.open(first) is None


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_shard_is_fetched_again_and_then_an_error(cut: bool, remote: str) -> None:
    write(remote, hashes=["xxh64"])
    store = open_store(remote)
    key = "shard.00003.mds"
    data = bytearray(store.get(key, max_bytes=1 << 30))
    data[-1] ^= 1
    store.put(key, bytes(data[:-1] if cut else data))
    dataset = StreamingDataset(remote=remote, read=HELD)
    with pytest.raises(CorruptDataError, match=f"{remote}/{key}.*{'bytes, the index says' if cut else 'xxh64'}"):
        list(dataset)
    store.delete(key)
    with pytest.raises(ObjectNotFoundError, match=key):
        list(StreamingDataset(remote=remote, read=HELD))


def test_a_size_that_the_object_has_not_takes_no_memory(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a damaged index: 3 GiB, as much as one may claim."""
    write(remote)
    store = open_store(remote)
    index = json.loads(store.get("index.json", max_bytes=1 << 30))
    index["shards"][3]["raw_data"]["bytes"] = 3 << 30
    store.put("index.json", json.dumps(index).encode())
    reads = Reads(monkeypatch)
    with pytest.raises(CorruptDataError, match=r"shard\.00003\.mds has \d+ bytes, the index says 3221225472"):
        list(StreamingDataset(remote=remote, read=HELD))
    assert "shard.00002.mds" in reads.keys
    assert "shard.00003.mds" not in reads.keys


def test_an_object_that_is_mended_meanwhile_is_read(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write(remote, hashes=["xxh64"])
    plain, seen = Store.request, set()

    def request(store: Store, key: str, *, max_bytes: int) -> Arrival:
        data, info = plain(store, key, max_bytes=max_bytes)()
        if key not in seen:
            seen.add(key)
            data = bytes(data[:-1]) + bytes([data[-1] ^ 1])
        return lambda: (data, info)

    monkeypatch.setattr(Store, "request", request)
    dataset = StreamingDataset(remote=remote, read=HELD)
    assert [sample["data"] for sample in dataset] == rows
    assert dataset.stats().retries == len(dataset.index)


def test_a_run_continues_with_another_cache(remote: str) -> None:
    """Where shards are kept is no part of the order."""
    write(remote)
    options: dict[str, Any] = {"remote": remote, "shuffle": True, "batch_size": 8}
    whole = [sample["id"] for sample in StreamingDataset(**options)]
    first = StreamingDataset(**options, read=HELD)
    iterator = iter(first)
    head = [next(iterator)["id"] for _ in range(100)]
    second = StreamingDataset(**options)
    second.load_state_dict(first.state_dict())
    assert head + [sample["id"] for sample in second] == whole


def test_a_dataset_that_is_pickled_holds_nothing(remote: str) -> None:
    write(remote)
    dataset = StreamingDataset(remote=remote, read=HELD)
    iterator = iter(dataset)
    next(iterator)
    copy = pickle.loads(pickle.dumps(dataset.epoch_reader.pool.caches[0]))
    assert not copy._mine.shards
    assert copy.open(dataset.index.shards[0]) is None


def test_shard_loaders_read_from_memory(remote: str, tmp_path: Path) -> None:
    rows = write(remote)
    dataset = StreamingDataset(remote=remote, read=HELD)
    loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1))
    assert [sample["data"] for sample in loader] == rows
    assert not written(tmp_path)


def test_tokens_are_read_from_memory(remote: str) -> None:
    rng = np.random.default_rng(0)
    for number in range(2):
        lengths = rng.integers(10, 200, 500)
        table = pa.table({"input_ids": [rng.integers(0, 1000, length) for length in lengths]})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=50)
        open_store(remote).put(f"{number}.parquet", sink.getvalue().to_pybytes())
    batches: list[list[Any]] = []
    for cache in ("disk", "memory"):
        loader = StreamingParquetLoader(remote, batch_size=4, seq_len=128, read=ReadOptions(cache=cache))
        batches.append([np.asarray(batch.input_ids) for batch in loader])
    assert len(batches[0]) > 100
    assert all(np.array_equal(*both) for both in zip(*batches, strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local": "somewhere"}, "local='somewhere' says where shards are kept"),
        ({"keep_zip": True}, "keep_zip=True says where"),
        ({"cache_limit": 100}, "can not hold one shard"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], said: str, remote: str) -> None:
    write(remote)
    with pytest.raises(ConfigError, match=said):
        StreamingDataset(remote=remote, read=HELD, **options)
    if "local" in options:
        with pytest.raises(ConfigError, match=said):
            StreamingParquetLoader(remote, read=HELD, **options)


def test_a_cache_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="cache must be 'disk' or 'memory', got 'ram'"):
        ReadOptions(cache="ram")  # type: ignore[arg-type]


def test_compressed_text_needs_a_cache_on_disk(remote: str) -> None:
    import gzip

    open_store(remote).put("a.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    with pytest.raises(ConfigError, match=r"a\.jsonl\.gz: compressed files come into the cache whole"):
        StreamingDataset(remote=remote, format="jsonl", read=HELD)


@pytest.mark.processes
def test_what_lies_here_is_mapped_all_the_same(tmp_path: Path) -> None:
    rows = write(str(tmp_path / "data"))
    for place in ({"local": tmp_path / "data"}, {"remote": tmp_path / "data"}):
        dataset = StreamingDataset(**place, read=HELD)  # type: ignore[arg-type]
        assert [sample["data"] for sample in dataset] == rows
    zipped = tmp_path / "zipped"
    rows = write(str(zipped), compression="zstd")
    dataset = StreamingDataset(remote=zipped, read=HELD)
    assert [sample["data"] for sample in dataset] == rows
    assert not written(tmp_path)


def collate(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([sample["id"] for sample in samples])


@pytest.mark.s3
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loader_workers_hold_what_each_reads(start: str, bucket: Bucket, tmp_path: Path) -> None:
    """Forked ones get it from their helper process."""
    url = f"{bucket.url}/held"
    write(url, storage_options=bucket.storage_options)

    def make() -> StreamingDataset:
        options = {"storage_options": bucket.storage_options, "shuffle": True, "batch_size": 8}
        return StreamingDataset(remote=url, read=HELD, **options)  # type: ignore[arg-type]

    plain = [sample["id"] for sample in make()]  # this process has used the store
    loader = DataLoader(make(), batch_size=8, num_workers=2, multiprocessing_context=start, collate_fn=collate)
    assert torch.cat(list(loader)).tolist() == plain
    assert not written(tmp_path)
