"""The examples run under torchrun, stop, and resume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(example: str, ranks: int, *arguments: object) -> str:
    """Run an example under torchrun; what it printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [*launcher, str(EXAMPLES / example), *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=2 * PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"{example} hung: {process.communicate()[0][-3000:]}")
    assert process.returncode == 0, said[-3000:]
    return said


def test_accelerate_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    run("train_accelerate.py", 2, tmp_path, "--stop-after", 11)
    said = run("train_accelerate.py", 1, tmp_path, "--resume", "--epochs", 2)
    # 1000 samples make 62 steps of 16; 11 steps of two ranks were 22 of them, which are counted.
    assert re.findall(r"epoch (\d): (\d+) steps", said) == [("0", "62"), ("1", "62")]


def test_transformers_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run("train_transformers.py", 2, tmp_path, "--max-steps", 10)
    said = run("train_transformers.py", 2, tmp_path, "--resume")
    steps = set(re.findall(r"rank (\d): (\d+) steps", said))
    assert len(steps) == 2
    assert len({count for _, count in steps}) == 1


def test_conversations_go_on_with_fewer_ranks(tmp_path: Path) -> None:
    assert "rank 1: 20 steps" in run("finetune_chats.py", 2, tmp_path, "--stop-after", 20)
    left = re.search(r"rank 0: (\d+) steps", run("finetune_chats.py", 1, tmp_path, "--resume"))
    assert left is not None
    assert int(left[1]) > 20  # of the rest of the epoch, in steps of one rank


def test_fsdp_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    run("train_fsdp.py", 2, tmp_path, "--stop-after", 11)
    # 11 steps of 32 samples; what is left of 1000 makes 40.5 steps of 16.
    assert "rank 0: 41 steps" in run("train_fsdp.py", 1, tmp_path, "--resume")


def test_lightning_goes_on_with_fewer_devices(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_lightning.py"), str(tmp_path)]
    said = ""
    for more in (["--devices", "2", "--stop-after", "11"], ["--devices", "1", "--resume"]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        said += done.stdout
    # 1000 samples make 63 steps of 16; 11 steps of two ranks count as 22 of them.
    assert re.findall(r"rank 0: (\d+) batches", said) == ["11", "63"]
