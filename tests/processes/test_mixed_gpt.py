"""A small GPT has the same losses on one and two ranks, and stopped and resumed, where its mixture changes in mid-run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from patience import PATIENCE
from support import environ

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("no_debris")]

SCRIPT = Path(__file__).with_name("mixed_gpt.py")


def train(folder: Path, ranks: int, name: str, *more: Any) -> list[float]:
    """The losses of a run."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--log-dir={folder}/logs"]
    environment = environ(OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"))
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(folder), name, *map(str, more)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[float] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_losses_are_equal_on_two_worlds_with_an_edit_in_the_middle(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for place, name in enumerate(("counts", "squares", "steps")):
        documents = []
        for length in rng.integers(4, 60, 120).tolist():
            numbers = np.arange(length)
            documents.append((numbers % 7, numbers**2 % 11 + 20, numbers // 3 % 9 + 40)[place] + 1)
        (tmp_path / name).mkdir()
        for part in range(2):
            table = pa.table({"input_ids": pa.array(documents[part::2], pa.list_(pa.uint16()))})
            pq.write_table(table, tmp_path / name / f"{part}.parquet", row_group_size=20)
    alone = train(tmp_path, 1, "alone")
    together = train(tmp_path, 2, "together")
    assert len(alone) == 24
    assert alone == pytest.approx(together, rel=1e-6)
    before, after = train(tmp_path, 2, "before", 0, 12), train(tmp_path, 1, "after", 12)
    assert alone == pytest.approx(before + after, rel=1e-6)
    unchanged = train(tmp_path, 1, "unchanged")
    assert unchanged[:8] == pytest.approx(alone[:8], rel=1e-6)
    assert not np.isclose(unchanged[8:], alone[8:], rtol=1e-3).any()
    assert alone[-1] < alone[0] - 0.5
