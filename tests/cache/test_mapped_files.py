"""Mapped files: no descriptor for any of them, bounds that hold though files change, and use that others can see."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from page_cache import drop_pages, resident_pages
from stoker import KeepIds, MDSWriter, StreamingDataset, merge_index
from stoker.cache.base import CacheSettings
from stoker.cache.disk.disk_cache import DiskCache
from stoker.cache.disk.in_use import Users
from stoker.catalog.location import open_indexed
from stoker.errors import CacheError, ConfigError, CorruptDataError, ObjectNotFoundError, StorageError
from stoker.formats.base import ShardInfo, ShardReader
from stoker.formats.registry import get_format
from stoker.inspection.caches import list_caches, prune_caches
from stoker.reading.shard_pool import ShardPool
from stoker.storage.files.mapped import MappedFile, check_mapped, map_file
from stoker.storage.files.own import make_own_directory
from stoker.tokens.sources.megatron import MegatronFile, MegatronWriter, RawTokens
from stoker.tokens.sources.parquet import ParquetSource
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.tokenize.tokenize import make_job
from stoker.types import Buffer
from support import environ, open_parquet, run_script

SHARD = 20 << 10
SHARDS = 40


def write(out: Path, shards: int = SHARDS, *, fixed: bool = False) -> None:
    columns = {"id": "int", "data": "ndarray:uint8:4080" if fixed else "bytes"}
    with MDSWriter(columns=columns, out=str(out), size_limit=SHARD) as writer:
        for number in range(shards * 4):
            data = np.full(4080, number % 251, np.uint8)
            writer.write({"id": number, "data": data if fixed else data.tobytes()})


def fill(cache: Path, data: Path) -> None:
    """Bring small shards into a cache: those that are found there are mapped."""
    for _ in StreamingDataset(remote=data, local=cache):
        pass


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("remote", [False, True])
def test_open_shards_hold_no_descriptors(tmp_path: Path, remote: bool) -> None:
    write(tmp_path / "data")
    if remote:
        fill(tmp_path / "cache", tmp_path / "data")
    dataset = StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache" if remote else None)
    len(dataset)
    before = descriptors()
    for number in range(len(dataset)):
        assert dataset[number]["id"] == number
    with open("/proc/self/maps") as maps:
        assert sum("shard." in line for line in maps) >= SHARDS - 1
    assert descriptors() - before < 12
    dataset.close()


_MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from stoker import StreamingDataset
place = {"local": sys.argv[1]} if len(sys.argv) == 2 else {"remote": sys.argv[1], "local": sys.argv[2]}
dataset = StreamingDataset(**place, shuffle=True, batch_size=16, predownload=10_000)
print(sum(len(batch["id"]) for batch in dataset.batches()))
"""


@pytest.mark.processes
@pytest.mark.parametrize("remote", [False, True])
def test_an_epoch_of_more_shards_than_descriptors(tmp_path: Path, remote: bool) -> None:
    write(tmp_path / "data", 200)
    places = [tmp_path / "data", tmp_path / "cache"] if remote else [tmp_path / "data"]
    assert run_script(["-c", _MANY, *places]) == [800]


def test_a_pool_keeps_as_many_readers_as_it_says_and_all_that_are_needed(tmp_path: Path) -> None:
    write(tmp_path / "data")
    place = open_indexed(None, tmp_path / "data", None, settings=CacheSettings())
    pool = ShardPool(place.index, place.cache, most_open=4)
    for number in range(10):
        pool.get(number)
    assert pool.ready(range(SHARDS)) == pool.ready([6, 7, 8, 9]) == 4
    pool.get(6)
    pool.get(20)
    assert pool.ready([6, 8, 9, 20]) == 4  # 7 was not used for longest
    pool.expect(set(range(30, 38)))
    for number in range(30, 38):
        pool.get(number)
    assert pool.ready(range(30, 38)) == 8
    pool.expect(set())
    for number in range(10):
        pool.get(number)
    assert pool.ready(range(SHARDS)) == 4
    pool.close()


# -- use, seen by others --------------------------------------------------------------------------------------------------

