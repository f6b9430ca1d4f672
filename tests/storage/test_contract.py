"""What every kind of store promises alike: local files, memory, S3, S3 through the helper process."""

from __future__ import annotations

import hashlib
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from s3server import Bucket
from stoker.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, StorageFullError
from stoker.storage import ObjectInfo, Store, open_store
from stoker.storage.fork_proxy import fork
from stoker.storage.fork_proxy.proxy import ProxyStore

MakeStore = Callable[[str], Store]


@pytest.fixture(
    params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3), pytest.param("helper", marks=pytest.mark.s3)]
)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Opens stores under one fresh root of each kind."""
    if request.param == "local":
        return lambda path: open_store(tmp_path / "root" / path)
    if request.param == "memory":
        name = secrets.token_hex(8)
        return lambda path: open_store(f"memory://{name}/{path}")
    bucket: Bucket = request.getfixturevalue("bucket")

    def s3(path: str) -> Store:
        store = open_store(f"{bucket.url}/{path}", bucket.storage_options)
        if request.param == "helper":
            store._made = (fork.generation(), ProxyStore(store.url, store))
        return store

    return s3


@pytest.fixture
def store(make: MakeStore) -> Store:
    return make("data")


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000, 17_000_000])
def test_what_was_put_comes_back(store: Store, tmp_path: Path, size: int) -> None:
    data = secrets.token_bytes(size)
    store.put("a/b.bin", data)
    assert store.get("a/b.bin", max_bytes=1 << 30) == data
    assert store.head("a/b.bin") == ObjectInfo("a/b.bin", size)
    target = tmp_path / "target"
    assert store.download("a/b.bin", target).size == size
    assert target.read_bytes() == data
    (tmp_path / "source").write_bytes(data)
    store.put_file("c.bin", tmp_path / "source")
    assert store.get("c.bin", max_bytes=1 << 30) == data


@pytest.mark.parametrize("size", [2000, 9_000_000])
def test_several_buffers_become_one_object(store: Store, size: int) -> None:
    data = secrets.token_bytes(size)
    array = np.frombuffer(data, np.uint8).reshape(-1, 2)
    store.put("a", [data, b"", bytearray(data), array.data])
    assert store.get("a", max_bytes=1 << 30) == data * 3
    store.put("b", array.data)
    assert store.get("b", max_bytes=1 << 30) == data
    store.put("c", [])
    assert store.get("c", max_bytes=1 << 30) == b""


@pytest.mark.parametrize("chunks", [0, 3, 20])
def test_a_stream_of_chunks_becomes_one_object(store: Store, chunks: int) -> None:
    buffer = bytearray(1 << 20)

    def making() -> Iterator[memoryview]:
        for number in range(chunks):
            buffer[:] = bytes([number]) * len(buffer)  # written over, as those who make data do
            yield memoryview(buffer)

    store.put_stream("a/b", making)
    assert store.get("a/b", max_bytes=1 << 30) == b"".join(bytes([number]) * len(buffer) for number in range(chunks))


@pytest.mark.parametrize(
    ("chunks", "error"),
    [(0, ZeroDivisionError()), (1, FileNotFoundError("mine")), (20, StorageError("mine")), (20, KeyboardInterrupt())],
)
def test_a_stream_that_fails_leaves_nothing_and_its_error_is_the_callers(
    store: Store, tmp_path: Path, no_debris: None, request: pytest.FixtureRequest, chunks: int, error: BaseException
) -> None:
    store.put("a/b", b"before")

    def failing() -> Iterator[bytes]:
        for _ in range(chunks):
            yield bytes(1 << 20)
        raise error

    for key in ("a/b", "a/c"):
        with pytest.raises(type(error)) as caught:
            store.put_stream(key, failing)
        assert caught.value is error
    assert [info.key for info in store.list()] == ["a/b"]
    assert store.get("a/b", max_bytes=1 << 30) == b"before"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in ([], ["b"])
    if "bucket" in request.fixturenames:
        bucket: Bucket = request.getfixturevalue("bucket")
        assert not bucket.server.client().list_multipart_uploads(Bucket=bucket.name).get("Uploads")


def test_an_error_of_the_store_in_the_middle_of_a_stream_is_the_stores(tmp_path: Path) -> None:
    (tmp_path / "folder" / "key").mkdir(parents=True)
    with pytest.raises(StorageError, match="folder/key"):
        open_store(tmp_path / "folder").put_stream("key", lambda: iter([b"x"]))


@pytest.mark.parametrize("data", ["text", 3, [1, 2], None, memoryview(b"abcdef")[::2]])
def test_what_is_not_bytes_in_one_piece_is_refused(store: Store, data: object) -> None:
    with pytest.raises(ConfigError, match="can not be put"):
        store.put("a", data)  # type: ignore[arg-type]
    assert not store.exists("a")


def test_a_put_replaces(store: Store) -> None:
    store.put("a", b"old and longer")
    store.put("a", b"new")
    assert store.get("a", max_bytes=1 << 30) == b"new"
    assert [info.key for info in store.list()] == ["a"]


def test_a_download_replaces_what_the_file_held(store: Store, tmp_path: Path) -> None:
    store.put("a", b"short")
    target = tmp_path / "target"
    target.write_bytes(b"x" * 100_000)
    assert store.download("a", target).size == 5
    assert target.read_bytes() == b"short"


def test_ranges_are_exact_or_an_error(store: Store) -> None:
    data = secrets.token_bytes(5000)
    store.put("a", data)
    assert store.get_range("a", 10, 20) == data[10:20]
    assert store.get_range("a", 7, 7) == b""
    parts = store.get_ranges("a", [0, 4000, 4000, 3], [1, 5000, 4000, 2000])
    assert [bytes(part) for part in parts] == [data[0:1], data[4000:], b"", data[3:2000]]
    assert store.get_ranges("a", [], []) == []
    for start, end in ((4999, 5001), (6000, 7000)):
        with pytest.raises(StorageError, match="data/a") as caught:
            store.get_range("a", start, end)
        assert caught.value.url == store.url_of("a")
    for starts, ends in (([5], [4]), ([-1], [4]), ([1, 2], [3])):
        with pytest.raises(ConfigError):
            store.get_ranges("a", starts, ends)


def test_objects_larger_than_expected_are_refused(store: Store, tmp_path: Path) -> None:
    store.put("a", b"12345")
    assert store.get("a", max_bytes=5) == b"12345"
    assert store.download("a", tmp_path / "t", max_bytes=5).size == 5
    with pytest.raises(StorageError, match=r"5 bytes, but at most 4"):
        store.get("a", max_bytes=4)
    with pytest.raises(StorageError, match=r"5 bytes, but at most 4"):
        store.download("a", tmp_path / "t", max_bytes=4)


def test_listing_gives_keys_and_sizes_of_whole_folders(store: Store, make: MakeStore) -> None:
    keys = ["a/x", "a/y/z", "ab/x", "b"]
    for number, key in enumerate(keys):
        store.put(key, b"x" * number)
    make("data2").put("other", b"")
    assert list(store.list()) == [ObjectInfo(key, number) for number, key in enumerate(keys)]
    assert [info.key for info in store.list("a")] == ["a/x", "a/y/z"]
    assert [info.key for info in store.list("a/")] == ["a/x", "a/y/z"]
    assert [info.key for info in store.list("a/y")] == ["a/y/z"]
    assert list(store.list("nothing")) == []
    assert list(make("nothing").list()) == []


@pytest.mark.parametrize(
    "key", ["a b/c+d", "é/日本.bin", "a%20b", "a?b#c&d=e", "it's (1)!*~.mds.zst", "..a/b..", "a:b"]
)
def test_odd_keys_are_just_names(store: Store, key: str, tmp_path: Path) -> None:
    store.put(key, key.encode())
    assert store.get(key, max_bytes=1 << 30) == key.encode()
    assert store.exists(key)
    assert [info.key for info in store.list()] == [key]
    assert store.download(key, tmp_path / "t").size == len(key.encode())
    store.delete(key)
    assert list(store.list()) == []


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\0b"])
def test_keys_that_leave_the_root_are_refused_everywhere(store: Store, key: str, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.get(key, max_bytes=1 << 30),
        lambda: store.get_range(key, 0, 1),
        lambda: store.get_ranges(key, [0], [1]),
        lambda: store.download(key, tmp_path / "t"),
        lambda: store.put(key, b""),
        lambda: store.put_file(key, tmp_path),
        lambda: store.head(key),
        lambda: store.exists(key),
        lambda: store.delete(key),
    ]
    for call in calls:
        with pytest.raises(ConfigError):
            call()
    if key not in ("", "a/"):
        with pytest.raises(ConfigError):
            list(store.list(key))


def test_a_missing_object_is_named(store: Store, tmp_path: Path) -> None:
    store.put("there", b"x")
    calls: list[Callable[[], object]] = [
        lambda: store.get("a/nope", max_bytes=1 << 30),
        lambda: store.get_range("a/nope", 0, 1),
        lambda: store.get_ranges("a/nope", [0, 5], [1, 6]),
        lambda: store.download("a/nope", tmp_path / "t"),
        lambda: store.head("a/nope"),
        lambda: store.get("a", max_bytes=1 << 30),
    ]
    for call in calls:
        with pytest.raises(ObjectNotFoundError) as caught:
            call()
        assert caught.value.url is not None
        assert caught.value.url.startswith(store.url)
        assert str(caught.value.url) in str(caught.value)
    assert not store.exists("a/nope")
    assert store.exists("there")
    store.delete("a/nope")


def test_a_folder_is_not_an_object(store: Store) -> None:
    store.put("a/b", b"x")
    assert not store.exists("a")
    with pytest.raises(ObjectNotFoundError):
        store.head("a")


def test_local_faults_of_transfers_name_the_local_file(store: Store, tmp_path: Path) -> None:
    store.put("a", b"x" * 100)
    with pytest.raises(ObjectNotFoundError, match="no/target"):
        store.download("a", tmp_path / "no" / "target")
    with pytest.raises(ObjectNotFoundError, match="no-source"):
        store.put_file("b", tmp_path / "no-source")
    assert not store.exists("b")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_called_so(store: Store) -> None:
    store.put("a", b"x" * 100)
    with pytest.raises(StorageFullError, match="/dev/full"):
        store.download("a", Path("/dev/full"))


def test_many_threads_share_a_store(store: Store, tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> bool:
        barrier.wait(30)
        data = bytes([number]) * (1000 + number)
        store.put(f"k/{number}", data)
        size = store.download(f"k/{number}", tmp_path / str(number)).size
        return store.get(f"k/{number}", max_bytes=1 << 30) == data and size == len(data)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(list(store.list("k"))) == 8


def test_a_pickled_store_is_the_same_place(store: Store) -> None:
    store.put("a", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert again.get("a", max_bytes=1 << 30) == b"x"


def test_errors_survive_pickling() -> None:
    for kind in (StorageError, ObjectNotFoundError, AccessDeniedError, StorageFullError):
        error = pickle.loads(pickle.dumps(kind("what and where", url="s3://b/x")))
        assert type(error) is kind
        assert (str(error), error.url) == ("what and where", "s3://b/x")


def test_versions_tell_an_object_from_its_replacement(store: Store) -> None:
    store.put("a", b"0123456789")
    first = store.head("a").version
    assert first == next(store.list()).version
    assert store.get_ranges("a", [2, 7], [4, 9], version=first) == [b"23", b"78"]
    if not first:
        return  # a store that tells none
    time.sleep(0.02)  # the time of a file's last change may be coarse
    store.put("a", b"abcdefghij")
    second = store.head("a").version
    assert second != first
    assert store.get_ranges("a", [2], [4], version=second) == [b"cd"]
    with pytest.raises(StorageError, match="a"):
        store.get_ranges("a", [2], [4], version=first)


@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 3), (7, 3_000_000), (2_999_999, 3_000_000)])
def test_a_range_is_downloaded_to_its_place_in_a_file(store: Store, tmp_path: Path, start: int, end: int) -> None:
    data = np.random.default_rng(0).bytes(3_000_000)
    store.put("a", data)
    path = tmp_path / "target"
    path.write_bytes(b"x" * 5)
    store.download_range("a", path, start, end, at=2)
    found = path.read_bytes()
    assert found[:2] == b"xx"
    assert found[2 : 2 + end - start] == data[start:end]
    assert found[2 + end - start :] == b"xxx"[end - start :]
    with pytest.raises(StorageError):
        store.download_range("a", path, 10, 3_000_001)
    with pytest.raises(ObjectNotFoundError):
        store.download_range("b", path, 0, 1)


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_an_object_is_read_into_memory(store: Store, size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    store.put("a", data)
    into = bytearray(size)
    info = store.head("a")
    told = store.read_into("a", memoryview(into))
    assert (told, told.version, told.modified) == (info, info.version, info.modified)
    assert into == data
    for start, end in ((0, size), (size // 3, size // 2), (size, size)):
        part = bytearray(end - start)
        told = store.read_into("a", memoryview(part), start=start, version=info.version)
        assert (told, told.version, told.modified) == (info, info.version, info.modified)
        assert part == data[start:end]
    told = store.read_into("a", memoryview(bytearray(size)), new_hash=hashlib.sha1)
    assert told.digest == hashlib.sha1(data).hexdigest()
    told = store.read_into("a", memoryview(bytearray(size // 2)), start=size // 3, new_hash=hashlib.sha1)
    assert size // 2 == 0 or told.digest == hashlib.sha1(data[size // 3 : size // 3 + size // 2]).hexdigest()
    # One of another size is not read.
    for other in (size + 1, size - 1):
        if other >= 0:
            into = bytearray(b"x" * other)
            assert store.read_into("a", memoryview(into)).size == size
            assert set(into) <= {ord("x")}
    with pytest.raises(StorageError):
        store.read_into("a", memoryview(bytearray(2)), start=size)
    for begin in (None, 0):
        with pytest.raises(ObjectNotFoundError):
            store.read_into("b", memoryview(bytearray(2)), start=begin)
    with pytest.raises(ConfigError):
        store.read_into("../a", memoryview(into))


def test_a_version_that_is_gone_is_not_read_into_memory(store: Store) -> None:
    store.put("a", b"0123456789")
    first = store.head("a").version
    if not first:
        return  # a store that tells none
    time.sleep(0.02)
    store.put("a", b"abcdefghij")
    with pytest.raises(StorageError, match="a"):
        store.read_into("a", memoryview(bytearray(4)), start=2, version=first)
