"""Lightning: each sample comes once an epoch over ranks, wherever the dataset is made, and after an epoch's end.

``table.py`` has runs that are resumed in an epoch's middle.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers.launch import Outcome, launch

SCRIPT = Path(__file__).with_name("lightning_run.py")


def _run(data: Path, variant: str, ranks: int, *more: object, workers: int = 0) -> Outcome:
    arguments = ("--data", data, "--variant", variant, "--workers", workers, *more)
    return launch(Path(sys.executable), SCRIPT, ranks, *arguments, by_itself=True)


@pytest.mark.parametrize(
    ("variant", "workers"),
    [
        ("before torch", 2),
        ("module columnar own_sampler", 0),
        ("hook reload val", 2),
        ("before spawn torch", 2),
        ("combined", 0),
    ],
)
def test_each_sample_comes_once_on_two_devices(variant: str, workers: int, data: Path) -> None:
    seen = _run(data, variant, 2, workers=workers)
    assert not seen.error, seen.error
    assert sorted(seen.ids) == list(range(100))
    assert seen.steps_equal


def test_a_checkpoint_of_an_epochs_end_begins_the_next_with_another_number_of_devices(
    data: Path, tmp_path: Path
) -> None:
    first = _run(data, "before epochs", 2, "--stop-after", 1, "--checkpoint", tmp_path)
    rest = _run(data, "before epochs", 1, "--resume", "--checkpoint", tmp_path)
    assert not first.error + rest.error
    assert sorted(first.ids) == sorted(rest.ids) == list(range(100))


def test_a_combined_loader_goes_on_with_the_same_number_of_devices_alone(data: Path, tmp_path: Path) -> None:
    first = _run(data, "combined", 1, "--stop-after", 12, "--checkpoint", tmp_path)
    rest = _run(data, "combined", 1, "--resume", "--checkpoint", tmp_path)
    assert not first.error + rest.error
    assert sorted(first.ids + rest.ids) == list(range(100))
    assert "Lightning counts the batches of a CombinedLoader together" in (
        _run(data, "combined", 2, "--resume", "--checkpoint", tmp_path).error
    )
