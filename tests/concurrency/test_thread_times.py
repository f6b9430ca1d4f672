"""Times of a thread do not count what other processes take of its processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stoker.concurrency.spans.thread_times import ThreadTimes, displaced_time, own_time
from stoker.concurrency.threads import map_in_order

_TELLS = os.path.exists("/proc/thread-self/schedstat")


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


def compute(seconds: float) -> None:
    """Take so many seconds of a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.processes
@pytest.mark.skipif(not _TELLS, reason="the kernel does not tell how long threads wait for a processor")
def test_time_that_others_have_the_processor_is_left_out(shared_processor: None) -> None:
    times, begun, own, displaced = ThreadTimes(), time.perf_counter_ns(), own_time(), displaced_time()
    compute(0.05)
    computed, others = times.ask()
    assert 0.05e9 <= computed < 0.1e9
    assert displaced_time() - displaced >= others > computed / 4
    assert own_time() - own < time.perf_counter_ns() - begun - others / 2


@pytest.mark.processes
@pytest.mark.skipif(not _TELLS, reason="the kernel does not tell how long threads wait for a processor")
def test_a_busy_machine_is_not_taken_for_slow_storage(shared_processor: None) -> None:
    done_by = set()

    def work(number: int) -> int:
        compute(0.002)
        done_by.add(threading.get_ident())
        return number

    assert map_in_order(work, range(60), at_hand=True, most=8, name="test") == list(range(60))
    assert done_by == {threading.get_ident()}
