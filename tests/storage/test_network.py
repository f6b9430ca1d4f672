"""Servers that fail, on real sockets: what is tried again, what is not, and that nothing waits for ever."""

from __future__ import annotations

import functools
import json
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from scripted_server import Script, ScriptedServer, cut, hang, hang_in_body, reset_in_body, serve, status, trickle

from patience import PATIENCE
from stoker.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
)
from stoker.policy import SMALL_OBJECT
from stoker.storage import RetryPolicy, Store, open_store

pytestmark = pytest.mark.processes

_STALL = 0.3
_BODY = b"0123456789" * 30_000
_SLOW_DOWN = status(503, b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>")


def s3(server: ScriptedServer, *, patience: float = 0.1, stall: float = _STALL) -> Store:
    options = {"endpoint": server.endpoint, "access_key_id": "AKIAKEY", "secret_access_key": "SECRET"}
    return open_store(
        "s3://bucket/x", options, retry=RetryPolicy(patience, base_delay=0.01, max_delay=0.05), stall_timeout=stall
    )


_READS: list[Callable[[Store, Path], object]] = [
    lambda store, path: store.get("a", max_bytes=1 << 30),
    lambda store, path: store.download("a", path / "target"),
    lambda store, path: store.read_into("a", memoryview(bytearray(len(_BODY)))),
    lambda store, path: store.read_into("a", memoryview(bytearray(10)), start=0),
    lambda store, path: store.get_range("a", 0, 10),
    lambda store, path: store.get_ranges("a", [0, 200_000], [10, 200_010]),
]
_NO_BODY: list[Callable[[Store, Path], object]] = [
    lambda store, path: store.head("a"),
    lambda store, path: list(store.list()),
    lambda store, path: store.put("a", b"data"),
    lambda store, path: store.put_stream("a", lambda: iter([b"da", b"ta"])),
    lambda store, path: store.delete("a"),
]


@pytest.mark.parametrize("script", [hang, hang_in_body])
@pytest.mark.parametrize("call", _READS)
def test_a_server_that_stalls_is_given_up(
    script: Script, call: Callable[[Store, Path], object], tmp_path: Path
) -> None:
    with serve(script) as server, pytest.raises(StorageTimeoutError, match=r"s3://bucket/x/a.*2 attempts") as caught:
        call(s3(server), tmp_path)
    assert caught.value.url == "s3://bucket/x/a"
    assert isinstance(caught.value, TimeoutError)
    assert len(server.requests) >= 2


@pytest.mark.parametrize("call", _NO_BODY)
def test_a_server_that_never_answers_is_given_up(call: Callable[[Store, Path], object], tmp_path: Path) -> None:
    with serve(hang) as server, pytest.raises(StorageTimeoutError, match="nothing within the stall time"):
        call(s3(server), tmp_path)
    assert len(server.requests) == 2


def test_an_upload_that_nobody_reads_is_given_up() -> None:
    with serve(hang) as server, pytest.raises(StorageTimeoutError):
        s3(server, stall=0.1).put("a", b"x" * (12 << 20))


def test_a_slow_download_is_not_a_stall(tmp_path: Path) -> None:
    pieces = [b"a" * 1000] * 8
    with serve(trickle(pieces, _STALL / 2)) as server:  # in all four times the stall time
        assert s3(server, patience=0).download("a", tmp_path / "t").size == 8000
    assert (tmp_path / "t").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("script", [cut, reset_in_body, _SLOW_DOWN, status(500), status(502), status(429), status(408)])
def test_a_download_survives_two_failures(script: Script, tmp_path: Path) -> None:
    with serve(script, script, status(200, _BODY)) as server:
        assert s3(server, patience=PATIENCE).download("a", tmp_path / "t").size == len(_BODY)
    assert (tmp_path / "t").read_bytes() == _BODY
    assert len(server.requests) == 3


@pytest.mark.parametrize("script", [cut, reset_in_body, _SLOW_DOWN])
def test_reading_into_memory_survives_two_failures(script: Script) -> None:
    into = bytearray(len(_BODY))
    with serve(script, script, status(200, _BODY)) as server:
        assert s3(server, patience=PATIENCE).read_into("a", memoryview(into)).size == len(_BODY)
    assert into == _BODY


def test_a_server_that_sends_more_than_was_requested_fills_no_more() -> None:
    into = bytearray(30)
    with serve(status(200, _BODY)) as server, pytest.raises(StorageError, match="s3://bucket/x/a"):
        s3(server).read_into("a", memoryview(into)[:20], start=10)
    assert into[20:] == bytes(10)


@pytest.mark.parametrize("script", [cut, reset_in_body, _SLOW_DOWN])
def test_a_get_survives_two_failures(script: Script) -> None:
    with serve(script, script, status(200, _BODY)) as server:
        assert s3(server, patience=PATIENCE).get("a", max_bytes=1 << 30) == _BODY


@pytest.mark.parametrize("size", [1000, 60_000])
@pytest.mark.parametrize("refused", [False, True])
def test_a_small_object_survives_two_failures(size: int, refused: bool) -> None:
    def cut_in_half(_: ScriptedServer, connection: socket.socket, __: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + _BODY[: size // 2])

    script: Script = _SLOW_DOWN if refused else cut_in_half
    with serve(script, script, status(200, _BODY[:size])) as server:
        data, info = s3(server, patience=PATIENCE).request("a", max_bytes=SMALL_OBJECT)()
    assert bytes(data) == _BODY[:size]
    assert (info.key, info.size) == ("a", size)
    assert len(server.requests) == 3


def test_a_small_object_is_tried_for_as_long_as_others() -> None:
    with serve(_SLOW_DOWN) as server, pytest.raises(StorageTimeoutError, match=r"gave up after \d+ attempts") as caught:
        s3(server).request("a", max_bytes=10_000)
    assert len(server.requests) > 1
    assert "SlowDown" in str(caught.value)
    assert "s3://bucket/x/a" in str(caught.value)
    with serve(status(403)) as server, pytest.raises(AccessDeniedError):
        s3(server).request("a", max_bytes=10_000)
    assert len(server.requests) == 1


_LISTING = (
    b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>x/a</Key><Size>4</Size>'
    b"<LastModified>2022-10-12T17:50:00.000Z</LastModified></Contents></ListBucketResult>"
)
_DELETED = b'<?xml version="1.0"?><DeleteResult><Deleted><Key>x/a</Key></Deleted></DeleteResult>'


@pytest.mark.parametrize(("call", "body"), list(zip(_NO_BODY, [b"", _LISTING, b"", b"", _DELETED], strict=True)))
def test_every_request_is_tried_again(call: Callable[[Store, Path], object], body: bytes, tmp_path: Path) -> None:
    with serve(_SLOW_DOWN, _SLOW_DOWN, status(200, body)) as server:
        call(s3(server, patience=PATIENCE), tmp_path)
    assert len(server.requests) == 3


def test_times_of_listings_are_in_seconds_as_those_of_objects() -> None:
    with serve(status(200, _LISTING.replace(b".000Z", b".870Z"))) as server:
        (info,) = s3(server).list("")
    assert info.modified == 1_665_597_000 * 10**9


def test_a_store_that_keeps_failing_names_the_last_reason(tmp_path: Path) -> None:
    with serve(_SLOW_DOWN) as server, pytest.raises(StorageTimeoutError) as caught:
        s3(server).get("a", max_bytes=1 << 30)
    assert len(server.requests) > 1
    for text in ("s3://bucket/x/a", "503", "SlowDown", "Please reduce", f"{len(server.requests)} attempts"):
        assert text in str(caught.value)
    with serve(cut) as server, pytest.raises(StorageTimeoutError, match="broke"):
        s3(server).download("a", tmp_path / "t")


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        (status(403, b"<Error><Code>AccessDenied</Code></Error>"), AccessDeniedError, "AccessDenied"),
        (status(403), AccessDeniedError, "403"),
        (status(401), AccessDeniedError, "401"),
        (status(400, b"<Error><Code>ExpiredToken</Code></Error>"), AccessDeniedError, "ExpiredToken"),
        (status(404, b"<Error><Code>NoSuchKey</Code></Error>"), ObjectNotFoundError, "no such object"),
        (status(404, b"<Error><Code>NoSuchBucket</Code></Error>"), ObjectNotFoundError, "no bucket 'bucket'"),
        (status(400, b"<Error><Code>InvalidRequest</Code></Error>"), StorageError, "InvalidRequest"),
        (status(405), StorageError, "405"),
        (status(501), StorageError, "501"),
        (status(301), StorageError, "region"),
        (status(507), StorageFullError, "full"),
        (status(403, b"<Error><Code>QuotaExceeded</Code></Error>"), StorageFullError, "QuotaExceeded"),
    ],
)
def test_what_can_not_succeed_later_is_asked_once(script: Script, kind: type[StorageError], says: str) -> None:
    with serve(script) as server, pytest.raises(kind, match=says) as caught:
        s3(server).get("a", max_bytes=1 << 30)
    assert type(caught.value) is kind
    assert "s3://bucket/x/a" in str(caught.value)
    assert len(server.requests) == 1


def test_some_refusals_are_really_requests_to_come_again() -> None:
    timeout = status(400, b"<Error><Code>RequestTimeout</Code></Error>")
    with serve(timeout, timeout, status(200, _BODY)) as server:
        assert s3(server, patience=PATIENCE).get("a", max_bytes=1 << 30) == _BODY


def test_no_credentials_means_anonymous_and_says_so() -> None:
    with serve(status(403)) as server:
        store = open_store("s3://bucket", {"endpoint": server.endpoint})
        with pytest.raises(AccessDeniedError, match="no credentials"):
            store.get("a", max_bytes=1 << 30)
    assert "authorization" not in server.requests[0].lower()


def test_a_server_without_ranges_is_called_so() -> None:
    with serve(status(200, _BODY)) as server, pytest.raises(StorageError, match="ranges"):
        s3(server).get_range("a", 5, 10)


class _Files(SimpleHTTPRequestHandler):
    """The standard library's server of a folder, quiet."""

    def log_message(self, *args: object) -> None:
        pass


def test_plain_http_reads_only(tmp_path: Path) -> None:
    (tmp_path / "served" / "x").mkdir(parents=True)
    data = _BODY + b"end"
    (tmp_path / "served" / "x" / "a b%").write_bytes(data)
    handler = functools.partial(_Files, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            store = open_store(f"http://127.0.0.1:{server.server_address[1]}/x/")
            assert store.get("a b%", max_bytes=1 << 30) == data
            assert store.head("a b%").size == len(data)
            assert store.exists("a b%")
            assert not store.exists("b")
            assert store.download("a b%", tmp_path / "t").size == len(data)
            assert (tmp_path / "t").read_bytes() == data
            with pytest.raises(ObjectNotFoundError, match="/x/b"):
                store.get("b", max_bytes=1 << 30)
            writes: list[Callable[[], object]] = [
                lambda: list(store.list()),
                lambda: store.put("b", b""),
                lambda: store.put_file("b", tmp_path / "t"),
                lambda: store.put_stream("b", lambda: iter([b"x"])),
                lambda: store.delete("a b%"),
            ]
            for call in writes:
                with pytest.raises(StorageError, match="HTTP"):
                    call()
        finally:
            server.shutdown()
            thread.join()


def test_nobody_listening_is_a_bounded_wait() -> None:
    with serve(hang) as server:
        endpoint = server.endpoint
    options = {"endpoint": endpoint, "access_key_id": "k", "secret_access_key": "s"}
    store = open_store("s3://b", options, retry=RetryPolicy(0.1, base_delay=0.01))
    with pytest.raises(StorageTimeoutError, match="can not connect"):
        store.get("a", max_bytes=1 << 30)


def test_the_metadata_service_is_asked_only_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(hang) as metadata, serve(status(200, _BODY)) as server:
        options = {"endpoint": server.endpoint}
        assert open_store("s3://b", options).get("a", max_bytes=1 << 30) == _BODY
        assert "authorization" not in server.requests[0].lower()
        assert metadata.requests == []
        retry = RetryPolicy(patience=0)
        asked = open_store(
            "s3://b", {**options, "metadata_endpoint": metadata.endpoint}, retry=retry, stall_timeout=_STALL
        )
        with pytest.raises(StorageError, match="s3://b/a"):
            asked.get("a", max_bytes=1 << 30)
        assert len(metadata.requests) == 1
        assert len(server.requests) == 1


def test_google_and_azure_are_reached_by_their_urls() -> None:
    with serve(status(200, _BODY)) as server:
        key = json.dumps(
            {
                "gcs_base_url": server.endpoint,
                "disable_oauth": True,
                "client_email": "",
                "private_key": "",
                "private_key_id": "",
            }
        )
        google = open_store("gs://bucket/x", {"service_account_key": key, "allow_http": True})
        assert google.get("a b", max_bytes=1 << 30) == _BODY
        for url in ("az://container/x", "abfs://container/x", "azure://container/x"):
            azure = open_store(url, {"account_name": "account", "endpoint": server.endpoint})
            assert azure.get("a b", max_bytes=1 << 30) == _BODY
    paths = [request.split()[1] for request in server.requests]
    assert paths[0].startswith("/bucket/x")
    assert all(path == "/container/x/a%20b" for path in paths[1:])


def test_a_store_that_is_busy_again_and_again_is_waited_for(tmp_path: Path) -> None:
    """As many times as it takes: the number of attempts bounds nothing."""
    with serve(*[_SLOW_DOWN] * 20, status(200, _BODY)) as server:
        assert s3(server, patience=PATIENCE).download("a", tmp_path / "t").size == len(_BODY)
    assert len(server.requests) == 21


class _Uploads(BaseHTTPRequestHandler):
    """An S3 that takes uploads in parts, and refuses the second part three times."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self._answer(
            b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            if "uploads" in self.path
            else b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        )

    def do_PUT(self) -> None:
        number = re.findall(r"partNumber=(\d)", self.path)
        self.asked.extend(number)
        busy = number == ["2"] and self.asked.count("2") <= 3
        self._answer(b"<Error><Code>SlowDown</Code></Error>" if busy else b"", 503 if busy else 200)

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(code)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_part_of_an_upload_that_fails_is_repeated_and_no_other() -> None:
    _Uploads.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Uploads) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "access_key_id": "k", "secret_access_key": "s"}
        store = open_store("s3://b", options)
        store.put("small", b"x")  # it has answered
        store.put("a", b"x" * (20 << 20))
        server.shutdown()
    assert sorted(_Uploads.asked) == ["1", "2", "2", "2", "2", "3"]
