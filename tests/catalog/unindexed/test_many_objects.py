"""Very many objects, each a sample, are arrays: they mean what a description of each means, and are kept and shared."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from listed_store import content_of, listed_store, name_of
from stoker import StreamingDataset
from stoker.catalog.unindexed import sample_files as module
from stoker.catalog.unindexed.sample_files import ListedFiles, many_objects
from stoker.concurrency.shared.bytes import SharedBytes
from stoker.errors import ConfigError, StorageTimeoutError
from stoker.formats.common.file_shards import whole_file
from stoker.formats.registry import get_format
from stoker.index.file_index import ObjectShards
from stoker.storage import ObjectInfo
from stoker.storage.store import Store

COUNT = 2500
SPEC = {"columns": {"data": "bytes", "path": "str"}}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What are very many objects, so that a test has them."""
    monkeypatch.setattr(module, "MANY", 100)
    monkeypatch.setattr(module, "_PIECE", 70)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "caches"))


class Listed:
    """A store with these objects, as far as opening them asks."""

    url = "s3://bucket/data"

    def __init__(self, objects: list[ObjectInfo] | Exception) -> None:
        self.objects = objects

    def list(self) -> Iterator[ObjectInfo]:
        if isinstance(self.objects, Exception):
            raise self.objects
        yield from self.objects


def objects(count: int = 300, **changed: str) -> list[ObjectInfo]:
    """Objects ``0/000.jpg`` and so on; ``changed`` says of numbers in hex which version each has."""
    versions = {int(name[1:]): version for name, version in changed.items()}
    return [ObjectInfo(f"{n // 50}/{n:03}.jpg", n, versions.get(n, f"v{n}")) for n in range(count)]


def opened(given: Any, folder: Path, kind: str = "images") -> Any:
    store: Any = Listed(given)
    return many_objects(get_format(kind), store, {}, folder, "name")


def open_all(options: dict[str, str], local: Path) -> StreamingDataset:
    return StreamingDataset("s3://bucket", local=local, format="files", storage_options=options, batch_size=64)


@pytest.mark.processes
def test_arrays_mean_what_a_description_of_each_means(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: None
) -> None:
    with listed_store(COUNT) as options:
        many = open_all(options, tmp_path / "many")
        monkeypatch.setattr(module, "MANY", 10 * COUNT)
        each = open_all(options, tmp_path / "each")
        (one,), (other,) = many._opened.streams.locations, each._opened.streams.locations
        assert isinstance(one.index.shards, ObjectShards)
        assert not isinstance(other.index.shards, ObjectShards)
        assert list(one.index.shards) == list(other.index.shards) == [one.index.shards[n] for n in range(COUNT)]
        assert one.about == other.about
        assert (one.index.total_bytes, one.index.largest_shard) == (other.index.total_bytes, other.index.largest_shard)
        assert one.index.columns == other.index.columns
        found = [
            (path, data) for batch in many.batches() for path, data in zip(batch["path"], batch["data"], strict=True)
        ]
    assert found == [(name_of(number), content_of(number)) for number in range(COUNT)]
    names = {path.relative_to(one.cache.root).parts[0] for path in one.cache.root.rglob("*.bin")}
    assert names == {"000000", "000001", "000002"}


def test_a_second_start_maps_what_the_first_one_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: None
) -> None:
    first = opened(objects(), tmp_path)
    monkeypatch.setattr(module, "keep_side_file", lambda *_: pytest.fail("it is there"))
    again = opened(objects(), tmp_path)
    assert isinstance(first, ListedFiles)
    assert isinstance(again, ListedFiles)
    assert list(again.index.shards) == list(first.index.shards)
    assert (again.listed, again.index.fingerprint) == (first.listed, first.index.fingerprint)
    assert not [*again.replaced]


def test_where_the_store_can_not_be_reached_the_last_listing_serves(tmp_path: Path, few: None) -> None:
    late = StorageTimeoutError("no answer", url="s3://bucket/data")
    with pytest.raises(StorageTimeoutError):
        opened(late, tmp_path)
    first = opened(objects(), tmp_path)
    assert list(opened(late, tmp_path).index.shards) == list(first.index.shards)


