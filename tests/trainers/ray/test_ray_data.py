"""Ray Data: each sample of every format comes once, with the values that a StreamingDataset gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from format_table import OTHERS, ROWS, WRITTEN, sample_of

import stoker.ray
from patience import PATIENCE
from ray_start import start_ray
from stoker import Chain, HashSplit, MDSWriter, ReadOptions, SkipIds, Stream, StreamingDataset
from stoker.errors import ConfigError, CorruptDataError

KINDS = {
    "big": "uint64",
    "blob": "bytes",
    "flag": "bool",
    "half": "bfloat16",
    "id": "int",
    "meta": "json",
    "pixels": "ndarray:uint8:4,3",
    "shape": "ndarray",
    "text": "str",
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two processors on this machine."""
    start_ray(num_cpus=2)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 samples in 12 or so shards, with columns of all kinds."""
    out = str(tmp_path_factory.mktemp("data") / "data")
    with MDSWriter(KINDS, out, size_limit=900) as writer:
        for n in range(40):
            writer.write(
                {
                    "big": (1 << 63) + n,
                    "blob": b"x" * n,
                    "flag": n % 2 == 0,
                    "half": n / 2,
                    "id": n,
                    "meta": {"a": n} if n % 2 else {"b": [1, 2.5, None]},
                    "pixels": np.full((4, 3), n, np.uint8),
                    "shape": np.full((n % 3 + 1, 2), n, np.int16),
                    "text": f"t{n}",
                }
            )
    return out


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same; arrays and images by type and content."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "getbands"):
        return type(one) is type(other) and np.array_equal(np.asarray(one), np.asarray(other))
    return bool(one == other)


def check_same(rows: list[dict[str, Any]], samples: list[dict[str, Any]], number: Any) -> None:
    """Check that the rows are the samples, in whatever order."""
    assert sorted(map(number, rows)) == sorted(map(number, samples))
    for row, sample in zip(sorted(rows, key=number), sorted(samples, key=number), strict=True):
        assert row.keys() == sample.keys()
        assert [name for name in sample if not equal(sample[name], row[name])] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    case = WRITTEN[name]
    with case.make(columns=case.columns, out=str(tmp_path), **case.options) as writer:
        for number in range(ROWS):
            writer.write(sample_of(number, case.columns))
    column = "label" if "label" in case.columns else "id"
    rows = stoker.ray.read(str(tmp_path)).take_all()
    assert len(rows) == ROWS
    check_same(rows, list(StreamingDataset(str(tmp_path))), lambda sample: int(sample[column]))


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_wrote_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    case = OTHERS[name]
    for key, content in case.files(range(ROWS)).items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    how: dict[str, Any] = {"format": name, "format_options": case.options}
    rows = stoker.ray.read(str(tmp_path), **how).take_all()
    assert sorted(map(case.number, rows)) == list(range(ROWS))
    check_same(rows, list(StreamingDataset(str(tmp_path), **how)), case.number)


def test_values_of_all_kinds_come_as_they_are(data: str) -> None:
    rows = stoker.ray.read(data).take_all()
    assert len(rows) == 40
    check_same(rows, list(StreamingDataset(data)), lambda sample: sample["id"])
    batch = stoker.ray.read(data, columns=["id", "pixels"]).take_batch(8)
    assert batch.keys() == {"id", "pixels"}
    assert batch["pixels"].shape == (8, 4, 3)
    assert batch["pixels"].dtype == np.uint8


def test_tasks_read_whole_shards_side_by_side(data: str) -> None:
    sizes = StreamingDataset(data).index.sizes
    starts = np.cumsum([0, *sizes])
    for parts in (1, 3, len(sizes), 200):
        tasks = stoker.ray.StokerDatasource(data).get_read_tasks(parts)
        assert len(tasks) <= min(parts, len(sizes))
        assert len(tasks) == 1 if parts == 1 else len(tasks) > 2
        ends = np.cumsum([task.metadata.num_rows for task in tasks])
        assert set(ends) <= set(starts)
        assert ends[-1] == 40


def test_a_subset_a_limit_and_a_transform_are_applied_where_samples_are_read(data: str) -> None:
    half = HashSplit(0, 0.5)
    ids = sorted(row["id"] for row in stoker.ray.read(data, subset=half, columns=["id"]).take_all())
    assert ids == sorted(sample["id"] for sample in StreamingDataset(data, subset=half))
    assert 0 < len(ids) < 40
    assert sorted(row["id"] for row in stoker.ray.read(data, limit=7).take_all()) == list(range(7))
    assert stoker.ray.read(data, limit=0).count() == 0
    assert stoker.ray.read(data, limit=1000).count() == 40
    assert len(stoker.ray.read(data).limit(3).take_all()) == 3
    doubled = stoker.ray.read(data, transform=lambda sample: {"twice": 2 * sample["id"]})
    assert sorted(row["twice"] for row in doubled.take_all()) == list(range(0, 80, 2))


def test_streams_come_all_once(data: str, tmp_path: Path) -> None:
    with MDSWriter({"id": "int"}, str(tmp_path / "more"), size_limit=60) as writer:
        writer.write_batch({"id": np.arange(40, 70)})
    both = [Stream(data), Stream(str(tmp_path / "more"))]
    rows = stoker.ray.read(streams=both, columns=["id"]).take_all()
    assert sorted(row["id"] for row in rows) == list(range(70))
    with pytest.raises(ConfigError, match="has a weight"):
        stoker.ray.read(streams=[Stream(data, repeat=2), both[1]], columns=["id"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shuffle": True}, "random_shuffle"),
        ({"shuffle_algo": "py1e"}, "random_shuffle"),
        ({"batch_size": 4}, "iter_batches"),
        ({"world": None}, "all nodes"),
        ({"limit": -1}, "at least 0"),
        ({"colums": ["id"]}, "did you mean 'columns'"),
        ({"columns": ["idx"]}, "idx"),
        ({"read": ReadOptions(quarantine=[SkipIds([3])])}, r"subset=SkipIds\(...\)"),
    ],
)
def test_what_has_no_meaning_is_refused(data: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stoker.ray.read(data, **given)


def test_a_damaged_shard_is_an_error_of_stoker_that_names_it(tmp_path: Path) -> None:
    with MDSWriter({"id": "int"}, str(tmp_path), size_limit=100) as writer:
        writer.write_batch({"id": np.arange(50)})
    shard = sorted(tmp_path.glob("*.mds"))[1]
    shard.write_bytes(shard.read_bytes()[:4] + b"\xff" * 8 + shard.read_bytes()[12:])
    with pytest.raises(CorruptDataError, match=shard.name):
        stoker.ray.read(str(tmp_path)).take_all()


@pytest.mark.parametrize("equal", [False, True])
def test_splits_for_workers_have_each_sample_once(data: str, equal: bool) -> None:
    """40 samples for 3 workers: with ``equal=True`` Ray leaves one out."""

    def numbers_of(part: Any) -> list[list[int]]:
        """The samples that one of the workers gets, in each of two epochs."""
        return [[int(n) for batch in part.iter_batches(batch_size=7) for n in batch["id"]] for _ in range(2)]

    parts = stoker.ray.read(data, columns=["id"]).streaming_split(3, equal=equal)
    task = ray.remote(num_cpus=0.2)(numbers_of)
    seen = ray.get([task.remote(part) for part in parts], timeout=2 * PATIENCE)
    for epoch in zip(*seen, strict=True):
        ids = [n for part in epoch for n in part]
        assert len(set(ids)) == len(ids) == (39 if equal else 40)
        assert not equal or {len(part) for part in epoch} == {13}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of the 40 samples by number; notes and vectors of all but each fifth by id, in another order."""
    out = tmp_path_factory.mktemp("others")
    with MDSWriter({"score": "float32"}, str(out / "scores"), size_limit=60) as writer:
        writer.write_batch({"score": np.arange(40, dtype=np.float32) / 2})
    with MDSWriter(
        {"id": "int", "note": "str", "vector": "ndarray:int16:2"}, str(out / "notes"), size_limit=200
    ) as out_:
        for number in range(39, -1, -1):
            if number % 5 != 4:
                out_.write({"id": number, "note": f"note {number}", "vector": np.full(2, number, np.int16)})
    return out