_READER = """
import sys
from stoker import StreamingDataset
dataset = StreamingDataset(remote=sys.argv[1], local=sys.argv[2])
for number in range(len(dataset)):
    dataset[number]
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_files_that_a_process_uses_are_not_removed_until_it_ends(tmp_path: Path) -> None:
    write(tmp_path / "data")
    cache = tmp_path / "cache"
    fill(cache, tmp_path / "data")
    child = subprocess.Popen(
        [sys.executable, "-c", _READER, str(tmp_path / "data"), str(cache)],
        env=environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    assert list_caches([cache])[0].in_use
    report = prune_caches([cache], everything=True)
    assert (report.files, report.in_use) == (0, SHARDS)
    child.kill()  # what it said goes with it
    child.wait()
    assert not list_caches([cache])[0].in_use
    assert prune_caches([cache], everything=True).files == SHARDS


@pytest.mark.processes
def test_a_fork_and_its_parent_use_files_each_for_itself(tmp_path: Path) -> None:
    write(tmp_path / "data", 4)
    cache = tmp_path / "cache"
    fill(cache, tmp_path / "data")
    dataset = StreamingDataset(remote=tmp_path / "data", local=cache)
    for number in range(len(dataset)):
        dataset[number]
    files = sorted(cache.rglob("shard.*"))

    def used() -> list[bool]:
        gc.collect()
        with Users() as users:
            return [users.uses(path) for path in files]

    assert used() == [True] * 4
    ask, tell = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            dataset[15]
            os.write(tell[1], b".")
            os.read(ask[0], 1)
            dataset.close()
            del dataset
            gc.collect()
            os.write(tell[1], b".")
            os.read(ask[0], 1)
        finally:
            os._exit(0)
    os.read(tell[0], 1)  # the child has begun to use them
    dataset.close()
    assert used() == [True] * 4  # the child has them mapped
    for number in (0, 15):
        dataset[number]
    os.write(ask[1], b".")
    os.read(tell[0], 1)
    assert used() == [True, False, False, True]  # the child let go of all, and of none of the parent's
    dataset.close()
    assert used() == [False] * 4
    os.write(ask[1], b".")
    os.waitpid(child, 0)


# -- files that change while they are mapped ------------------------------------------------------------------------------

_CUT = """
import json, os, pathlib, sys, time
from stoker import StreamingDataset
from stoker.errors import StokerError
where, options = sys.argv[1], {"remote": sys.argv[2]} if len(sys.argv) > 2 else {}
dataset = StreamingDataset(local=where, **options)
for number in range(len(dataset)):
    dataset[number]
for path in pathlib.Path(where).rglob("shard.*"):
    os.truncate(path, 100)
time.sleep(0.1)
try:
    print(sum(dataset[number]["id"] for number in range(len(dataset))))
