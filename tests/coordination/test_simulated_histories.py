"""Whole runs in a world where messages are lost, late, doubled and out of order, clocks differ, and anyone may die.

``python tests/coordination/histories.py --histories 100000 --processes 2`` runs as many as one likes.
"""

from __future__ import annotations

import pytest
from histories import run_many
from simulation import Faults, World, run_history

from stoker.coordination.records import CoordinationSettings


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_no_sample_is_lost_none_committed_twice_and_all_end(first: int) -> None:
    counts = run_many(first)
    assert counts["commits"] > 1000
    assert counts["crashes"] + counts["pauses"] > 10
    assert counts["engine_crashes"] > 5


def test_the_same_holds_for_records_that_are_written_as_bytes() -> None:
    assert run_many(10_000, encoded=True)["histories"] == 50


def test_a_seed_gives_the_same_history_again() -> None:
    assert run_history(4242) == run_history(4242)


@pytest.mark.parametrize("seed", range(5))
def test_a_kind_world_repeats_nothing_and_the_fast_do_more(seed: int) -> None:
    kind = Faults(0, 0.001, 0, 0, 0, 0, 0, 0, 0, 0)
    settings = CoordinationSettings(lease=6.0, heartbeat=2.0, split=1.0, largest=64)
    world = World(seed, kind, workers=4, samples=800, lanes=1, settings=settings)
    history = world.run(limit=100)
    assert history.delivered == history.samples
    assert history.exposed == 0
    speeds = sum(process.speed for process in world.processes)
    # They end together: little over what the sum of their speeds allows. (They begin within a second.)
    assert history.seconds < 1.1 * 800 / speeds + 1
