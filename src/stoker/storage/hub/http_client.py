"""HTTP requests over connections that are kept open, by the standard library: works in forks, and shows all headers.

The client library of the other stores hides headers of answers, in which the Hub says where the next page is, where a file
lies, and when to come back.
"""

from __future__ import annotations

import base64
import errno
import http.client
import os
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, Self, TypeAlias
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from stoker.storage.remote.faults import Fault
from stoker.storage.remote.response_bodies import BRIEF_STALLS, AnswerError, check_speed

_Server: TypeAlias = tuple[str, str, int]

_CHUNK: Final = 1 << 18


class HTTPClient:
    """Connections to HTTP servers. Thread-safe; belongs to the process that made it.

    Args:
        stall_timeout: seconds without a byte after which a request fails.
    """

    def __init__(self, stall_timeout: float) -> None:
        self._stall_timeout = stall_timeout
        self._idle: defaultdict[_Server, list[http.client.HTTPConnection]] = defaultdict(list)
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def ask(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        """Send a request; redirects are not followed.

        Raises:
            AnswerError: there is no answer; says why.
        """
        parts = urlsplit(url)
        server = (parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        while True:
            with self._lock:
                idle = self._idle[server]
                connection = idle.pop() if idle else None
            kept = connection is not None
            try:
                if connection is None:
                    connection, proxied = self._connect(server)
                    if proxied:
                        target = url
                connection.request(method, target, headers=dict(headers))
                return Answer(self, url, server, connection, connection.getresponse(), self._stall_timeout)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if connection is not None:
                    connection.close()
                if kept and isinstance(error, ConnectionError):
                    continue  # closed by the server meanwhile, as servers do
                fault = _fault_of(error)
            raise AnswerError(fault)

    def __del__(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()

    def keep(self, server: _Server, connection: http.client.HTTPConnection) -> None:
        """Take back a connection whose answer was read to its end."""
        with self._lock:
            self._idle[server].append(connection)

    def _connect(self, server: _Server) -> tuple[http.client.HTTPConnection, bool]:
        """A new connection, and whether it is to a proxy that wants whole URLs."""
        scheme, host, port = server
        patience = self._stall_timeout
        proxy = None if proxy_bypass(host) else getproxies().get(scheme, getproxies().get("all"))
        if scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or None)
        if not proxy:
            if scheme == "https":
                return http.client.HTTPSConnection(host, port, timeout=patience, context=self._tls), False
            return http.client.HTTPConnection(host, port, timeout=patience), False
        by = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        login = {}
        if by.username is not None:
            name = f"{unquote(by.username)}:{unquote(by.password or '')}"
            login["Proxy-Authorization"] = f"Basic {base64.b64encode(name.encode()).decode()}"
        if scheme == "http" and not login:
            return http.client.HTTPConnection(by.hostname or "", by.port or 80, timeout=patience), True
        tunnel: http.client.HTTPConnection
        if scheme == "https":
            tunnel = http.client.HTTPSConnection(by.hostname or "", by.port or 80, timeout=patience, context=self._tls)
        else:
            tunnel = http.client.HTTPConnection(by.hostname or "", by.port or 80, timeout=patience)
        tunnel.set_tunnel(host, port, login)
        return tunnel, False


class Answer:
    """The answer to a request. Its body is read once, and it is closed.

    Attributes:
        url: that was asked for.
        status: of HTTP.
        headers: by name, whatever the case of letters.
    """

    def __init__(
        self,
        client: HTTPClient,
        url: str,
        server: _Server,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        stall_timeout: float,
    ) -> None:
        self.url = url
        self.status = response.status
        self.headers = response.headers
        self._client = client
        self._server = server
        self._connection = connection
        self._response = response
        self._stall_timeout = stall_timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int | None:
        """Bytes of the body, where the server says."""
        return self._response.length

    def body(self, size: int) -> Iterator[bytes]:
        """The chunks of a body of ``size`` bytes.

        Raises:
            AnswerError: more, or fewer, than ``size`` bytes come, or they come too slowly.
        """
        begun, done = time.monotonic(), 0
        while done < size:
            chunk = self._read(min(size - done, _CHUNK))
            if not chunk:
                raise AnswerError(Fault("transient", f"{done} of {size} bytes arrived", answered=True))
            done += len(chunk)
            yield chunk
            check_speed(done, size, time.monotonic() - begun - self._stall_timeout)
        if self._response.length or self._read(1):
            raise AnswerError(Fault("other", f"more came than the {size} bytes that were asked for"))

    def text(self, most: int) -> bytes:
        """A short body.

        Raises:
            AnswerError: it has more than ``most`` bytes, or does not come whole, and soon.
        """
        end = time.monotonic() + BRIEF_STALLS * self._stall_timeout
        parts: list[bytes] = []
        left = most
        while chunk := self._read(_CHUNK):
            parts.append(chunk)
            left -= len(chunk)
            if left < 0:
                raise AnswerError(Fault("other", f"the answer has more than the {most} bytes that are expected"))
            if time.monotonic() > end:
                raise AnswerError(Fault("timeout", "the answer did not come whole in time"))
        if self._response.length:
            raise AnswerError(Fault("transient", "the connection broke before the answer was whole"))
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back where the body was read to its end, else close it."""
        response = self._response
        whole = response.isclosed() or response.length == 0
        response.close()
        if whole and not response.will_close and self._connection.sock is not None:
            self._client.keep(self._server, self._connection)
        else:
            self._connection.close()

    def _read(self, most: int) -> bytes:
        """The next bytes, as they come; none at the end."""
        try:
            return self._response.read1(most)
        except (OSError, http.client.HTTPException, ValueError) as error:
            fault = _fault_of(error)
        raise AnswerError(fault)


def _fault_of(error: Exception) -> Fault:
    """The meaning of a failure in which no server answered with a status."""
    if isinstance(error, TimeoutError):
        return Fault("timeout", "the server sent nothing within the stall time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Fault(
            "other", f"the server's TLS certificate is not trusted ({error.verify_message}; SSL_CERT_FILE adds one)"
        )
    if isinstance(error, socket.gaierror):
        return Fault("transient", "the server's name can not be resolved")
    if isinstance(error, ConnectionRefusedError):
        return Fault("transient", "can not connect (connection refused)")
    if isinstance(error, ConnectionError | http.client.IncompleteRead | ssl.SSLError):
        return Fault("transient", "the connection broke before the answer was whole")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Fault("other", "this process may open no more files or connections: raise the limit (ulimit -n)")
    if isinstance(error, OSError):
        return Fault(
            "transient", f"can not connect ({os.strerror(error.errno) if error.errno else type(error).__name__})"
        )
    return Fault("other", f"the server's answer is not understood ({type(error).__name__})")
