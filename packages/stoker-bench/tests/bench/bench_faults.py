"""What tests of faults share: small disks, runs as commands, and what must be true of a run that failed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from patience import PATIENCE
from stoker_bench.results.results import schema


@contextlib.contextmanager
def small_disk(place: Path, size: str = "3m") -> Iterator[Path]:
    """A file system with little room."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def start(folder: Path, settings: dict[str, Any], *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """``stoker bench run`` of settings in a file, with results in ``folder / "r"``; its session is its own."""
    path = folder / "w.yaml"
    path.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "stoker", "bench", "run", str(path), *arguments, "--results", str(folder / "r")]
    STARTED.append(
        subprocess.Popen(
            command,
            env=os.environ | environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    )
    return STARTED[-1]


STARTED: list[subprocess.Popen[str]] = []


def end_started() -> None:
    """End what a test that failed has left running."""
    while STARTED:
        run = STARTED.pop()
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        if run.stderr is not None:
            run.stderr.close()


def wait_for(true: Callable[[], object], run: subprocess.Popen[str]) -> None:
    """Until something is so, while the run goes on."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pid_of(folder: Path, rank: int) -> int:
    """The process of a rank, once it has told."""
    pid: int = json.loads((folder / "r" / f"rank{rank:05d}.json").read_text())["pid"]
    return pid


def failed(folder: Path) -> dict[str, Any]:
    """The results of a run that did not finish, which must say so."""
    result: dict[str, Any] = json.loads((folder / "r" / "results.json").read_text())
    jsonschema.validate(result, schema())
    assert not result["valid"]
    assert not result["complete"]
    assert not result["passed"]
    assert result["failure"]
    assert result["findings"][0]["rule"] == "complete"
    return result
