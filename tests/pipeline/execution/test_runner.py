"""Runners execute all chunks, give results in order, and can be resized while they run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from patience import PATIENCE
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.runner import InThreads, Runner


def _chunk(number: int) -> Chunk:
    ids = np.array([number])
    return Chunk([1], ids, ids, ids, (number,))


def _number(chunk: Chunk) -> int:
    return int(chunk.positions[0])


@pytest.mark.parametrize("sizes", [[], [1, 4, 2], [3, 1, 1, 3], [2, 0, 2, 0]])
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_results_come_in_the_order_of_chunks_while_the_number_of_workers_changes(
    threads: int, sizes: list[int]
) -> None:
    runner: Runner[int] = InThreads(_number, threads)
    running: deque[Callable[[], int]] = deque()
    found, changes = [], deque(sizes)
    for number in range(100):
        running.append(runner.submit(_chunk(number)))
        if number % 20 == 10 and changes:
            runner.resize(changes.popleft())
        while len(running) > runner.ahead:
            found.append(running.popleft()())
    found += [take() for take in running]
    runner.close()
    assert found == list(range(100))


def test_as_many_chunks_are_executed_at_once_as_there_are_threads() -> None:
    inside, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def execute(chunk: Chunk) -> int:
        inside.release()
        assert go_on.acquire(timeout=PATIENCE)
        return _number(chunk)

    runner = InThreads(execute, 1)
    taken = [runner.submit(_chunk(number)) for number in range(6)]
    assert inside.acquire(timeout=PATIENCE)
    assert not inside.acquire(timeout=0.05)
    runner.resize(3)
    assert inside.acquire(timeout=PATIENCE)
    assert inside.acquire(timeout=PATIENCE)
    assert not inside.acquire(timeout=0.05)
    go_on.release(6)
    assert [take() for take in taken] == list(range(6))
    # Of more threads than are wanted, those that were told so end; what is submitted later is executed by the rest.
    runner.resize(1)
    for _ in range(3):
        assert inside.acquire(timeout=PATIENCE)
    late = [runner.submit(_chunk(number)) for number in range(2)]
    assert inside.acquire(timeout=PATIENCE)
    assert not inside.acquire(timeout=0.05)
    go_on.release(2)
    assert [take() for take in late] == [0, 1]
    runner.close()


def test_what_was_submitted_and_not_taken_is_dropped_at_the_end() -> None:
    begun, go_on = threading.Event(), threading.Event()
    done = []

    def execute(chunk: Chunk) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        done.append(_number(chunk))

    runner = InThreads(execute, 1)
    for number in range(5):
        runner.submit(_chunk(number))
    assert begun.wait(PATIENCE)
    runner.close()
    go_on.set()
    runner.resize(2)
    assert set(done) <= {0}
