"""The example of Ray Train stops, and goes on with another number of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_ray.py"


def run(out: Path, *arguments: object) -> str:
    """Run it to its end; what it printed."""
    command = [sys.executable, str(EXAMPLE), str(out), *map(str, arguments)]
    env = {**os.environ, "RAY_ADDRESS": "local"}  # not a cluster of another test
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * PATIENCE, check=True).stdout


def test_it_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    assert "'epoch': 0" in run(tmp_path, "--workers", 2, "--stop-after", 11)
    assert "'epoch': 2" in run(tmp_path, "--workers", 1)