@pytest.mark.processes
def test_few_objects_are_those_of_the_last_start_where_the_store_can_not_be_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: None
) -> None:
    def unreachable(store: Store, *_: Any) -> Iterator[ObjectInfo]:
        raise StorageTimeoutError("no answer", url=store.url)

    with listed_store(50) as options:
        first = open_all(options, tmp_path / "cache")
        monkeypatch.setattr(Store, "list", unreachable)
        again = open_all(options, tmp_path / "cache")
        assert [again[number]["data"] for number in range(50)] == [first[number]["data"] for number in range(50)]
        with pytest.raises(StorageTimeoutError):
            open_all(options, tmp_path / "another")


def test_what_was_replaced_or_is_gone_is_told(tmp_path: Path, few: None) -> None:
    opened(objects(), tmp_path)
    after = opened([*objects(299, n7="new")[1:], ObjectInfo("9/a.jpg", 1, "v")], tmp_path)
    assert [(one.key, one.version) for one in after.replaced] == [
        ("0/000.jpg", "v0"),
        ("0/007.jpg", "v7"),
        ("5/299.jpg", "v299"),
    ]
    assert after.index.samples == 299


@pytest.mark.processes
def test_objects_that_were_replaced_leave_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: None) -> None:
    with listed_store(200) as options:
        dataset = open_all(options, tmp_path / "cache")
        for _ in dataset.batches():
            pass
        (location,) = dataset._opened.streams.locations
        assert len([*location.cache.root.rglob("*.bin")]) == 200
        listing = Store.list
        monkeypatch.setattr(Store, "list", lambda self, *args: (one for one in listing(self, *args) if one.size != -1))
        gone = list(listing(location.cache.store))[:150]  # type: ignore[arg-type]
        monkeypatch.setattr(Store, "list", lambda *_: iter(gone))
        open_all(options, tmp_path / "cache")
        left = {path.relative_to(location.cache.root).as_posix() for path in location.cache.root.rglob("*.bin")}
    assert left == {whole_file(one, in_place=False).basename for one in gone}


def test_what_needs_a_closer_look_is_left_to_others(tmp_path: Path, few: None) -> None:
    assert opened(objects(99), tmp_path) == objects(99)  # few
    assert opened(objects()[::-1], tmp_path) is None  # not in order
    assert opened([*objects(), ObjectInfo("9/_stoker_unfinished.json", 1)], tmp_path) is None
    assert opened([*objects(), ObjectInfo("9/a\\b.jpg", 1)], tmp_path) is None
    assert opened([*objects(), ObjectInfo("9/x.png", 1)], tmp_path, "jpeg") is None  # another image: a warning
    assert opened([ObjectInfo(f"{n:03}.txt", 1) for n in range(200)], tmp_path) is None  # none of the format
    listed = opened(
        [ObjectInfo("_hidden/a.jpg", 1), *objects(), ObjectInfo("9/notes.txt", 1), ObjectInfo("index.json", 1)],
        tmp_path,
    )
    assert listed.index.samples == 300
    with pytest.raises(ConfigError, match="train"):
        opened([ObjectInfo(f"{name}/{n:03}.jpg", 1) for name in ("test", "train") for n in range(100)], tmp_path)


def test_a_damaged_listing_is_made_anew(tmp_path: Path, few: None) -> None:
    first = opened(objects(), tmp_path)
    path = tmp_path / ".stoker" / "name"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert list(opened(objects(), tmp_path).index.shards) == list(first.index.shards)
    assert path.read_bytes() != bytes(data)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
            st.text("ab", max_size=3),
            st.integers(0, 1 << 40),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 5),
)
def test_packed_objects_are_the_same_objects(given: list[tuple[str, str, int]], piece: int) -> None:
    each = [ObjectInfo(key, size, version) for key, version, size in given]
    pieces = [each[at : at + piece] for at in range(0, len(each), piece)]
    texts = ["".join(f"{one.key}\0{one.version}\0" for one in some).encode() for some in pieces]
    sizes = [np.array([one.size for one in some]) for some in pieces]
    shards = ObjectShards(SharedBytes.of(ObjectShards.pack(texts, sizes)), 0, len(each), "files", SPEC)
    for found in (shards, pickle.loads(pickle.dumps(shards))):
        assert [*found.objects()] == [(one.key, one.size, one.version) for one in each]
        assert [shard.raw[0] for shard in found] == [whole_file(one, in_place=False) for one in each]
    with pytest.raises(ValueError, match="go together"):
        ObjectShards(SharedBytes(bytes(shards._given[0].view) + b"x"), 0, len(each), "files", SPEC)
