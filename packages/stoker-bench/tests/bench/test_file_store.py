"""Local files that are read into memory: around the page cache, or through it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from page_cache import resident_pages
from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.errors import ConfigError, StorageError
from stoker.storage import Store, open_store
from stoker.testing import StoreTests
from stoker_bench.clients.file_store import ALIGNED, aligned_memory, fill_direct

SIZE = (2 << 20) + 1234


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, which is not in the page cache, on a file system that takes O_DIRECT."""
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(random.Random(1).randbytes(SIZE))
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if resident_pages(descriptor, SIZE) != (0, -(-SIZE // ALIGNED)):
            pytest.skip("the files of this file system do not leave the page cache")
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system refuses O_DIRECT")
    finally:
        os.close(descriptor)
    return path.parent


def cached(folder: Path) -> float:
    descriptor = os.open(folder / "file", os.O_RDWR)
    try:
        found = resident_pages(descriptor, SIZE)
    finally:
        os.close(descriptor)
    return found[0] / found[1]


def test_any_bytes_of_a_file_come_into_any_memory(folder: Path) -> None:
    fd = os.open(folder / "file", os.O_RDONLY | os.O_DIRECT)
    whole = random.Random(1).randbytes(SIZE)
    edges = (0, 1, 511, 512, ALIGNED - 1, ALIGNED, ALIGNED + 1, 3 * ALIGNED, SIZE - ALIGNED, SIZE - 1, SIZE)
    memory = aligned_memory(SIZE + ALIGNED)
    try:
        for start in edges:
            for end in (edge for edge in edges if edge >= start):
                for shift in (0, 1):
                    into = memory[shift : shift + end - start]
                    fill_direct(fd, into, start)
                    assert into == whole[start:end], (start, end, shift)
        with pytest.raises(OSError, match="shrank"):
            fill_direct(fd, memory[:ALIGNED], SIZE - 10)
    finally:
        os.close(fd)


def test_direct_reads_leave_the_page_cache_alone_and_buffered_ones_fill_it(folder: Path) -> None:
    options = {"read_by": "direct", "part_size": "1MB"}
    assert open_store(folder, options).get("file", max_bytes=SIZE) == random.Random(1).randbytes(SIZE)
    assert cached(folder) == 0
    open_store(folder, {"read_by": "buffered"}).get("file", max_bytes=SIZE)
    assert cached(folder) == 1


@pytest.mark.processes
@pytest.mark.parametrize("read_by", ["direct", "buffered"])
def test_a_dataset_of_a_directory_is_read_into_memory(read_by: str, folder: Path) -> None:
    out = folder / "mds"
    with MDSWriter(out=str(out), columns={"x": "ndarray"}, size_limit=100_000) as writer:
        for number in range(40):
            writer.write({"x": np.full(5000 + number, number, np.uint8)})
    options = {"read_by": read_by}
    with StreamingDataset(remote=str(out), read=ReadOptions(cache="memory"), storage_options=options) as dataset:
        assert [int(dataset[number]["x"].sum()) for number in (0, 39)] == [0, 39 * 5039]
        assert sum(1 for _ in dataset) == 40
        assert dataset.stats().bytes_fetched >= 40 * 5000
    raw = StreamingDataset(
        remote=str(folder), format="files", read=ReadOptions(cache="memory"), storage_options=options
    )
    assert {len(sample["data"]) for sample in raw} >= {SIZE}
    with pytest.raises(ConfigError, match=r"needs ReadOptions\(cache='memory'\)"):
        StreamingDataset(remote=str(out), storage_options=options)
    with pytest.raises(ConfigError, match="give the directory as remote="):
        StreamingDataset(local=str(out), read=ReadOptions(cache="memory"), storage_options=options)


def test_a_file_that_is_cut_is_an_error(folder: Path) -> None:
    store = open_store(folder, {"read_by": "direct"})
    version = store.head("file").version
    with open(folder / "file", "r+b") as file:
        file.truncate(SIZE // 2)
    with pytest.raises(StorageError):
        store.get_ranges("file", [0], [SIZE])
    with pytest.raises(StorageError):
        store.get_ranges("file", [0], [10], version=version)


def test_a_file_system_that_refuses_is_named() -> None:
    if not os.path.isdir("/proc/self"):
        pytest.skip("there is no /proc")
    with pytest.raises(ConfigError, match="refuses O_DIRECT: read by other means"):
        open_store("/proc/self", {"read_by": "direct"}).get("status", max_bytes=1 << 20)


def test_settings_of_files_that_make_no_sense_are_refused() -> None:
    for given, said in (
        ({"read_by": "mmap"}, "expected 'buffered' or 'direct'$"),
        ({"read_by": "direct", "region": "x"}, "mean nothing for local files"),
        ({"read_by": "direct", "patience": 3}, "mean nothing"),
    ):
        with pytest.raises(ConfigError, match=said):
            open_store("/tmp/x", given)
    with pytest.raises(ConfigError, match="mean nothing for s3://b"):
        open_store("s3://b", {"read_by": "direct"})


class TestBuffered(StoreTests):
    """Files that are read by calls, in parts, and not mapped."""

    read_by = "buffered"

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> Iterator[None]:
        self.root = tmp_path / "root"
        yield
        left = [path.name for path in tmp_path.rglob("*") if path.name.startswith(".stoker")]
        assert not left, "files that were being written"

    def open(self, path: str) -> Store:
        return open_store(self.root / path, {"read_by": self.read_by, "part_size": "1500000"})


class TestDirect(TestBuffered):
    """Files that are read around the page cache."""

    read_by = "direct"

    @pytest.fixture(autouse=True)
    def _takes_direct(self, folder: Path) -> None:
        """Skips where the file system refuses."""
