"""Memory and descriptors of processes, as the kernel counts them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def own_mib(process: int | str = "self") -> float:
    """MiB that a process shares with no other: what one more of its kind costs."""
    return sum(size for name, size in _rollup(process).items() if name.startswith("Private_"))


def proportional_mib(process: int | str) -> float:
    """MiB of a process, of which those that several have count in each by its part: all processes' add up."""
    return _rollup(process)["Pss"]


def resident_mib(key: str = "VmRSS") -> float:
    """MiB of this process that are in memory; with ``VmHWM`` the most that were."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def descriptors(process: int | str = "self") -> int:
    """Number of files, sockets and the like that a process has open."""
    return len(os.listdir(f"/proc/{process}/fd"))


def children(process: int) -> list[int]:
    """Processes that a process started, and those that these did."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def _rollup(process: int | str) -> dict[str, float]:
    _, *lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


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
