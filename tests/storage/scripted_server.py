"""An HTTP server that misbehaves as told: a real socket, a script for each connection's first request."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

from patience import PATIENCE

__all__ = ["Script", "ScriptedServer", "cut", "hang", "hang_in_body", "reset_in_body", "serve", "status", "trickle"]

Script = Callable[["ScriptedServer", socket.socket, str], None]
_HEAD = 'Last-Modified: Wed, 12 Oct 2022 17:50:00 GMT\r\nETag: "abc"\r\nConnection: close\r\n'


class ScriptedServer:
    """Answers request number i by script i, and further ones by the last."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self.released = threading.Event()
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self.released.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            request = head.partition(b"\r\n\r\n")[0].decode()
            with self._lock:
                self.requests.append(request)
                script = self._scripts[min(len(self.requests), len(self._scripts)) - 1]
            script(self, connection, request)


@contextlib.contextmanager
def serve(*scripts: Script) -> Iterator[ScriptedServer]:
    """A server for as long as the block lasts."""
    server = ScriptedServer(*scripts)
    try:
        yield server
    finally:
        server.close()


def status(code: int, body: bytes = b"", head: str = "") -> Script:
    """A whole answer."""

    def script(_: ScriptedServer, connection: socket.socket, request: str) -> None:
        lines = f"HTTP/1.1 {code} Whatever\r\nContent-Length: {len(body)}\r\n{_HEAD}{head}\r\n"
        connection.sendall(lines.encode() + body)

    return script


def hang(server: ScriptedServer, connection: socket.socket, request: str) -> None:
    """Accept, and say nothing."""
    server.released.wait(PATIENCE)


def hang_in_body(server: ScriptedServer, connection: socket.socket, request: str) -> None:
    """Stop in the middle of the body."""
    _half(connection, request)
    server.released.wait(PATIENCE)


def cut(_: ScriptedServer, connection: socket.socket, request: str) -> None:
    """Close in the middle of the body."""
    _half(connection, request)


def reset_in_body(_: ScriptedServer, connection: socket.socket, request: str) -> None:
    """Reset the connection in the middle of the body."""
    _half(connection, request)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def trickle(pieces: Sequence[bytes], seconds: float) -> Script:
    """A whole answer, slowly: each piece, and then a wait."""

    def script(server: ScriptedServer, connection: socket.socket, request: str) -> None:
        size = sum(map(len, pieces))
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n{_HEAD}\r\n".encode())
        for piece in pieces:
            connection.sendall(piece)
            server.released.wait(seconds)

    return script


def _half(connection: socket.socket, request: str) -> None:
    wanted = re.search(r"range: bytes=(\d+)-(\d+)", request.lower())
    if wanted:
        first, last = int(wanted[1]), int(wanted[2])
        size = last - first + 1
        line = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/300000\r\n"
    else:
        size, line = 300_000, "HTTP/1.1 200 OK\r\n"
    connection.sendall(f"{line}Content-Length: {size}\r\n{_HEAD}\r\n".encode() + b"x" * (size // 2))
