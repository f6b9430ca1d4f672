"""Servers and worker processes of tests: started, waited for, stopped, killed and started again."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE

__all__ = [
    "RedisServer",
    "ray_cluster",
    "redis_binary",
    "redis_server",
    "stop_outside_of_writes",
    "wait_beside_workers",
]


def redis_binary() -> str:
    """The server's program; the test is skipped where there is none, but fails in CI."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        said = "neither redis-server nor valkey-server is installed: apt-get install redis-server"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    return found


class RedisServer:
    """A server of one's own, on a socket in a folder, that syncs each write to disk."""

    def __init__(self, folder: Path, *, fsync: str = "always") -> None:
        self._folder = folder
        self._fsync = fsync
        self._binary = redis_binary()
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = folder / "r.sock"
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self) -> None:
        options = {"port": "0", "unixsocket": self.socket, "dir": self._folder, "save": "", "daemonize": "no"}
        options |= {"appendonly": "yes", "appendfsync": self._fsync}
        self._process = subprocess.Popen(
            [self._binary, *[str(part) for name, value in options.items() for part in (f"--{name}", value)]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        while not self.socket.exists():
            assert self._process.poll() is None, "redis-server did not start"
            assert time.monotonic() < deadline, "redis-server did not start in time"
            time.sleep(0.02)

    def kill(self) -> None:
        """As a power failure would, but for what the kernel still holds."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.socket.unlink(missing_ok=True)

    def cpu_seconds(self) -> float:
        """Processor time that the server has used."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


@contextmanager
def redis_server(folder: Path, *, fsync: str = "always") -> Iterator[RedisServer]:
    """Start a server, and stop it in the end."""
    server = RedisServer(folder, fsync=fsync)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def ray_cluster(environ: Mapping[str, str] = {}) -> Iterator[tuple[Any, str, str]]:
    """Start Ray on this machine alone: the package, a folder with a short path, and the address. Skipped without Ray.

    Args:
        environ: variables of its processes.
    """
    ray = pytest.importorskip("ray")
    variables = {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="st") as folder:
        for name, value in {**variables, **environ}.items():
            patch.setenv(name, value)
        from ray_start import start_ray

        settings = {"object_store_memory": 100 << 20, "logging_level": logging.ERROR, "_temp_dir": f"{folder}/ray"}
        context = start_ray(num_cpus=2, **settings)
        try:
            yield ray, folder, str(context.address_info["gcs_address"])
        finally:
            ray.shutdown()


def wait_beside_workers(processes: Sequence[subprocess.Popen[str]], done: Callable[[], bool]) -> None:
    """Wait for what workers are to do; fails when one of them has, or it takes too long. Those that were killed may end."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        for rank, process in enumerate(processes):
            if process.poll() not in (None, 0, -signal.SIGKILL):
                raise AssertionError(f"worker {rank} failed: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def stop_outside_of_writes(pid: int, database: Path | None) -> None:
    """Stop a process, but not while it holds the SQLite file's lock, which would stop all others too."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        if database is None or _is_free(database):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def _is_free(database: Path) -> bool:
    connection = sqlite3.connect(database, isolation_level=None, timeout=0.3)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
