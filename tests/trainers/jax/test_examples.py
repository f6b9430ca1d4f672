"""The examples of JAX and Keras stop, and go on in the middle of an epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(example: str, out: Path, *arguments: object, backend: str = "") -> str:
    """Run an example to its end; what it printed."""
    env = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / example), str(out), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * PATIENCE, check=True).stdout


def test_jax(tmp_path: Path) -> None:
    run("train_jax.py", tmp_path, "--stop-after", 11)
    said = run("train_jax.py", tmp_path)
    assert "epoch 0: 51 steps" in said  # of 62
    assert "epoch 1: 113 steps" in said


def test_keras_goes_on_with_another_backend(tmp_path: Path) -> None:
    run("train_keras.py", tmp_path, "--stop-after", 11, backend="jax")
    said = run("train_keras.py", tmp_path, backend="torch")
    assert said.count("val_loss") == 2
