"""Processes that were forked, on a real S3 server: the helper, its life and its death."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forked import gone, helper_pid, in_fork

from patience import PATIENCE
from s3server import Bucket
from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage import RetryPolicy, Store, open_store
from stoker.storage import fork_proxy as proxy
from stoker.storage import store as stores

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture
def store(bucket: Bucket) -> Store:
    """A store that this process has used."""
    store = open_store(f"{bucket.url}/x", bucket.storage_options)
    store.put("before", b"before")
    return store


@pytest.mark.s3
def test_a_forked_process_can_do_all_that_its_parent_can(store: Store, tmp_path: Path, no_debris: None) -> None:
    def work() -> None:
        assert stores.runtime_lost()
        assert store.get("before", max_bytes=1 << 30) == b"before"
        store.put("a", [b"x" * 1000, b"y"])
        assert store.get_range("a", 999, 1001) == b"xy"
        assert store.download("a", tmp_path / "target").size == 1001
        assert (tmp_path / "target").read_bytes() == b"x" * 1000 + b"y"
        store.put_file("b", tmp_path / "target")
        assert [info.key for info in store.list()] == ["a", "b", "before"]
        assert store.head("b").size == 1001
        assert store.exists("b")
        store.delete("b")
        assert not store.exists("b")
        with pytest.raises(ObjectNotFoundError, match="x/nope") as caught:
            store.get("nope", max_bytes=1 << 30)
        assert caught.value.url == store.url_of("nope")
        with pytest.raises(ConfigError):
            store.get("../x", max_bytes=1 << 30)

    in_fork(work)
    assert store.get("a", max_bytes=1 << 30) == b"x" * 1000 + b"y"
    assert not stores.runtime_lost()


@pytest.mark.s3
def test_a_download_in_a_fork_goes_to_a_path_relative_to_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        store.get("before", max_bytes=1 << 30)
        os.chdir(tmp_path)  # after the helper has started
        store.download("before", Path("target"))

    in_fork(work)
    assert (tmp_path / "target").read_bytes() == b"before"


@pytest.mark.s3
def test_forks_of_forks_have_helpers_of_their_own(store: Store) -> None:
    def work() -> None:
        store.put("child", b"1")
        mine = helper_pid()

        def deeper() -> None:
            assert proxy._current is None or proxy._current.dead
            store.put("grandchild", store.get("child", max_bytes=1 << 30) + b"2")
            assert helper_pid() != mine

        in_fork(deeper)
        assert store.get("grandchild", max_bytes=1 << 30) == b"12"
        assert helper_pid() == mine

    in_fork(work)
    assert store.get("grandchild", max_bytes=1 << 30) == b"12"


@pytest.mark.s3
def test_many_threads_of_a_fork_share_one_helper(store: Store, tmp_path: Path) -> None:
    def work() -> None:
        def one(number: int) -> None:
            data = bytes([number]) * 200_000
            store.put(f"t/{number}", data)
            assert store.get(f"t/{number}", max_bytes=1 << 30) == data
            assert store.download(f"t/{number}", tmp_path / str(number)).size == len(data)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(48)))
        assert len(list(store.list("t"))) == 48

    in_fork(work)


@pytest.mark.s3
def test_a_fork_in_the_midst_of_requests_is_as_good(store: Store) -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            store.get("before", max_bytes=1 << 30)

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            in_fork(lambda: store.put("child", store.get("before", max_bytes=1 << 30)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.s3
def test_the_helper_dies_with_its_parent_however_that_dies(store: Store, tmp_path: Path) -> None:
    for ending in ("exit", "kill", "kill with a child"):
        pid = os.fork()
        if pid == 0:
            try:
                store.get("before", max_bytes=1 << 30)
                child = 0
                if ending == "kill with a child":
                    child = os.fork()
                    if child == 0:
                        time.sleep(2 * PATIENCE)  # must hold nothing of the pipe open
                        os._exit(0)
                (tmp_path / "new").write_text(f"{helper_pid()} {child}")
                (tmp_path / "new").rename(tmp_path / ending)
                if ending != "exit":
                    time.sleep(PATIENCE)
            finally:
                os._exit(0)
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / ending).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if ending != "exit":
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        helper, child = map(int, (tmp_path / ending).read_text().split())
        try:
            assert gone(helper)
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


@pytest.mark.s3
def test_a_fork_closes_no_file_that_has_the_number_of_a_dead_helpers_pipe(store: Store) -> None:
    def work() -> None:
        store.get("before", max_bytes=1 << 30)
        helper = proxy._current
        assert helper is not None
        helper.kill()
        while hasattr(helper, "_to") or hasattr(helper, "_from"):
            time.sleep(0.01)
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]  # which have the numbers of the pipes

        def look() -> None:
            for number in opened:
                os.fstat(number)

        in_fork(look)

    in_fork(work)


@pytest.mark.s3
def test_a_helper_that_dies_is_replaced_once_a_request(store: Store) -> None:
    def work() -> None:
        store.get("before", max_bytes=1 << 30)
        for _ in range(3):
            old = helper_pid()
            os.kill(old, signal.SIGKILL)
            assert store.get("before", max_bytes=1 << 30) == b"before"
            assert helper_pid() != old

    in_fork(work)


def test_a_helper_that_can_not_live_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = open_store(
        "s3://bucket", {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "secret_access_key": "b"}
    )

    def work() -> None:
        monkeypatch.setattr(stores, "_lost", True)
        monkeypatch.setattr(proxy, "_BOOT", "import sys; sys.exit(3)")
        with pytest.raises(StorageError, match="died twice"):
            store.get("a", max_bytes=1 << 30)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
        with pytest.raises(StorageError, match="can not start"):
            store.get("a", max_bytes=1 << 30)
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(StorageError, match="spawn"):
            store.get("a", max_bytes=1 << 30)

    in_fork(work)


def test_timeouts_come_through_the_helper() -> None:
    from scripted_server import hang, serve

    from stoker.errors import StorageTimeoutError

    with serve(hang) as server:
        options = {"endpoint": server.endpoint, "access_key_id": "a", "secret_access_key": "b"}
        store = open_store("s3://b", options, retry=RetryPolicy(0.1, base_delay=0.01), stall_timeout=0.3)
        with pytest.raises(StorageTimeoutError):
            store.get("a", max_bytes=1 << 30)

        def work() -> None:
            with pytest.raises(StorageTimeoutError, match=r"\d+ attempts"):
                store.get("a", max_bytes=1 << 30)

        in_fork(work)


def test_memory_lives_in_one_process() -> None:
    store = open_store("memory://forked")
    store.put("a", b"x")

    def work() -> None:
        for other in (store, open_store("memory://another")):
            with pytest.raises(StorageError, match="memory://"):
                other.get("a", max_bytes=10)

    in_fork(work)
    assert store.get("a", max_bytes=1 << 30) == b"x"


def test_options_that_can_not_be_pickled_are_named() -> None:
    def provider() -> dict[str, str]:
        return {}

    store = open_store("s3://b", {"credential_provider": provider, "endpoint": "http://127.0.0.1:9"})

    def work() -> None:
        stores._lost = True
        with pytest.raises(ConfigError, match="pickled"):
            store.get("a", max_bytes=1 << 30)

    in_fork(work)


def test_local_files_need_no_helper(tmp_path: Path) -> None:
    open_store("memory://x").put("a", b"loads obstore")
    store = open_store(tmp_path)
    store.put("a", b"x")

    def work() -> None:
        assert store.get("a", max_bytes=1 << 30) == b"x"
        store.put("b", b"y")
        assert proxy._current is None or proxy._current.dead

    in_fork(work)
    assert store.get("b", max_bytes=1 << 30) == b"y"


_UNTOUCHED = """
import os, sys, json
from stoker.storage import open_store
from stoker.storage.store import runtime_lost
from stoker.storage import fork_proxy as proxy
store = open_store(sys.argv[1], json.loads(os.environ["OPTIONS"]))
pid = os.fork()
if pid == 0:
    store.put("direct", b"x")
    os._exit(0 if not runtime_lost() and "obstore" in sys.modules else 1)
assert os.waitpid(pid, 0)[1] == 0
assert "obstore" not in sys.modules
"""


@pytest.mark.s3
def test_a_fork_of_a_process_without_obstore_uses_it_directly(bucket: Bucket) -> None:
    import json

    environ = {**os.environ, "OPTIONS": json.dumps(bucket.storage_options)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _UNTOUCHED, bucket.url], check=True, timeout=PATIENCE, env=environ
    )
    assert bucket.keys() == ["direct"]


def _work(store: Store, number: int) -> bytes:
    store.put(f"worker/{number}", store.get("before", max_bytes=1 << 30) + str(number).encode())
    return store.get(f"worker/{number}", max_bytes=1 << 30)


@pytest.mark.s3
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_get_the_store_as_an_argument(store: Store, method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        answers = [pool.apply_async(_work, (store, number)) for number in range(4)]
        assert [answer.get(PATIENCE) for answer in answers] == [f"before{n}".encode() for n in range(4)]
        pool.close()
        pool.join()
