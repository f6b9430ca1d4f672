"""The caches of a machine: what is listed, what goes, and what is never touched."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest
from broken import shard_files, write, write_others

from s3server import Bucket
from stoker import StreamingDataset
from stoker.cache.base import CacheSettings
from stoker.catalog.location import open_indexed
from stoker.cli import main
from stoker.errors import CacheError
from stoker.inspection.caches import list_caches, prune_caches
from stoker.streams.labels import column_labels

_DAY = 86400.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default place of caches."""
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


def read(remote: object, **options: object) -> StreamingDataset:
    """A dataset that was read once, and is still open."""
    dataset = StreamingDataset(remote=remote, **options)  # type: ignore[arg-type]
    for _ in dataset:
        pass
    return dataset


def fill(remote: Path, cache: Path, age: float = 0.0, **options: object) -> list[Path]:
    """Cached files of a dataset that nobody has open, the first used longest ago."""
    read(str(remote), local=cache, **options)
    files = [path for path in shard_files(cache) if ".stoker" not in path.parts]
    for number, path in enumerate(files):
        when = time.time() - age + number
        os.utime(path, (when, when))
    return files


def test_caches_are_listed_with_what_they_are_of(home: Path, tmp_path: Path) -> None:
    assert list_caches() == []
    write("mds", tmp_path / "data", compression="zstd")
    dataset = read(str(tmp_path / "data"))  # decompressed into the default cache
    (cache,) = list_caches()
    assert cache.origin == str(tmp_path / "data")
    assert Path(cache.path).parent.parent == home
    files = [path for path in shard_files(Path(cache.path)) if ".stoker" not in path.parts]
    assert (cache.files, cache.bytes) == (len(files), sum(path.stat().st_size for path in files))
    assert cache.used is not None
    assert abs(cache.used - time.time()) < 100
    assert cache.in_use
    del dataset
    assert not list_caches()[0].in_use


@pytest.mark.s3
def test_a_cache_of_an_object_store_knows_its_url(home: Path, bucket: Bucket) -> None:
    write("mds", f"{bucket.url}/data", storage_options=bucket.storage_options)
    read(f"{bucket.url}/data", storage_options=bucket.storage_options)
    assert [cache.origin for cache in list_caches()] == [f"{bucket.url}/data"]
    report = prune_caches(gone=True, storage_options=bucket.storage_options)
    assert report.files == 0
    bucket.server.client().delete_object(Bucket=bucket.name, Key="data/index.json")
    assert prune_caches(gone=True, storage_options=bucket.storage_options).files == 0  # shards are there still
    for item in bucket.server.client().list_objects_v2(Bucket=bucket.name)["Contents"]:
        bucket.server.client().delete_object(Bucket=bucket.name, Key=item["Key"])
    assert prune_caches(gone=True, storage_options=bucket.storage_options).files > 0
    assert list_caches() == []


