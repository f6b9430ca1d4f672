"""Ray Train: each sample comes once, also where a worker dies, or a node; ``table.py`` has prepared loaders that resume."""

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
