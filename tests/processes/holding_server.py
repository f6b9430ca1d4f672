"""An HTTP server of a folder that holds back the second half of one file until it is told to go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from patience import PATIENCE

__all__ = ["HoldingServer", "run_holding_server"]


class HoldingServer(ThreadingHTTPServer):
    """Serves the files below ``root``.

    Attributes:
        held: name of the file of which the first request gets one half at first.
        half_sent: set when it has got that half.
        go_on: setting it lets the rest of it follow.
        requests: names asked for.
    """

    daemon_threads = True

    def __init__(self, root: Path, held: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.held = held
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        self.requests: list[str] = []
        self._first = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def holds(self, name: str) -> bool:
        """Whether this request is the one to be held."""
        return name == self.held and self._first.acquire(blocking=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is what is wanted here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HoldingServer

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.server.requests.append(name)
        path = self.server.root / name
        if not path.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        data = path.read_bytes()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        if self.server.holds(name):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.server.half_sent.set()
            self.server.go_on.wait(PATIENCE)
            data = data[len(data) // 2 :]
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def run_holding_server(root: Path, held: str) -> Iterator[HoldingServer]:
    """Such a server for as long as the block lasts."""
    server = HoldingServer(root, held)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
