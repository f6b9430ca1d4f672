"""Threads are used where storage answers late, and not where they would cost more than they save."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from patience import PATIENCE
from stoker.concurrency.threads import Threads, map_in_order
from stoker.errors import StokerError


@pytest.mark.parametrize(
    ("at_hand", "seconds", "by_main"),
    [(True, 0.0001, {True}), (True, 0.02, {True, False}), (False, 0.0001, {False})],
)
def test_results_come_in_order_by_threads_where_they_come_late(
    monkeypatch: pytest.MonkeyPatch, at_hand: bool, seconds: float, by_main: set[bool]
) -> None:
    now, done_by = [0.0], set()

    def work(number: int) -> int:
        now[0] += seconds
        done_by.add(threading.current_thread() is threading.main_thread())
        return -number

    monkeypatch.setattr("stoker.concurrency.threads.time.monotonic", lambda: now[0])
    assert map_in_order(work, range(200), at_hand=at_hand, most=8, name="test") == [-number for number in range(200)]
    assert done_by == by_main


def test_the_first_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        map_in_order(lambda number: 1 // number, [1, 2, 0, 3], at_hand=False, most=2, name="test")


# -- one piece of work on many items ----------------------------------------------------------------------------------------


def total(found: list[int]) -> int:
    return sum(found)


def in_order(found: list[int]) -> list[int]:
    return sorted(found)


def test_items_are_done_by_many_threads_and_ended_by_one() -> None:
    pool, together = Threads(4, "test"), threading.Barrier(4, timeout=PATIENCE)

    def each(number: int) -> int:
        together.wait()  # only four threads at once get by
        return number * number

    futures = [pool.submit_each(range(first, first + 4), each, in_order) for first in (0, 4, 8)]
    assert [future.result(PATIENCE) for future in futures] == [
        [number * number for number in range(first, first + 4)] for first in (0, 4, 8)
    ]
    pool.close()


def test_an_error_of_an_item_or_of_the_end_is_the_futures() -> None:
    pool = Threads(2, "test")

    def inverse(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        pool.submit_each([1, 0, 2], inverse, total).result(PATIENCE)
    with pytest.raises(IndexError):
        pool.submit_each([1], inverse, lambda found: found[1]).result(PATIENCE)
    assert pool.submit_each([1, 2], inverse, total).result(PATIENCE) == 1  # its threads go on
    pool.close()


def test_items_that_have_not_begun_can_be_cancelled_and_those_that_have_can_not() -> None:
    pool, go, begun, done = Threads(1, "test"), threading.Event(), threading.Event(), []

    def each(number: int) -> int:
        begun.set()
        go.wait(PATIENCE)
        done.append(number)
        return number

    first, second = pool.submit_each([1, 2], each, total), pool.submit_each([3, 4], each, total)
    assert begun.wait(PATIENCE)
    assert not first.cancel()
    assert second.cancel()
    go.set()
    assert first.result(PATIENCE) == 3
    assert pool.submit(lambda: done).result(PATIENCE) == [1, 2]
    pool.close()


def test_a_pool_that_closes_leaves_out_items_and_ends_with_those_that_are_done() -> None:
    pool, go, begun = Threads(1, "test"), threading.Event(), threading.Event()

    def each(number: int) -> int:
        begun.set()
        go.wait(PATIENCE)
        return number

    future = pool.submit_each([1, 2, 3], each, in_order)
    never = pool.submit_each([4], each, in_order)
    assert begun.wait(PATIENCE)
    pool.close(patience=0.0)
    go.set()
    assert future.result(PATIENCE) == [1]
    assert never.cancelled()


@pytest.mark.processes
def test_a_forked_child_does_all_items_itself() -> None:
    pool, go = Threads(1, "test"), threading.Event()

    def each(number: int) -> int:
        go.wait(PATIENCE)
        return number

    future = pool.submit_each([1, 2, 3], each, total)
    child = os.fork()
    if not child:
        go.set()
        os._exit(0 if future.result() == 6 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    assert future.result(PATIENCE) == 6
    pool.close()


def test_what_waits_is_done_where_a_pool_is_to_have_no_threads() -> None:
    pool, go, begun = Threads(2, "test"), threading.Event(), threading.Semaphore(0)

    def wait(number: int) -> int:
        begun.release()
        assert go.wait(PATIENCE)
        return number

    futures = [pool.submit(partial(wait, number)) for number in range(5)]
    assert begun.acquire(timeout=PATIENCE)
    assert begun.acquire(timeout=PATIENCE)
    pool.resize(0)
    go.set()
    assert [future.result(PATIENCE) for future in futures] == [*range(5)]
    pool.close()


def test_a_pool_that_can_start_no_thread_says_so_and_one_that_has_some_goes_on() -> None:
    none, some = Threads(2, "none"), Threads(2, "some")
    assert some.submit(lambda: 1).result(PATIENCE) == 1
    before = threading.stack_size(1 << 46)  # more than a process can map
    try:
        assert some.submit_each([1, 2, 3], lambda number: number, in_order).result(PATIENCE) == [1, 2, 3]
        with pytest.raises(StokerError, match="can start no thread for 'none'"):
            none.submit(lambda: 1)
    finally:
        threading.stack_size(before)
    assert none.submit(lambda: 2).result(PATIENCE) == 2
    none.close()
    some.close()


def test_a_closed_pool_opens_again_and_two_threads_that_open_it_share_it() -> None:
    pool, together = Threads(4, "test"), threading.Barrier(4, timeout=PATIENCE)
    for _ in range(20):
        pool.close()

        def submit(number: int) -> int:
            together.wait()
            return pool.submit(lambda: number).result(PATIENCE)

        with ThreadPoolExecutor(4) as threads:
            assert [*threads.map(submit, range(4))] == [*range(4)]
        assert sum(thread.name == "stoker-test" for thread in threading.enumerate()) <= 4
    pool.close()
