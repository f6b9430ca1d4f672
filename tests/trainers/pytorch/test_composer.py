"""Composer: what is left comes once, from checkpoints in an epoch's middle and at its end, on another number of ranks."""

from __future__ import annotations

import sys
from pathlib import Path

from trainers.launch import launch, write_dataset

SCRIPT = Path(__file__).with_name("composer_run.py")
EPOCH = 5
"""Global batches of 20 samples."""


def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", 100)
    how = ("--data", data, "--checkpoint", tmp_path / "saved", "--workers", 2)
    first = launch(Path(sys.executable), SCRIPT, 2, *how, "--batch-size", 10)
    assert not first.error, first.error
    whole = [sorted(one + other) for one, other in zip(*first.ranks, strict=True)]
    epochs = [whole[begin : begin + EPOCH] for begin in (0, EPOCH, 2 * EPOCH)]
    assert all(sorted(one for step in epoch for one in step) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    rest = launch(Path(sys.executable), SCRIPT, 1, *how, "--batch-size", 20, "--resume")
    assert not rest.error, rest.error
    # From the first epoch's middle, from after its last batch, and from after the second epoch.
    assert [sorted(step) for step in rest.ranks[0]] == [*whole[3:], *whole[EPOCH:], *whole[2 * EPOCH :]]
