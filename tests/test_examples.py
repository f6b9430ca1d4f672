"""The examples run on the data that they make, are short, and the index lists all of them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = {
    "batch_embedding": r"600 vectors of 600 samples; the workers ended with \[1, 0, 0\]",
    "image_classification": r"400 images, [4-9]\d% right",
    "lm_pretraining": r"\d+ rows, loss 4\.\d\d to [01]\.",
    "multimodal_pairs": r"25 batches, loss \d\.\d\d to \d\.\d\d",
}
RESUMED = {"image_classification": "200 images", "lm_pretraining": r"\d+ rows, loss [01]\."}


def run(name: str, out: Path, *more: str) -> str:
    if name != "batch_embedding" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_it_runs_and_learns(name: str, tmp_path: Path) -> None:
    assert re.search(SHORT[name], said := run(name, tmp_path / "out")), said
    if name in RESUMED:
        assert re.match(RESUMED[name], said := run(name, tmp_path / "out", "--resume")), said


@pytest.mark.parametrize("name", SHORT)
def test_it_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80


def test_the_index_lists_every_example() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text()))
    there = {path.name for path in EXAMPLES.glob("*.py")}
    helpers = {name for name in there if name.startswith("demo_")}
    assert listed == there - helpers
