"""Parquet files as they are, through ``StreamingDataset``: order, mixing, subsets and resume with no code of their own."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3server import Bucket
from stoker import (
    KeepIds,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Where,
    World,
    train_validation_split,
)
from stoker.errors import ConfigError, StateError, StokerError
from stoker.partitions import Stratified
from stoker.storage import open_store

FILES, ROWS, GROUP = 3, 400, 60


def write(folder: Path, files: int = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        table = pa.table(
            {
                "id": ids,
                "lang": [("en", "de", "fr")[k % 3] for k in ids.tolist()],
                "tokens": [np.full(8, k, dtype=np.int32) for k in ids.tolist()],
                "big": [bytes(1000)] * ROWS,
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=GROUP)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("parquet"))


def ids_of(batches: Any) -> list[int]:
    found: list[int] = []
    for batch in batches:
        assert np.array_equal(batch["tokens"][:, 3], batch["id"])
        found += batch["id"].tolist()
    return found


def test_rows_are_samples_and_row_groups_are_shards(data: Path) -> None:
    dataset = StreamingDataset(remote=data, format="parquet", batch_size=32)
    assert dataset.size == FILES * ROWS
    assert ids_of(dataset.batches()) == list(range(FILES * ROWS))
    assert dataset[5]["lang"] == "fr"
    assert dataset.index.columns == ("id", "lang", "tokens", "big")


@pytest.mark.parametrize("shuffle_algo", ["block", "global", "py1e"])
def test_all_ranks_together_read_every_row_once(data: Path, shuffle_algo: str) -> None:
    options: dict[str, Any] = {
        "format": "parquet",
        "shuffle": True,
        "shuffle_algo": shuffle_algo,
        "columns": ["id", "tokens"],
    }
    ranks = [StreamingDataset(remote=data, batch_size=25, world=World(rank, 4), **options) for rank in range(4)]
    seen = [ids_of(rank.batches()) for rank in ranks]
    assert sorted(number for part in seen for number in part) == list(range(FILES * ROWS))
    assert seen[0] != sorted(seen[0])


def test_a_run_stops_on_two_ranks_and_continues_with_three(data: Path) -> None:
    options: dict[str, Any] = {"format": "parquet", "shuffle": True}
    done: list[int] = []
    states = []
    for rank in range(2):
        dataset = StreamingDataset(remote=data, batch_size=30, world=World(rank, 2), **options)
        batches = dataset.batches()
        done += ids_of(next(batches) for _ in range(7))
        states.append(json.loads(json.dumps(dataset.state_dict())))
    assert states[0] == states[1]
    for rank in range(3):
        dataset = StreamingDataset(remote=data, batch_size=20, world=World(rank, 3), **options)
        dataset.load_state_dict(states[0])
        done += ids_of(dataset.batches())
    assert sorted(done) == list(range(FILES * ROWS))


def test_subsets_look_at_columns_that_are_not_read(data: Path) -> None:
    english = Where("lang", "==", "en")
    train, validation = train_validation_split(0.25)
    parts = []
    for split in (train, validation):
        dataset = StreamingDataset(
            remote=data, format="parquet", columns=["id"], subset=[english, split], batch_size=16
        )
        parts.append([sample["id"] for sample in dataset])
        assert set(next(iter(dataset))) == {"id"}
    assert sorted(parts[0] + parts[1]) == [k for k in range(FILES * ROWS) if k % 3 == 0]


def test_each_rank_has_each_class_in_proportion(data: Path) -> None:
    for rank in range(3):
        dataset = StreamingDataset(
            remote=data,
            format="parquet",
            partition_algo=Stratified("lang"),
            batch_size=20,
            world=World(rank, 3),
            remainder="uneven",
        )
        languages = [sample["lang"] for sample in dataset]
        counts = [languages.count(name) for name in ("en", "de", "fr")]
        assert max(counts) - min(counts) <= 1


def test_parquet_and_mds_mix(data: Path, tmp_path: Path) -> None:
    with MDSWriter({"id": "int", "tokens": "ndarray:int32:8"}, tmp_path / "mds", size_limit=2000) as out:
        ids = np.arange(10_000, 10_300)
        out.write_batch({"id": ids, "tokens": np.repeat(ids[:, None], 8, axis=1).astype(np.int32)})
    streams = [
        Stream(data, format="parquet", name="rows", proportion=0.75),
        Stream(local=tmp_path / "mds", name="samples", proportion=0.25),
    ]
    dataset = StreamingDataset(
        streams=streams,
        columns=["id", "tokens"],
        epoch_size=800,
        shuffle=True,
        batch_size=40,
        batching_method="stratified",
    )
    for batch in dataset.batches():
        assert abs(sum(number >= 10_000 for number in ids_of([batch])) - 10) <= 1


def test_row_groups_that_can_not_match_are_left_out(data: Path) -> None:
    dataset = StreamingDataset(remote=data, format="parquet", format_options={"filters": [("id", ">=", 1000)]})
    assert dataset.size == 1200 - 1000 // ROWS * ROWS - (1000 % ROWS) // GROUP * GROUP
    assert min(sample["id"] for sample in dataset) <= 1000


@pytest.mark.processes
def test_workers_read_it_too(data: Path) -> None:
    dataset = StreamingDataset(remote=data, format="parquet", shuffle=True, columns=["id", "tokens"])
    expected = ids_of(
        StreamingDataset(remote=data, format="parquet", shuffle=True, columns=["id", "tokens"]).batches(48)
    )
    loader = StreamingDataLoader(dataset, 48, num_workers=2, columnar=True)
    assert [number for batch in loader for number in batch["id"].tolist()] == expected
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.size == dataset.size


@pytest.mark.s3
def test_from_object_storage_only_what_is_read_is_fetched(bucket: Bucket, tmp_path: Path) -> None:
    source = write(tmp_path / "made")
    store = open_store(f"{bucket.url}/train", bucket.storage_options)
    for file in source.iterdir():
        store.put_file(file.name, file)
    cache = tmp_path / "cache"
    dataset = StreamingDataset(
        remote=f"{bucket.url}/train",
        local=cache,
        storage_options=bucket.storage_options,
        format="parquet",
        columns=["id", "tokens"],
        shuffle=True,
        batch_size=32,
    )
    assert sorted(ids_of(dataset.batches())) == list(range(FILES * ROWS))
    fetched = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    stored = sum(file.stat().st_size for file in source.iterdir())
    assert fetched < stored / 2


def test_a_file_that_was_replaced_makes_old_states_refuse(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    state = StreamingDataset(remote=folder, format="parquet").state_dict()
    pq.write_table(pq.read_table(folder / "part-1.parquet").slice(1), folder / "part-1.parquet")
    with pytest.raises(StateError, match="another dataset"):
        StreamingDataset(remote=folder, format="parquet").load_state_dict(state)


def test_bad_files_are_an_error_or_are_counted(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    good = (folder / "part-1.parquet").read_bytes()
    (folder / "part-1.parquet").write_bytes(good[: len(good) // 2])
    with pytest.raises(StokerError, match=r"part-1\.parquet"):
        StreamingDataset(remote=folder, format="parquet")
    dataset = StreamingDataset(remote=folder, format="parquet", format_options={"on_bad_files": "skip"})
    assert dataset.size == 2 * ROWS
    assert [entry["key"] for entry in dataset.index.extra["skipped_files"]] == ["part-1.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "parkett"}, "format 'parkett' is unknown"),
        ({"filters": [("id", "==", 1)]}, "no argument 'filters': .* format_options="),
        ({"format": "parquet", "format_options": {"filters": [3]}}, r"filters\[0\] must be .*such as"),
        ({"format": "parquet", "format_options": {"on_bad_files": "ignore"}}, "on_bad_files must be 'error' or 'skip'"),
        ({"remote": ["a", "b"]}, "a list is of files of one dataset"),
        ({"format": "parquet", "columns": ["nothing"]}, "nothing"),
        ({"format": "parquet", "subset": KeepIds([5000])}, "id 5000 is not in this dataset"),
    ],
)
def test_arguments_that_make_no_sense(data: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(**{"remote": data, **arguments})
