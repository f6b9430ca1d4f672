"""An order that is too wide for a limited cache: the same samples, read shard by shard, with few fetches."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slow_store import asked, slow_store
from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.errors import DecodeError, TransformError
from stoker.pipeline.chunks.by_shard import expected_fetches

SAMPLES, SHARDS = 1500, 30
COLUMNS = {"id": "int", "text": "str", "any": "json", "x": "ndarray:float32:8", "ragged": "ndarray:int16"}


def row(number: int) -> dict[str, Any]:
    values: list[Any] = ["", 'é\n"', None, 1.5, number, [number], {"a": number}]
    ragged = np.arange(1 + number % 5, dtype=np.int16)
    x = np.full(8, np.nan if number % 7 == 0 else number, np.float32)
    return {"id": number, "text": f"é{number}\r\n", "any": values[number % 7], "x": x, "ragged": ragged}


def write_mds(folder: Path) -> None:
    with MDSWriter(COLUMNS, folder, size_limit=None) as writer:
        for number in range(SAMPLES):
            writer.write(row(number))
            if number % (SAMPLES // SHARDS) == 49:
                writer.flush_shard()


def write_parquet(folder: Path) -> None:
    folder.mkdir()
    step = SAMPLES // SHARDS
    for first in range(0, SAMPLES, step):
        ids = list(range(first, first + step))
        optional = [None if number % 3 == 0 else number for number in ids]
        rare = [None if number % 40 == 0 else number for number in ids]
        lists = [[number] * (2 + (number % 50 == 0)) for number in ids]
        columns = {"id": ids, "optional": optional, "rare": rare, "lists": lists, "text": [f"é{n}" for n in ids]}
        table = pa.table(columns)
        pq.write_table(table, folder / f"{first:06}.parquet")


@pytest.fixture(scope="module", params=[write_mds, write_parquet])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write: Callable[[Path], None] = request.param
    folder = tmp_path_factory.mktemp("by_shard") / "data"
    write(folder)
    return folder


def size_of(data: Path) -> int:
    return sum(path.stat().st_size for path in data.iterdir() if path.suffix in (".mds", ".parquet"))


def open_data(data: Path, local: Path | None, limit: int | None, **settings: Any) -> StreamingDataset:
    given: dict[str, Any] = {"shuffle": True, "shuffle_algo": "global", "batch_size": 16, "local": local, **settings}
    return StreamingDataset(**{"remote": data.as_uri(), **given}, cache_limit=limit)


def told(value: object) -> str:
    """Types and values."""
    if isinstance(value, dict):
        return repr([(name, told(one)) for name, one in value.items()])
    if isinstance(value, list):
        return repr([told(one) for one in value])
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tolist()}"
    return f"{type(value).__name__} {value!r}"


def marked(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], "text": sample["text"] * 2}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"transform": marked, "read": ReadOptions(read_threads=0)},
        {"transform": marked, "read": ReadOptions(read_threads=3)},
        {"columns": ["id"], "predownload": 100},
    ],
    ids=["plain", "transform", "threads", "predownload"],
)
def test_batches_and_samples_are_those_of_an_unlimited_cache(
    data: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    limit = size_of(data) // 5
    free = open_data(data, tmp_path / "free", None, **settings)
    limited = open_data(data, tmp_path / "limited", limit, **settings)
    expected = [sample["id"] for sample in free]
    samples = list(limited)
    assert [sample["id"] for sample in samples] == expected
    assert sorted(expected) == list(range(SAMPLES))
    if "transform" not in settings:
        again = open_data(data, tmp_path / "free", None, **settings)
        assert told(samples) == told(list(again))
    wholes = [open_data(data, tmp_path / one, most, **settings) for one, most in (("free", None), ("limited", limit))]
    for one, two in zip(*(whole.batches() for whole in wholes), strict=True):
        assert told(one) == told(two)


def test_each_shard_is_fetched_once_a_group_and_the_limit_holds(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data)
    limit = size_of(data) // 5
    dataset = open_data(data, tmp_path / "cache", limit)
    seen = 0
    for batch in dataset.batches():
        seen += len(batch["id"])
        held = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds*") if path.is_file())
        assert held <= limit
    assert seen == SAMPLES
    fetched = dataset.stats().bytes_fetched
    # Groups of 16, 128, 1,024 and the rest; a shard a sample would be 1,500 shards.
    assert fetched <= 4 * size_of(data)


@pytest.mark.processes
def test_shards_in_memory_stay_few(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data)
    limit = size_of(data) // 5
    settings: dict[str, Any] = {"remote": "s3://bucket", "read": ReadOptions(cache="memory")}
    with slow_store(data, 0.0) as options:
        dataset = open_data(data, None, limit, **settings, storage_options=options)
        pool = dataset.epoch_reader.pool
        most, found = 0, []
        for batch in dataset.batches():
            found += list(batch["id"])
            most = max(most, pool.caches[0].used(pool.index.shards))
        _, sent = asked(options)
    assert found == [sample["id"] for sample in open_data(data, tmp_path / "free", None)]
    assert most <= limit
    assert sent <= 5 * size_of(data)


def test_a_resumed_run_continues_in_the_middle_of_a_group(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data)
    limit = size_of(data) // 5
    expected = [sample["id"] for sample in open_data(data, tmp_path / "free", None)]
    first = open_data(data, tmp_path / "cache", limit)
    batches = first.batches()
    begun = [number for _ in range(20) for number in next(batches)["id"]]
    second = open_data(data, tmp_path / "cache", limit)
    second.load_state_dict(first.state_dict())
    assert begun + [sample["id"] for sample in second] == expected


def test_errors_name_the_sample(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data)

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 1234:
            raise ValueError("no")
        return sample

    dataset = open_data(data, tmp_path / "cache", size_of(data) // 5, transform=refuse)
    with pytest.raises(TransformError, match="1234"):
        list(dataset)


@pytest.mark.parametrize("how", ["samples", "threads", "batches"])
def test_a_bad_sample_stops_the_run_where_it_does_without_a_limit(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    write_mds(data)
    bad = data / "shard.00024.mds"
    bad.write_bytes(bad.read_bytes().replace(b"\xc3\xa91234\r\n", b"\xff\xa91234\r\n"))  # no UTF-8
    index = json.loads((data / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["hashes"] = {}
    (data / "index.json").write_text(json.dumps(index))
    settings = {"read": ReadOptions(read_threads=2)} if how == "threads" else {}

    def read(dataset: StreamingDataset, found: list[int]) -> None:
        if how == "batches":
            for batch in dataset.batches():
                found.extend(batch["id"])
        else:
            found.extend(sample["id"] for sample in dataset)

    delivered: list[list[int]] = []
    rest: list[list[int]] = []
    for name, limit in (("free", None), ("limited", size_of(data) // 5)):
        dataset = open_data(data, tmp_path / name, limit, **settings)
        delivered.append([])
        with pytest.raises(DecodeError, match="sample 1234"):
            read(dataset, delivered[-1])
        resumed = open_data(data, tmp_path / name, limit, columns=["id"])
        resumed.load_state_dict(dataset.state_dict())
        rest.append([sample["id"] for sample in resumed])
        assert sorted(delivered[-1] + rest[-1]) == list(range(SAMPLES))
    assert delivered[0] + rest[0] == delivered[1] + rest[1]
    # Threads hand over fewer samples at a time under a limit, so the run may come nearer to the bad one.
    assert len(delivered[1]) >= len(delivered[0])
    if how == "samples":
        assert rest[1][0] == 1234


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["times the dataset's", "samples of 256.00 MB are read together"]),
        ({"predownload": 16}, ["39.2 times the dataset's", "samples of 0.00 MB are read together"]),
        ({"read": ReadOptions(views=True)}, ["50.0 times the dataset's", "with views=True each sample may fetch"]),
    ],
    ids=["plain", "predownload", "views"],
)
def test_what_it_costs_is_said_before_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], expected: list[str]
) -> None:
    data = tmp_path / "data"
    write_mds(data)
    with caplog.at_level(logging.WARNING):
        open_data(data, tmp_path / "one", size_of(data) // 5, **settings)
    said = next(record.getMessage() for record in caplog.records if "reads at once" in record.getMessage())
    for part in expected:
        assert part in said
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        open_data(data, tmp_path / "two", 2 * size_of(data))
    assert not any("reads at once" in record.getMessage() for record in caplog.records)


def test_expected_fetches() -> None:
    assert expected_fetches(0, 10, 100) == 0
    assert expected_fetches(100, 1, 100) == 1
    assert 59 < expected_fetches(256, 60, 100) <= 60
    # 10⁹ samples of 1 kB in groups of 256 MiB, beside the groups that grow.
    assert expected_fetches(10**9, 10**4, 1000) == pytest.approx(10**4 * (10**9 / (2**28 / 1000) + 2), rel=0.01)
