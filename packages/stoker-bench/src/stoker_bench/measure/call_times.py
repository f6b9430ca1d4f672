"""The parts of an operation's time: the storage's, the kernel's work for it, and this process's own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from stoker_bench.measure.metrics import percentiles

P = ParamSpec("P")
T = TypeVar("T")

_PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


class CallTime(NamedTuple):
    """Nanoseconds of an operation.

    Attributes:
        total: from its begin to its end.
        host: of these, the time beside calls of the storage, which is this process's own code, and waiting for Python's lock.
        queue: waiting for a processor. The rest is the storage's, with the kernel's part of it.
        kernel: processor time within the calls.
        calls: how many calls there were.
    """

    total: int
    host: int = 0
    queue: int = 0
    kernel: int = 0
    calls: int = 0


class CallTimer:
    """Times the operations of one thread, in which it is made and used.

    A call of the storage returns when this thread has a processor and Python's lock again, and waiting for these is not the
    storage's time. The kernel counts the one (``/proc/thread-self/schedstat``). The other is taken from :meth:`probe`.
    """

    def __init__(self) -> None:
        self._schedule: int | None = None
        with contextlib.suppress(OSError):
            self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._begun = self._queued = self._in_calls = self._kernel = self._calls = self._lock = 0

    def close(self) -> None:
        """Close what the kernel is asked by."""
        if self._schedule is not None:
            os.close(self._schedule)
            self._schedule = None

    def begin(self) -> None:
        """An operation begins."""
        self._in_calls = self._kernel = self._calls = self._lock = 0
        self._queued = self._queue_time()
        self._begun = time.perf_counter_ns()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the storage."""
        cpu = time.thread_time_ns()
        begun = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            self._in_calls += time.perf_counter_ns() - begun
            self._kernel += time.thread_time_ns() - cpu
            self._calls += 1

    def probe(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what asks nothing of the storage: what it takes without a processor is waiting for Python's lock.

        Each call of the operation is taken to have waited as long.
        """
        queued = self._queue_time()
        cpu = time.thread_time_ns()
        begun = time.perf_counter_ns()
        found = function(*args, **kwargs)
        idle = time.perf_counter_ns() - begun - (time.thread_time_ns() - cpu)
        self._lock = max(0, idle - (self._queue_time() - queued))
        return found

    def own(self, nanoseconds: int) -> None:
        """So much of the time of a call was this process's own code, which the call has called back."""
        self._in_calls -= nanoseconds

    def end(self) -> CallTime:
        """The operation ends."""
        total = time.perf_counter_ns() - self._begun
        queue = min(total, self._queue_time() - self._queued)
        host = total - self._in_calls + self._lock * self._calls
        return CallTime(total, min(total - queue, host), queue, self._kernel, self._calls)

    def _queue_time(self) -> int:
        """Nanoseconds for which this thread has waited for a processor; 0 where the kernel does not say."""
        if self._schedule is None:
            return 0
        return int(os.pread(self._schedule, 64, 0).split()[1])


class OperationTimes:
    """Times and bytes of the operations of one kind. Threads may add to the same one."""

    def __init__(self) -> None:
        self._found: list[tuple[int, CallTime]] = []

    def add(self, size: int, time_taken: CallTime) -> None:
        """An operation of so many bytes."""
        self._found.append((size, time_taken))  # atomic

    def as_dict(self) -> dict[str, Any]:
        """For JSON: counts, bytes, sums of seconds, and percentiles of the whole operation, the storage and this process."""
        times = np.array([taken for _, taken in self._found], np.float64).reshape(-1, 5) / 1e9
        total, host, queue = times[:, 0], times[:, 1], times[:, 2]
        return {
            "count": len(times),
            "bytes": sum(size for size, _ in self._found),
            "calls": sum(taken.calls for _, taken in self._found),
            "seconds": float(total.sum()),
            "host_seconds": float(host.sum()),
            "queue_seconds": float(queue.sum()),
            "kernel_seconds": float(times[:, 3].sum()),
            "latency": percentiles(total, _PERCENTILES),
            "device_latency": percentiles(total - host - queue, _PERCENTILES),
            "host_latency": percentiles(host, _PERCENTILES),
        }


def merged(parts: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any] | None:
    """The operations of all ranks: sums, and the percentiles of the rank where they are worst, as MLPerf Storage has them.

    Args:
        parts: what :meth:`OperationTimes.as_dict` gave, of each rank.
        seconds: that the slowest rank took.

    Returns:
        ``None`` where there was no operation.
    """
    done = [part for part in parts if part["count"]]
    if not done:
        return None
    summed = {name: sum(part[name] for part in done) for name in ("count", "bytes", "calls")}
    shares = {
        f"{name}_share": sum(part[f"{name}_seconds"] for part in done) / sum(part["seconds"] for part in done)
        for name in ("host", "queue", "kernel")
    }
    worst = {
        name: {key: max(part[name][key] for part in done) for key in done[0][name]}
        for name in ("latency", "device_latency", "host_latency")
    }
    return {
        **summed,
        "bytes_per_second": summed["bytes"] / seconds,
        "per_second": summed["count"] / seconds,
        "calls_per_second": summed["calls"] / seconds,
        **shares,
        **worst,
    }
