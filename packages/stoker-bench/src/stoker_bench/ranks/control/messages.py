"""Messages between ranks: JSON, a line each, over TCP connections on which a host that vanishes is noticed."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any, Final

MOST_LINE: Final = 1 << 26
"""Bytes of a message."""


def tune(connection: socket.socket) -> None:
    """No delays, and a host that vanishes without a word is noticed within half a minute."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Channel:
    """A connection that several threads write to: a message is never in the middle of another one.

    Args:
        connection: which is not closed with it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: nobody is at the other end.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._connection.sendall(line)
