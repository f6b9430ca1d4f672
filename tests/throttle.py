"""Storage of a known rate: a proxy before a server, and a limit of the kernel's on a block device.

``python throttle.py HOST:PORT BYTES`` forwards connections to a server and prints its own port. What the server sends
has that many bytes a second, over all connections together.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_PIECE = 16 << 10
_CATCH_UP = 0.1
"""Seconds of sending that a proxy that woke late may make good for."""
_CGROUPS = Path("/sys/fs/cgroup/blkio")


class _Rate:
    """Lets bytes through, so many a second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._next, self._lock = rate, time.monotonic(), threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            self._next = max(self._next, time.monotonic() - _CATCH_UP) + count / self._rate
            wait = self._next - time.monotonic()
        if wait > 0:
            time.sleep(wait)


def _forward(source: socket.socket, target: socket.socket, rate: _Rate | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            if rate is not None:
                rate.take(len(data))
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _serve(host: str, port: int, rate: float) -> None:
    limit = _Rate(rate)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            client, _ = listening.accept()
            try:
                server = socket.create_connection((host, port))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Little lies in the kernel's buffers, so that a client sees the rate and not the buffers' size.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _PIECE)
            for arguments in ((client, server, None), (server, client, limit)):
                threading.Thread(target=_forward, args=arguments, daemon=True).start()


@contextlib.contextmanager
def throttled_server(endpoint: str, rate: float) -> Iterator[str]:
    """An endpoint, in a process of its own, that forwards to another one and sends ``rate`` bytes a second."""
    address = endpoint.removeprefix("http://").rstrip("/")
    command = [sys.executable, __file__, address, str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def remove_group(group: Path) -> None:
    """Remove a control group once its last process has ended, for 10 s at most."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            break
        time.sleep(0.1)


@contextlib.contextmanager
def throttled_device(folder: Path, rate: float) -> Iterator[Path | None]:
    """A control group whose processes read ``rate`` bytes a second from the device of a folder; ``None`` where there is none.

    A process joins when its number is written to ``cgroup.procs``.
    """
    group = _CGROUPS / f"stoker-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        number = folder.stat().st_dev
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(number)}:{os.minor(number)} {int(rate)}")
    except OSError:
        group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        remove_group(group)


if __name__ == "__main__":
    where, _, number = sys.argv[1].rpartition(":")
    _serve(where, int(number), float(sys.argv[2]))
