"""Shards of an object store that are held as they were fetched: whole in the cache on disk, too, and bounded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from slow_store import slow_store
from stoker import MDSWriter, StreamingDataset
from stoker.cache.disk.fetches import _BLOCKS, _Arriving
from stoker.cache.disk.quota import part_name
from stoker.concurrency.shared.counters import Count
from stoker.errors import CacheError, CorruptDataError, StorageFullError
from stoker.formats.common.rows.reused_memory import ReusedBlocks
from stoker.policy import SMALL_OBJECT
from stoker.storage.files.mapped import MappedFile
from stoker.types import HeldBytes
from support import cache_of

ROWS, WIDTH, SHARDS = 1400, 4096, 5
SHARD = 1_200_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards of some 1.2 MB."""
    folder = tmp_path_factory.mktemp("held")
    with MDSWriter({"id": "int", "data": f"ndarray:uint8:{WIDTH}"}, folder / "data", size_limit=SHARD) as writer:
        ids = np.arange(ROWS)
        writer.write_batch({"id": ids, "data": np.repeat(ids % 251, WIDTH).astype(np.uint8).reshape(ROWS, WIDTH)})
    assert all(path.stat().st_size > SMALL_OBJECT for path in (folder / "data").glob("*.mds"))
    return folder


@contextlib.contextmanager
def remote(folder: Path, local: Path, **settings: Any) -> Iterator[StreamingDataset]:
    with slow_store(folder, 0.0) as options:
        dataset = StreamingDataset("s3://bucket/data", storage_options=options, local=local, **settings)
        yield dataset
        dataset.close()


def kinds(dataset: StreamingDataset, shards: range) -> list[type]:
    pool = dataset.epoch_reader.pool
    pool.prefetch(shards)
    return [type(pool.get(shard).data) for shard in shards]  # type: ignore[attr-defined]


def test_a_shard_is_held_as_it_was_fetched_and_is_in_the_cache(data: Path, tmp_path: Path) -> None:
    with remote(data, tmp_path) as dataset:
        assert kinds(dataset, range(SHARDS)) == [HeldBytes] * SHARDS
        pool = dataset.epoch_reader.pool
        root = cache_of(tmp_path)
        for path in (data / "data").glob("*.mds"):
            assert (root / path.name).read_bytes() == path.read_bytes()
        assert not list(root.rglob("*.part"))
        sizes = sum(path.stat().st_size for path in (data / "data").glob("*.mds"))
        assert pool.counts.totals()[0][Count.BYTES_FETCHED] == sizes
        pool.done_with(0)
        assert type(pool.get(0).data) is MappedFile  # type: ignore[attr-defined]
        assert pool.counts.totals()[0][Count.BYTES_FETCHED] == sizes


