"""``stoker generate`` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from generated import content

from patience import PATIENCE
from stoker.storage.unfinished import MARK
from stoker_bench.cli.generate import _sizes
from stoker_bench.generation import DatasetSpec, file_names
from support import environ


def stoker(*arguments: Any, code: int = 0) -> tuple[str, str]:
    """Run the command; what it says on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "generate", *map(str, arguments)],
        env=environ(COLUMNS="160"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.processes
def test_it_makes_what_the_library_makes_and_says_so(tmp_path: Path) -> None:
    arguments = [
        "--format",
        "npz",
        "--files",
        "3",
        "--samples",
        "10",
        "--column",
        "x=float32:2,2",
        "--column",
        "y=int64",
    ]
    planned = json.loads(stoker(tmp_path / "data", *arguments, "--dry-run", "--json")[0])
    assert not (tmp_path / "data").exists()
    said, _ = stoker(tmp_path / "data", *arguments)
    assert "3 of 3 files made" in said
    assert "30 samples" in said
    spec = DatasetSpec(format="npz", files=3, samples_per_file=10, columns=("x=float32:2,2", "y=int64"))
    sizes = []
    for number, name in enumerate(file_names(spec)):
        assert (tmp_path / "data" / name).read_bytes() == content(spec, number)
        sizes.append(len(content(spec, number)))
    assert planned["bytes"] == sum(sizes)
    assert planned["exact"] is True
    assert planned["columns"] == {"x": "float32[2,2]", "y": "int64"}
    again = json.loads(stoker(tmp_path / "data", *arguments, "--json")[0])
    assert (again["made"], again["kept"], again["complete"]) == (0, 3, True)
    assert "--no-resume" not in stoker(tmp_path / "data", *arguments, "--no-resume", code=1)[1]


@pytest.mark.parametrize(
    ("form", "files"), [("indexed_binary", 1), ("indexed_binary", 30), ("megatron", 40), ("mds", 3)]
)
def test_the_size_that_is_planned_counts_files_beside_each_other(form: str, files: int) -> None:
    spec = DatasetSpec(format=form, files=files, samples_per_file=3, record_bytes=100)
    planned = _sizes(spec)
    every = [len(content(spec, number)) for number, _ in enumerate(file_names(spec))]
    assert (planned["files"], planned["bytes"], planned["exact"]) == (len(every), sum(every), True)


@pytest.mark.processes
def test_what_is_wrong_is_said_in_one_line_and_by_the_exit_code(tmp_path: Path) -> None:
    _, said = stoker(tmp_path / "data", "--format", "parqet", code=1)
    assert said.startswith("stoker generate: format 'parqet' is unknown; did you mean 'parquet'?")
    assert said.count("\n") == 1
    for bad in (["--files", "0"], ["--host-rank", "3/3"], ["--record-bytes", "x"], ["--dims", "a"], ["--content", "x"]):
        stoker(tmp_path / "data", *bad, code=2)
    assert not (tmp_path / "data").exists()


@pytest.mark.processes
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_leaves_whole_files_and_says_how_to_continue(processes: int, tmp_path: Path) -> None:
    arguments = [
        "--format",
        "jsonl",
        "--content",
        "text",
        "--record-bytes",
        "4KB",
        "--samples",
        "200",
        "--files",
        "3000",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "stoker", "generate", str(tmp_path), *arguments, "--processes", str(processes)],
        env=environ(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while len(list(tmp_path.glob("*.jsonl"))) < 3:
            assert run.poll() is None
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == 130, said
    assert "interrupted" in said
    assert "the same command continues" in said
    assert "Traceback" not in said
    spec = DatasetSpec(format="jsonl", content="text", record_bytes=4096, samples_per_file=200, files=3000)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert 3 < len(left) < 3000
    assert left[0] == MARK
    assert set(left[1:]) < set(file_names(spec))
    for name in left[1:]:
        assert (tmp_path / name).stat().st_size == (tmp_path / left[1]).stat().st_size
    assert (tmp_path / left[1]).read_bytes() == content(spec, file_names(spec).index(left[1]))
