"""Keras: several epochs with validation, and a state that leaves nothing out, whichever backend looks ahead how far."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers.launch import launch

SCRIPT = Path(__file__).with_name("keras_run.py")


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_two_epochs_and_validation(data: Path, backend: str) -> None:
    seen = launch(Path(sys.executable), SCRIPT, 1, "--data", data, "--variant", f"{backend} two")
    assert not seen.error
    steps = [list(step) for step in seen.ranks[0]]
    epochs = [steps[:25], steps[30:55]]
    for epoch in epochs:
        assert sorted(one for step in epoch for one in step) == list(range(100))
    assert epochs[0] != epochs[1]
    assert steps[25:30] == steps[55:60]


def test_a_batch_that_is_sent_ahead_is_not_counted(data: Path, tmp_path: Path) -> None:
    how = ("--data", data, "--variant", "jax ahead", "--checkpoint", tmp_path)
    first = launch(Path(sys.executable), SCRIPT, 1, *how, "--stop-after", 6)
    second = launch(Path(sys.executable), SCRIPT, 1, *how, "--resume")
    assert not (first + second).error
    assert first.unique == 24
    assert ((first + second).unique, (first + second).twice) == (100, 0)
