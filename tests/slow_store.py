"""An object store whose every request takes a set time: what S3 answers to reads, from a folder, in a process of its own.

``python slow_store.py FOLDER SECONDS`` serves the folder as a bucket of any name, and prints its port. ``GET /`` tells the
most requests that were under way at once since it was last asked, and the bytes that were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from patience import PATIENCE

TIME = (
    "2026-01-01T00:00:00.870Z"  # listings of Ceph, MinIO and GCS tell milliseconds, and answers for one object seconds
)
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class Connection(asyncio.Protocol):
    """Answers the requests of one connection, each ``delay`` seconds after it came."""

    under_way = most = sent = 0

    def __init__(self, objects: Mapping[str, bytes], delay: float) -> None:
        self._objects, self._delay, self._received = objects, delay, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            Connection.under_way += 1
            Connection.most = max(Connection.most, Connection.under_way)
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._answer, head.decode())
            else:
                self._answer(head.decode())

    def _answer(self, head: str) -> None:
        Connection.under_way -= 1
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        url = urlsplit(target)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        if target == "/":
            self._send("200 OK", f"{Connection.most} {Connection.sent}".encode(), {})
            Connection.most = Connection.sent = 0
            return
        if not key:
            self._send("200 OK", self._listed({name: each[0] for name, each in parse_qs(url.query).items()}), {})
            return
        data = self._objects.get(key)
        if data is None:
            self._send("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        said = {"ETag": f'"{len(data)}"', "Last-Modified": _DATE, "Accept-Ranges": "bytes"}
        status, body = "200 OK", data
        if wanted := headers.get("range"):
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            begin, stop = (int(start), min(int(end or len(data)) + 1, len(data))) if start else (-int(end), len(data))
            begin %= len(data)
            status, body = "206 Partial Content", data[begin:stop]
            said["Content-Range"] = f"bytes {begin}-{stop - 1}/{len(data)}"
        self._send(status, body, said, head=method == "HEAD")

    def _listed(self, asked: dict[str, str]) -> bytes:
        prefix = asked.get("prefix", "")
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{TIME}</LastModified>"
            f"<ETag>&quot;{len(data)}&quot;</ETag><Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self._objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()

    def _send(self, status: str, body: bytes, headers: dict[str, str], *, head: bool = False) -> None:
        lines = [f"{name}: {value}" for name, value in {**headers, "Content-Length": str(len(body))}.items()]
        self._transport.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode())
        if not head:
            self._transport.write(body)
            Connection.sent += len(body)


async def serve(connect: Callable[[], Connection]) -> None:
    """Answer connections for ever, and print the port."""
    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def asked(options: dict[str, str]) -> tuple[int, int]:
    """The most requests at once, and the bytes sent, since this was last called."""
    with urllib.request.urlopen(options["endpoint"] + "/", timeout=PATIENCE) as answer:
        most, sent = map(int, answer.read().split())
    return most, sent


@contextlib.contextmanager
def slow_store(folder: Path, delay: float) -> Iterator[dict[str, str]]:
    """``storage_options`` of ``s3://any-bucket`` that hold a folder's files; each request takes ``delay`` seconds."""
    with started(__file__, folder, delay) as options:
        yield options


@contextlib.contextmanager
def started(script: str, *arguments: object) -> Iterator[dict[str, str]]:
    """``storage_options`` for a store that a script serves, as long as the block lasts."""
    command = [sys.executable, script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
            keys = {"access_key_id": "any", "secret_access_key": "any", "region": "us-east-1"}
            yield {"endpoint": endpoint, **keys}
        finally:
            process.kill()


if __name__ == "__main__":
    folder, delay = Path(sys.argv[1]), float(sys.argv[2])
    held = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    asyncio.run(serve(lambda: Connection(held, delay)))