def chain_of(others: Path, missing: Any) -> Chain:
    scores, notes = StreamingDataset(str(others / "scores")), StreamingDataset(str(others / "notes"))
    return Chain().zip(scores).join(notes, on="id", missing=missing)


def test_zips_and_joins_are_read_by_the_tasks(data: str, others: Path) -> None:
    chain = chain_of(others, "none")
    rows = stoker.ray.read(data, transform=chain, override_num_blocks=4).take_all()
    check_same(rows, list(StreamingDataset(data, transform=chain)), lambda sample: sample["id"])
    for row in rows:
        assert row["score"] == row["id"] / 2
        assert row["note"] == (None if row["id"] % 5 == 4 else f"note {row['id']}")
    subset = stoker.ray.read(data, transform=chain, subset=HashSplit(0, 0.5), limit=9).take_all()
    assert len(subset) == 9
    assert all(row["score"] == row["id"] / 2 for row in subset)
    replaced = stoker.ray.read(data, transform=chain_of(others, "raise"), on_bad_sample="replace").take_all()
    assert len(replaced) == 40
    assert all(row["note"] == f"note {row['id']}" for row in replaced)


def test_joins_that_leave_samples_out_are_refused(data: str, others: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"join\(missing='leave_out'\).*use missing='none', or on_bad_sample='replace'"
    ):
        stoker.ray.read(data, transform=chain_of(others, "leave_out"))
    with pytest.raises(ConfigError, match=r"on_bad_sample='skip'.*use 'replace'"):
        stoker.ray.read(data, transform=chain_of(others, "raise"), on_bad_sample="skip")
    with pytest.raises(ConfigError, match=r"batch_map\(\).*map_batches"):
        stoker.ray.read(data, transform=Chain().batch_map(dict))
