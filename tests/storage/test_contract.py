"""What every kind of store promises alike: local files, memory, S3, S3 through the helper process, HTTP."""

from __future__ import annotations

import hashlib
import pickle
import secrets
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from s3server import Bucket
from stoker.errors import AccessDeniedError, ObjectNotFoundError, StorageError, StorageFullError
from stoker.storage import Store, open_store
from stoker.storage.fork_proxy import ProxyStore
from stoker.testing import ReadOnlyStoreTests, StoreTests


class TestLocal(StoreTests):
    """Local files."""

    root: Path

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> Iterator[None]:
        self.root = tmp_path / "root"
        yield
        left = [path.name for path in tmp_path.rglob("*") if path.name.startswith(".stoker")]
        assert not left, "files that were being written"

    def open(self, path: str) -> Store:
        return open_store(self.root / path)

    def test_an_error_of_the_store_in_the_middle_of_a_stream_is_the_stores(self) -> None:
        (self.root / "folder" / "key").mkdir(parents=True)
        with pytest.raises(StorageError, match="folder/key"):
            self.open("folder").put_stream("key", lambda: iter([b"x"]))


class TestMemory(StoreTests):
    """This process's memory."""

    def open(self, path: str) -> Store:
        return open_store(f"memory://contract/{path}")


@pytest.mark.s3
class TestS3(StoreTests):
    """An S3 server."""

    bucket: Bucket

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: Bucket, no_debris: None) -> Iterator[None]:
        self.bucket = bucket
        yield
        left = bucket.server.client().list_multipart_uploads(Bucket=bucket.name).get("Uploads")
        assert not left, "parts of uploads"

    def open(self, path: str) -> Store:
        return open_store(f"{self.bucket.url}/{path}", self.bucket.storage_options)


class TestHelper(TestS3):
    """An S3 server through the process that serves forks of this one."""

    def open(self, path: str) -> Store:
        store = super().open(path)
        store._client.backend = ProxyStore(store.url, store, store.stall_timeout)
        return store


class _Objects(BaseHTTPRequestHandler):
    """Serves objects of memory, with ranges and ETags."""

    protocol_version = "HTTP/1.1"
    objects: Mapping[str, bytes]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        data = self.objects.get(unquote(self.path).strip("/"))
        etag = "" if data is None else f'"{hashlib.sha1(data).hexdigest()}"'
        if data is None or self.headers.get("If-Match", etag) != etag:
            self.send_response(404 if data is None else 412)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked, size = self.headers.get("Range"), len(data)
        if asked is None:
            self.send_response(200)
        else:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else size, size)
            if start >= size:
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = data[start:end]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", etag)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.processes
class TestHTTP(ReadOnlyStoreTests):
    """An HTTP server, which is only read."""

    objects: dict[str, bytes]
    url: str

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        self.objects = {}
        handler = type("Handler", (_Objects,), {"objects": self.objects})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            yield
            server.shutdown()
            thread.join()

    def open(self, path: str) -> Store:
        return open_store(f"{self.url}/{path}")

    def fill(self, path: str, objects: Mapping[str, bytes]) -> None:
        self.objects.update({f"{path}/{key}": data for key, data in objects.items()})


class _Broken:
    """A store that does all but one thing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Truncating(_Broken):
    def get_ranges(self, key: str, starts: Any, ends: Any, version: str = "") -> Any:
        return [part[:10] for part in self._store.get_ranges(key, starts, ends, version=version)]


class _Appending(_Broken):
    def put(self, key: str, data: Any) -> None:
        old = self._store.get(key, max_bytes=1 << 30) if self._store.exists(key) else b""
        self._store.put(key, [old, data] if isinstance(data, bytes) else data)


class _Forgetting(_Broken):
    def list(self, prefix: str = "") -> Any:
        return iter(list(self._store.list(prefix))[1:])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_Truncating, "test_ranges_are_exact_or_an_error"),
        (_Appending, "test_a_put_replaces"),
        (_Forgetting, "test_listing_gives_keys_and_sizes_of_whole_folders"),
    ],
)
def test_the_tests_find_a_store_that_breaks_its_promise(broken: type[_Broken], test: str) -> None:
    place = f"memory://{secrets.token_hex(8)}"

    class Faulty(StoreTests):
        def open(self, path: str) -> Any:
            return broken(open_store(f"{place}/{path}"))

        def fill(self, path: str, objects: Mapping[str, bytes]) -> None:
            for key, data in objects.items():
                open_store(f"{place}/{path}").put(key, data)

    with pytest.raises(AssertionError):
        getattr(Faulty(), test)()


def test_errors_survive_pickling() -> None:
    for kind in (StorageError, ObjectNotFoundError, AccessDeniedError, StorageFullError):
        error = pickle.loads(pickle.dumps(kind("what and where", url="s3://b/x")))
        assert type(error) is kind
        assert (str(error), error.url) == ("what and where", "s3://b/x")
