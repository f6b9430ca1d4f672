"""Ray Train: each sample comes once, also where a worker dies, or a node; ``table.py`` has prepared loaders that resume."""

from __future__ import annotations

import sys
from pathlib import Path

from patience import PATIENCE
from stoker import StreamingDataset
from trainers.launch import Outcome, launch

SCRIPT = Path(__file__).with_name("train_run.py")


def run(data: Path, ranks: int, *more: object, timeout: float = 2 * PATIENCE) -> Outcome:
    """A run on a cluster of its own, which ends with so many workers."""
    seen = launch(Path(sys.executable), SCRIPT, ranks, "--data", data, *more, by_itself=True, timeout=timeout)
    assert not seen.error
    return seen


def test_a_killed_worker_costs_no_sample(data: Path) -> None:
    seen = run(data, 2, "--variant", "killed", "--stop-after", 6)
    assert (seen.unique, seen.twice) == (100, 0)


def test_a_run_that_loses_a_node_goes_on_with_one_worker(data: Path) -> None:
    seen = run(data, 1, "--variant", "elastic", "--stop-after", 6, timeout=4 * PATIENCE)
    assert (seen.unique, seen.twice) == (100, 0)


def test_a_checkpoint_of_an_epochs_end_begins_the_next_on_another_number_of_workers(data: Path, tmp_path: Path) -> None:
    how = ("--variant", "prepared ends", "--checkpoint", tmp_path)
    first, second = run(data, 2, *how), run(data, 1, *how, "--resume")
    assert (first.unique, first.twice) == (second.unique, second.twice) == (100, 0)
    dataset = StreamingDataset(str(data), shuffle=True, batch_size=4)
    dataset.set_epoch(1)
    assert [list(step) for step in second.ranks[0]] == [list(batch["id"]) for batch in dataset.batches()]