def test_they_are_held_up_to_a_limit(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.reading.shard_pool.shards_held", lambda _: 3 * SHARD)
    with remote(data, tmp_path) as dataset:
        assert sorted(kind.__name__ for kind in kinds(dataset, range(4))) == ["HeldBytes"] * 3 + ["MappedFile"]
        for shard in range(4):
            dataset.epoch_reader.pool.done_with(shard)
        assert kinds(dataset, range(4, 5)) == [HeldBytes]


def test_all_samples_come_once_and_their_memory_is_let_go(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.reading.shard_pool.shards_held", lambda _: 2 * SHARD)
    for _ in range(3):
        _BLOCKS.trim()
    with remote(data, tmp_path, batch_size=32, shuffle=True) as dataset:
        for fetched in (True, False):
            ids: list[int] = []
            for batch in dataset.batches():
                numbers = np.asarray(batch["id"])
                ids += numbers.tolist()
                assert (np.asarray(batch["data"]) == (numbers % 251)[:, None]).all()
            assert sorted(ids) == list(range(ROWS))
            gc.collect()
            # What was used is kept for the next epoch, which fetches nothing.
            assert 0 < _BLOCKS.kept <= 2 * (2 << 20) if fetched else not _BLOCKS.kept


@pytest.mark.parametrize("case", ["local", "limited", "demanded", "in parts"])
def test_others_are_mapped(data: Path, tmp_path: Path, case: str) -> None:
    if case == "local":
        dataset = StreamingDataset(remote=data / "data", local=tmp_path)
        assert kinds(dataset, range(2)) == [MappedFile] * 2
        return
    settings: dict[str, Any] = {"cache_limit": 10 * SHARD} if case == "limited" else {}
    with slow_store(data, 0.0) as endpoint:
        options: dict[str, Any] = {**endpoint, "part_size": 1 << 20} if case == "in parts" else {**endpoint}
        dataset = StreamingDataset("s3://bucket/data", storage_options=options, local=tmp_path, **settings)
        if case == "demanded":
            assert type(dataset.epoch_reader.pool.get(0).data) is MappedFile  # type: ignore[attr-defined]
        else:
            assert kinds(dataset, range(2)) == [MappedFile] * 2
        dataset.close()


def test_one_that_arrives_damaged_is_no_part_of_the_cache(data: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad" / "data"
    bad.mkdir(parents=True)
    for path in (data / "data").iterdir():
        content = bytearray(path.read_bytes())
        if path.name == "shard.00001.mds":
            content[-1] ^= 1
        (bad / path.name).write_bytes(content)
    with remote(tmp_path / "bad", tmp_path / "local") as dataset:
        pool = dataset.epoch_reader.pool
        pool.prefetch([0, 1])
        assert type(pool.get(0).data) is HeldBytes  # type: ignore[attr-defined]
        with pytest.raises(CorruptDataError, match=r"shard\.00001\.mds: its xxh3_64 is"):
            pool.get(1)
        assert not (cache_of(tmp_path / "local") / "shard.00001.mds").exists()
        assert not list(tmp_path.rglob("*.part"))


def test_a_cache_that_can_not_be_written_to_is_an_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with remote(data, tmp_path) as dataset:
        pool = dataset.epoch_reader.pool
        full = OSError(28, "No space left on device")
        monkeypatch.setattr("stoker.cache.disk.fetches._write", lambda *_: (_ for _ in ()).throw(full))
        pool.prefetch([0])
        with pytest.raises((StorageFullError, CacheError), match="no space left in the cache"):
            pool.get(0)
        monkeypatch.undo()
        assert not list(tmp_path.rglob("*.part"))
        assert pool.get(0).samples > 0


def test_a_part_file_grows_as_its_bytes_arrive(tmp_path: Path) -> None:
    part = tmp_path / "shard.part"
    part.touch()
    piece, seen = b"\x05" * 400_000, set()
    arriving, plain = _Arriving(part, xxhash.xxh3_64), _Arriving(part, None)
    for _ in range(10):
        arriving.update(piece)
        seen.add(part.stat().st_size)
    assert len(seen) > 3
    assert max(seen) <= 10 * len(piece)
    assert arriving.hexdigest() == xxhash.xxh3_64(piece * 10).hexdigest()
    plain.update(piece)
    assert plain.hexdigest() == ""
    part.unlink()
    plain.update(piece * 3)  # writing to it will say so


def test_memory_that_was_not_taken_again_goes_back() -> None:
    blocks = ReusedBlocks(1 << 30)
    block = blocks.take(1 << 20)
    del block
    blocks.trim()
    block = blocks.take(1 << 20)
    assert blocks.kept == 0
    del block
    for kept in (1 << 20, 1 << 20, 0):  # an iteration ends, the next one begins, and ends
        blocks.trim()
        assert blocks.kept == kept


def test_what_a_killed_process_left_is_taken_over(data: Path, tmp_path: Path) -> None:
    with remote(data, tmp_path) as dataset:
        assert kinds(dataset, range(1)) == [HeldBytes]
        root = cache_of(tmp_path)
        left = root / ".stoker" / part_name("shard.00001.mds")
        left.write_bytes(b"x" * 2 * SHARD)
        assert kinds(dataset, range(1, 2)) == [HeldBytes]
        assert (root / "shard.00001.mds").read_bytes() == (data / "data" / "shard.00001.mds").read_bytes()
        assert not left.exists()
