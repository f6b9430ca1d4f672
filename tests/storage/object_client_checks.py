"""What any client of object storage must notice: answers that come a byte now and then, ranges that come cut or shifted."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from scripted_server import Script, ScriptedServer, serve, status

from stoker.errors import StorageTimeoutError
from stoker.storage import RetryPolicy, Store, open_store, retry

CUT_RANGES: Final = ("10-89/25600", "15-104/25600", "10-109/25600", "nonsense")
"""``Content-Range`` where the bytes from 10 up to 100 were asked for."""
_LARGE: Final = 1 << 20
LARGE_FETCHES: Final[dict[str, tuple[int, Callable[[Store, Path], object]]]] = {
    "get": (_LARGE, lambda store, _: store.get("a", max_bytes=_LARGE)),
    "read_into": (_LARGE, lambda store, _: store.read_into("a", memoryview(bytearray(_LARGE)))),
    "download": (_LARGE, lambda store, path: store.download("a", path / "target")),
    "request": (40_000, lambda store, _: store.request("a", max_bytes=40_000)()),
}
"""Bytes of an object, and a way in which a cache fetches it."""


def _options(server: ScriptedServer, library: str) -> dict[str, object]:
    more = {} if library == "obstore" else {"library": library}
    keys = {"access_key_id": "AKIAKEY", "secret_access_key": "SECRET", "region": "us-east-1"}
    return {"endpoint": server.endpoint, **keys, **more}


def check_trickle(library: str, fetch: str, tmp_path: Path) -> None:
    """A server that sends a byte now and then is given up, and the error names the object."""
    size, call = LARGE_FETCHES[fetch]

    def slow(server: ScriptedServer, connection: socket.socket, _: str) -> None:
        head = f'HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: "a"\r\n'
        connection.sendall(f"{head}Last-Modified: Wed, 12 Oct 2022 17:50:00 GMT\r\n\r\n".encode())
        while not server.released.wait(0.05):
            connection.sendall(b"x")

    with serve(slow) as server:
        store = open_store("s3://bucket/x", _options(server, library), retry=RetryPolicy(patience=0), stall_timeout=0.3)
        with pytest.raises(StorageTimeoutError, match="s3://bucket/x/a"):
            call(store, tmp_path)


def check_cut_range(
    library: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that comes cut or shifted is asked for again, and that is logged."""
    monkeypatch.setattr(retry, "_said", -float("inf"))
    data = random.Random(7).randbytes(25600)

    def part(told: str) -> Script:
        first, last = (int(one) for one in re.findall(r"(\d+)-(\d+)", told)[0]) if "-" in told else (10, 99)
        head = f"Content-Range: bytes {told}\r\n"
        return status(206, data[first : last + 1], head)

    right = part("10-99/25600")
    with serve(part(told), right, part(told), right, part(told)) as server:
        store = open_store("s3://bucket", _options(server, library), retry=RetryPolicy(1.0, base_delay=0.01))
        assert store.get_range("x", 10, 100) == data[10:100]
        store.download_range("x", tmp_path / "x", 10, 100)
        assert (tmp_path / "x").read_bytes() == data[10:100]
        assert len(server.requests) == 4
        assert "s3://bucket/x" in caplog.text
        assert "trying again" in caplog.text
        with pytest.raises(StorageTimeoutError, match=r"where .10, 100. w|is not understood"):
            store.get_range("x", 10, 100)
