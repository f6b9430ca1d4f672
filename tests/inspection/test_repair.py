"""What ``verify(repair=True)`` mends: lost indexes, and caches. Nothing is less than before at any time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broken import flip, shard_files, write, write_others

from s3server import Bucket
from stoker import StreamingDataset
from stoker.errors import ConfigError
from stoker.inspection import verify
from stoker.storage import open_store
from support import cache_of


@pytest.mark.parametrize("name", ["mds", "json", "npz", "tar"])
@pytest.mark.parametrize("how", ["lost", "torn"])
def test_an_index_is_rebuilt(name: str, how: str, tmp_path: Path) -> None:
    write(name, tmp_path, hashes=["sha1"])
    index = tmp_path / "index.json"
    before = index.read_bytes()
    index.unlink()
    if how == "torn":
        index.write_bytes(before[:-20])
    report = verify(tmp_path)
    assert [problem.kind for problem in report.problems] == ["index"]
    assert index.exists() == (how == "torn")
    report = verify(tmp_path, repair=True, deep=True)
    assert report.ok
    assert len(report.repaired) == 1
    assert json.loads(index.read_bytes()) == json.loads(before)
    aside = tmp_path / "index.json.damaged"
    assert aside.exists() == (how == "torn")
    if how == "torn":
        assert aside.read_bytes() == before[:-20]
    report = verify(tmp_path)
    assert report.ok
    assert not report.strange


def test_an_index_that_can_not_be_made_stays_as_it_was(tmp_path: Path) -> None:
    write("mds", tmp_path)
    (tmp_path / "index.json").write_bytes(b"{")
    (tmp_path / "shard.00001.mds").write_bytes(b"torn")
    report = verify(tmp_path, repair=True)
    assert not report.ok
    assert not report.repaired
    assert any("shard.00001.mds" in note for note in report.notes)
    assert (tmp_path / "index.json").read_bytes() == b"{"
    assert not (tmp_path / "index.json.damaged").exists()


@pytest.mark.s3
def test_an_index_on_an_object_store_is_rebuilt(tmp_path: Path, bucket: Bucket) -> None:
    write("mds", f"{bucket.url}/data", storage_options=bucket.storage_options)
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    store.put("index.json", b"no index")
    report = verify(f"{bucket.url}/data", repair=True, storage_options=bucket.storage_options)
    assert report.ok
    assert report.repaired
    assert store.get("index.json.damaged", max_bytes=1 << 30) == b"no index"


def fill(remote: Path, cache: Path, **options: object) -> None:
    for _ in StreamingDataset(remote=str(remote), local=cache, **options):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("name", ["mds", "csv", "arrow", "png"])
def test_a_cache_gets_again_what_differs(name: str, tmp_path: Path) -> None:
    remote, cache = tmp_path / "remote", tmp_path / "cache"
    write(name, remote, hashes=["xxh64"])
    fill(remote, cache)
    version = cache_of(cache)
    whole = {path.relative_to(cache): path.read_bytes() for path in shard_files(cache)}
    assert verify(remote, local=cache, deep=True).ok
    held = [path for path in shard_files(cache) if ".stoker" not in path.parts]
    flip(held[0], 30)
    held[-1].write_bytes(b"short")
    report = verify(remote, local=cache)
    assert {problem.key for problem in report.problems} >= {
        held[0].relative_to(version).as_posix(),
        held[-1].relative_to(version).as_posix(),
    }
    assert held[-1].read_bytes() == b"short"
    report = verify(remote, local=cache, repair=True)
    assert report.ok, report.problems
    assert len(report.repaired) == 2
    assert {path.relative_to(cache): path.read_bytes() for path in shard_files(cache)} == whole
    assert verify(remote, local=cache, deep=True).ok


def test_what_a_cache_does_not_hold_is_no_problem_and_strangers_are_named(tmp_path: Path) -> None:
    write("mds", tmp_path / "remote", hashes=["sha1"])
    fill(tmp_path / "remote", tmp_path / "cache")
    (cache_of(tmp_path / "cache") / "shard.00000.mds").unlink()
    (cache_of(tmp_path / "cache") / "strange").write_bytes(b"")
    report = verify(tmp_path / "remote", local=tmp_path / "cache", repair=True)
    assert report.ok
    assert report.strange == ("strange",)
    assert not report.repaired


def test_a_cached_file_comes_back_where_the_remote_is_no_better(tmp_path: Path) -> None:
    remote, cache = tmp_path / "remote", tmp_path / "cache"
    write("mds", remote, hashes=["sha1"])
    fill(remote, cache)
    victim = cache_of(cache) / "shard.00001.mds"
    flip(victim, 50)
    damaged = victim.read_bytes()
    flip(remote / "shard.00001.mds", 60)
    report = verify(remote, local=cache, repair=True)
    assert {problem.key for problem in report.problems} == {"shard.00001.mds"}
    assert "could not be fetched again" in report.problems[0].message
    assert victim.read_bytes() == damaged
    (remote / "shard.00001.mds").unlink()
    assert not verify(remote, local=cache, repair=True).ok
    assert victim.read_bytes() == damaged
    assert not [path for path in (cache_of(cache) / ".stoker").iterdir() if path.name.endswith(".aside")]


@pytest.mark.parametrize("name", ["parquet", "npy"])
def test_caches_of_files_without_an_index_are_mended_too(name: str, tmp_path: Path) -> None:
    remote, cache = tmp_path / "remote", tmp_path / "cache"
    write_others(name, remote)
    fill(remote, cache, format=name)
    held = [path for path in shard_files(cache) if ".stoker" not in path.parts]
    assert held
    flip(held[0], held[0].stat().st_size // 2, 255)
    held[1].write_bytes(held[1].read_bytes()[:-3])
    assert not verify(remote, local=cache, format=name, deep=True).ok
    assert verify(remote, local=cache, format=name, deep=True, repair=True).repaired
    assert verify(remote, local=cache, format=name, deep=True).ok


def test_the_dataset_itself_is_no_cache(tmp_path: Path) -> None:
    write("mds", tmp_path)
    with pytest.raises(ConfigError, match="is the dataset itself"):
        verify(tmp_path, local=tmp_path, repair=True)
    with pytest.raises(ConfigError, match="not a directory"):
        verify(tmp_path, local=tmp_path / "nowhere")
