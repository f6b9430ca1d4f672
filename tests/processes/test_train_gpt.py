"""A real GPT on real text: two ranks, killed in mid-file; three go on; every window of tokens once, and the loss goes on."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from patience import PATIENCE
from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader
from support import environ

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.usefixtures("no_debris"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SEQ, BATCH, SAVE_EVERY, KILL_AT = 64, 8, 20, 47
SMALL = ["--characters", "300000", "--seq-len", SEQ, "--batch-size", BATCH, "--width", "48", "--layers", "2"]


def start(folder: Path, ranks: int, *more: Any) -> subprocess.Popen[str]:
    """The example under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--log-dir={folder}/logs"]
    options = ["--out", folder, *SMALL, "--save-every", SAVE_EVERY, "--learning-rate", "0.003", *more]
    return subprocess.Popen(
        [sys.executable, *launcher, str(EXAMPLE), *map(str, options)],
        env=environ(
            OMP_NUM_THREADS="1", STOKER_CACHE=str(folder / "cache"), TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor")
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(folder: Path) -> list[dict[str, Any]]:
    """What the ranks wrote down, complete lines only."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(found: list[dict[str, Any]]) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in found}


def windows(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(window for record in found for window in record["windows"])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_two_ranks_are_killed_and_three_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(tmp_path, 2, "--record", tmp_path / "first")
    try:
        while max(losses(records(tmp_path / "first")), default=0) < KILL_AT:
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.05)
        for path in (tmp_path / "first").iterdir():
            os.kill(int(path.stem), signal.SIGKILL)
        assert first.wait(PATIENCE)
    finally:
        first.kill()
        first.communicate()
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    saved = checkpoint["step"]
    assert saved in (2 * SAVE_EVERY, 3 * SAVE_EVERY)

    second = start(tmp_path, 3, "--record", tmp_path / "second", "--resume")
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said

    before = [record for record in records(tmp_path / "first") if record["step"] <= saved]
    after = records(tmp_path / "second")
    assert {record["rank"] for record in after} == {0, 1, 2}
    assert min(losses(after)) == saved + 1

    # What two ranks would have had that nobody stopped.
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    expected: Counter[str] = Counter()
    for rank in range(2):
        loader = StreamingParquetLoader(
            tmp_path / "tokens", ShardConfig(rank, 2), BATCH, SEQ, eos_id=0, pad_id=0, vocab_size=1024
        )
        assert loader.granularity != "file" or loader.num_files == 4
        expected.update(hashlib.sha256(row.tobytes()).hexdigest()[:16] for batch in loader for row in batch.input_ids)
    found = windows(before) + windows(after)
    assert set(found) == set(expected)
    # Rows come a second time only so that ranks end together, and fewer than there are ranks.
    assert sum((found - expected).values()) <= 2 + BATCH
    assert not windows(before) - expected

    # The kill was in mid-file, and the loss goes on where it was.
    assert 0 < checkpoint["loader"]["position"] < sum(expected.values())
    old, new = losses(before), losses(after)
    begin, end = mean([old[step] for step in range(1, 6)]), mean([old[step] for step in range(saved - 7, saved + 1)])
    went_on = mean([new[step] for step in range(saved + 1, saved + 9)])
    assert end < begin - 0.5
    assert abs(went_on - end) < 0.4 * (begin - end)
    assert mean(list(new.values())[-8:]) < end
