"""The cache: whole verified files or none, shared, bounded, and never the place where the only copy is lost."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import tempfile
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import StreamingDataset
from stoker.cache.directory import read_origin
from stoker.cache.disk.small_fetches import Claims
from stoker.catalog.location import caches_home
from stoker.concurrency.shared.counters import Count
from stoker.errors import (
    CacheError,
    ConfigError,
    CorruptDataError,
    DatasetChangedError,
    ObjectNotFoundError,
    StorageFullError,
)
from stoker.storage.files.mapped import MappedFile
from stoker.storage.local import LocalStore
from stoker.storage.types import Arrival
from support import cache_of, write_samples

ROWS = 400
WIDTH = 64


def write(
    out: Path, *, rows: int = ROWS, seed: int = 0, compression: str | None = None, hashes: list[str] | None = None
) -> list[bytes]:
    """A dataset of about 20 shards; returns what each sample holds."""
    rng = np.random.default_rng(seed)
    data = [rng.bytes(WIDTH) for _ in range(rows)]
    samples = ({"id": number, "data": row} for number, row in enumerate(data))
    write_samples(str(out), samples, size_limit=2048, compression=compression, hashes=hashes)
    return data


def read_all(dataset: StreamingDataset) -> dict[int, bytes]:
    return {sample["id"]: sample["data"] for sample in dataset}


def shard_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("shard.*") if ".stoker" not in path.parts)


def used(root: Path) -> int:
    total = 0
    for path in shard_files(root):
        with contextlib.suppress(FileNotFoundError):  # evicted just now
            total += path.stat().st_size
    return total


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "br:3", "bz2", "snappy"])
@pytest.mark.parametrize("keep_zip", [False, True])
def test_shards_come_from_the_remote_once(tmp_path: Path, compression: str | None, keep_zip: bool) -> None:
    rows = write(tmp_path / "remote", compression=compression, hashes=["sha1", "xxh64"])
    options: dict[str, Any] = {"remote": tmp_path / "remote", "local": tmp_path / "local", "keep_zip": keep_zip}
    assert read_all(StreamingDataset(**options, shuffle=True)) == dict(enumerate(rows))
    suffixes = {path.suffix for path in shard_files(tmp_path / "local")}
    assert suffixes == ({".mds"} if not compression or not keep_zip else {".mds", "." + compression.split(":")[0]})
    for path in shard_files(tmp_path / "remote"):
        path.unlink()
    assert read_all(StreamingDataset(**options)) == dict(enumerate(rows))
    assert not list((tmp_path / "local" / ".stoker").glob("*.part*"))


def test_a_directory_is_read_in_place(tmp_path: Path) -> None:
    rows = write(tmp_path / "data")
    before = sorted(os.listdir(tmp_path / "data"))
    for arguments in (
        {"local": tmp_path / "data"},
        {"remote": tmp_path / "data"},
        {"remote": f"file://{tmp_path}/data"},
    ):
        assert read_all(StreamingDataset(**arguments)) == dict(enumerate(rows))
    assert sorted(os.listdir(tmp_path / "data")) == before


def test_a_compressed_remote_directory_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    rows = write(tmp_path / "data", compression="zstd")
    before = sorted(os.listdir(tmp_path / "data"))
    assert read_all(StreamingDataset(remote=tmp_path / "data")) == dict(enumerate(rows))
    assert sorted(os.listdir(tmp_path / "data")) == before
    assert len(shard_files(tmp_path / "cache")) == len(before) - 1


def test_a_compressed_directory_without_remote_keeps_its_files(tmp_path: Path) -> None:
    rows = write(tmp_path / "data", compression="zstd")
    before = {path: path.read_bytes() for path in shard_files(tmp_path / "data")}
    assert read_all(StreamingDataset(local=tmp_path / "data")) == dict(enumerate(rows))
    assert all(path.read_bytes() == data for path, data in before.items())


def test_split_is_a_sub_directory_of_both(tmp_path: Path) -> None:
    rows = write(tmp_path / "remote" / "train")
    dataset = StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local", split="train")
    assert read_all(dataset) == dict(enumerate(rows))
    assert (cache_of(tmp_path / "local" / "train") / "index.json").exists()
    with pytest.raises(ConfigError, match="split must be a sub-directory"):
        StreamingDataset(remote=tmp_path / "remote", split="../elsewhere")


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "longer"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_damaged_shard_in_the_cache_is_fetched_again(tmp_path: Path, damage: str, compression: str | None) -> None:
    rows = write(tmp_path / "remote", hashes=["xxh64"], compression=compression)
    options: dict[str, Any] = {"remote": tmp_path / "remote", "local": tmp_path / "local", "validate_hash": "xxh64"}
    read_all(StreamingDataset(**options))
    victim = shard_files(tmp_path / "local")[3]
    hurt(victim, damage)
    assert read_all(StreamingDataset(**options)) == dict(enumerate(rows))


def hurt(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1] ^= 255
    path.write_bytes(
        {"truncate": bytes(data[:-7]), "empty": b"", "longer": bytes(data) + b"x"}.get(damage, bytes(data))
    )


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "longer"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_damaged_shard_in_the_remote_is_an_error_that_names_it(
    tmp_path: Path, damage: str, compression: str | None
) -> None:
    write(tmp_path / "remote", hashes=["xxh64"], compression=compression)
    victim = shard_files(tmp_path / "remote")[3]
    hurt(victim, damage)
    dataset = StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local")
    with pytest.raises((CorruptDataError, OSError), match=victim.name) as caught:
        read_all(dataset)
    dataset.close()
    assert type(caught.value).__module__ == "stoker.errors"
    assert not (tmp_path / "local" / victim.name).exists()
    assert not list((tmp_path / "local" / ".stoker").glob("*.part*"))


def test_a_damaged_shard_without_remote_is_an_error_and_stays(tmp_path: Path) -> None:
    write(tmp_path / "data", hashes=["sha1"])
    victim = shard_files(tmp_path / "data")[5]
    hurt(victim, "flip")
    with pytest.raises(CorruptDataError, match=r"shard\.00005\.mds: its sha1 is"):
        read_all(StreamingDataset(local=tmp_path / "data", validate_hash="sha1"))
    assert victim.exists()


def test_a_missing_shard_names_itself(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    shard_files(tmp_path / "remote")[2].unlink()
    with pytest.raises(ObjectNotFoundError, match=r"shard\.00002\.mds"):
        read_all(StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local"))
    with pytest.raises(ObjectNotFoundError, match=r"shard\.00002\.mds.*no remote"):
        read_all(StreamingDataset(local=tmp_path / "remote"))


def test_asking_for_a_hash_that_the_index_lacks_says_so(tmp_path: Path) -> None:
    write(tmp_path / "remote", hashes=["sha1"])
    with pytest.raises(ConfigError, match="validate_hash='md5', but the index has only sha1"):
        read_all(StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local", validate_hash="md5"))


def test_no_index_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="nowhere does not exist"):
        StreamingDataset(remote=tmp_path / "nowhere", local=tmp_path / "local")
    with pytest.raises(ConfigError, match="give remote="):
        StreamingDataset()


# -- a dataset written anew under the old name -------------------------------------------------------------------------


@pytest.mark.parametrize("hashes", [None, ["xxh64"]])
def test_a_dataset_rewritten_is_noticed(tmp_path: Path, hashes: list[str] | None) -> None:
    write(tmp_path / "remote", seed=1, hashes=hashes)
    options: dict[str, Any] = {"remote": tmp_path / "remote", "local": tmp_path / "local"}
    read_all(StreamingDataset(**options))
    shutil.rmtree(tmp_path / "remote")
    rows = write(tmp_path / "remote", seed=2, hashes=hashes or ["sha1"])
    assert read_all(StreamingDataset(**options)) == dict(enumerate(rows))


def test_shards_that_hashes_prove_the_same_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "remote", hashes=["xxh64"])
    options: dict[str, Any] = {"remote": tmp_path / "remote", "local": tmp_path / "local"}
    read_all(StreamingDataset(**options))
    inodes = {path.name: path.stat().st_ino for path in shard_files(tmp_path / "local")}
    index = json.loads((tmp_path / "remote" / "index.json").read_text())
    index["shards"].pop()
    (tmp_path / "remote" / "index.json").write_text(json.dumps(index))
    read_all(StreamingDataset(**options))
    kept = {path.name: path.stat().st_ino for path in shard_files(tmp_path / "local")}
    assert kept.items() < inodes.items()
    assert len(kept) == len(inodes) - 1


# -- limits ------------------------------------------------------------------------------------------------------------


def test_the_limit_is_kept_while_reading(tmp_path: Path) -> None:
    rows = write(tmp_path / "remote")
    limit = 6 * 2048
    dataset = StreamingDataset(
        remote=tmp_path / "remote",
        local=tmp_path / "local",
        cache_limit=limit,
        shuffle=True,
        predownload=10,
        batch_size=4,
    )
    most = 0
    for _ in range(2):
        seen = {}
        for sample in dataset:
            seen[sample["id"]] = sample["data"]
            most = max(most, used(tmp_path / "local"))
        assert seen == dict(enumerate(rows))
    assert 2048 < most <= limit


def test_a_limit_below_what_is_read_at_once_still_finishes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write(tmp_path / "remote")
    dataset = StreamingDataset(
        remote=tmp_path / "remote",
        local=tmp_path / "local",
        cache_limit=2500,
        shuffle=True,
        num_canonical_nodes=4,
        shuffle_block_size=64,
        batch_size=16,
    )
    assert "Raise cache_limit, or lower shuffle_block_size" in caplog.text
    assert read_all(dataset) == dict(enumerate(rows))


def test_a_limit_without_remote_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    rows = write(tmp_path / "data")
    with pytest.raises(ConfigError, match="read where they lie: leave it out"):
        StreamingDataset(local=tmp_path / "data", cache_limit="4kb")
    with pytest.raises(ConfigError, match="can not hold one shard"):
        StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache", cache_limit=100)
    assert read_all(StreamingDataset(local=tmp_path / "data")) == dict(enumerate(rows))


def test_files_of_others_in_the_cache_are_never_evicted(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    (tmp_path / "local").mkdir()
    mine = tmp_path / "local" / "notes.txt"
    mine.write_text("x" * 9000)
    read_all(StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local", cache_limit=4 * 2048))
    assert mine.read_text() == "x" * 9000


def _read_in_child(options: dict[str, Any], results: Any) -> None:
    results.put(read_all(StreamingDataset(**options)))


@pytest.mark.processes
@pytest.mark.parametrize("limit", [None, 40 * 2048])
def test_processes_share_one_cache(tmp_path: Path, limit: int | None) -> None:
    rows = write(tmp_path / "remote", rows=2000, compression="zstd", hashes=["xxh64"])
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [
        context.Process(
            target=_read_in_child,
            args=(
                {
                    "remote": tmp_path / "remote",
                    "local": tmp_path / "local",
                    "cache_limit": limit,
                    "shuffle": True,
                    "shuffle_seed": seed,
                    "num_canonical_nodes": 2,
                },
                results,
            ),
        )
        for seed in range(3)
    ]
    for child in children:
        child.start()
    for _ in children:
        assert results.get(timeout=PATIENCE) == dict(enumerate(rows))
    for child in children:
        child.join()
    assert not list((tmp_path / "local" / ".stoker").glob("*.part*"))
    if limit is not None:
        assert used(tmp_path / "local") <= limit


# -- a cache that can not be written -----------------------------------------------------------------------------------


def test_a_read_only_cache_that_has_everything_works(tmp_path: Path) -> None:
    rows = write(tmp_path / "remote")
    options: dict[str, Any] = {"remote": tmp_path / "remote", "local": tmp_path / "local"}
    read_all(StreamingDataset(**options))
    with read_only(tmp_path / "local"):
        assert read_all(StreamingDataset(**options)) == dict(enumerate(rows))


def test_a_read_only_cache_that_lacks_a_shard_says_so(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    (tmp_path / "local").mkdir()
    with (
        read_only(tmp_path / "local"),
        pytest.raises(CacheError, match=r"can not write to the cache .*choose another local="),
    ):
        read_all(StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local"))


class read_only:  # noqa: N801 - reads as a context
    """Mount a folder read-only if we may (root ignores permissions), else take its write permission."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        if os.geteuid() == 0:
            code = os.system(f"mount --bind {self.folder} {self.folder} && mount -o remount,bind,ro {self.folder}")
            if code:
                pytest.skip("root without the right to mount: nothing is read-only here")
        else:
            self.folder.chmod(0o500)

    def __exit__(self, *_: object) -> None:
        if os.geteuid() == 0:
            os.system(f"umount {self.folder}")
        else:
            self.folder.chmod(0o700)


