"""Tests of a store: what is put comes back whole or in parts, what is missing is named, and a version is what it was."""

from __future__ import annotations

import hashlib
import pickle
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage import ObjectInfo, Store
from stoker.testing.values import raised, undefined

_MOST: Final = 1 << 30
# Of the largest, uploads and downloads have several parts.
_SIZES: Final = (0, 1, 1000, 3_000_000, 17_000_000)
_ODD_KEYS: Final = ("a b/c+d", "é/日本.bin", "a%20b", "a?b#c&d=e", "it's (1)!*~.mds.zst", "..a/b..", "a:b")
_REFUSED_KEYS: Final = ("", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\0b")


class ReadOnlyStoreTests:
    """Tests of a store that is read.

    A subclass says how to open it, in :meth:`open`, and how objects come there, in :meth:`fill`.
    """

    def open(self, path: str) -> Store:  # noqa: ARG002 - a subclass's
        """The store to test, below a path that each test chooses anew."""
        raise undefined(self, "open(path), which opens a store below the path")

    def fill(self, path: str, objects: Mapping[str, bytes]) -> None:
        """Have objects lie in the store below a path. Default: the store puts them."""
        store = self.open(path)
        for key, data in objects.items():
            store.put(key, data)

    def filled(self, objects: Mapping[str, bytes]) -> Store:
        """A store with these objects alone."""
        path = f"{secrets.token_hex(8)}/data"
        self.fill(path, objects)
        return self.open(path)

    def test_objects_of_any_size_are_read(self) -> None:
        for size in _SIZES:
            data = secrets.token_bytes(size)
            store = self.filled({"a/b.bin": data})
            assert store.get("a/b.bin", max_bytes=_MOST) == data
            assert store.head("a/b.bin") == ObjectInfo("a/b.bin", size)
            arrived, about = store.request("a/b.bin", max_bytes=_MOST)()
            assert (bytes(arrived), about) == (data, ObjectInfo("a/b.bin", size))
            with _folder() as folder:
                target = folder / "target"
                target.write_bytes(b"x" * 100)
                info = store.download("a/b.bin", target, new_hash=hashlib.sha256)
                assert (info.size, info.digest) == (size, hashlib.sha256(data).hexdigest())
                assert target.read_bytes() == data, "a download replaces what the file held"

    def test_ranges_are_exact_or_an_error(self) -> None:
        data = secrets.token_bytes(5000)
        store = self.filled({"a": data})
        assert store.get_range("a", 10, 20) == data[10:20]
        assert store.get_range("a", 7, 7) == b""
        parts = store.get_ranges("a", [0, 4000, 4000, 3], [1, 5000, 4000, 2000])
        assert [bytes(part) for part in parts] == [data[0:1], data[4000:], b"", data[3:2000]]
        assert store.get_ranges("a", [], []) == []
        for start, end in ((4999, 5001), (6000, 7000)):
            error = raised(StorageError, store.get_range, "a", start, end)
            assert error.url == store.url_of("a")
        for starts, ends in (([5], [4]), ([-1], [4]), ([1, 2], [3])):
            raised(ConfigError, store.get_ranges, "a", starts, ends)

    def test_a_range_is_downloaded_to_its_offset_in_a_file(self) -> None:
        data = secrets.token_bytes(3_000_000)
        store = self.filled({"a": data})
        with _folder() as folder:
            path = folder / "target"
            for start, end in ((0, 10), (3, 3), (7, 3_000_000), (2_999_999, 3_000_000)):
                path.write_bytes(b"x" * 5)
                store.download_range("a", path, start, end, at=2)
                rest = b"xxx"[end - start :]
                assert path.read_bytes() == b"xx" + data[start:end] + rest, f"bytes {start} to {end}"
            raised(StorageError, lambda: store.download_range("a", path, 10, 3_000_001))
            raised(ObjectNotFoundError, lambda: store.download_range("b", path, 0, 1))

    def test_an_object_is_read_into_memory(self) -> None:
        for size in (0, 1, 3_000_000):
            data = secrets.token_bytes(size)
            store = self.filled({"a": data})
            info = store.head("a")
            for start, end in ((None, size), (0, size), (size // 3, size // 2), (size, size)):
                into = bytearray(end - (start or 0))
                told = store.read_into("a", memoryview(into), start=start, version=info.version)
                assert (told, told.version, told.modified) == (info, info.version, info.modified)
                assert into == data[start:end]
            told = store.read_into("a", memoryview(bytearray(size)), new_hash=hashlib.sha256)
            assert told.digest == hashlib.sha256(data).hexdigest()
            for other in filter(lambda other: other >= 0, (size + 1, size - 1)):
                into = bytearray(b"x" * other)
                assert store.read_into("a", memoryview(into)).size == size
                assert set(into) <= {ord("x")}, "an object of another size was read"
            raised(StorageError, store.read_into, "a", memoryview(bytearray(2)), start=size)

    def test_objects_larger_than_expected_are_refused(self) -> None:
        store = self.filled({"a": b"12345"})
        with _folder() as folder:
            assert store.get("a", max_bytes=5) == b"12345"
            assert store.download("a", folder / "t", max_bytes=5).size == 5
            for call in (
                lambda: store.get("a", max_bytes=4),
                lambda: store.request("a", max_bytes=4),
                lambda: store.download("a", folder / "t", max_bytes=4),
            ):
                assert "5 bytes, but at most 4" in str(raised(StorageError, call))

    def test_a_missing_object_is_named(self) -> None:
        store = self.filled({"there": b"x"})
        with _folder() as folder:
            for call in (
                lambda: store.get("a/nope", max_bytes=_MOST),
                lambda: store.request("a/nope", max_bytes=_MOST),
                lambda: store.get_range("a/nope", 0, 1),
                lambda: store.get_ranges("a/nope", [0, 5], [1, 6]),
                lambda: store.read_into("a/nope", memoryview(bytearray(2))),
                lambda: store.download("a/nope", folder / "t"),
                lambda: store.head("a/nope"),
                lambda: store.get("a", max_bytes=_MOST),
            ):
                error = raised(ObjectNotFoundError, call)
                assert error.url is not None, "the error has no url"
                assert error.url.startswith(store.url), f"the error names {error.url}"
                assert error.url in str(error), "the message does not name the URL"
        assert not store.exists("a/nope")
        assert store.exists("there")

    def test_keys_that_leave_the_root_are_refused(self) -> None:
        store = self.filled({"there": b"x"})
        with _folder() as folder:
            for key in _REFUSED_KEYS:
                for call in self._calls(store, key, folder):
                    raised(ConfigError, call)

    def _calls(self, store: Store, key: str, folder: Path) -> Iterable[Callable[[], object]]:
        """Calls of all methods with a key."""
        yield lambda: store.get(key, max_bytes=_MOST)
        yield lambda: store.get_range(key, 0, 1)
        yield lambda: store.get_ranges(key, [0], [1])
        yield lambda: store.read_into(key, memoryview(bytearray(1)))
        yield lambda: store.download(key, folder / "t")
        yield lambda: store.download_range(key, folder / "t", 0, 1)
        yield lambda: store.head(key)
        yield lambda: store.exists(key)

    def test_local_faults_of_downloads_name_the_local_file(self) -> None:
        store = self.filled({"a": b"x" * 100})
        with _folder() as folder:
            error = raised(ObjectNotFoundError, lambda: store.download("a", folder / "no" / "target"))
            assert "no/target" in str(error)
        if Path("/dev/full").exists():
            assert "/dev/full" in str(raised(StorageError, lambda: store.download("a", Path("/dev/full"))))

    def test_a_pickled_store_has_the_same_url(self) -> None:
        store = self.filled({"a": b"x"})
        again = pickle.loads(pickle.dumps(store))  # noqa: S301 - of our own
        assert again.url == store.url
        assert again.get("a", max_bytes=_MOST) == b"x"

    def test_versions_tell_an_object_from_its_replacement(self) -> None:
        path = f"{secrets.token_hex(8)}/data"
        self.fill(path, {"a": b"0123456789"})
        store = self.open(path)
        first = store.head("a").version
        assert [bytes(part) for part in store.get_ranges("a", [2, 7], [4, 9], version=first)] == [b"23", b"78"]
        if not first:
            return  # a store that tells none
        time.sleep(0.02)  # the time of a file's last change may be coarse
        self.fill(path, {"a": b"abcdefghij"})
        second = store.head("a").version
        assert second != first, "the version stayed"
        assert [bytes(part) for part in store.get_ranges("a", [2], [4], version=second)] == [b"cd"]
        raised(StorageError, lambda: store.get_ranges("a", [2], [4], version=first))
        raised(StorageError, lambda: store.read_into("a", memoryview(bytearray(4)), start=2, version=first))


class StoreTests(ReadOnlyStoreTests):
    """Tests of a store. A subclass says how to open it, in :meth:`open`. Objects that the tests write stay.

    >>> from stoker.storage import open_store
    >>> class TestMemory(StoreTests):
    ...     def open(self, path):
    ...         return open_store(f"memory://tests/{path}")
    >>> TestMemory().test_a_put_replaces()
    """

    def fresh(self) -> Store:
        """An empty store."""
        return self.open(f"{secrets.token_hex(8)}/data")

    def test_several_buffers_become_one_object(self) -> None:
        for size in (2000, 9_000_000):
            store, data = self.fresh(), secrets.token_bytes(size)
            store.put("a", [data, b"", bytearray(data), memoryview(data)])
            assert store.get("a", max_bytes=_MOST) == data * 3
            store.put("b", memoryview(data).cast("B", (size // 2, 2)))
            assert store.get("b", max_bytes=_MOST) == data
            store.put("c", [])
            assert store.get("c", max_bytes=_MOST) == b""

    def test_what_is_not_bytes_in_one_piece_is_refused(self) -> None:
        store = self.fresh()
        wrong: list[Any] = ["text", 3, [1, 2], None, memoryview(b"abcdef")[::2]]
        for data in wrong:
            error = raised(ConfigError, store.put, "a", data)
            assert "can not be put" in str(error)
        assert not store.exists("a")

    def test_a_file_becomes_an_object(self) -> None:
        store = self.fresh()
        with _folder() as folder:
            for size in _SIZES:
                (folder / "source").write_bytes(data := secrets.token_bytes(size))
                store.put_file("c.bin", folder / "source")
                assert store.get("c.bin", max_bytes=_MOST) == data
            error = raised(ObjectNotFoundError, lambda: store.put_file("b", folder / "no-source"))
            assert "no-source" in str(error)
        assert not store.exists("b")

    def test_a_stream_of_chunks_becomes_one_object(self) -> None:
        buffer = bytearray(1 << 20)

        def chunks(count: int) -> Iterator[memoryview]:
            for number in range(count):
                buffer[:] = bytes([number]) * len(buffer)  # written over, as those who make data do
                yield memoryview(buffer)

        for count in (0, 3, 20):
            store = self.fresh()
            store.put_stream("a/b", partial(chunks, count))
            data = b"".join(bytes([number]) * len(buffer) for number in range(count))
            assert store.get("a/b", max_bytes=_MOST) == data

    def test_a_stream_that_fails_leaves_nothing_and_its_error_is_the_callers(self) -> None:
        def chunks(count: int, error: BaseException) -> Iterator[bytes]:
            for _ in range(count):
                yield bytes(1 << 20)
            raise error

        store = self.fresh()
        store.put("a/b", b"before")
        for count, error in (
            (0, ZeroDivisionError()),
            (1, FileNotFoundError("mine")),
            (20, StorageError("mine")),
            (20, KeyboardInterrupt()),
        ):
            for key in ("a/b", "a/c"):
                came = raised(type(error), store.put_stream, key, partial(chunks, count, error))
                assert came is error, f"{came!r} in place of the caller's error"
        assert [info.key for info in store.list()] == ["a/b"]
        assert store.get("a/b", max_bytes=_MOST) == b"before"

    def test_a_put_replaces(self) -> None:
        store = self.fresh()
        store.put("a", b"old and longer")
        store.put("a", b"new")
        assert store.get("a", max_bytes=_MOST) == b"new"
        assert [info.key for info in store.list()] == ["a"]

    def test_listing_gives_keys_and_sizes_of_whole_folders(self) -> None:
        root = secrets.token_hex(8)
        keys = ["a/x", "a/y/z", "ab/x", "b"]
        self.fill(f"{root}/data", {key: b"x" * number for number, key in enumerate(keys)})
        self.fill(f"{root}/data2", {"other": b""})
        store = self.open(f"{root}/data")
        assert list(store.list()) == [ObjectInfo(key, number) for number, key in enumerate(keys)]
        for prefix, expected in (
            ("a", ["a/x", "a/y/z"]),
            ("a/", ["a/x", "a/y/z"]),
            ("a/y", ["a/y/z"]),
            ("nothing", []),
        ):
            assert [info.key for info in store.list(prefix)] == expected, f"below {prefix!r}"
        assert list(self.open(f"{root}/nothing").list()) == []
        for name in ("x", "a", "none"):
            assert sorted(store.keys_named(name)) == [key for key in keys if key.rpartition("/")[2] == name]
        assert next(iter(store.list())).version == store.head("a/x").version

    def test_odd_keys_are_just_names(self) -> None:
        for key in _ODD_KEYS:
            store = self.filled({key: key.encode()})
            assert store.get(key, max_bytes=_MOST) == key.encode()
            assert store.exists(key)
            assert [info.key for info in store.list()] == [key]
            with _folder() as folder:
                assert store.download(key, folder / "t").size == len(key.encode())
            store.delete(key)
            assert list(store.list()) == []

    def test_what_is_deleted_is_gone(self) -> None:
        store = self.filled({"a": b"x", "b": b"y"})
        store.delete("a")
        store.delete("a")  # which is not an error
        store.delete("c/d")
        assert not store.exists("a")
        assert [info.key for info in store.list()] == ["b"]

    def test_a_folder_is_not_an_object(self) -> None:
        store = self.filled({"a/b": b"x"})
        assert not store.exists("a")
        raised(ObjectNotFoundError, lambda: store.head("a"))

    def test_many_threads_share_a_store(self) -> None:
        store = self.fresh()

        def work(number: int) -> bool:
            data = bytes([number]) * (1000 + number)
            store.put(f"k/{number}", data)
            with _folder() as folder:
                size = store.download(f"k/{number}", folder / "t").size
            return store.get(f"k/{number}", max_bytes=_MOST) == data and size == len(data)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(16)))
        assert len(list(store.list("k"))) == 16

    def _calls(self, store: Store, key: str, folder: Path) -> Iterable[Callable[[], object]]:
        yield from super()._calls(store, key, folder)
        yield lambda: store.put(key, b"")
        yield lambda: store.put_file(key, folder)
        yield lambda: store.put_stream(key, lambda: iter([b""]))
        yield lambda: store.delete(key)
        if key not in ("", "a/"):
            yield lambda: list(store.list(key))


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stoker-testing-") as folder:
        yield Path(folder)
