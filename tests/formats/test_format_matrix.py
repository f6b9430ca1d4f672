"""Every format in every place: written, streamed in one order, gone on with after a stop, and the same byte for byte."""

from __future__ import annotations

import json
import multiprocessing
import secrets
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packed_cases import CASES, number_of, same, sample_of
from s3server import Bucket
from stoker import ReadOptions, StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, EncodingError
from stoker.index.index import load_index
from stoker.index.merge import merge_index
from stoker.index.rebuild import rebuild_index
from stoker.storage import open_store

ROWS = 150
LIMITS = {"arrow": 6000, "hdf5": 1500, "npy": 400, "npy_rows": 700, "npz": 1500, "tar": 200_000, "tfrecord": 30_000}
PACKED = [name for name in CASES if name not in ("jpeg", "png")]


def size_limit(name: str) -> dict[str, Any]:
    return {} if name in ("jpeg", "png") else {"size_limit": LIMITS[name]}


def write(name: str, out: Any, numbers: range = range(ROWS), **options: Any) -> None:
    case = CASES[name]
    with case.make(columns=case.columns, out=out, **{**size_limit(name), **options}) as writer:
        for number in numbers:
            writer.write(sample_of(number, case.columns))


def check(name: str, dataset: StreamingDataset, total: int = ROWS) -> list[int]:
    numbers = [number_of(sample, CASES[name], total) for sample in dataset]
    assert -1 not in numbers
    return numbers


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("place", ["directory", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def test_written_streamed_shuffled_and_resumed(
    name: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where: dict[str, Any] = {"remote": str(tmp_path / "data")}
    options: dict[str, Any] = {}
    if place == "memory":  # nothing of it comes onto a disk
        where = {"remote": f"memory://{secrets.token_hex(8)}/data", "cache": "memory"}
    elif place == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        options = {"storage_options": bucket.storage_options}
        where = {"remote": f"{bucket.url}/data", "local": tmp_path / "cache", **options}
    write(name, where["remote"], hashes=["xxh64", "sha1"], **options)
    plain = StreamingDataset(**where)
    assert plain.size == ROWS
    assert len(plain.index.shards) > 2
    assert check(name, plain) == list(range(ROWS))
    shuffled = StreamingDataset(**where, shuffle=True, shuffle_seed=5, batch_size=8)
    numbers = check(name, shuffled)
    assert sorted(numbers) == list(range(ROWS))
    assert numbers != sorted(numbers)
    again = StreamingDataset(**where, shuffle=True, shuffle_seed=5, batch_size=8)
    iterator = iter(again)
    head = [number_of(next(iterator), CASES[name], ROWS) for _ in range(56)]
    resumed = StreamingDataset(**where, shuffle=True, shuffle_seed=5, batch_size=8)
    resumed.load_state_dict(again.state_dict())
    assert head + check(name, resumed) == numbers


@pytest.mark.parametrize("name", CASES)
def test_columns_in_batches_are_the_samples(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    case = CASES[name]
    dataset = StreamingDataset(local=tmp_path, shuffle=True, batch_size=32)
    samples = list(dataset)
    rows = 0
    for batch in StreamingDataset(local=tmp_path, shuffle=True, batch_size=32).batches():
        for place in range(len(next(iter(batch.values())))):
            found = {key: column[place] for key, column in batch.items()}
            number = number_of(samples[rows], case, ROWS)
            expected = sample_of(number, case.columns)
            for key, value in expected.items():
                if key != "image":
                    assert np.array_equal(found[key], value), (key, number)
            rows += 1
    assert rows == ROWS


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("views", [False, True])
def test_any_rows_of_any_columns(name: str, views: bool, tmp_path: Path) -> None:
    write(name, tmp_path)
    case = CASES[name]
    dataset = StreamingDataset(local=tmp_path, read=ReadOptions(views=views))
    ids = np.array([149, 0, 0, 77, 3, 4, 5, 100, 20])
    for column in case.columns:
        batch = dataset.read(ids, [column])
        assert list(batch) == [column]
        for value, number in zip(batch[column], ids.tolist(), strict=True):
            found = bytes(value) if isinstance(value, memoryview) else value
            assert np.array_equal(found, sample_of(number, case.columns)[column]), (column, number)
    with pytest.raises(ConfigError, match="nonsense"):
        StreamingDataset(local=tmp_path, columns=["nonsense"])


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("compression", ["zstd", "gz:1"])
def test_compressed_shards(name: str, compression: str, tmp_path: Path) -> None:
    write(name, tmp_path / "data", compression=compression, hashes="xxh3_64")
    suffix = CASES[name].suffix
    names = [path.name for path in (tmp_path / "data").iterdir()]
    assert f"shard.00000{suffix}.{compression.partition(':')[0]}" in names
    assert check(name, StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache")) == list(range(ROWS))


@pytest.mark.parametrize("name", CASES)
def test_a_batch_makes_the_same_files_as_its_samples(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write(name, tmp_path / "single")
    with case.make(columns=case.columns, out=tmp_path / "batch", **size_limit(name)) as writer:
        for first in range(0, ROWS, 50):
            samples = [sample_of(number, case.columns) for number in range(first, first + 50)]
            writer.write_batch({column: [sample[column] for sample in samples] for column in case.columns})
    assert contents(tmp_path / "single") == contents(tmp_path / "batch")


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_a_writer_that_was_killed_is_continued(name: str, tmp_path: Path) -> None:
    write(name, tmp_path / "whole", hashes="sha1")
    case = CASES[name]
    options = {**size_limit(name), "hashes": "sha1"}
    with pytest.raises(RuntimeError, match="killed"):  # noqa: PT012, SIM117
        with case.make(columns=case.columns, out=tmp_path / "killed", **options) as writer:
            for number in range(100):
                writer.write(sample_of(number, case.columns))
            raise RuntimeError("killed")
    assert not (tmp_path / "killed" / "index.json").exists()
    with pytest.raises(ConfigError, match="resume=True"):
        case.make(columns=case.columns, out=tmp_path / "killed", **options)
    with case.make(columns=case.columns, out=tmp_path / "killed", resume=True, **options) as writer:
        done = writer.samples_written
        assert 0 < done <= 100
        for number in range(done, ROWS):
            writer.write(sample_of(number, case.columns))
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", CASES)
def test_appended_replaced_and_refused(name: str, tmp_path: Path) -> None:
    write(name, tmp_path, range(60))
    with pytest.raises(ConfigError, match="exists"):
        write(name, tmp_path)
    write(name, tmp_path, range(60, ROWS), append=True)
    assert check(name, StreamingDataset(local=tmp_path)) == list(range(ROWS))
    write(name, tmp_path, range(40), exist_ok=True)
    assert check(name, StreamingDataset(local=tmp_path)) == list(range(40))
    shards = load_index(open_store(tmp_path)).shards
    files = {file.basename for shard in shards for file in shard.raw} | {"index.json"}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("name", PACKED)
def test_a_lost_index_is_made_anew_and_datasets_are_merged(name: str, tmp_path: Path) -> None:
    write(name, tmp_path / "a", range(60), hashes="xxh64")
    write(name, tmp_path / "b", range(60, ROWS), hashes="xxh64")
    index = (tmp_path / "a" / "index.json").read_bytes()
    (tmp_path / "a" / "index.json").unlink()
    rebuild_index(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "index.json").read_bytes()) == json.loads(index)
    merge_index(tmp_path)
    assert check(name, StreamingDataset(local=tmp_path)) == list(range(ROWS))


@pytest.mark.parametrize("name", PACKED)
def test_damage_is_found_by_hashes_and_fetched_again(name: str, tmp_path: Path) -> None:
    write(name, tmp_path / "data", hashes="xxh64")
    shard = next((tmp_path / "data").glob(f"*00001{CASES[name].suffix}"))
    good = shard.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    shard.write_bytes(bad)
    with pytest.raises(CorruptDataError, match=r"xxh64.*index says"):
        list(StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache"))
    shard.write_bytes(good)
    assert check(name, StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache")) == list(range(ROWS))


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_is_refused_and_writing_goes_on(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    column = next(iter(case.columns))
    with case.make(columns=case.columns, out=tmp_path, **size_limit(name)) as writer:
        for number in range(ROWS):
            good = sample_of(number, case.columns)
            if number % 50 == 7:
                with pytest.raises(EncodingError, match=rf"{column}.*sample {number}|sample {number}.*{column}"):
                    writer.write({**good, column: object()})
                with pytest.raises(EncodingError, match=f"no value for column '{column}'"):
                    writer.write({key: value for key, value in good.items() if key != column})
            writer.write(good)
    assert check(name, StreamingDataset(local=tmp_path)) == list(range(ROWS))


@pytest.mark.parametrize("name", PACKED)
def test_threads_and_processes_read_the_same_shards(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    dataset = StreamingDataset(local=tmp_path)
    failures: list[str] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            ids = rng.integers(0, ROWS, 40)
            for number, sample in zip(ids.tolist(), dataset[ids], strict=True):
                if not same(sample, number, CASES[name]):
                    failures.append(f"{number}: {sample}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    process = multiprocessing.get_context("fork").Process(target=read, args=(9,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5"])
@pytest.mark.parametrize("encoding", ["str", "bytes", "ndarray:int64", "json"])
def test_formats_of_arrays_refuse_values_of_any_size(name: str, encoding: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'x'.*no fixed one"):
        CASES[name].make(columns={"x": encoding}, out=tmp_path)


@pytest.mark.parametrize("name", PACKED)
def test_pickles_are_read_only_with_consent(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if name in ("npy", "npy_rows", "npz", "hdf5"):
        with pytest.raises(ConfigError):
            case.make(columns={"p": "pkl"}, out=tmp_path)
        return
    with case.make(columns={"p": "pkl"}, out=tmp_path) as writer:
        writer.write({"p": {1, 2}})
    with pytest.raises(Exception, match="allow_unsafe_types=True"):
        list(StreamingDataset(local=tmp_path))
    assert next(iter(StreamingDataset(local=tmp_path, allow_unsafe_types=True)))["p"] == {1, 2}
