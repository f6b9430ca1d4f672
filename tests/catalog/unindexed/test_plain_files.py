"""Directories with a sample a file: listed as arrays, and remembered as long as no folder changes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from stoker import StreamingDataset, policy
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed import open_files, sample_files
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.concurrency.shared import bytes as shared_bytes
from stoker.errors import ConfigError, CorruptDataError, StokerError
from stoker.formats.base import ShardInfo
from stoker.index.file_index import FileShards
from stoker.index.index import Index
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage.files import mounts
from stoker.storage.files.mounts import file_system_of
from stoker.storage.files.own import PRIVATE


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Listings are remembered at once, on whatever file system the tests run."""
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_files, "_SETTLED", 0.0)
    kind = file_system_of(tmp_path)
    monkeypatch.setattr(sample_files, "_KNOWN", sample_files._KNOWN | {kind})
    monkeypatch.setattr(mounts, "LOCAL_FILE_SYSTEMS", mounts.LOCAL_FILE_SYSTEMS | {kind})
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "data"
    lay(found, "cat/1.jpg", "cat/2.jpg", "dog/3.jpg", "dog/old/4.jpg", "top.jpg")
    return found


def lay(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8" + os.fsencode(name))
    return root


def listed_slowly(root: Path, name: str = "files") -> DatasetLocation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_files, "are_plain", lambda _: False)
        return open_unindexed(root, name)


def opened_or_error(opening: Callable[[], DatasetLocation]) -> object:
    try:
        location = opening()
    except StokerError as error:
        return type(error), str(error)
    return tuple(location.index.shards), location.about


def check_same(root: Path, name: str = "files") -> DatasetLocation:
    """The files are those that a listing without memory finds, and are read."""
    found, slow = open_unindexed(root, name), listed_slowly(root, name)
    assert found.index.shards == tuple(slow.index.shards)
    assert found.about == slow.about
    assert found.index.columns == slow.index.columns
    assert found.index.total_bytes == slow.index.total_bytes
    assert found.index.largest_shard == slow.index.largest_shard
    assert found.index.file_sizes() == slow.index.file_sizes()
    assert found.index.sizes.tolist() == slow.index.sizes.tolist()
    assert read(found) == [(root / one.raw[0].basename).read_bytes() for one in slow.index.shards]
    return found


def read(location: DatasetLocation) -> list[bytes]:
    pool = ShardPool(location.index, location.cache)
    every = np.arange(len(location.index))
    values = read_samples(pool, every, np.zeros_like(every), [location.index.columns[0]])
    pool.close()
    return list(next(iter(values.values())))


def is_remembered(root: Path, name: str = "files") -> bool:
    """Whether opening the directory lists none of it."""
    walked: list[str] = []

    def walk(where: str, _: object) -> Iterator[object]:
        walked.append(where)
        return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_files, "_walk", walk)
        try:
            open_unindexed(root, name)
        except StokerError:
            assert walked
    return not walked


def test_files_are_those_that_a_listing_without_memory_finds(root: Path) -> None:
    lay(
        root,
        "a/1",
        "a/b/1",
        "a/b2",
        "a-b/1",
        "a.b/1",
        "ä/ü.bin",
        "日本/語",
        "x y/z (1).jpg",
        "e/f/g/h/i",
        "Upper/CASE.JPG",
    )
    (root / "empty").mkdir()
    (root / "none.jpg").write_bytes(b"")
    first = check_same(root)
    assert isinstance(first.index.shards, FileShards)
    assert is_remembered(root)
    again = check_same(root)
    assert again.index.fingerprint == Index.fingerprint.fget(again.index)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["files", "jpeg", "images"])
@pytest.mark.parametrize(
    "more",
    [
        ("cat/.hidden", "_SUCCESS", ".git/config", "cat/_x.jpg"),
        ("cat/LICENSE", "labels.csv", "cat/5.JPEG", "cat/6.jpe"),
        ("cat/7.png",),
        ("index.json",),
        ("dog/index.json",),
        ("_a=1/8.jpg", "dog/_b=2.jpg"),
        ("c\\d.jpg", "c:d/9.jpg"),
        ("new\nline.jpg",),
        (os.fsdecode(b"\xff.jpg"),),
        ("0" * 24 + "/1.jpg",),
        ("train/1.jpg", "test/1.jpg"),
        ("/".join(["é" * 99] * 4) + "/1.jpg",),
        ("/".join(["é" * 99] * 5) + "/" + "é" * 99 + ".jpg",),
    ],
)
def test_odd_names_are_treated_as_without_memory(root: Path, name: str, more: tuple[str, ...]) -> None:
    lay(root, *more)
    slow = opened_or_error(lambda: listed_slowly(root, name))
    assert opened_or_error(lambda: open_unindexed(root, name)) == slow
    assert opened_or_error(lambda: open_unindexed(root, name)) == slow


