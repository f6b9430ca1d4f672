"""The machine and the moment of a measurement, in words that fit into a report."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def first_line(path: str, key: str) -> str:
    """What follows ``key`` and a colon in a ``/proc`` file; empty where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def filesystem(folder: Path) -> str:
    """Type of the file system that holds ``folder``, such as ``tmpfs``; empty if unknown."""
    folder = folder.resolve()
    best, kind = -1, ""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, point, fs, *_ = line.split()
        if (folder == Path(point) or Path(point) in folder.parents) and len(point) > best:
            best, kind = len(point), fs
    return kind


def machine(folder: Path) -> dict[str, str]:
    """CPU, cores, memory, kernel, load, the file system under the data, and the time."""
    fs = filesystem(folder)
    memory = first_line("/proc/meminfo", "MemTotal").split()
    if fs in ("tmpfs", "ramfs"):
        cache = f"{fs}: all data sets lie in memory, there is no disk and nothing to drop from the page cache"
    else:
        cache = f"{fs}: the data sets have just been written and are in the page cache as far as memory goes"
    return {
        "cpu": first_line("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory[0]) / (1 << 20):.1f} GiB" if memory else "unknown",
        "kernel": f"{platform.system()} {platform.release()}",
        "load": " ".join(f"{x:.2f}" for x in os.getloadavg()),
        "busy": "yes" if os.getloadavg()[0] > 0.4 * len(os.sched_getaffinity(0)) else "no",
        "page cache": cache,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
