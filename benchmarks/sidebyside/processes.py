"""Running one measurement: a fresh process of the right interpreter that is never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
PEERS = BENCHMARKS / "peers"
VENVS = BENCHMARKS.parent / ".venvs"
LIMIT = 300.0  # seconds that one measurement may take, unless it is told otherwise
WORLD = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def python_of(environment: str) -> Path:
    """The interpreter of an environment that ``tools/environments.py`` makes, whether it is there or not."""
    return VENVS / environment / "bin" / "python"


def interpreters() -> dict[str, Path]:
    """The Python of each library: stoker and the NumPy bound run with the one that runs this."""
    return {
        "stoker": Path(sys.executable),
        "numpy": Path(sys.executable),
        "mosaicml": python_of("mosaic"),
        "litdata": python_of("litdata"),
        "webdataset": python_of("litdata"),
    }


def environment(scratch: Path) -> dict[str, str]:
    """This process's environment without a world of several ranks; temporary files go to ``scratch``."""
    env = {
        k: v for k, v in os.environ.items() if k not in WORLD and not k.startswith(("SLURM_", "OMPI_", "PYTHONPATH"))
    }
    return env | {"TMPDIR": str(scratch), "LITDATA_CACHE_DIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}


def measure(
    library: str,
    job: dict[str, Any],
    scratch: Path,
    variables: Mapping[str, str] | None = None,
    runners: Path = PEERS,
    limit: float = LIMIT,
) -> dict[str, Any]:
    """Run ``job`` and return what its runner printed; ``{"error": ...}`` if it failed.

    ``variables`` are added to the runner's environment; ``runners`` is the folder of the runners;
    ``limit`` is the seconds that it may take.

    The runner and its workers are a process group of their own. It is ended here if this process is
    interrupted: first by SIGINT, so that the library can remove what it put into shared memory.
    """
    scratch.mkdir(exist_ok=True)
    command = [str(interpreters()[library]), str(runners / f"run_{library}.py"), json.dumps(job)]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=scratch,
        env=environment(scratch) | dict(variables or {}),
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit:.0f} s"}
    finally:
        end(child)
    if child.returncode:
        return {
            "error": (err.strip() or f"exit status {child.returncode}").splitlines()[-1],
            "stderr": err[-4000:],
        }
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return result


def end(child: subprocess.Popen[str]) -> None:
    """End a process group: politely, then not."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # workers that outlived their parent
