"""Paths whose bytes are not UTF-8, which Python holds as lone surrogates."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.cache.disk.small_fetches import FILE_CALLS, HELD_CALLS, FileCalls, exists_at_once
from stoker.errors import ConfigError
from support import write_samples


@pytest.fixture
def odd(tmp_path: Path) -> str:
    return os.path.join(tmp_path, os.fsdecode(b"odd \xff\xfe"))


def test_files_below_a_path_of_other_bytes_are_read(odd: str, tmp_path: Path) -> None:
    os.makedirs(odd)
    np.save(os.path.join(odd, "a.npy"), np.arange(3))
    for options in ({}, {"local": tmp_path / "cache"}, {"read": ReadOptions(cache="memory")}):
        found = StreamingDataset(remote=odd, format="npy", **options)
        assert [int(sample["data"]) for sample in found] == [0, 1, 2]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_shards_are_written_to_and_cached_in_a_path_of_other_bytes(odd: str, compression: str | None) -> None:
    write_samples(odd, ({"row": row} for row in range(5)), compression=compression)
    for found in (
        StreamingDataset(remote=odd),
        StreamingDataset(local=odd),
        StreamingDataset(remote=odd, local=odd + "cache"),
    ):
        assert [int(sample["row"]) for sample in found] == list(range(5))


@pytest.mark.parametrize(
    "use",
    [
        lambda path: StreamingDataset(remote=path),
        lambda path: StreamingDataset(local=path),
        lambda path: MDSWriter({"row": "int"}, out=path),
    ],
)
def test_what_can_be_no_path_is_refused(use: Callable[[str], Any], tmp_path: Path) -> None:
    path = os.path.join(tmp_path, "\ud800")
    with pytest.raises(ConfigError, match="is not a path"):
        use(path)


def test_what_exists_is_told_without_letting_go_of_pythons_lock(tmp_path: Path) -> None:
    (tmp_path / "file\udcff").write_bytes(b"")
    assert exists_at_once(str(tmp_path / "file\udcff"))
    assert exists_at_once(str(tmp_path))
    assert not exists_at_once(str(tmp_path / "none"))
    assert not exists_at_once(str(tmp_path / "none" / "of it"))
    assert exists_at_once(str(tmp_path / "file\udcff" / "below a file"))  # an error, which os.stat is to tell


@pytest.mark.parametrize("calls", [FILE_CALLS, HELD_CALLS], ids=["python", "held"])
def test_files_are_made_by_either_calls(tmp_path: Path, calls: FileCalls) -> None:
    part, target = str(tmp_path / "part\udcff"), str(tmp_path / "target\udcfe")
    descriptor = calls.create(part)
    os.write(descriptor, b"data")
    assert not os.get_inheritable(descriptor)
    with pytest.raises(FileExistsError):
        calls.create(part)
    calls.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        calls.close(descriptor)
    calls.rename(part, target)
    assert Path(target).read_bytes() == b"data"
    assert os.stat(target).st_mode & 0o111 == 0
    with pytest.raises(FileNotFoundError, match="part"):
        calls.rename(part, target)
    with pytest.raises(FileNotFoundError, match="none"):
        calls.create(str(tmp_path / "none" / "part"))
    os.symlink(target, part)
    with pytest.raises(FileExistsError):
        calls.create(part)