def test_a_full_disk_is_an_error_and_leaves_nothing_torn(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs the right to mount a small file system")
    rows = write(tmp_path / "remote")
    local = tmp_path / "local"
    local.mkdir()
    if os.system(f"mount -t tmpfs -o size=20k tmpfs {local}"):
        pytest.skip("root without the right to mount")
    try:
        dataset = StreamingDataset(remote=tmp_path / "remote", local=local)
        with pytest.raises(StorageFullError, match=r"no space left in the cache .*set cache_limit="):
            read_all(dataset)
        dataset.close()
        sizes = {path.name: path.stat().st_size for path in shard_files(local)}
        assert all(size == (tmp_path / "remote" / name).stat().st_size for name, size in sizes.items())
        os.system(f"mount -o remount,size=4m {local}")
        again = StreamingDataset(remote=tmp_path / "remote", local=local)
        assert read_all(again) == dict(enumerate(rows))
        again.close()
    finally:
        os.system(f"umount --lazy {local}")  # the datasets hold their directory while they live


# -- small shards, which are written from memory and need no map -----------------------------------------------------------


def open_pool(folder: Path, **options: Any) -> Any:
    dataset = StreamingDataset(remote=folder / "remote", local=folder / "local", **options)
    return dataset.epoch_reader.pool


def test_a_small_shard_is_held_as_it_was_fetched_and_is_in_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "remote", hashes=["xxh64"])
    pool = open_pool(tmp_path)
    readers = [pool.get(number) for number in range(3)]
    assert all(type(reader.data) is bytes for reader in readers)
    for number in range(3):
        name = pool.index.shards[number].raw[0].basename
        assert (cache_of(tmp_path / "local") / name).read_bytes() == (tmp_path / "remote" / name).read_bytes()
        assert not pool.caches[0].fetch_small(pool.index.shards[number])  # it is there
    assert not list(cache_of(tmp_path / "local").rglob("*.part"))
    again = open_pool(tmp_path)
    assert again.get(0).data[:] == readers[0].data
    assert again.counts.totals()[0][Count.BYTES_FETCHED] == 0


