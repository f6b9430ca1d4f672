"""Ctrl-C in a tokenization by several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from patience import PATIENCE
from stoker.storage.unfinished import STAGE
from support import environ

DOCUMENTS = 240
TEXT = "a b c d " * 12_500


def wait_until_gone(group: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("processes were left")


@pytest.mark.processes
@pytest.mark.usefixtures("no_debris")
def test_ctrl_c_is_reported_in_one_line_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "d": 3, "?": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for number in range(DOCUMENTS):
        (source / f"{number:03}.txt").write_text(TEXT)
    command = [sys.executable, "-m", "stoker", "tokenize", str(source), str(out), "--processes", "2"]
    command += ["--tokenizer", str(tmp_path / "tokenizer.json"), "--file-tokens", "200k"]
    run = subprocess.Popen(command, env=environ(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not list(out.glob(f"{STAGE}*.parquet")):
            assert run.poll() is None
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == 130
    assert said == (
        "stoker tokenize: interrupted; what is done stays, without looking like a dataset: continue with --resume\n"
    )
    wait_until_gone(run.pid)
    assert not list(out.glob("*.parquet"))
    again = subprocess.run([*command, "--resume", "--json"], env=environ(), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["resumed"] > 0
    assert sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet")) == DOCUMENTS
