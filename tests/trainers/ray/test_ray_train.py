"""Ray Train: each sample comes once, also where a worker dies, or a run goes on with another number of workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers.launch import Outcome, launch, write_dataset

SCRIPT = Path(__file__).with_name("train_run.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples."""
    return write_dataset(tmp_path_factory.mktemp("data") / "data", 100)


def run(data: Path, ranks: int, *more: object, timeout: float = 280) -> Outcome:
    """A run on a cluster of its own, which ends with so many workers."""
    seen = launch(Path(sys.executable), SCRIPT, ranks, "--data", data, *more, by_itself=True, timeout=timeout)
    assert not seen.error
    return seen


def test_a_killed_worker_costs_no_sample(data: Path) -> None:
    seen = run(data, 2, "--variant", "killed", "--stop-after", 6)
    assert (seen.unique, seen.twice) == (100, 0)


@pytest.mark.timeout(600)
def test_a_run_that_loses_a_node_goes_on_with_one_worker(data: Path) -> None:
    seen = run(data, 1, "--variant", "elastic", "--stop-after", 6, timeout=550)
    assert (seen.unique, seen.twice) == (100, 0)


def test_a_prepared_loader_is_one_batch_ahead_and_its_state_is_not(data: Path, tmp_path: Path) -> None:
    first = run(data, 2, "--variant", "prepared", "--stop-after", 6, "--checkpoint", tmp_path)
    second = run(data, 1, "--variant", "prepared", "--resume", "--checkpoint", tmp_path)
    assert first.unique == 48
    both = first + second
    assert (both.unique, both.twice) == (100, 0)