except StokerError as error:
    print(json.dumps([type(error).__name__, "shard.00000.mds" in str(error)]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("remote", [False, True])
def test_a_shard_that_was_cut_is_fetched_again_or_an_error_that_names_it(tmp_path: Path, remote: bool) -> None:
    write(tmp_path / "data", 10)
    places = [tmp_path / "cache", tmp_path / "data"] if remote else [tmp_path / "data"]
    said = run_script(["-c", _CUT, *places])  # which ends, and not by a signal
    assert said == [sum(range(40)) if remote else ["CorruptDataError", True]]


@pytest.mark.parametrize("fixed", [False, True])
def test_offsets_that_were_written_over_lead_nowhere(tmp_path: Path, fixed: bool) -> None:
    write(tmp_path / "data", 2, fixed=fixed)
    shard = tmp_path / "data" / "shard.00000.mds"
    for offset in (0xFFFFFFF0, 1 << 31, SHARD):
        dataset = StreamingDataset(local=tmp_path / "data")
        assert dataset[1]["id"] == 1
        whole = shard.read_bytes()
        with open(shard, "r+b") as file:
            file.seek(4 + 4)
            file.write(offset.to_bytes(4, "little") + (offset + 4096).to_bytes(8, "little")[:4])
        assert bytes(dataset[1]["data"]) == bytes([1]) * 4080  # offsets are those that were checked
        assert np.asarray(next(iter(dataset.batches(8)))["id"]).tolist() == list(range(8))
        with open(shard, "r+b") as file:
            file.write(whole)
        dataset.close()


def test_a_mapped_file_that_is_replaced_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 100_000)
    mapped = map_file(path)
    assert isinstance(mapped, MappedFile)
    (tmp_path / "other").write_bytes(b"b")
    os.rename(tmp_path / "other", path)
    check_mapped([mapped, b""])
    assert mapped[99_990:] == b"a" * 10
    path.unlink()
    check_mapped([mapped])
    path.write_bytes(b"a" * 100_000)
    mapped = map_file(path)
    os.truncate(path, 50_000)
    with pytest.raises(CorruptDataError, match=r"file was cut to 50000 bytes"):
        check_mapped([mapped])


# -- what is no file ------------------------------------------------------------------------------------------------------


def test_a_pipe_in_place_of_a_shard_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(tmp_path / "data", 2)
    shard = tmp_path / "data" / "shard.00001.mds"
    shard.unlink()
    os.mkfifo(shard)
    begun = time.monotonic()
    dataset = StreamingDataset(local=tmp_path / "data")
    with pytest.raises(ObjectNotFoundError, match="a named pipe"):
        dataset[len(dataset) - 1]
    assert time.monotonic() - begun < 30
    dataset.close()


def test_a_pipe_in_the_cache_gives_way_to_the_shard(tmp_path: Path) -> None:
    write(tmp_path / "data", 2)
    os.mkfifo(cache_of(tmp_path / "data", tmp_path / "cache") / "shard.00001.mds")
    dataset = StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache")
    assert [sample["id"] for sample in dataset] == list(range(8))
    dataset.close()


def test_a_pipe_among_the_inputs_is_no_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    os.mkfifo(tmp_path / "pipe.bin")
    os.mkfifo(tmp_path / "index.json")
    pipe = tmp_path / "pipe.parquet"
    with pytest.raises(ObjectNotFoundError, match=r"pipe\.parquet: not a file but a named pipe"):
        StreamingDataset(remote=[str(pipe)], format="parquet")
    with pytest.raises(ObjectNotFoundError, match=r"pipe\.parquet: not a file but a named pipe"):
        StreamingDataset(remote=[str(pipe)], format="files")
    with pytest.raises(ObjectNotFoundError, match=r"pipe\.bin: not a file but a named pipe"):
        RawTokens(tmp_path / "pipe.bin", "uint16")
    with pytest.raises(ObjectNotFoundError, match="no files to detect a format by"):
        StreamingDataset(local=tmp_path)
    assert "index.json is passed over: it is not a file but a named pipe" in caplog.text
    with pytest.raises(ObjectNotFoundError, match="not a file but a named pipe"):
        make_job(tmp_path / "pipe.bin", False, False, False)
    write(tmp_path / "data", 1)
    with pytest.raises(ConfigError, match="not a file but a named pipe"):
        StreamingDataset(local=tmp_path / "data", subset=KeepIds(tmp_path / "pipe.bin"))


def test_token_files_that_were_cut_are_errors_that_name_them(tmp_path: Path) -> None:
    np.arange(100_000, dtype=np.uint16).tofile(tmp_path / "raw.bin")
    with MegatronWriter(tmp_path / "corpus", "uint16") as writer:
        writer.write(Ragged(np.arange(100_000) % 60_000, np.arange(0, 100_001, 10_000)))
    raw, packed = RawTokens(tmp_path / "raw.bin", "uint16"), MegatronFile(tmp_path / "corpus")
    assert len(raw.read(0, 5)) == 1
    assert len(packed.documents()) == 10
    for name in ("raw.bin", "corpus.bin"):
        os.truncate(tmp_path / name, 5000)
    with pytest.raises(CorruptDataError, match=r"raw\.bin was cut to 5000 bytes"):
        raw.documents(0)
    with pytest.raises(CorruptDataError, match=r"corpus\.bin was cut to 5000 bytes"):
        packed.documents()


def test_a_row_group_that_is_cut_while_it_is_decoded_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    tokens = pa.array([[number] * 100 for number in range(10_000)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), path, compression="none", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    source = ParquetSource(open_parquet(tmp_path))
    chunks = source.chunks(0)
    next(chunks)
    # Its last byte: without a look at the file the next piece would come, and nothing would end the process.
    os.truncate(path, column.data_page_offset + column.total_compressed_size - 1)
    time.sleep(0.1)
    with pytest.raises(CorruptDataError, match=r"a\.parquet was cut to \d+ bytes while it is being read"):
        next(chunks)
    source.close()


# -- links laid into directories of stoker's own --------------------------------------------------------------------------


def cache_of(remote: Path, local: Path) -> Path:
    """The directory of a data set's cache, made, without shards."""
    dataset = StreamingDataset(remote=remote, local=local)
    assert len(dataset)
    dataset.close()
    (private,) = local.rglob(".stoker")
    return private.parent


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_link_in_place_of_a_file_that_is_written_is_refused(tmp_path: Path, compression: str | None) -> None:
    with MDSWriter(columns={"id": "int"}, out=str(tmp_path / "data"), compression=compression) as writer:
        writer.write({"id": 0})
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    small = compression is None
    for name, limit in (
        ("claims" if small else "shard.00000.mds.part", None),
        ("shard.00000.mds.part", 1 << 20),
        ("room", 1 << 20),
    ):
        local = tmp_path / f"cache-{name}-{limit}"
        cache = cache_of(tmp_path / "data", local)
        dataset = StreamingDataset(remote=tmp_path / "data", local=local, cache_limit=limit)
        (cache / ".stoker" / name).symlink_to(victim)
        with pytest.raises(StorageError, match=rf"{name} is a symbolic link"):
            dataset[0]
        dataset.close()
    assert victim.read_bytes() == b"mine"


def test_a_private_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data", 1)
    cache = cache_of(tmp_path / "data", tmp_path / "cache")
    (cache / ".stoker").rename(tmp_path / "elsewhere")
    (cache / ".stoker").symlink_to(tmp_path / "elsewhere")
    before = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    with pytest.raises(StorageError, match=r"\.stoker is a symbolic link"):
        StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache")[0]
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == before


def test_a_private_directory_to_which_everyone_may_write(tmp_path: Path) -> None:
    private = tmp_path / "cache" / ".stoker"
    private.mkdir(parents=True)
    private.chmod(0o777)
    make_own_directory(private)
    assert private.stat().st_mode & 0o777 == 0o775
    if not os.geteuid():
        private.chmod(0o777)
        os.chown(private, 12345, -1)
        with pytest.raises(StorageError, match=r"everyone may write to .* user 12345"):
            make_own_directory(private)


def test_a_link_to_a_directory_does_not_lead_shards_out_of_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "data" / "sub", 1)
    merge_index(str(tmp_path / "data"))
    (tmp_path / "elsewhere").mkdir()
    cache = cache_of(tmp_path / "data", tmp_path / "cache")
    (cache / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match=r"out of the cache .* by a symbolic link"):
        StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache")[0]
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["npz", "files"])
def test_pages_with_headers_are_there_before_a_file_is_opened_ahead(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever touches a page that storage has yet to give holds Python's lock meanwhile, and stops all other threads."""
    names = [f"{number}.npz" for number in range(6)]
    for name in names:
        np.savez(tmp_path / name, x=np.zeros((1, 200_000), np.float64))
    dataset = StreamingDataset(str(tmp_path), format=kind, batch_size=1)
    monkeypatch.setattr(DiskCache, "read_ahead", lambda *_: None)  # of which nobody knows how far it has got
    there: dict[str, bool] = {}
    form = type(get_format(kind))
    opened = form.open

    def look(self: Any, info: ShardInfo, files: Sequence[Buffer], **more: Any) -> ShardReader:
        with open(tmp_path / info.raw[0].basename, "r+b") as file:
            pages = resident_pages(file.fileno(), info.raw[0].bytes)
        there[info.raw[0].basename] = pages[0] >= (pages[1] if kind == "npz" else 1)
        return opened(self, info, files, **more)

    monkeypatch.setattr(form, "open", look)
    drop_pages(tmp_path)
    assert sum(1 for _ in dataset.batches()) == len(names)
    assert [name for name in names if not there[name]] in ([], names[:1])  # the first is not opened ahead