def test_random_trees(tmp_path: Path) -> None:
    draw = random.Random(4)
    plain = 0
    for number in range(15):
        root = tmp_path / f"tree{number}"
        parts = ["a", "b", "a-", "a.b", "aa", "é", "0", "_h", ".h", "train"]
        names = {"/".join(draw.choices(parts, k=draw.randint(1, 4))) + ".bin" for _ in range(draw.randint(1, 40))}
        lay(root, *names)
        slow = opened_or_error(partial(listed_slowly, root))
        assert opened_or_error(partial(open_unindexed, root, "files")) == slow
        assert opened_or_error(partial(open_unindexed, root, "files")) == slow
        plain += is_remembered(root)
    assert plain > 5


def swap(root: Path) -> None:
    (root / "cat").rename(root / "other")
    (root / "dog").rename(root / "cat")
    (root / "other").rename(root / "dog")


def set_back(root: Path) -> None:
    lay(root, "cat/7.jpg")
    os.utime(root / "cat", ns=(0, 10**9))


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda root: lay(root, "dog/old/5.jpg"),
    "added folder": lambda root: lay(root, "emu/6.jpg"),
    "removed": lambda root: (root / "cat/1.jpg").unlink(),
    "renamed": lambda root: (root / "cat/1.jpg").rename(root / "cat/9.jpg"),
    "moved": lambda root: (root / "cat/1.jpg").rename(root / "dog/old/9.jpg"),
    "replaced": lambda root: (lay(root.parent, "new.jpg") / "new.jpg").rename(root / "cat/1.jpg"),
    "folder renamed": lambda root: (root / "dog").rename(root / "donkey"),
    "folders swapped": swap,
    "folder removed": lambda root: shutil.rmtree(root / "dog/old"),
    "hard link": lambda root: os.link(root / "cat/1.jpg", root / "dog/1.jpg"),
    "link to a file": lambda root: (root / "cat/8.jpg").symlink_to(root / "dog/3.jpg"),
    "link to a folder": lambda root: (root / "cat/more").symlink_to(root / "dog"),
    "times set back": set_back,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_folder_that_changed_is_listed_again(root: Path, change: Callable[[Path], object]) -> None:
    check_same(root)
    assert is_remembered(root)
    change(root)
    assert not is_remembered(root)
    check_same(root)
    check_same(root)


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_was_written_over_is_an_error_and_then_listed(root: Path, same_size: bool) -> None:
    open_unindexed(root, "files")
    path = root / "dog/3.jpg"
    path.write_bytes(path.read_bytes().swapcase() if same_size else b"other")
    assert is_remembered(root)
    with pytest.raises(
        CorruptDataError,
        match=r"dog/3\.jpg was written to after its directory was listed.* Open the dataset again, and the files are listed",
    ):
        read(open_unindexed(root, "files"))
    assert not is_remembered(root)
    check_same(root)


def test_what_may_change_unseen_is_not_remembered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sample_files, "_SETTLED", 3600.0)
        check_same(root)
    assert not is_remembered(root)
    with monkeypatch.context() as patch:
        patch.setattr(sample_files, "_KNOWN", frozenset({"nfs"}))
        check_same(root)
        assert not is_remembered(root)
    check_same(root)
    with monkeypatch.context() as patch:
        patch.setattr(sample_files, "_KNOWN", frozenset({"nfs"}))  # as if mounted anew
        assert not is_remembered(root)
    assert is_remembered(root)
    with monkeypatch.context() as patch:
        patch.setattr(mounts, "LOCAL_FILE_SYSTEMS", frozenset())  # a cache that other machines write to
        assert is_remembered(root)
        check_same(root)


@pytest.mark.parametrize("small", [policy.SHARED, 1])
def test_many_remembered_listings_take_few_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    roots = [lay(tmp_path / f"data{number}", "1.jpg", "2.jpg") for number in range(80)]
    for root in roots:
        open_unindexed(root, "files")
    monkeypatch.setattr(shared_bytes, "SHARED", small)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 48, limits[1]))
    try:
        every = [open_unindexed(root, "files") for root in roots]
        taken = len(os.listdir("/proc/self/fd")) - before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert taken <= (0 if small > 1 else (before + 48) // 8)
    assert all(is_remembered(root) for root in roots)
    assert [one.index.shards[1].raw[0].basename for one in every] == ["2.jpg"] * 80


def test_inodes_that_arrays_can_not_hold_are_no_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_files, "_FACTS", [*sample_files._FACTS[:3], lambda status: status.st_ino + 2**63])
    check_same(root)


