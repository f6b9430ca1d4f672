"""The functions that worker processes of a rank are in, which they tell on a signal, also where they hang."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

from stoker_bench.measure.usage import descendants

_SIGNAL: Final = signal.SIGUSR2
_VARIABLE: Final = "_STOKER_BENCH_STACKS"
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_POLL: Final = 0.05
_MOST_SECONDS: Final = 5.0
"""For all workers together."""


class StackFrame(NamedTuple):
    """A function that has been called and has not returned."""

    path: str
    line: int
    name: str


class _Listening:
    """The memory that stacks are written to: of the process that opened it, and of those forked from it."""

    pid = 0
    memory = -1


def tell_stacks() -> None:
    """Let worker processes of this process tell their stacks: forked ones, and those that call :func:`listen`."""
    if _Listening.pid == os.getpid() or not hasattr(os, "memfd_create"):
        return
    memory = os.memfd_create("stoker-bench-stacks")
    _Listening.pid, _Listening.memory = os.getpid(), memory
    # By its name in /proc it leaves nothing behind, however this process ends.
    os.environ[_VARIABLE] = f"/proc/{os.getpid()}/fd/{memory}"
    listen()


def listen() -> None:
    """Tell the stack of this process's main thread on a signal, if the rank that it belongs to asked for it."""
    path = os.environ.get(_VARIABLE)
    if path is None or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        faulthandler.register(_SIGNAL, file=descriptor, all_threads=False)


def worker_stacks() -> dict[int, list[StackFrame]]:
    """The stacks of this process's workers that tell them, by process, the innermost function first."""
    found: dict[int, list[StackFrame]] = {}
    deadline = time.monotonic() + _MOST_SECONDS
    for pid in descendants(os.getpid()) if _Listening.pid == os.getpid() else ():
        if time.monotonic() < deadline and _catches(pid):
            text = _told(pid, deadline)
            frames = [StackFrame(path, int(line), name) for path, line, name in _FRAME.findall(text)]
            if frames:
                found[pid] = frames
    return found


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would end it otherwise."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        mask = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        return mask is not None and bool(int(mask[1], 16) >> (_SIGNAL - 1) & 1)
    return False


def _told(pid: int, deadline: float) -> str:
    """The text that a process writes on the signal, once nothing more comes."""
    start = seen = os.fstat(_Listening.memory).st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _SIGNAL)
    while time.monotonic() < deadline:
        time.sleep(_POLL)
        size = os.fstat(_Listening.memory).st_size
        if size == seen > start:
            break
        seen = size
    return os.pread(_Listening.memory, max(0, seen - start), start).decode(errors="replace")
