"""Epochs are counted once for a process and all its workers, however these are started."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest

from patience import PATIENCE
from stoker.order.sample_order import EpochPosition
from stoker.pipeline.state.epoch_counter import EpochClock


def begin_in_child(clock: EpochClock, tokens: list[int], results: Any) -> None:
    results.put([clock.begin(token) for token in tokens])


def run_workers(context: Any, clock: EpochClock, tokens: list[int], count: int) -> list[list[EpochPosition]]:
    results = context.Queue()
    children = [context.Process(target=begin_in_child, args=(clock, tokens, results)) for _ in range(count)]
    for child in children:
        child.start()
    found = [results.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join()
    return found


def test_a_process_alone_counts_up() -> None:
    clock = EpochClock()
    assert [clock.begin(None).epoch for _ in range(3)] == [0, 1, 2]
    assert clock.peek() == EpochPosition(3)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_started_together_share_an_epoch_and_the_next_set_gets_the_next(method: str) -> None:
    context = multiprocessing.get_context(method)
    clock = EpochClock()
    for epoch in range(2):
        assert run_workers(context, clock, [1000 + epoch], 3) == [[EpochPosition(epoch)]] * 3
    assert clock.peek().epoch == 2
    clock.load(EpochPosition(7, 40))
    assert run_workers(context, clock, [555], 3) == [[EpochPosition(7, 40)]] * 3
    assert run_workers(context, clock, [556], 2) == [[EpochPosition(8)]] * 2


@pytest.mark.processes
def test_persistent_workers_go_through_epochs_together() -> None:
    context = multiprocessing.get_context("fork")
    clock = EpochClock()
    assert run_workers(context, clock, [9, 9, 9], 3) == [[EpochPosition(epoch) for epoch in range(3)]] * 3
    assert clock.peek().epoch == 3


def test_a_clock_sent_elsewhere_shows_the_same_time() -> None:
    clock = EpochClock()
    clock.load(EpochPosition(4, 10, 3))
    copy = pickle.loads(pickle.dumps(clock))
    assert copy.begin(None) == EpochPosition(4, 10, 3)
    assert clock.peek() == EpochPosition(4, 10, 3)
