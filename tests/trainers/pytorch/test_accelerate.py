"""accelerate: each sample comes once an epoch over ranks, however the loader is prepared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainers.launch import launch, write_dataset

SCRIPT = Path(__file__).with_name("accelerate_run.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples."""
    return write_dataset(tmp_path_factory.mktemp("data") / "data", 100)


def test_one_rank_sees_each_sample_once(data: Path) -> None:
    seen = launch(Path(sys.executable), SCRIPT, 1, "--data", data)
    assert not seen.error
    assert sorted(seen.ids) == list(range(100))
