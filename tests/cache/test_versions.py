"""Datasets and versions of datasets that share a cache: never a sample of another, and nothing removed that is not a copy."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker import MDSWriter, ReadOptions, StreamingDataset, Where, World
from stoker.cache.base import CacheSettings
from stoker.cache.directory import is_cache_directory
from stoker.catalog import location
from stoker.catalog.location import default_cache, open_indexed
from stoker.errors import ConfigError, CorruptDataError, DatasetChangedError, StateError
from stoker.index import version
from stoker.partitions import Stratified
from stoker.storage import Store, open_store
from stoker.streams.labels import column_labels
from stoker.writers import JSONWriter
from support import cache_of, read_local_files_into_memory, write_samples

SAMPLES = 200


@pytest.fixture(autouse=True)
def _local_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    read_local_files_into_memory(monkeypatch)


HASHES = pytest.mark.parametrize("hashes", [(), ("xxh3_64",)], ids=["plain", "hashed"])
PACKED = pytest.mark.parametrize("compression", [None, "zstd"], ids=["raw", "zstd"])


def write(out: Any, tag: int, *, hashes: Any = (), samples: int = SAMPLES, **options: Any) -> None:
    """A dataset whose shards have names and sizes that do not depend on the tag, which all samples have."""
    options.setdefault("exist_ok", True)
    rows = ({"tag": tag, "id": number} for number in range(samples))
    write_samples(out, rows, size_limit=600, hashes=hashes, **options)


def tags(dataset: Any) -> set[int]:
    rows = list(dataset)
    assert sorted(int(row["id"]) for row in rows) == list(range(SAMPLES))
    return {int(row["tag"]) for row in rows}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- what is not a cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [None, "train"])
def test_a_dataset_that_was_never_a_cache_is_refused_and_left_as_it_is(tmp_path: Path, split: str | None) -> None:
    write(str(tmp_path / "other" / (split or "")), 1)
    write(str(tmp_path / "mine" / (split or "")), 2)
    before = tree(tmp_path / "mine")
    cases: list[dict[str, Any]] = [{}, {"cache_limit": 2000}, {"format": "mds"}]
    for more in cases:
        with pytest.raises(ConfigError, match=r"mine.*can not be the cache of .*other.*Choose an empty directory"):
            StreamingDataset(remote=str(tmp_path / "other"), local=tmp_path / "mine", split=split, **more)
    assert tree(tmp_path / "mine") == before


@HASHES
@PACKED
@pytest.mark.parametrize("split", [None, "train"])
def test_a_copy_of_this_very_dataset_is_read_and_left_as_it_is(
    tmp_path: Path, split: str | None, compression: str | None, hashes: Any
) -> None:
    remote, local = tmp_path / "remote" / (split or ""), tmp_path / "local" / (split or "")
    write(str(remote), 1, hashes=hashes, compression=compression)
    shutil.copytree(remote, local)
    if compression is None:  # as another library's cache: some are there, and one is half
        shards = sorted(local.glob("*.mds"))
        os.unlink(shards[1])
        shards[2].write_bytes(shards[2].read_bytes()[:100])
    before = tree(local)
    dataset = StreamingDataset(remote=str(tmp_path / "remote"), local=tmp_path / "local", split=split)
    assert tags(dataset) == {1}
    if compression is None:
        assert dataset.stats().bytes_fetched == sum(path.stat().st_size for path in sorted(remote.glob("*.mds"))[1:3])
    dataset.evict_shard(0)
    assert tags(dataset) == {1}
    assert before.items() <= tree(local).items()
    write(str(remote), 2, hashes=hashes, compression=compression, samples=SAMPLES)
    if hashes or compression is None:
        with pytest.raises(ConfigError, match="can not be the cache of"):
            StreamingDataset(remote=str(tmp_path / "remote"), local=tmp_path / "local", split=split)
    assert before.items() <= tree(local).items()


def test_files_next_to_a_cache_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    write(str(tmp_path / "remote"), 1)
    shutil.copytree(tmp_path / "remote", tmp_path / "cache")
    os.unlink(tmp_path / "cache" / "index.json")  # shards of the same names, which nobody says are copies
    before = tree(tmp_path / "cache")
    assert tags(StreamingDataset(remote=str(tmp_path / "remote"), local=tmp_path / "cache", cache_limit=2000)) == {1}
    assert before.items() <= tree(tmp_path / "cache").items()


# -- several datasets --------------------------------------------------------------------------------------------------


@HASHES
@PACKED
def test_two_datasets_share_a_cache(tmp_path: Path, hashes: Any, compression: str | None) -> None:
    for tag in (1, 2):
        write(str(tmp_path / str(tag)), tag, hashes=hashes, compression=compression)
    both = [StreamingDataset(remote=str(tmp_path / str(tag)), local=tmp_path / "cache") for tag in (1, 2)]
    iterators = [iter(one) for one in both]
    for _ in range(SAMPLES):
        assert [int(next(one)["tag"]) for one in iterators] == [1, 2]
    for tag in (2, 1):
        assert tags(StreamingDataset(remote=str(tmp_path / str(tag)), local=tmp_path / "cache")) == {tag}


@pytest.mark.parametrize("name", ["parquet", "npy"])
def test_files_without_an_index_share_a_cache(tmp_path: Path, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for tag in (1, 2):
        folder = tmp_path / str(tag)
        folder.mkdir()
        if name == "parquet":
            pq.write_table(pa.table({"tag": np.full(50, tag)}), folder / "a.parquet")
        else:
            np.save(folder / "a.npy", np.full((50, 1), tag))
        os.utime(folder / f"a.{name}", ns=(10**18, 10**18))
    for tag in (1, 2, 1):
        dataset = StreamingDataset(remote=str(tmp_path / str(tag)), local=tmp_path / "cache", format=name)
        assert {int(np.ravel(next(iter(row.values())))[0]) for row in dataset} == {tag}


@pytest.mark.s3
def test_parquet_files_of_two_servers_do_not_mix(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(bucket.storage_options)
    endpoint = options.pop("endpoint")
    one = default_cache(f"{bucket.url}/d", {**options, "endpoint": endpoint})
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(endpoint))
    assert default_cache(f"{bucket.url}/d", options) == one
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere")
    assert default_cache(f"{bucket.url}/d", options) != one


@pytest.mark.processes
@HASHES
def test_two_datasets_do_not_mix_in_memory_that_a_node_shares(tmp_path: Path, hashes: Any) -> None:
    for tag in (1, 2):
        write(str(tmp_path / str(tag)), tag, hashes=hashes)
    assert len({tuple(path.stat().st_size for path in sorted((tmp_path / tag).glob("*.mds"))) for tag in "12"}) == 1
    ranks = [_ranks(tmp_path / str(tag)) for tag in (1, 2)]
    for both in zip(*ranks, strict=True):
        samples = [[int(row["tag"]) for row in one] for one in both]
        assert samples == [[tag] * (SAMPLES // 2) for tag in (1, 2)]


@pytest.mark.processes
def test_a_rank_that_checks_hashes_takes_nothing_from_one_that_does_not(tmp_path: Path) -> None:
    for tag in (1, 2):
        write(str(tmp_path / str(tag)), tag, hashes=["xxh3_64"])
    for path in (tmp_path / "2").glob("*.mds"):
        shutil.copyfile(path, tmp_path / "1" / path.name)
    believes, checks = _ranks(tmp_path / "1", validate_hash=False)[0], _ranks(tmp_path / "1")[0]
    assert {int(row["tag"]) for row in believes} == {2}
    with pytest.raises(CorruptDataError, match="xxh3_64"):
        next(iter(checks))


def _ranks(folder: Path, **options: Any) -> list[StreamingDataset]:
    """Two ranks of a node, which share what they hold in memory."""
    return [
        StreamingDataset(
            remote=str(folder),
            read=ReadOptions(cache="memory"),
            storage_options={"read_by": "buffered"},
            world=World(rank, 2, 2),
            **options,
        )
        for rank in range(2)
    ]


# -- versions ----------------------------------------------------------------------------------------------------------


@HASHES
@PACKED
def test_a_dataset_that_was_rewritten_is_noticed(tmp_path: Path, hashes: Any, compression: str | None) -> None:
    for tag in (1, 2, 3):
        write(str(tmp_path / "remote"), tag, hashes=hashes, compression=compression)
        assert tags(StreamingDataset(remote=str(tmp_path / "remote"), local=tmp_path / "cache")) == {tag}
        assert tags(StreamingDataset(remote=str(tmp_path / "remote"))) == {tag}
        assert len(list((tmp_path / "cache").iterdir())) == 1  # nobody uses the older ones


@pytest.mark.s3
@HASHES
def test_an_object_store_is_noticed_to_hold_another_version(bucket: Bucket, tmp_path: Path, hashes: Any) -> None:
    where: dict[str, Any] = {"storage_options": bucket.storage_options}
    for tag in (1, 2):
        write(f"{bucket.url}/data", tag, hashes=hashes, **where)
        assert tags(StreamingDataset(remote=f"{bucket.url}/data", local=tmp_path / "cache", **where)) == {tag}
        time.sleep(1.1)  # the store's clock ticks seconds


def test_labels_are_those_of_the_version(tmp_path: Path) -> None:
    for tag in (1, 2):
        write(str(tmp_path / "remote"), tag)
        for local in (tmp_path / "cache", None):
            place = open_indexed(str(tmp_path / "remote"), local, None, settings=CacheSettings())
            assert set(column_labels(place, "tag", "classes").tolist()) == {tag}


def test_shards_of_an_older_version_that_hashes_prove_the_same_are_taken_over(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    write(str(remote), 1, hashes=["xxh3_64"])
    assert tags(StreamingDataset(remote=str(remote), local=tmp_path / "cache")) == {1}
    old = {path.name: path.stat().st_ino for path in cache_of(tmp_path / "cache").glob("*.mds")}
    with MDSWriter({"tag": "int", "id": "int"}, str(remote), append=True, hashes=["xxh3_64"]) as writer:
        writer.write({"tag": 1, "id": SAMPLES})
    assert len(list(StreamingDataset(remote=str(remote), local=tmp_path / "cache"))) == SAMPLES + 1
    new = {path.name: path.stat().st_ino for path in cache_of(tmp_path / "cache").glob("*.mds")}
    assert old.items() < new.items()


def test_a_version_that_is_in_use_stays_until_it_is_not(tmp_path: Path) -> None:
    remote, cache = str(tmp_path / "remote"), tmp_path / "cache"
    write(remote, 1)
    first = StreamingDataset(remote=remote, local=cache)
    assert tags(first) == {1}
    write(remote, 2)
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        child = context.Process(target=_read, args=(remote, cache, 2))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert len(list(cache.iterdir())) == 2
    assert tags(first) == {1}  # all of it is in the cache
    del first
    assert tags(StreamingDataset(remote=remote, local=cache)) == {2}
    assert len(list(cache.iterdir())) == 1


def _read(remote: str, cache: Path, tag: int) -> None:
    assert tags(StreamingDataset(remote=remote, local=cache)) == {tag}


def test_the_limit_counts_versions_in_use(tmp_path: Path) -> None:
    remote, cache, limit = str(tmp_path / "remote"), tmp_path / "cache", 3000
    write(remote, 1)
    first = StreamingDataset(remote=remote, local=cache, cache_limit=limit)
    assert tags(first) == {1}
    write(remote, 2)
    second = StreamingDataset(remote=remote, local=cache, cache_limit=limit, batch_size=4, predownload=4)
    for _ in second:
        held = [path for path in cache.rglob("*.mds*") if ".stoker" not in path.parts]
        assert sum(path.stat().st_size for path in held) <= limit
    assert len([path for path in cache.iterdir() if is_cache_directory(path)]) == 2


def test_what_a_killed_process_left_of_an_older_version_is_removed(tmp_path: Path) -> None:
    remote, cache = str(tmp_path / "remote"), tmp_path / "cache"
    write(remote, 1)
    assert tags(StreamingDataset(remote=remote, local=cache)) == {1}
    old = cache_of(cache)
    old.rename(cache / f"{old.name}.{'0' * 16}.removed")
    write(remote, 2)
    assert tags(StreamingDataset(remote=remote, local=cache)) == {2}
    assert len(list(cache.iterdir())) == 1


# -- in the middle of a run --------------------------------------------------------------------------------------------


@pytest.mark.processes
@HASHES
@PACKED
@pytest.mark.parametrize("how", ["disk", "memory", "in place"])
def test_a_change_in_the_middle_of_a_run_is_an_error(
    tmp_path: Path, hashes: Any, compression: str | None, how: str
) -> None:
    remote = str(tmp_path / "remote")
    many: dict[str, Any] = {"hashes": hashes, "compression": compression, "samples": 10 * SAMPLES}  # not all read ahead
    write(remote, 1, **many)
    options_of: dict[str, dict[str, Any]] = {
        "disk": {"remote": remote, "local": tmp_path / "cache"},
        "memory": {"remote": remote, "read": ReadOptions(cache="memory"), "storage_options": {"read_by": "buffered"}},
        "in place": {"local": remote},
    }
    options = options_of[how]
    dataset = StreamingDataset(**options, predownload=1)
    seen: list[int] = []
    with pytest.raises(DatasetChangedError, match=r"remote.*changed after it was opened.*Open the dataset again"):  # noqa: PT012
        for row in dataset:
            if not seen:
                write(remote, 2, **many)
            seen.append(int(row["tag"]))
    assert set(seen) <= {1}
    assert {int(row["tag"]) for row in StreamingDataset(**options)} == {2}


@pytest.mark.s3
@pytest.mark.parametrize("cache", ["disk", "memory"])
def test_a_writer_that_leaves_the_index_for_last_is_noticed(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Any
) -> None:
    monkeypatch.setattr("stoker.index.version._SKEW", 1_000_000_000)
    where: dict[str, Any] = {"storage_options": bucket.storage_options}
    write(f"{bucket.url}/data", 1, **where)
    write(str(tmp_path / "new"), 2)
    time.sleep(1.1)
    local: dict[str, Any] = {"local": tmp_path / "cache"} if cache == "disk" else {}
    dataset = StreamingDataset(
        remote=f"{bucket.url}/data", **local, read=ReadOptions(cache=cache), predownload=1, **where
    )
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    time.sleep(2.2)  # beyond what clocks may differ by here; the store's ticks seconds
    for path in (tmp_path / "new").glob("*.mds"):  # as a writer that knows nothing of ours: the index is as it was
        store.put(path.name, path.read_bytes())
    with pytest.raises(DatasetChangedError, match="written after the dataset was opened"):
        tags(dataset)


@pytest.mark.s3
@pytest.mark.parametrize("cache", ["disk", "memory"])
@pytest.mark.parametrize("pause", [0, 1.1])
def test_a_shard_that_is_replaced_in_a_store_just_after_the_opening_is_noticed(
    bucket: Bucket, tmp_path: Path, cache: Any, pause: float
) -> None:
    where: dict[str, Any] = {"storage_options": bucket.storage_options}
    many: dict[str, Any] = {"hashes": (), "samples": 10 * SAMPLES}
    write(f"{bucket.url}/data", 1, **many, **where)
    write(str(tmp_path / "new"), 2, **many)
    time.sleep(pause)  # the store tells seconds: in one and the same, the ETag tells
    local: dict[str, Any] = {"local": tmp_path / "cache"} if cache == "disk" else {}
    dataset = StreamingDataset(
        remote=f"{bucket.url}/data", **local, read=ReadOptions(cache=cache), predownload=1, **where
    )
    rows = iter(dataset)
    assert next(rows)["tag"] == 1
    (watch,) = [one.watch for one in dataset.epoch_reader.pool.caches]
    copy = pickle.loads(pickle.dumps(watch))
    assert watch is not None
    assert watch._listed is not None
    assert watch._listed._await()
    assert copy._listed._await() in (None, watch._listed._await())
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    shard = sorted((tmp_path / "new").glob("*.mds"))[-2]
    store.put(shard.name, shard.read_bytes())  # the index is as it was
    with pytest.raises(DatasetChangedError, match=rf"{shard.name} is not the object that was there at the opening"):
        list(rows)


@pytest.mark.s3
def test_a_copy_whose_index_came_first_is_read(bucket: Bucket, tmp_path: Path) -> None:
    write(str(tmp_path / "data"), 1)
    store = open_store(f"{bucket.url}/copy", bucket.storage_options)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    (tmp_path / "copy" / "index.json").touch()
    os.utime(tmp_path / "copy" / "index.json", ns=(10**18, 10**18))
    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names[0] == "index.json"
    for name in names:
        store.put(name, (tmp_path / "data" / name).read_bytes())
        if name == "index.json":
            time.sleep(1.1)
    options: dict[str, Any] = {"storage_options": bucket.storage_options}
    assert tags(StreamingDataset(remote=f"{bucket.url}/copy", local=tmp_path / "a", **options)) == {1}
    assert tags(StreamingDataset(remote=f"{bucket.url}/copy", read=ReadOptions(cache="memory"), **options)) == {1}
    assert tags(StreamingDataset(remote=str(tmp_path / "copy"), local=tmp_path / "b")) == {1}
    assert tags(StreamingDataset(local=tmp_path / "copy")) == {1}


def test_a_touched_index_that_has_hashes_is_the_same_version(tmp_path: Path) -> None:
    write(str(tmp_path / "remote"), 1, hashes=["xxh3_64"])
    dataset = StreamingDataset(local=tmp_path / "remote")
    (tmp_path / "remote" / "index.json").touch()
    assert tags(dataset) == {1}


# -- files of the same sizes and times ------------------------------------------------------------------------------------


def same_times(folder: Path) -> None:
    """What reproducible builds and archives leave: one time for all files."""
    for path in folder.iterdir():
        os.utime(path, ns=(10**18, 10**18))


def replace_files(folder: Path, by: Path, how: str) -> None:
    """Put other files of the same names, sizes and times in a folder: by rename, or over those that are there."""
    for path in sorted(by.iterdir()):
        shutil.copy2(path, folder / ".new" if how == "rename" else folder / path.name)
        if how == "rename":
            os.rename(folder / ".new", folder / path.name)


@pytest.mark.parametrize("how", ["rename", "overwrite"])
@pytest.mark.parametrize("form", ["mds", "no index", "json", "parquet"])
@pytest.mark.parametrize("local", [False, True])
def test_files_of_the_same_sizes_and_times_are_another_version(
    tmp_path: Path, form: str, local: bool, how: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for tag in (1, 2):
        folder = tmp_path / str(tag)
        if form == "parquet":
            folder.mkdir()
            table = pa.table(
                {"tag": np.full(SAMPLES, tag), "id": np.arange(SAMPLES), "third": (np.arange(SAMPLES) + tag) % 3}
            )
            pq.write_table(
                table, folder / "a.parquet", compression="none", use_dictionary=False, write_statistics=False
            )
        else:
            writer = JSONWriter if form == "json" else MDSWriter
            with writer({"tag": "int", "id": "int", "third": "int"}, folder, size_limit=600, hashes=()) as out:
                for number in range(SAMPLES):
                    out.write({"tag": tag, "id": number, "third": (number + tag) % 3})
            if form != "mds":
                (folder / "index.json").unlink()
        same_times(folder)
    options: dict[str, Any] = {"remote": str(tmp_path / "data"), "local": tmp_path / "cache" if local else None}
    if form != "mds":
        options["format"] = "mds" if form == "no index" else form
    shutil.copytree(tmp_path / "1", tmp_path / "data")
    for tag in (1, 2):
        if tag == 2:
            replace_files(tmp_path / "data", tmp_path / "2", how)
        assert tags(StreamingDataset(**options)) == {tag}
        kept = list(StreamingDataset(**options, subset=Where("third", "==", 2)))
        assert sorted(int(row["id"]) for row in kept) == [n for n in range(SAMPLES) if (n + tag) % 3 == 2]
        # By its labels, each rank has as many samples of each class.
        ranks = [
            StreamingDataset(**options, partition_algo=Stratified("third"), world=World(rank, 2)) for rank in range(2)
        ]
        for rank in ranks:
            counts = Counter(int(row["third"]) for row in rank)
            assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.processes
@HASHES
@pytest.mark.parametrize("how", ["disk", "memory", "in place"])
def test_a_change_in_the_middle_of_a_run_that_leaves_sizes_and_times_is_an_error(
    tmp_path: Path, hashes: Any, how: str
) -> None:
    for tag in (1, 2):
        write(str(tmp_path / str(tag)), tag, hashes=hashes, samples=10 * SAMPLES)
        same_times(tmp_path / str(tag))
    shutil.copytree(tmp_path / "1", tmp_path / "data")
    rows = iter(StreamingDataset(**_options(tmp_path, how), predownload=1))
    next(rows)
    replace_files(tmp_path / "data", tmp_path / "2", "rename")
    seen: list[int] = []
    with pytest.raises(DatasetChangedError, match="Open the dataset again"):
        seen.extend(int(row["tag"]) for row in rows)
    assert set(seen) <= {1}


@pytest.mark.processes
@HASHES
@pytest.mark.parametrize("how", ["disk", "memory", "in place"])
@pytest.mark.parametrize("times", ["new", "old", "link"])
def test_one_shard_that_is_replaced_just_after_the_opening_is_an_error(
    tmp_path: Path, hashes: Any, how: str, times: str
) -> None:
    for name, tag in (("data", 1), ("other", 2)):
        write(str(tmp_path / name), tag, hashes=hashes, samples=10 * SAMPLES)
    same_times(tmp_path / "other")
    rows = iter(StreamingDataset(**_options(tmp_path, how), predownload=1))
    next(rows)
    shard = sorted((tmp_path / "data").glob("*.mds"))[-2]
    if times == "link":
        (tmp_path / "new").symlink_to(tmp_path / "other" / shard.name)
    else:
        (shutil.copy if times == "new" else shutil.copy2)(tmp_path / "other" / shard.name, tmp_path / "new")
    os.rename(tmp_path / "new", shard)
    seen: list[int] = []
    # What is fetched is told by its hash, as damage is.
    error = CorruptDataError if hashes and how != "in place" else DatasetChangedError
    with pytest.raises(error, match=shard.name):
        seen.extend(int(row["tag"]) for row in rows)
    assert set(seen) == {1}


@pytest.mark.processes
@pytest.mark.parametrize("how", ["disk", "memory", "in place"])
def test_links_and_modes_of_files_are_no_change_where_there_are_hashes(tmp_path: Path, how: str) -> None:
    write(str(tmp_path / "data"), 1, hashes=["xxh3_64"])
    dataset = StreamingDataset(**_options(tmp_path, how), predownload=1)
    for path in (tmp_path / "data").iterdir():
        os.link(path, tmp_path / f"backup of {path.name}")
        path.chmod(0o444)
    assert tags(dataset) == {1}


def test_links_and_modes_are_no_change_of_a_parquet_file_or_of_an_index_without_hashes(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write(str(tmp_path / "data"), 1)
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table({"tag": np.full(SAMPLES, 1), "id": np.arange(SAMPLES)}), tmp_path / "files" / "a.parquet")
    opened = [
        StreamingDataset(local=tmp_path / "data"),
        StreamingDataset(remote=str(tmp_path / "files"), format="parquet"),
        StreamingDataset(remote=str(tmp_path / "files"), format="parquet", local=tmp_path / "cache"),
    ]
    for path in (tmp_path / "data" / "index.json", tmp_path / "files" / "a.parquet"):
        os.link(path, tmp_path / f"backup of {path.name}")
        path.chmod(0o444)
    assert [tags(dataset) for dataset in opened] == [{1}, {1}, {1}]


def test_a_status_that_changed_without_hashes_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(str(tmp_path / "data"), 1)
    dataset = StreamingDataset(local=tmp_path / "data")
    for path in (tmp_path / "data").glob("*.mds"):
        path.chmod(0o444)
    with pytest.raises(DatasetChangedError, match="or only its status, as by chmod or a hard link"):
        list(dataset)
    assert tags(StreamingDataset(local=tmp_path / "data")) == {1}


@HASHES
@pytest.mark.parametrize("just", ["nothing", "a shard", "the index", "many shards"])
def test_only_if_something_was_just_written_the_opening_waits_for_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, just: str, hashes: Any
) -> None:
    for name, tag in (("data", 1), ("other", 2)):
        write(str(tmp_path / name), tag, hashes=hashes)
    time.sleep(0.05)  # longer than a tick
    if just == "a shard":
        min((tmp_path / "data").glob("*.mds")).chmod(0o444)
    elif just == "the index":
        (tmp_path / "data" / "index.json").chmod(0o444)
    elif just == "many shards":
        monkeypatch.setattr(version, "_LOOKED_AT", 2)
    tick, wait, waits = version.local_time(), version.opening_time, list[int]()

    def opening_time(url: Path) -> int:
        replace_files(tmp_path / "data", tmp_path / "other", "rename")  # while it waits, which is seen
        waits.append(wait(url))
        return waits[-1]

    monkeypatch.setattr(location, "local_time", lambda: tick)  # as if all of it took no time
    monkeypatch.setattr(location, "opening_time", opening_time)
    if just in ("a shard", "the index"):
        tick -= 10_000_000
    dataset = StreamingDataset(local=tmp_path / "data")
    assert len(waits) == (just != "nothing")
    assert tags(dataset) == {1 if just == "nothing" else 2}
    path = max((tmp_path / "data").glob("*.mds"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DatasetChangedError, match=path.name):
        list(pickle.loads(pickle.dumps(dataset)))


@pytest.mark.parametrize("hashes", [(), ("xxh3_64",)], ids=["plain", "hashed"])
def test_a_compressed_shard_that_is_replaced_where_it_is_read_in_place_is_an_error(tmp_path: Path, hashes: Any) -> None:
    for name, tag in (("data", 1), ("other", 2)):
        write(str(tmp_path / name), tag, hashes=hashes, samples=10 * SAMPLES, compression="zstd")
    rows = iter(StreamingDataset(local=tmp_path / "data", predownload=1))
    next(rows)
    shard = sorted((tmp_path / "data").glob("*.zstd"))[-2]
    assert shard.stat().st_size == (tmp_path / "other" / shard.name).stat().st_size
    shutil.copy2(tmp_path / "other" / shard.name, shard)
    with pytest.raises(CorruptDataError if hashes else DatasetChangedError, match=shard.name):
        list(rows)


def _options(folder: Path, how: str) -> dict[str, Any]:
    """How the dataset ``data`` in a folder is read."""
    remote = str(folder / "data")
    options: dict[str, dict[str, Any]] = {
        "disk": {"remote": remote, "local": folder / "cache"},
        "memory": {"remote": remote, "read": ReadOptions(cache="memory"), "storage_options": {"read_by": "buffered"}},
        "in place": {"local": remote},
    }
    return options[how]


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["block", "py1e"])
def test_a_state_of_a_dataset_that_was_rewritten_is_refused_and_a_copy_continues(
    tmp_path: Path, algorithm: str
) -> None:
    options: dict[str, Any] = {"shuffle": True, "shuffle_algo": algorithm, "batch_size": 4, "num_canonical_nodes": 1}
    write(str(tmp_path / "data"), 1, hashes=None)  # the default
    dataset = StreamingDataset(local=tmp_path / "data", **options)
    rows = iter(dataset)
    for _ in range(40):
        next(rows)
    state = dataset.state_dict(40, True)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = StreamingDataset(local=tmp_path / "copy", **options)
    copy.load_state_dict(state)
    assert len(list(copy)) == SAMPLES - 40
    write(str(tmp_path / "data"), 2, hashes=None)
    anew = StreamingDataset(local=tmp_path / "data", **options)
    with pytest.raises(StateError, match="was rewritten since"):
        anew.load_state_dict(state)


# -- listings ----------------------------------------------------------------------------------------------------------


@pytest.mark.s3
@pytest.mark.parametrize("name", ["parquet", "npz"])
def test_a_file_that_was_listed_but_is_not_there_yet_is_requested_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if name == "parquet":
        pq.write_table(pa.table({"x": np.arange(50)}), tmp_path / "a.parquet")
    else:
        np.savez(tmp_path / "a.npz", x=np.arange(50))
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    store.put_file(f"a.{name}", tmp_path / f"a.{name}")
    listing = Store.list

    def ahead(self: Store, *given: Any) -> Any:
        found = list(listing(self, *given))
        store.delete(f"a.{name}")
        threading.Timer(0.5, store.put_file, (f"a.{name}", tmp_path / f"a.{name}")).start()
        return iter(found)

    monkeypatch.setattr(Store, "list", ahead)
    where: dict[str, Any] = {"storage_options": bucket.storage_options, "local": tmp_path / "cache"}
    dataset = StreamingDataset(remote=f"{bucket.url}/data", format=name, **where)
    assert len(list(dataset)) == 50