def test_small_shards_are_held_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write(tmp_path / "remote")
    monkeypatch.setattr("stoker.reading.shard_pool.small_shards_held", lambda _: 4000)
    pool = open_pool(tmp_path)
    kinds = [type(pool.get(number).data) for number in range(4)]
    assert kinds == [bytes, bytes, bytes, MappedFile] or kinds == [bytes, bytes, MappedFile, MappedFile]
    pool.done_with(0)
    pool.done_with(1)
    assert type(pool.get(5).data) is bytes
    assert read_all(StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local")) == dict(enumerate(rows))


def test_what_a_killed_process_left_of_a_small_shard_is_removed_and_in_nobodys_way(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    pool = open_pool(tmp_path)
    pool.get(1)
    name = pool.index.shards[0].raw[0].basename
    private = cache_of(tmp_path / "local") / ".stoker"
    (private / f"{name}.0123456789abcdef.part").write_bytes(b"x" * 10_000)
    (private / f"{name}.part").write_bytes(b"x" * 10_000)
    pool.get(0)
    assert (cache_of(tmp_path / "local") / name).read_bytes() == (tmp_path / "remote" / name).read_bytes()
    open_pool(tmp_path)
    assert not list(private.glob("*.part"))


def test_a_small_shard_that_another_process_fetches_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    pool = open_pool(tmp_path)
    pool.get(1)
    info = pool.index.shards[0]
    name = info.raw[0].basename
    theirs = Claims(str(cache_of(tmp_path / "local") / ".stoker"), 60.0)
    assert theirs.take(name)
    assert pool.caches[0].fetch_small(info) is None
    assert not pool.caches[0].fetch(info, wait=False)
    pool.prefetch([0])
    # A thread that finds it missing, and then there, counts it as fetched.
    futures.wait(list(pool._coming.values()), PATIENCE)
    shutil.copy(tmp_path / "remote" / name, cache_of(tmp_path / "local") / name)
    theirs.release(name)
    assert type(pool.get(0).data) is MappedFile
    assert pool.counts.totals()[0][Count.CACHE_MISSES] == 1


def test_a_small_shard_whose_claim_stalls_is_fetched_here_too(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    pool = open_pool(tmp_path, download_timeout=0.05)
    name = pool.index.shards[0].raw[0].basename
    pool.get(1)
    theirs = Claims(str(cache_of(tmp_path / "local") / ".stoker"), 60.0)
    assert theirs.take(name)
    assert pool.get(0).samples
    assert (cache_of(tmp_path / "local") / name).read_bytes() == (tmp_path / "remote" / name).read_bytes()
    assert not Claims(str(cache_of(tmp_path / "local") / ".stoker"), 60.0).take(name)  # still theirs


def unindexed_pool(folder: Path) -> Any:
    (folder / "remote").mkdir()
    for number in range(8):
        (folder / "remote" / f"{number}.bin").write_bytes(bytes([number]) * 5000)
    return open_pool(folder, format="files")


def test_a_version_that_is_written_otherwise_in_a_listing_is_the_stores_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = unindexed_pool(tmp_path)
    plain, asked = LocalStore.request, []

    def request(store: LocalStore, key: str, *, max_bytes: int) -> Arrival:
        data, info = plain(store, key, max_bytes=max_bytes)()
        asked.append(key)
        return lambda: (data, replace(info, version="another"))

    monkeypatch.setattr(LocalStore, "request", request)
    pool.prefetch(range(4))
    assert [pool.get(number).data[:] for number in range(8)] == [bytes([number]) * 5000 for number in range(8)]
    assert len(asked) == 8


@pytest.mark.parametrize("content", [b"x" * 5000, b"longer" * 1000, b"shorter"])
def test_a_file_without_an_index_that_is_written_anew_is_an_error(tmp_path: Path, content: bytes) -> None:
    pool = unindexed_pool(tmp_path)
    (tmp_path / "remote" / "3.bin").write_bytes(content)
    pool.prefetch(range(8))
    with pytest.raises(CorruptDataError, match=r"3\.bin was replaced after it was indexed"):
        pool.get(3)
    assert pool.get(4).data[:] == bytes([4]) * 5000


def test_claims_end_with_an_error_and_with_a_fetch(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    pool = open_pool(tmp_path)
    pool.prefetch(range(4))
    assert pool.get(0).samples == pool.get(1).samples
    gone = tmp_path / "remote" / pool.index.shards[5].raw[0].basename
    gone.rename(gone.with_suffix(".away"))
    pool.prefetch(range(4, 7))
    with pytest.raises(ObjectNotFoundError, match=gone.name):
        pool.get(5)
    assert pool.get(6).samples
    theirs = Claims(str(cache_of(tmp_path / "local") / ".stoker"), 60.0)
    assert all(theirs.take(info.raw[0].basename) for info in pool.index.shards)
    for info in pool.index.shards:
        theirs.release(info.raw[0].basename)
    gone.with_suffix(".away").rename(gone)
    assert pool.get(5).samples


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4"])
def test_a_small_shard_that_another_process_has_fetched_since_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("stoker.cache.disk.small_fetches.file_system_of", lambda _: kind)
    write(tmp_path / "remote")
    mine, theirs = open_pool(tmp_path), open_pool(tmp_path)
    infos = mine.index.shards
    assert mine.caches[0].claim_small(infos[:1]) == [True]  # so that the next one is looked for after it is claimed
    assert theirs.get(1).samples
    assert mine.caches[0].claim_small(infos[:2]) == [False, False]
    assert mine.caches[0].claim_small(infos[1:3]) == [False, True]
    others = Claims(str(cache_of(tmp_path / "local") / ".stoker"), 60.0)
    assert [others.take(info.raw[0].basename) for info in infos[:4]] == [False, True, False, True]


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4"])
def test_claims_of_small_shards_hold_on_any_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("stoker.cache.disk.small_fetches.file_system_of", lambda _: kind)
    one, two = Claims(str(tmp_path), 60.0), Claims(str(tmp_path), 60.0)
    assert one.take("a")
    assert not one.take("a")
    assert not two.take("a")
    assert two.take("b")
    one.release("a")
    assert two.take("a")
    del two
    assert one.take("a")
    assert one.take("b")


def test_a_cache_that_is_removed_while_small_shards_come_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path / "remote")
    pool = open_pool(tmp_path)
    pool.get(0)
    shutil.rmtree(tmp_path / "local")
    pool.get(1)
    assert [path.name for path in shard_files(tmp_path / "local")] == [pool.index.shards[1].raw[0].basename]
    assert read_origin(cache_of(tmp_path / "local") / ".stoker") is not None


@pytest.mark.parametrize("hashes", [["xxh64"], None])
def test_a_small_shard_that_arrives_damaged_is_no_part_of_the_cache(tmp_path: Path, hashes: list[str] | None) -> None:
    write(tmp_path / "remote", hashes=hashes)
    pool = open_pool(tmp_path)
    pool.get(1)
    file = tmp_path / "remote" / pool.index.shards[0].raw[0].basename
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if hashes else data[:-1])
    with pytest.raises(CorruptDataError if hashes else (CorruptDataError, DatasetChangedError), match=file.name):
        pool.get(0)
    assert len(shard_files(tmp_path / "local")) == 1
    assert not list(cache_of(tmp_path / "local").rglob("*.part"))


def test_a_cache_that_can_not_be_looked_into_is_an_error_of_the_caches(tmp_path: Path) -> None:
    """As another user's, which may not be entered; root may enter all, so here a name leads in a circle."""
    write(tmp_path / "remote")
    local = tmp_path / "local"
    read_all(StreamingDataset(remote=tmp_path / "remote", local=local))
    for shard in list(local.rglob("shard.*.mds")):
        shard.unlink()
        shard.symlink_to(shard)
    with pytest.raises(CacheError, match=r"can not (read the cache|open) .*choose another local= \(or STOKER_CACHE\)"):
        read_all(StreamingDataset(remote=tmp_path / "remote", local=local))


def test_a_user_without_a_home_has_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where the system does not know the user
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"stoker-{os.geteuid()}"
    assert caches_home() == str(own)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (tmp_path / "stoker-12345").mkdir()
    with pytest.raises(CacheError, match=r"stoker-12345 .*another user's: set STOKER_CACHE"):
        caches_home()
