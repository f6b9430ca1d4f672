"""Engines: all pass the same tests; one that is down, unsafe or of something else says so, and nothing hangs."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lease_clock import retried
from patience import PATIENCE
from servers import RedisServer, redis_server
from stoker.coordination import errors as engine_errors
from stoker.coordination.engines import redis as redis_engine
from stoker.coordination.engines import sqlite as sqlite_engine
from stoker.coordination.engines.store import CoordinationStore, open_store
from stoker.coordination.errors import EngineError, EngineReplacedError
from stoker.errors import ConfigError, MissingPackageError
from stoker.storage.files.mounts import file_system_of
from stoker.testing import EngineTests


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    pytest.importorskip("redis")
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="st") as folder, redis_server(Path(folder)) as server:
        yield server


class TestMemory(EngineTests):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.url = f"memory://{tmp_path}"

    def open(self) -> CoordinationStore:
        return open_store(self.url)


class TestSqlite(TestMemory):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.url = f"sqlite://{tmp_path}/run.db"


@pytest.mark.processes
class TestRedis(TestMemory):
    @pytest.fixture(autouse=True)
    def _place(self, redis: RedisServer) -> None:
        self.url = redis.url


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with an engine, installed as far as Python can tell; its scheme."""
    metadata = tmp_path / "shelf-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[stoker.engines]\nshelf = shelf:Shelf\nbroken = shelf:nothing\n")
    (tmp_path / "shelf.py").write_text(
        "from stoker.coordination.engines.sqlite import SqliteStore\n"
        "class Shelf(SqliteStore):\n"
        "    def __init__(self, url, *, timeout):\n"
        "        super().__init__(url.replace('shelf://', 'sqlite://'), timeout=timeout)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shelf"
    sys.modules.pop("shelf", None)


class TestOfAnotherPackage(TestMemory):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, shelf: str) -> None:
        self.url = f"{shelf}://{tmp_path}/run.db"


@pytest.mark.usefixtures("shelf")
def test_an_engine_of_another_package_that_can_not_be_loaded_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"engine 'broken', shelf:nothing of .*, can not be loaded"):
        open_store("broken://x")
    with pytest.raises(ConfigError, match=r"known: sqlite, .*shelf"):
        open_store("cupboard://x")


class _Broken:
    """An engine with one fault, for the checks to find."""

    def __init__(self, inner: CoordinationStore) -> None:
        self.url = inner.url
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class _Blind(_Broken):
    def swap(self, key: str, value: bytes, version: int) -> int | None:
        entry = self._inner.get([key])[0]
        return None if entry is None else self._inner.swap(key, value, entry.version)


class _Twice(_Broken):
    def create(self, key: str, value: bytes) -> int | None:
        entry = self._inner.get([key])[0]
        return self._inner.create(key, value) if entry is None else self._inner.swap(key, value, entry.version)


class _Unsorted(_Broken):
    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> object:
        return self._inner.scan(prefix, after, limit)[::-1]


@pytest.mark.parametrize("fault", [_Blind, _Twice, _Unsorted])
def test_the_checks_find_engines_that_do_not(fault: type[_Broken], tmp_path: Path) -> None:
    class Faulty(EngineTests):
        def open(self) -> CoordinationStore:
            return fault(open_store(f"memory://{tmp_path}"))  # type: ignore[return-value]

    failed = 0
    for name in dir(Faulty):
        if name.startswith("test_"):
            try:
                getattr(Faulty(), name)()
            except AssertionError:
                failed += 1
    assert failed


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("etcd://host", "no engine is called 'etcd'"),
        ("/a/path", "no engine is called ''"),
        ("sqlite:///nowhere/at/all/run.db", "no folder /nowhere/at/all"),
        ("memory://x?y=1", "option 'y' is unknown"),
    ],
)
def test_urls_that_are_no_engine_are_errors(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_engine, "file_system_of", lambda _: "nfs4")
    with pytest.raises(ConfigError, match=r"network file system \(nfs4\)"):
        open_store(f"sqlite://{tmp_path}/run.db")


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(Path("/")) not in ("", "proc")


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(ConfigError, match="database of something else"):
        open_store(f"sqlite://{path}")
    (tmp_path / "text").write_text("no database at all, but a text that is long enough to be looked at" * 20)
    with pytest.raises(ConfigError, match="not an SQLite database"):
        open_store(f"sqlite://{tmp_path}/text")


