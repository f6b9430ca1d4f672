"""Small files are read in groups, and only so many bytes of them ahead: whatever is asked for, in which order."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import Stream, StreamingDataset
from stoker.cache import small_files as cache_files
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.concurrency.request_observer import ServedBy, observe
from stoker.reading import shard_pool
from stoker.reading.opening import small_files
from stoker.reading.opening.small_files import AheadWindow
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=60)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "SMALL_FILES_AT_ONCE", 4)
    monkeypatch.setattr(small_files, "SMALL_BYTES_AT_ONCE", 50)
    monkeypatch.setattr(small_files, "SMALL_BYTES_AHEAD", 100)


@pytest.mark.usefixtures("limits")
@given(SIZES, st.data())
def test_a_window_begins_each_shard_once_in_order_and_within_its_limit(sizes: list[int], data: st.DataObject) -> None:
    window = AheadWindow()
    window.reset()
    begun: list[int] = []

    def begin(groups: Iterator[list[int]]) -> None:
        for group in groups:
            assert len(group) <= 4
            assert len(group) == 1 or sum(sizes[shard] for shard in group) <= 50
            begun.extend(group)
            under_way = sum(sizes[shard] for shard in begun if shard in window)
            assert under_way <= max(window.limit, sum(sizes[shard] for shard in group))

    for shard, size in enumerate(sizes):
        window.add(shard, size)
    begin(window.groups())
    gone: set[int] = set()
    while len(begun) < len(sizes) - len(gone - set(begun)):
        shard = data.draw(st.sampled_from([n for n in range(len(sizes)) if n in window]))
        if data.draw(st.booleans()):
            begin(window.demand(shard))
            assert shard not in window.waiting
        else:
            gone.add(shard)
            begin(window.done(shard))
            assert shard not in window
    assert begun == sorted(set(begun))
    for shard in range(len(sizes)):
        begin(window.done(shard))
    assert not any(shard in window for shard in range(len(sizes)))
    window.add(99, 10**9)
    assert [*window.groups()] == [[99]]  # larger than all the window, and alone


def lay(root: Path, count: int, size: int) -> Path:
    for number in range(count):
        path = root / f"class{number % 3}" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(4, "little") * (size // 4))
    return root


def value(shard: int, root: Path, pool: ShardPool) -> bytes:
    return (root / pool.index.shards[shard].raw[0].basename).read_bytes()


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("at_once", [0, 10_000])
def test_what_is_read_ahead_is_bounded_and_all_is_read(tmp_path: Path, at_once: int) -> None:
    root = lay(tmp_path / "data", 70, 40)
    location = open_unindexed(root, "files")
    pool = ShardPool(location.index, location.cache)
    order = np.random.default_rng(1).permutation(70).tolist()
    pool.expect((), at_once)
    needed = dict.fromkeys(order)
    pool.expect(needed.keys())
    pool.prefetch(order)
    held = 0
    for number, shard in enumerate(order):
        if not at_once:
            assert sum(one in pool._coming or one in pool._open.readers for one in order) * 40 <= 100
        (found,) = read_samples(pool, np.array([shard]), np.zeros(1, np.int64), ["data"])["data"]
        assert found == value(shard, root, pool)
        held = max(held, pool.ready(order))
        del needed[shard]
        pool.done_with(shard)
        assert number < 69 or not pool.ready(order)
    assert held > (2 if at_once else 0)
    pool.close()


@pytest.mark.usefixtures("limits")
def test_more_than_fits_may_be_asked_for_at_once(tmp_path: Path) -> None:
    root = lay(tmp_path / "data", 70, 40)
    dataset = StreamingDataset(root, format="files", shuffle=True, batch_size=70)
    for _ in range(2):
        (batch,) = dataset.batches()
        assert sorted(batch["data"]) == sorted(path.read_bytes() for path in root.rglob("*.bin"))
    dataset.close()
    assert dataset.stats().cache_misses == 0


def test_files_of_several_streams_are_read_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [lay(tmp_path / name, 40, 8) for name in ("one", "two")]
    dataset = StreamingDataset(streams=[Stream(root, format="files") for root in roots], shuffle=True, batch_size=8)

    def alone(*_: Any, **__: Any) -> Any:
        raise AssertionError("opened alone")

    monkeypatch.setattr(shard_pool, "load_shard", alone)
    found = sorted(data for batch in dataset.batches() for data in batch["data"])
    assert found == sorted(path.read_bytes() for root in roots for path in root.rglob("*.bin"))
    dataset.close()


def test_random_access_keeps_no_file(tmp_path: Path) -> None:
    dataset = StreamingDataset(lay(tmp_path / "data", 20, 8), format="files")
    assert [bytes(dataset[number]["data"]) for number in (3, 3, 7)]
    assert not dataset.epoch_reader.pool.ready(range(20))
    dataset.close()


def test_each_file_of_a_group_is_counted_as_a_request(tmp_path: Path) -> None:
    root = lay(tmp_path / "data", 70, 20_000)
    dataset = StreamingDataset(root, format="files", shuffle=True, batch_size=8)
    sizes: list[int] = []

    class Counts:
        def add(self, served: ServedBy, nanoseconds: int, size: int) -> None:
            sizes.append(size)

        def begin(self) -> tuple[int, int]:
            return 0, 0

        def end(self, begun: tuple[int, int], size: int, *, ahead: bool = False, copied: bool = False) -> None:
            sizes.append(size)

        def repeat(self, endpoint: str) -> None:
            raise AssertionError(endpoint)

    observe(Counts())
    try:
        read = sum(len(data) for batch in dataset.batches() for data in batch["data"])
    finally:
        observe(None)
    assert len(sizes) == 70
    assert sum(sizes) == read
    dataset.close()


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay(tmp_path / "data", 70, 8)
    location = open_unindexed(root, "files")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, limits[1]))
    most = 0
    read = cache_files._read

    def counted(*given: Any) -> Any:
        nonlocal most
        links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        most = max(most, sum(link.startswith(str(root)) for link in links))
        return read(*given)

    monkeypatch.setattr(cache_files, "_read", counted)
    pool = ShardPool(location.index, location.cache, threads=1)
    pool.prefetch(range(70))
    found = [pool.get(shard).data for shard in range(70)]  # type: ignore[attr-defined]
    assert found == [value(shard, root, pool) for shard in range(70)]
    assert 1 < most <= 100 // 8
    pool.close()