def test_the_least_recently_used_files_go_first(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    files = fill(tmp_path / "data", tmp_path / "cache", age=_DAY)
    sizes = [path.stat().st_size for path in files]
    planned = prune_caches([tmp_path / "cache"], limit=sizes[-1] + sizes[-2], dry_run=True)
    assert all(path.exists() for path in files)
    report = prune_caches([tmp_path / "cache"], limit=sizes[-1] + sizes[-2])
    assert [path.exists() for path in files] == [False] * (len(files) - 2) + [True] * 2
    assert (report.files, report.bytes, report.left_bytes) == (len(files) - 2, sum(sizes[:-2]), sum(sizes[-2:]))
    assert (planned.files, planned.bytes, planned.left_bytes) == (report.files, report.bytes, report.left_bytes)
    # What is missing is fetched again.
    assert sum(1 for _ in read(str(tmp_path / "data"), local=tmp_path / "cache")) == 60


def test_old_files_go_and_new_ones_stay(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    files = fill(tmp_path / "data", tmp_path / "cache")
    os.utime(files[0], (time.time() - 3 * _DAY,) * 2)
    report = prune_caches([tmp_path / "cache"], older_than=2 * _DAY)
    assert report.files == 1
    assert [path.exists() for path in files] == [False] + [True] * (len(files) - 1)


def test_files_in_use_stay(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    fill(tmp_path / "data", tmp_path / "cache")  # small shards that a process fetches itself it holds as they came
    dataset = read(str(tmp_path / "data"), local=tmp_path / "cache")
    files = [path for path in shard_files(tmp_path / "cache") if ".stoker" not in path.parts]
    report = prune_caches([tmp_path / "cache"], everything=True)
    assert (report.files, report.in_use) == (0, len(files))
    assert all(path.exists() for path in files)
    del dataset
    assert prune_caches([tmp_path / "cache"], everything=True).files == len(files)


def test_what_has_no_remote_is_never_touched(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    write_others("npy", tmp_path / "arrays")
    read(None, local=tmp_path / "data")
    read(None, local=tmp_path / "arrays", format="npy")  # keeps what it knows beside the files
    assert (tmp_path / "arrays" / ".stoker").is_dir()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report = prune_caches([tmp_path / "data", tmp_path / "arrays", tmp_path], everything=True, gone=True, limit=0)
    assert report.files == 0
    assert any("arrays" in note for note in report.notes)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_directory_that_claims_to_come_from_itself_is_left_alone(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    fill(tmp_path / "data", tmp_path / "cache")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").symlink_to(tmp_path / "cache")
    assert prune_caches([tmp_path / "cache"], everything=True).files == 0


def test_files_of_others_in_a_cache_directory_stay(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    files = fill(tmp_path / "data", tmp_path / "cache")
    (tmp_path / "cache" / "thesis.txt").write_text("the only copy")
    report = prune_caches([tmp_path / "cache"], everything=True)
    assert report.files == len(files)
    assert (tmp_path / "cache" / "thesis.txt").read_text() == "the only copy"


@pytest.mark.parametrize("name", ["parquet", "npy", "jpeg"])
def test_caches_of_files_without_an_index(name: str, tmp_path: Path) -> None:
    write_others(name, tmp_path / "data")
    files = fill(tmp_path / "data", tmp_path / "cache", format=name)
    (cache,) = list_caches([tmp_path / "cache"])
    assert (cache.origin, cache.files) == (str(tmp_path / "data"), len(files))
    assert prune_caches([tmp_path], everything=True).files == len(files)
    assert not any(path.exists() for path in files)


def test_caches_of_datasets_that_are_gone(home: Path, tmp_path: Path) -> None:
    for name in ("stays", "goes"):
        write("mds", tmp_path / name, compression="zstd")
        read(str(tmp_path / name))
    shutil.rmtree(tmp_path / "goes")
    report = prune_caches(gone=True)
    assert len(report.removed) == 1
    assert [cache.origin for cache in list_caches()] == [str(tmp_path / "stays")]


def test_clearing_removes_default_caches_whole(home: Path, tmp_path: Path) -> None:
    write("mds", tmp_path / "data", compression="zstd")
    read(str(tmp_path / "data"))
    assert prune_caches(everything=True).removed
    assert list(home.iterdir()) == []
    assert sum(1 for _ in read(str(tmp_path / "data"))) == 60


def test_what_was_kept_of_a_dataset_read_in_place_is_listed_and_goes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("stays", "goes"):
        write_others("npy", tmp_path / name)
        read(str(tmp_path / name), format="npy")
    write("mds", tmp_path / "shards")
    column_labels(open_indexed(str(tmp_path / "shards"), None, None, settings=CacheSettings()), "id", "classes")
    origins = {str(tmp_path / name) for name in ("stays", "goes", "shards")}
    assert {cache.origin for cache in list_caches()} == origins
    assert all(cache.kept_bytes and not cache.files for cache in list_caches())
    capsys.readouterr()
    assert main(["cache", "list"]) == 0
    assert re.fullmatch(
        r".*B of indexes and other derived files belong to 3 datasets without cached shards\n", capsys.readouterr().out
    )
    shutil.rmtree(tmp_path / "goes")
    prune_caches(gone=True)
    assert {cache.origin for cache in list_caches()} == origins - {str(tmp_path / "goes")}
    prune_caches(older_than=2 * _DAY)
    assert len(list_caches()) == 2
    prune_caches(everything=True)
    assert list_caches() == []
    assert list(home.iterdir()) == []


def test_a_dataset_that_is_read_in_place_is_listed_and_cleared_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    write("mds", tmp_path / "data")
    column_labels(open_indexed(None, tmp_path / "data", None, settings=CacheSettings()), "id", "classes")
    assert main(["cache", "list", str(tmp_path / "data")]) == 0
    assert "no copies: left alone" in capsys.readouterr().out
    assert main(["cache", "clear", str(tmp_path / "data")]) == 0
    said = capsys.readouterr().out
    assert "data holds no copies, as a dataset that is read in place, and is left alone" in said
    assert f"lies in {tmp_path / 'data' / '.stoker'}, which may be removed" in said
    shutil.rmtree(tmp_path / "data" / ".stoker")
    assert list_caches([tmp_path / "data"]) == []
    assert sum(1 for _ in read(None, local=tmp_path / "data")) == 60


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="not a directory"):
        list_caches([tmp_path / "nowhere"])
