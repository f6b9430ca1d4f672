"""Times of a thread do not count what other processes take of its processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from patience import PATIENCE
from stoker.concurrency import threads
from stoker.concurrency.spans import thread_times
from stoker.concurrency.spans.thread_times import ThreadTimes, displaced_time, own_time
from stoker.concurrency.threads import map_in_order

_TELLS = os.path.exists("/proc/thread-self/schedstat")


class Machine:
    """The clocks of a machine, and what its kernel tells of this thread, as a test says.

    Args:
        monkeypatch: puts them in place of the real ones.
        told: the file in which the kernel tells it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Path) -> None:
        self.now, self._computed, self._displaced, self._told = 7_000, 500, 0, told
        clocks = SimpleNamespace(
            perf_counter_ns=lambda: self.now,
            thread_time_ns=lambda: self._computed,
            monotonic=lambda: self.now / 1e9,
            thread_time=lambda: self._computed / 1e9,
        )
        monkeypatch.setattr(thread_times, "time", clocks)
        monkeypatch.setattr(threads, "time", clocks)
        monkeypatch.setattr(thread_times, "_SCHEDULED", str(told))
        self.passes(0, displaced=40)

    def passes(self, nanoseconds: int, *, computed: int = 0, displaced: int = 0) -> None:
        """Let time pass, in which this thread computes, or others have the processor that it wants, for some of it."""
        self.now += nanoseconds
        self._computed += computed
        self._displaced += displaced
        self._told.write_text(f"{self._computed} {self._displaced} 12\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path / "schedstat")


def test_time_that_others_have_the_processor_is_left_out(machine: Machine) -> None:
    times, own, displaced = ThreadTimes(), own_time(), displaced_time()
    machine.passes(100, computed=30, displaced=60)
    assert times.ask() == (30, 60)
    assert times.ask() == (0, 0)
    assert own_time() - own == 100 - 60
    assert displaced_time() - displaced == 60
    machine.passes(10, computed=3)
    assert times.ask() == (3, 0)
    assert own_time() - own == 110 - 60


@pytest.mark.parametrize("told", [None, "", "100\n", "a b c\n"])
def test_where_the_kernel_does_not_tell_no_time_is_left_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str | None
) -> None:
    other = tmp_path / "other"
    if told is not None:
        other.write_text(told)
    monkeypatch.setattr(thread_times, "_SCHEDULED", str(other))
    times, own = ThreadTimes(), own_time()
    machine.passes(100, computed=30, displaced=60)
    assert times.ask() == (30, 0)
    assert own_time() - own == 100


@pytest.mark.parametrize(("displaced", "by_others"), [(18, False), (0, True)])
def test_a_busy_machine_is_not_taken_for_slow_storage(machine: Machine, displaced: int, by_others: bool) -> None:
    """Each item takes 20 ms, of which it computes 2. In the others it has no processor, or waits for storage."""
    done_by = set()

    def work(number: int) -> int:
        machine.passes(20_000_000, computed=2_000_000, displaced=displaced * 1_000_000)
        done_by.add(threading.get_ident())
        return number

    assert map_in_order(work, range(60), at_hand=True, most=1, name="test") == list(range(60))
    assert (done_by != {threading.get_ident()}) == by_others


@pytest.fixture
def shared_processor() -> Iterator[None]:
    """This thread has one processor, which it shares with two processes that compute."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    started = []
    try:
        for _ in range(2):
            code = "print(flush=True)\nwhile True: pass"
            started.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for one in started:
            one.kill()
            one.communicate()


@pytest.mark.processes
@pytest.mark.skipif(not _TELLS, reason="the kernel does not tell how long threads wait for a processor")
def test_the_kernel_tells_how_long_others_have_the_processor(shared_processor: None) -> None:
    """A thread computes until two others had its processor for longer than it: nothing of this is in its own time, and no
    time is in both. On a busier machine that comes sooner."""
    begun, own, displaced = time.perf_counter_ns(), own_time(), displaced_time()
    times = ThreadTimes()
    computed = others = 0
    while others < max(1_000_000, 1.2 * computed):
        for _ in range(10_000):
            pass
        more, taken = times.ask()
        computed, others = computed + more, others + taken
        assert time.perf_counter_ns() - begun < PATIENCE * 1e9, "others never have the processor"
    others_took, own_took = displaced_time() - displaced, own_time() - own
    took = time.perf_counter_ns() - begun
    assert others_took >= others
    assert own_took <= took - others
    assert computed + others <= took + others / 2  # of two clocks
