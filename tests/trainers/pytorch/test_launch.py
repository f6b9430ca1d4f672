"""The launcher of the table: it ends runs that hang, and tells what failed."""

from __future__ import annotations

import sys
from pathlib import Path

from trainers.launch import Outcome, launch
from trainers.table import SAMPLES, Trainer, right

SCRIPT = """
import os, sys, time
from trainers.launch import record
rank = int(os.environ["RANK"])
what = sys.argv[3]
if what == "hang" and rank:
    time.sleep(600)
if what == "fail" and rank:
    sys.exit("rank 1 has a reason")
record(sys.argv[2], rank, [[2 * k + rank] for k in range(50)])
"""


def test_a_run_is_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    well = launch(Path(sys.executable), script, 2, "well")
    assert (well.unique, well.twice, well.steps_equal, well.error) == (100, 0, True, "")
    assert "rank 1 has a reason" in launch(Path(sys.executable), script, 2, "fail").error
    assert launch(Path(sys.executable), script, 2, "hang", timeout=20).error == "hang"


def test_a_cell_is_right_only_if_each_sample_came() -> None:
    trainer = Trainer("", "", "", fills=1)
    ids = range(SAMPLES)
    halves = tuple((one,) for one in ids[::2]), tuple((one,) for one in ids[1::2])
    assert right(trainer, Outcome(halves), resumed=False)
    assert not right(trainer, Outcome((halves[0], halves[0])), resumed=False)
    assert not right(trainer, Outcome((halves[0], halves[1][1:])), resumed=False)
    assert not right(trainer, Outcome((*halves, ((0,), (1,)))), resumed=True)
    assert not right(trainer, Outcome(error="hang"), resumed=True)
