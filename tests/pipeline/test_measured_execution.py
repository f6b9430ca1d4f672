"""What threads and processes are estimated to get done, from times of chunks."""

from __future__ import annotations

import pytest

from stoker.pipeline.execution.measured import Burst, Costs

MS = 1_000_000


def costs(share: float, burst: Burst) -> Costs:
    return Costs(alone=1.0 * MS, share=share, bursts=[burst], packed=0.0, unpacked=0.0)


def test_functions_that_hold_the_lock_take_turns() -> None:
    found = costs(1.0, Burst(rows=20, took=20 * MS, busy=40 * MS, computed=20 * MS))
    assert found.of_threads(2) == pytest.approx(1.0)
    assert found.of_processes(2, 2) == pytest.approx(2.0)


def test_functions_that_release_the_lock_run_at_once() -> None:
    found = costs(1.0, Burst(rows=20, took=10 * MS, busy=20 * MS, computed=20 * MS))
    assert found.of_threads(2) == pytest.approx(2.0)


def test_short_samples_of_a_burst_are_not_taken_for_threads_that_help() -> None:
    """Those that were read alone took four times as long; each of the burst waited for the lock all the same."""
    found = costs(1.0, Burst(rows=80, took=20 * MS, busy=40 * MS, computed=20 * MS))
    assert found.of_threads(2) == pytest.approx(1.0)


def test_functions_that_wait_are_counted_by_their_samples() -> None:
    found = costs(0.01, Burst(rows=20, took=10 * MS, busy=20 * MS, computed=MS // 5))
    assert found.of_threads(2) == pytest.approx(2.0)
