"""Servers that mean harm, on real sockets: what they say they send, how slowly, and where they send the client."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import gone, helper_pid, in_fork
from object_client_checks import LARGE_FETCHES, check_trickle
from scripted_server import Script, ScriptedServer, serve, status, trickle

from stoker.errors import ConfigError, StorageError, StorageTimeoutError
from stoker.index.index import load_index
from stoker.storage import RetryPolicy, Store, open_store
from stoker.storage import fork_proxy as proxy
from stoker.storage import store as stores

pytestmark = pytest.mark.processes

_HUGE = 10**15


def s3(server: ScriptedServer, stall: float = 5.0, **options: object) -> Store:
    settings = {"endpoint": server.endpoint, "access_key_id": "AKIAKEY", "secret_access_key": "SECRET", **options}
    return open_store("s3://bucket/x", settings, retry=RetryPolicy(patience=0), stall_timeout=stall)


def claims(size: int, head: str = "HTTP/1.1 200 OK") -> Script:
    """An answer that says it is so long, of which ten bytes come, in two pieces."""

    def script(server: ScriptedServer, connection: socket.socket, request: str) -> None:
        lines = f"{head}\r\nContent-Length: {size}\r\nLast-Modified: Wed, 12 Oct 2022 17:50:00 GMT\r\nETag: 'a'\r\n\r\n"
        connection.sendall(lines.encode() + b"01234")
        server.released.wait(0.1)
        connection.sendall(b"56789")

    return script


@pytest.mark.parametrize(
    "call",
    [
        lambda store, _: store.get("a", max_bytes=1 << 62),
        lambda store, _: load_index(store),
        lambda store, _: store.read_into("a", memoryview(bytearray(10)), start=0),
        lambda store, _: store.get_ranges("a", [0, _HUGE // 2], [10, _HUGE // 2 + 10]),
        lambda store, path: store.download("a", path / "target", max_bytes=100),
    ],
)
def test_a_length_that_is_only_claimed_takes_no_memory(call: Callable[[Store, Path], object], tmp_path: Path) -> None:
    with serve(claims(_HUGE)) as server, pytest.raises(StorageError, match="s3://bucket/x"):
        call(s3(server), tmp_path)


def test_a_range_that_continues_is_cut(tmp_path: Path) -> None:
    sent: list[int] = []

    def script(server: ScriptedServer, connection: socket.socket, request: str) -> None:
        claims(1 << 40, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/100")(server, connection, request)
        while not server.released.is_set() and sum(sent) < 1 << 28:
            connection.sendall(bytes(1 << 20))
            sent.append(1 << 20)

    with serve(script) as server:
        calls: list[Callable[[Store], object]] = [
            lambda store: store.get_range("a", 0, 10),
            lambda store: store.get_ranges("a", [0], [10], version="'a'"),
            lambda store: store.read_into("a", memoryview(bytearray(10)), start=0),
            lambda store: store.download_range("a", tmp_path / "t", 0, 10),
        ]
        for call in calls:
            with pytest.raises(StorageError, match="more came than the 10 bytes"):
                call(s3(server))
    assert sum(sent) < 1 << 28  # what the sockets hold, not all that the server has


@pytest.mark.parametrize(
    "call",
    [
        lambda store, _: store.get("a", max_bytes=100),
        lambda store, _: store.read_into("a", memoryview(bytearray(100))),
        lambda store, path: store.download("a", path / "target"),
        lambda store, _: list(store.list()),
    ],
)
def test_a_byte_now_and_then_is_not_enough(call: Callable[[Store, Path], object], tmp_path: Path) -> None:
    with serve(trickle([b"x"] * 100, 0.2)) as server, pytest.raises(StorageTimeoutError, match="s3://bucket/x"):
        call(s3(server, stall=0.5), tmp_path)


@pytest.mark.parametrize("fetch", LARGE_FETCHES)
def test_a_byte_now_and_then_is_noticed_in_a_large_object(fetch: str, tmp_path: Path) -> None:
    """By each way in which a cache fetches."""
    check_trickle("obstore", fetch, tmp_path)


@pytest.mark.parametrize(
    "call",
    [lambda store: store.get("a", max_bytes=40_000), lambda store: store.read_into("a", memoryview(bytearray(40_000)))],
)
def test_a_small_object_has_a_bound_on_the_whole(call: Callable[[Store], object]) -> None:
    with (
        serve(trickle([b"x"] * 40_000, 0.1)) as server,
        pytest.raises(StorageTimeoutError, match="s3://bucket/x/a: the server sent nothing within the stall time"),
    ):
        call(s3(server, stall=0.3))


def redirect(server: ScriptedServer, host: str) -> Script:
    port = server.endpoint.rpartition(":")[2]
    return status(302, head=f"Location: http://{host}:{port}/elsewhere\r\n")


_REQUESTS: list[Callable[[Store], object]] = [
    lambda store: store.get("a", max_bytes=100),
    lambda store: store.head("a"),
    lambda store: store.get_range("a", 0, 1),
]


@pytest.mark.parametrize("kind", ["s3", "http"])
@pytest.mark.parametrize("call", _REQUESTS)
def test_a_redirect_to_another_host_is_refused(kind: str, call: Callable[[Store], object]) -> None:
    with serve(status(200, b"the metadata service")) as target, serve(redirect(target, "localhost")) as server:
        store = s3(server) if kind == "s3" else open_store(server.endpoint, retry=RetryPolicy(patience=0.1))
        with pytest.raises(StorageError, match=r"redirects to another host.*redirect_hosts"):
            call(store)
        assert len(server.requests) == 1
        assert not target.requests


@pytest.mark.parametrize("hosts", ["localhost", ["example.org", "localhost"], "example.org, localhost"])
def test_a_redirect_to_a_host_that_is_allowed_is_followed(hosts: object) -> None:
    with serve(status(200, b"data")) as target, serve(redirect(target, "localhost")) as server:
        assert s3(server, redirect_hosts=hosts).get("a", max_bytes=100) == b"data"
        store = open_store(server.endpoint, {"client_options": {"redirect_hosts": hosts}})
        assert store.get("a", max_bytes=100) == b"data"


def test_a_redirect_within_the_host_is_followed() -> None:
    with serve(status(200, b"data")) as target, serve(redirect(target, "127.0.0.1")) as server:
        assert s3(server).get("a", max_bytes=100) == b"data"
        other = open_store(server.endpoint.replace("127.0.0.1", "127.1"))  # another spelling of the same
        assert other.get("a", max_bytes=100) == b"data"


@pytest.mark.parametrize("hosts", ["http://a", 5, ["a b"], [None]])
def test_hosts_that_are_no_hosts_are_refused(hosts: object) -> None:
    with serve(status(200)) as server, pytest.raises(ConfigError, match="redirect_hosts"):
        s3(server, redirect_hosts=hosts).exists("a")


@pytest.mark.parametrize("key", ["a\nb", "a\tb", "a\x7fb", "a\ud800b", "\x1b[31m"])
def test_keys_that_can_not_be_sent_are_refused(key: str) -> None:
    with serve(status(200)) as server:
        for store in (s3(server), open_store(server.endpoint), open_store("memory://keys")):
            for call in (store.head, store.exists, lambda key, store=store: store.get(key, max_bytes=1)):
                with pytest.raises(ConfigError, match="control characters") as caught:
                    call(key)
                assert str(caught.value).isprintable()
        with pytest.raises(ConfigError, match="control characters"):
            s3(server).delete(key)
        with pytest.raises(ConfigError, match="control characters"):
            s3(server).put(key, b"")
        with pytest.raises(ConfigError, match="control characters"):
            list(s3(server).list(key))
        assert not server.requests


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://buck et/x", {}),
        ("s3://bucket/x", {"access_key_id": "a\nb"}),
        ("s3://bucket/x", {"session_token": "a\nb"}),
        ("s3://bucket/x", {"endpoint": "http://a b"}),
        ("s3://bucket/x", {"user_agent": "a\nb"}),
    ],
)
def test_a_panic_of_the_client_is_an_error_of_ours(url: str, options: dict[str, str]) -> None:
    settings = {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "secret_access_key": "b", **options}
    store = open_store(url, settings, retry=RetryPolicy(patience=0))
    for call in (lambda: store.get("a", max_bytes=1), lambda: list(store.list()), lambda: store.put("a", b"x")):
        with pytest.raises((StorageError, ConfigError), match="s3://buck"):
            call()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_helper_that_is_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_LEAST_PATIENCE", 3.0, raising=False)
    with serve(status(200, b"data")) as server:
        store = s3(server, stall=1.0)

        def work() -> None:
            monkeypatch.setattr(stores, "_lost", True)
            assert store.get("a", max_bytes=100) == b"data"
            for call in (
                lambda: store.get("a", max_bytes=100),
                lambda: store.put("a", bytes(1 << 20)),  # more than the pipe takes
            ):
                old = helper_pid()
                os.kill(old, signal.SIGSTOP)
                call()
                assert helper_pid() != old
                assert gone(old)

        in_fork(work)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_helpers_that_are_all_stopped_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_LEAST_PATIENCE", 3.0, raising=False)
    store = open_store("s3://b", {"endpoint": "http://127.0.0.1:9"}, stall_timeout=1.0)

    def work() -> None:
        monkeypatch.setattr(stores, "_lost", True)
        monkeypatch.setattr(proxy, "_BOOT", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
        with pytest.raises(StorageError, match=r"s3://b: .*stopped for 3 s.*SIGSTOP"):
            store.get("a", max_bytes=100)

    in_fork(work)
