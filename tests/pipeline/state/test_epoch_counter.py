"""Epochs are counted once for a process and all its workers, however these are started."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest

from patience import PATIENCE
from stoker.errors import ConfigError
from stoker.order.sample_order import EpochPosition
from stoker.pipeline.state.epoch_counter import EpochCounter
from stoker.streams.quarantine import Mark


def begin_in_child(clock: EpochCounter, tokens: list[int], results: Any) -> None:
    results.put([clock.begin(token) for token in tokens])


def run_workers(context: Any, clock: EpochCounter, tokens: list[int], count: int) -> list[list[EpochPosition]]:
    results = context.Queue()
    children = [context.Process(target=begin_in_child, args=(clock, tokens, results)) for _ in range(count)]
    for child in children:
        child.start()
    found = [results.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join()
    return found


def test_a_process_alone_counts_up() -> None:
    clock = EpochCounter()
    assert [clock.begin(None).epoch for _ in range(3)] == [0, 1, 2]
    assert clock.peek() == EpochPosition(3)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_started_together_share_an_epoch_and_the_next_set_gets_the_next(method: str) -> None:
    context = multiprocessing.get_context(method)
    clock = EpochCounter()
    for epoch in range(2):
        assert run_workers(context, clock, [1000 + epoch], 3) == [[EpochPosition(epoch)]] * 3
    assert clock.peek().epoch == 2
    clock.load(EpochPosition(7, 40))
    assert run_workers(context, clock, [555], 3) == [[EpochPosition(7, 40)]] * 3
    assert run_workers(context, clock, [556], 2) == [[EpochPosition(8)]] * 2


@pytest.mark.processes
def test_two_sets_of_workers_with_one_token_have_an_epoch_each() -> None:
    """A number that comes again is of another set, whatever its size."""
    context = multiprocessing.get_context("fork")
    clock, results = EpochCounter(), context.Queue()
    for number in (0, 500, 500, 0):
        child = context.Process(target=lambda number=number: results.put(clock.begin(7, number).epoch))
        child.start()
        child.join()
    assert [results.get(timeout=PATIENCE) for _ in range(4)] == [0, 0, 1, 1]


@pytest.mark.processes
def test_persistent_workers_go_through_epochs_together() -> None:
    context = multiprocessing.get_context("fork")
    clock = EpochCounter()
    assert run_workers(context, clock, [9, 9, 9], 3) == [[EpochPosition(epoch) for epoch in range(3)]] * 3
    assert clock.peek().epoch == 3


def test_a_change_that_fails_leaves_the_count_as_it_was() -> None:
    clock = EpochCounter()
    clock.load(EpochPosition(4, 10))
    clock.freeze(3, lambda last: Mark(1, 5))

    def fails(last: Mark | None) -> Mark:
        assert last == Mark(1, 5)
        raise ConfigError("the list was changed")

    for _ in range(2):
        with pytest.raises(ConfigError, match="the list was changed"):
            clock.freeze(4, fails)
    assert clock.marks == {3: Mark(1, 5)}
    assert clock.peek() == EpochPosition(4, 10)


def test_marks_are_kept_of_the_last_epochs_alone() -> None:
    clock = EpochCounter()
    clock.thaw(Mark(0, 1))
    for epoch in range(40):
        clock.freeze(epoch, lambda last: Mark((last or Mark(0, 0)).lines + 1, 1))
    assert clock.marks == {epoch: Mark(epoch + 1, 1) for epoch in range(24, 40)}
    clock.thaw(None)
    assert clock.marks == {}


def test_a_clock_sent_elsewhere_shows_the_same_time() -> None:
    clock = EpochCounter()
    clock.load(EpochPosition(4, 10, 3))
    copy = pickle.loads(pickle.dumps(clock))
    assert copy.begin(None) == EpochPosition(4, 10, 3)
    assert clock.peek() == EpochPosition(4, 10, 3)
