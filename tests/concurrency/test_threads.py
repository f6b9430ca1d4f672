"""Threads are used where storage answers late, and not where they would cost more than they save."""

from __future__ import annotations

import threading

import pytest

from stoker.concurrency.threads import map_in_order


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
