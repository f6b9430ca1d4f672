"""transformers.Trainer: what ``table.py`` has not: evaluations, and a resume in the second epoch."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from trainers.launch import Outcome, launch, write_dataset

SCRIPT = Path(__file__).with_name("transformers_run.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples."""
    return write_dataset(tmp_path_factory.mktemp("data") / "data", 100)


def run(data: Path, variant: str, *more: object) -> Outcome:
    return launch(Path(sys.executable), SCRIPT, 2, "--data", data, "--variant", variant, "--workers", 2, *more)


def test_an_evaluation_sees_each_sample_once(data: Path) -> None:
    seen = run(data, "evaluate")
    assert not seen.error
    assert sorted(seen.ids) == list(range(100))


@pytest.mark.parametrize("variant", ["two shard"])
def test_a_resume_in_the_second_epoch_goes_on_with_that_epoch(data: Path, tmp_path: Path, variant: str) -> None:
    whole = run(data, variant)
    first = run(data, variant, "--stop-after", 18, "--checkpoint", tmp_path)
    second = run(data, variant, "--resume", "--checkpoint", tmp_path)
    assert [one.error for one in (whole, first, second)] == ["", "", ""]
    for rank in range(2):
        assert first.ranks[rank] + second.ranks[rank] == whole.ranks[rank]
    epochs = [[one for rank in whole.ranks for step in rank[begin : begin + 13] for one in step] for begin in (0, 13)]
    assert all(set(epoch) == set(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert set(Counter(epochs[0] + epochs[1]).values()) <= {2, 3, 4}
