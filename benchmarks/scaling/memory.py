"""Memory of processes, as the kernel counts it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def own_mib() -> float:
    """MiB that this process shares with no other: what one more of its kind costs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def resident_mib() -> float:
    """MiB of this process that are in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def in_child(method: str, task: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a child process that is started by this method, with what a loader's worker is given."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(theirs, task, arguments))  # type: ignore[attr-defined]
    child.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        child.join()


def _send_result(results: Connection, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    results.send(task(*arguments))
