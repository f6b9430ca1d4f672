"""How many shards are fetched at once: more where storage answers late, within bounds, and the same samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slow_store import asked, slow_store
from stoker import ReadOptions, StreamingDataset
from stoker.policy import USUAL_FETCHES, small_shards_held
from stoker.reading.fetch_width import FetchWidth
from support import write_columns

MS = 1e-3
SHARDS = 150


def width_after(seconds: float, work: float, size: int, *, sharers: int = 1, count: int = 100) -> int:
    width = FetchWidth(None)
    width.sharers = sharers
    for _ in range(count):
        width.saw(seconds, work, size)
    return width.value


def test_as_many_as_keep_the_process_at_work() -> None:
    assert width_after(20 * MS, 0.5 * MS, 100_000) in range(40, 80)
    assert width_after(1 * MS, 0.5 * MS, 100_000) == USUAL_FETCHES
    assert width_after(200 * MS, 0.2 * MS, 1000) == 128


def test_fewer_are_fetched_at_once_while_many_wait_to_be_read() -> None:
    width, most = FetchWidth(None), small_shards_held(2)
    width.sharers = 2
    for _ in range(100):
        width.saw(200 * MS, 0.2 * MS, 100_000)
    assert width.value == 128
    for held, value in ((most // 4, 128), (most // 4 + 1, 32), (most // 6, 32), (most // 8, 128), (most // 5, 128)):
        width.note_held(held)
        assert width.value == value
    width.note_held(most)
    width.tuned = 64
    assert width.value == 64
    fixed = FetchWidth(50)
    fixed.note_held(1 << 30)
    assert fixed.value == 50


def test_bytes_under_way_and_requests_of_a_node_are_bounded() -> None:
    assert width_after(20 * MS, 0.2 * MS, 8 << 20) == 32
    assert width_after(900 * MS, 1 * MS, 64 << 20) == USUAL_FETCHES
    assert width_after(200 * MS, 0.2 * MS, 1000, sharers=8) == 32
    assert width_after(200 * MS, 0.2 * MS, 1000, sharers=100) == USUAL_FETCHES


def test_waiting_for_each_other_is_no_latency_and_slower_storage_is_noticed() -> None:
    width = FetchWidth(None)
    for number in range(500):
        width.saw((1 + number % 50) * MS, 0.5 * MS, 1000)
    assert width.value == USUAL_FETCHES
    for _ in range(5000):
        width.saw(50 * MS, 0.5 * MS, 1000)
    assert width.value > 100


def test_of_small_shards_more_are_fetched_before_anything_was_seen() -> None:
    assert FetchWidth(None, 16 << 20).value == FetchWidth(None).value == USUAL_FETCHES
    assert FetchWidth(None, 100_000).value == FetchWidth(None, 1).value == 32
    assert FetchWidth(None, 256 << 10).value == 16
    shared = FetchWidth(None, 1000)
    shared.sharers = 16
    assert shared.value == 16
    assert FetchWidth(5, 1000).value == 5


def test_clocks_that_show_no_work_divide_by_no_zero() -> None:
    assert width_after(20 * MS, 0.0, 0) == 128


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    values = np.repeat(np.arange(SHARDS, dtype=np.uint8)[:, None], 100, axis=1)
    write_columns(folder / "mds", {"data": values}, shard=1)
    (folder / "files").mkdir()
    for number, value in enumerate(values):
        (folder / "files" / f"{number:03}.bin").write_bytes(value.tobytes())
    return folder


def read(options: dict[str, str], name: str, **settings: Any) -> list[int]:
    dataset = StreamingDataset(f"s3://bucket/{name}", storage_options=options, batch_size=4, shuffle=True, **settings)
    return [value[0] for batch in dataset.batches() for value in batch["data"]]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["mds", "files"])
@pytest.mark.parametrize("cache", ["disk", "memory"])
def test_small_objects_of_late_storage_are_fetched_many_at_once(
    data: Path, tmp_path: Path, name: str, cache: Any
) -> None:
    kind: dict[str, Any] = {"format": "files"} if name == "files" else {}
    kept = ReadOptions(cache=cache)
    first, second = ({} if cache == "memory" else {"local": tmp_path / one} for one in "ab")
    with slow_store(data, 0.1) as options:
        found = read(options, name, read=kept, **kind, **first)
        most, sent = asked(options)
        few = read(options, name, read=replace(kept, download_threads=3), **kind, **second)
        fixed, _ = asked(options)
    assert sorted(found) == list(range(SHARDS))
    assert found == few
    assert most > 2 * USUAL_FETCHES
    assert fixed <= 4  # and a demanded one
    assert sent >= SHARDS * 100


@pytest.mark.processes
def test_a_cache_limit_bounds_what_is_fetched_at_once(data: Path, tmp_path: Path) -> None:
    shard = next(data.glob("mds/*.mds")).stat().st_size
    limit = 20 * shard
    with slow_store(data, 0.05) as options:
        dataset = StreamingDataset(
            "s3://bucket/mds", storage_options=options, local=tmp_path, batch_size=2, shuffle=True, cache_limit=limit
        )
        found: list[int] = []
        for batch in dataset.batches():
            found += [value[0] for value in batch["data"]]
            held = sum(path.stat().st_size for path in tmp_path.rglob("*.mds*") if path.is_file())
            assert held <= limit
        most, _ = asked(options)
    assert sorted(found) == list(range(SHARDS))
    assert most <= 20
