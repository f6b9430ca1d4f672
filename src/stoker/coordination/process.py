"""Identifies processes, so that others on the same host can tell when one is gone, without waiting for its lease."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from stoker.coordination.history.records import Process


def here() -> Process:
    """This process, with a nonce of its own: made twice, it is two different ones."""
    return Process(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()) or 0, secrets.token_hex(8))


def is_gone(process: Process) -> bool:
    """Whether a process has certainly ended: only if it ran in this boot of this host, where process numbers mean the same.

    A process that is stopped, or hangs, is not gone.
    """
    boot = _boot()
    return bool(boot) and process.boot == boot and _started(process.pid) != process.started


def _boot() -> str:
    """This boot of this host and this name space of process numbers; empty where that can not be told."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot; ``None`` if there is none that still runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
