"""The resources that a rank's processes use: processor time, memory, and bytes read, as Linux counts them."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker_bench.measure.page_cache import counts_device_reads, file_system

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over this process and its children, those that have ended too.

    Attributes:
        cpu: seconds of processor time.
        memory: bytes of memory that they have now, shared pages of each counted.
        peak: most bytes of memory that this process and each living child had, one by one, added up.
        device: bytes that the kernel fetched from block devices for them; ``None`` where it does not say.
        read: bytes that they got by read calls, from the page cache or not; not what is mapped.
    """

    cpu: float
    memory: int
    peak: int
    device: int | None
    read: int | None

    def since(self, before: Usage) -> dict[str, float | int | None]:
        """The resources used from ``before`` to now, for JSON."""

        def more(now: int | None, then: int | None) -> int | None:
            return None if now is None or then is None else max(0, now - then)

        return {
            "cpu_seconds": max(0.0, self.cpu - before.cpu),
            "memory_bytes": self.memory,
            "peak_memory_bytes": self.peak,
            "device_bytes": more(self.device, before.device),
            "read_bytes": more(self.read, before.read),
        }


def measure(path: str | None = None) -> Usage:
    """Now. Takes some tens of microseconds a process.

    Args:
        path: of the storage; where the kernel does not count what is read of its file system, ``device`` is not known.
    """
    own = os.getpid()
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    memory, peak = _memory(own)
    device, read = _io(own)
    for child in descendants(own):
        more, most = _memory(child)
        memory, peak = memory + more, peak + most
        cpu += _cpu(child)
        from_device, from_calls = _io(child)
        device = None if device is None or from_device is None else device + from_device
        read = None if read is None or from_calls is None else read + from_calls
    if path is not None and not counts_device_reads(path):
        device = None
    return Usage(cpu, memory, peak, device, read)


def bytes_read(path: str | None = None) -> tuple[int | None, int | None]:
    """``device`` and ``read`` of :func:`measure` alone, which takes less time."""
    own = os.getpid()
    found = [_io(pid) for pid in (own, *descendants(own))]
    device, read = zip(*found, strict=True)
    told = None not in device and (path is None or counts_device_reads(path))
    return sum(device) if told else None, None if None in read else sum(read)


def tells_device_from_page_cache(path: str | None) -> bool:
    """Whether the kernel tells of a read of a path's file system if it came from a device; what is in memory never did.

    Args:
        path: of the storage; ``None`` for an object store, of which nothing is in the page cache.
    """
    return path is None or file_system(path)[1] or bytes_read(path)[0] is not None


def all_clocks() -> list[float]:
    """Seconds by the clocks of steps and of blocks, which are one, and by the kernel's own count, which no library stands
    in front of; that of Linux alone, in hundredths."""
    found = [time.perf_counter_ns() * 1e-9, time.monotonic_ns() * 1e-9]
    with contextlib.suppress(OSError, ValueError, IndexError):
        found.append(float(Path("/proc/uptime").read_text().split()[0]))
    return found


def descendants(pid: int) -> list[int]:
    """Living processes that one has started, and theirs; those that end while this is asked for are left out."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        with contextlib.suppress(OSError, ValueError):
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [int(one) for one in (task / "children").read_text().split()]
                found += children
                waiting += children
    return found


def _memory(pid: int) -> tuple[int, int]:
    now = peak = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                now = int(line.split()[1]) << 10
            elif line.startswith("VmHWM:"):
                peak = int(line.split()[1]) << 10
    return now, peak


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(parts[at]) for at in (11, 12, 13, 14)) / _TICKS  # user, system, and those of ended children
    return 0.0


def _io(pid: int) -> tuple[int | None, int | None]:
    with contextlib.suppress(OSError, ValueError):
        lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(lines["read_bytes"]), int(lines["rchar"])
    return (None, None) if pid == os.getpid() else (0, 0)