def test_a_damaged_listing_is_made_anew(root: Path, remembered: Path) -> None:
    check_same(root)
    (path,) = (remembered).rglob(f"{PRIVATE}/*.files")
    whole = path.read_bytes()
    draw = random.Random(1)
    damages = [whole[:-1], whole[: len(whole) // 2], b"", whole + b"x"]
    for _ in range(20):
        at = draw.randrange(len(whole))
        damages.append(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
    for damage in damages:
        path.write_bytes(damage)
        assert not is_remembered(root)
    check_same(root)
    assert path.read_bytes() == whole


WRONG: dict[str, Any] = {
    "files": [10**30, 0, -1, 1.5, "5", None, [], 4, 6, 10**9],
    "folders": [None, 1, [[]], [[1, 2, 3]]],
    "spec": [None, []],
    "byteorder": [None, "big", 10**30],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_listing_whose_header_makes_no_sense_is_made_anew(
    root: Path, remembered: Path, name: str, value: object
) -> None:
    check_same(root)
    (path,) = remembered.rglob(f"{PRIVATE}/*.files")
    whole = path.read_bytes()
    end = 32 + int.from_bytes(whole[24:32], "little")
    text = json.dumps({**json.loads(whole[32:end]), name: value}).encode()
    forge(path, len(text).to_bytes(8, "little") + text.ljust(-(-len(text) // 8) * 8) + whole[-(-end // 8) * 8 :])
    assert not is_remembered(root)
    check_same(root)
    assert path.read_bytes() == whole


def forge(path: Path, body: bytes) -> None:
    """Write a listing whose digest is right."""
    path.write_bytes(path.read_bytes()[:8] + xxhash.xxh3_128_digest(body) + body)


def test_a_listing_whose_arrays_make_no_sense_is_made_anew(root: Path, remembered: Path) -> None:
    count = len(check_same(root).index)
    (path,) = remembered.rglob(f"{PRIVATE}/*.files")
    whole = path.read_bytes()
    ends = -(-(32 + int.from_bytes(whole[24:32], "little")) // 8) * 8
    places = [ends + 8 * number for number in range(count)]
    wrong = [(place, value) for place in places for value in (-1, -(2**63), 2**62)]
    wrong += [(ends + 8 * count + 32 * number, -1) for number in range(count)]  # sizes
    for place, value in wrong:
        forge(path, whole[24:place] + value.to_bytes(8, "little", signed=True) + whole[place + 8 :])
        assert not is_remembered(root), (place, value)
    forge(path, whole[24:] + b"x")
    assert not is_remembered(root)
    forge(path, whole[24:])
    assert is_remembered(root)


def test_a_listing_that_can_not_be_kept_is_made_each_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", "/proc/none")
    check_same(root)
    check_same(root)


def test_opening_a_dataset_describes_few_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay(tmp_path / "many", *(f"{number // 100}/{number}.bin" for number in range(500)))
    made: list[int] = []
    describe = FileShards._get

    def counted(self: FileShards, number: int) -> ShardInfo:
        made.append(number)
        return describe(self, number)

    monkeypatch.setattr(FileShards, "_get", counted)
    for _ in range(2):
        made.clear()
        StreamingDataset(root, format="files", shuffle=True, batch_size=8)
        assert len(made) < 10


def test_other_settings_have_a_listing_of_their_own(root: Path) -> None:
    (root / "top.jpg").unlink()
    every = [open_unindexed(root, "jpeg", options={"decode": decode}) for decode in (False, True, False)]
    assert [one.index.distinct_shards[0].spec["columns"]["image"] for one in every] == ["bytes", "jpeg", "bytes"]
    with pytest.raises(ConfigError, match="nonsense"):
        open_unindexed(root, "jpeg", options={"nonsense": 1})


def _opened(root: Path) -> tuple[str, list[bytes]]:
    location = open_unindexed(root, "files")
    return location.index.fingerprint, read(location)


def _read(location: DatasetLocation) -> list[bytes]:
    return read(location)


@pytest.mark.processes
def test_many_processes_open_it_at_once(root: Path) -> None:
    slow = listed_slowly(root)
    with multiprocessing.get_context("fork").Pool(6) as pool:
        found = pool.map_async(_opened, [root] * 24).get(120)
    assert found == [(slow.index.fingerprint, read(slow))] * 24
    assert is_remembered(root)


def test_an_index_goes_to_other_processes(root: Path) -> None:
    location = check_same(root)
    for one in (location, open_unindexed(root, "files")):
        copy = pickle.loads(pickle.dumps(one))
        assert copy.index.shards == tuple(location.index.shards)
        assert copy.index.fingerprint == location.index.fingerprint
        assert read(copy) == read(location)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_read, (location,)).get(120) == read(location)
