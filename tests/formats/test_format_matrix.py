"""What the conformance tests do not ask of formats: memory, compressed shards, forks, refused columns, pickles, hashes."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packed_cases import CASES, number_of, same, sample_of
from patience import PATIENCE
from stoker import ReadOptions, StreamingDataset
from stoker.errors import ConfigError, CorruptDataError

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
def test_written_and_streamed_in_memory_alone(name: str) -> None:
    where: dict[str, Any] = {"remote": f"memory://{secrets.token_hex(8)}/data", "read": ReadOptions(cache="memory")}
    write(name, where["remote"], hashes=["xxh64", "sha1"])
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


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("compression", ["zstd", "gz:1"])
def test_compressed_shards(name: str, compression: str, tmp_path: Path) -> None:
    write(name, tmp_path / "data", compression=compression, hashes="xxh3_64")
    suffix = CASES[name].suffix
    names = [path.name for path in (tmp_path / "data").iterdir()]
    assert f"shard.00000{suffix}.{compression.partition(':')[0]}" in names
    assert check(name, StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache")) == list(range(ROWS))


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


@pytest.mark.processes
@pytest.mark.parametrize("name", PACKED)
def test_a_forked_process_reads_the_same_shards(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    dataset = StreamingDataset(local=tmp_path)
    ids = np.random.default_rng(9).integers(0, ROWS, 400)
    assert all(same(sample, number, CASES[name]) for number, sample in zip(ids.tolist(), dataset[ids], strict=True))

    def read() -> None:
        found = zip(ids.tolist(), dataset[ids], strict=True)
        os._exit(not all(same(sample, number, CASES[name]) for number, sample in found))

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    process.join(PATIENCE)
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
