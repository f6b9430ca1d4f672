"""Numbered messages of known length on a pipe."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Final

ALIVE: Final = 2**64 - 1
"""The number of messages that only say that the helper process runs."""

BEAT_SECONDS: Final = 1.0
"""Time between two of them."""

_HEADER = struct.Struct("<QQ")
_READ = 1 << 20


def write_frame(fd: int, number: int, payload: bytes, wait: Callable[[], None] | None = None) -> None:
    """Write one message; blocks while the pipe is full. ``wait``: for a pipe that does not block: called while it is full."""
    for part in (_HEADER.pack(number, len(payload)), payload):
        view = memoryview(part)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                if wait is None:
                    raise
                wait()


def read_frame(fd: int) -> tuple[int, bytearray] | None:
    """The next message with its number, or ``None`` when the other end is closed."""
    header = _read(fd, _HEADER.size)
    if header is None:
        return None
    number, size = _HEADER.unpack(header)
    payload = _read(fd, size)
    return None if payload is None else (number, payload)


def _read(fd: int, size: int) -> bytearray | None:
    data = bytearray()
    while len(data) < size:
        try:
            chunk = os.read(fd, min(_READ, size - len(data)))
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    return data