def test_a_locked_file_is_an_error_in_time_and_nothing_is_lost(tmp_path: Path) -> None:
    """Who holds the lock lets go of it after the error, or where none comes: then the call does not fail."""
    store = open_store(f"sqlite://{tmp_path}/run.db", timeout=0.05)
    version = store.create("a", b"1") or 0
    holder = sqlite3.connect(tmp_path / "run.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    late = threading.Timer(PATIENCE, holder.execute, ["ROLLBACK"])
    late.daemon = True
    late.start()
    with pytest.raises(EngineError, match="another process holds the file"):
        store.swap("a", b"2", version)
    assert store.get(["a"])[0] is not None  # reading is not held up
    late.cancel()
    holder.execute("ROLLBACK")
    holder.close()
    assert store.swap("a", b"2", version) is not None
    store.close()


@pytest.mark.processes
def test_a_writer_that_is_killed_in_the_middle_leaves_nothing_half_done(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/run.db"
    store = open_store(url)
    code = (
        "import sqlite3, os, signal, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('BEGIN IMMEDIATE')\n"
        "c.execute(\"UPDATE records SET value = x'00', version = 1\")\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    version = store.create("a", b"before") or 0
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run.db")], check=False)
    assert done.returncode == -9
    again = open_store(url, timeout=PATIENCE)
    assert again.swap("a", b"after", version) is not None
    store.close()
    again.close()


@pytest.mark.processes
def test_a_connection_does_not_cross_a_fork(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/run.db")
    version = store.create("a", b"1") or 0
    pid = os.fork()
    if pid == 0:
        os._exit(0 if store.swap("a", b"2", version) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    entry = store.get(["a"])[0]
    assert entry is not None
    assert entry.value == b"2"
    store.close()


@pytest.mark.parametrize("how", ["deleted", "replaced", "made anew"])
def test_a_file_that_is_not_the_one_that_was_opened_is_an_error(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run.db"
    store = open_store(f"sqlite://{path}")
    version = store.create("a", b"1") or 0
    if how == "replaced":
        open_store(f"sqlite://{tmp_path}/other.db").close()
        (tmp_path / "other.db").replace(path)
    else:
        for file in tmp_path.glob("run.db*"):
            file.unlink()
    fresh = open_store(f"sqlite://{path}") if how == "made anew" else None
    said = "was deleted" if how == "deleted" else "was replaced by another file"
    for call in (
        lambda: store.swap("a", b"2", version),
        lambda: store.get(["a"]),
        lambda: store.create("b", b"1"),
        lambda: store.scan(""),
    ):
        with pytest.raises(EngineReplacedError, match=said):
            call()
    errors: list[BaseException] = []

    def elsewhere() -> None:  # in a thread, which has a connection of its own, and must not make a file
        try:
            store.get(["a"])
        except EngineReplacedError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert path.exists() == (how != "deleted")
    if fresh is not None:
        assert fresh.create("a", b"3")
        fresh.close()
    store.close()


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_server_that_may_lose_writes_is_refused() -> None:
    pytest.importorskip("redis")
    with tempfile.TemporaryDirectory(prefix="st") as folder, redis_server(Path(folder), fsync="everysec") as server:
        with pytest.raises(
            ConfigError, match=r"may lose what it acknowledges: appendfsync everysec \(needed: always\)"
        ):
            open_store(server.url)
        open_store(f"{server.url}?durability=unchecked").close()
        with pytest.raises(ConfigError, match=r"^unix:.*: durability must be checked or unchecked"):
            open_store(f"{server.url}?durability=maybe")


class _Naps:
    """Stands for the module ``time``: no time passes but in sleep, which takes none."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.processes
def test_a_server_that_is_down_is_an_error_in_time_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis")
    naps = _Naps()
    for module in (redis_engine, engine_errors):
        monkeypatch.setattr(module, "time", naps)
    said = r"redis://user:\*\*\*@127.0.0.1:1/0 gave no answer in (\d+\.\d) s"
    with pytest.raises(EngineError, match=said) as caught:
        open_store("redis://user:secret@127.0.0.1:1/0", timeout=5.0)
    assert 4.5 <= naps.now <= 5.0  # asked every half second
    found = re.search(said, str(caught.value))
    assert found is not None
    assert float(found[1]) == pytest.approx(naps.now, abs=0.05)
    assert "secret" not in str(caught.value)


@pytest.mark.processes
def test_a_server_that_is_killed_and_started_again_has_all_it_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redis")
    some, in_vain = threading.Event(), retried(monkeypatch, redis_engine)
    with tempfile.TemporaryDirectory(prefix="st") as folder, redis_server(Path(folder)) as server:
        store = open_store(server.url, timeout=PATIENCE)
        done = 0
        version = store.create("n", b"0") or 0

        def restart() -> None:
            some.wait(PATIENCE)
            server.kill()
            in_vain.wait(PATIENCE)
            server.start()

        killer = threading.Thread(target=restart)
        killer.start()
        while killer.is_alive() or done < 100:
            fresh = store.swap("n", b"%d" % (done + 1), version)
            assert fresh is not None, "a write that was repeated was taken for another's"
            version, done = fresh, done + 1
            if done == 30:
                some.set()
        killer.join()
        assert in_vain.is_set()
        entry = store.get(["n"])[0]
        assert entry is not None
        assert int(entry.value) == done
        store.close()


@pytest.mark.processes
def test_runs_with_a_prefix_of_their_own_do_not_meet(redis: RedisServer) -> None:
    one, other = open_store(f"{redis.url}?prefix=one"), open_store(f"{redis.url}?prefix=other")
    assert one.create("a", b"1")
    assert other.create("a", b"2")
    assert [key for key, _ in one.scan("")] == ["a"]


@pytest.mark.parametrize(("package", "url"), [("redis", "redis://localhost"), ("ray", "ray://name?path=/x")])
def test_an_engine_whose_client_is_missing_says_what_to_install(
    package: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'stoker\[{package}\]'"):
        open_store(url)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["flushed", "restarted empty"])
def test_a_server_that_was_emptied_is_an_error_for_who_used_it(how: str) -> None:
    redis = pytest.importorskip("redis")
    with tempfile.TemporaryDirectory(prefix="st") as folder, redis_server(Path(folder)) as server:
        store = open_store(server.url)
        version = store.create("a", b"1") or 0
        if how == "flushed":
            redis.Redis.from_url(server.url).flushall()
        else:
            server.kill()
            shutil.rmtree(Path(folder) / "appendonlydir")
            server.start()
        fresh = open_store(server.url)
        assert fresh.create("a", b"3")
        for call in (
            lambda: store.swap("a", b"2", version),
            lambda: store.get(["a"]),
            lambda: store.create("b", b"1"),
            lambda: store.delete("a", version),
            lambda: store.scan(""),
        ):
            with pytest.raises(EngineReplacedError, match="was emptied while this worker used it"):
                call()
        assert [entry.value for _, entry in fresh.scan("")] == [b"3"]
        store.close()
        fresh.close()
