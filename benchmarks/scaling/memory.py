"""Memory of processes, as the kernel counts it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
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
    """The result of a function in a child process that is started by this method."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(task, arguments)
