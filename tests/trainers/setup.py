"""Makes the environments of the trainers that stoker is tested with, and runs their tests in them.

    python tests/trainers/setup.py                 # make what is missing, or was made with other pins
    python tests/trainers/setup.py pytorch         # this one alone
    python tests/trainers/setup.py --test          # all tests: of each environment by its own Python, then the table
    tests/trainers/.venvs/pytorch/bin/python -m pytest tests/trainers/pytorch   # the tests of one environment

An environment lies in ``tests/trainers/.venvs/<name>``, with torch, the packages that are pinned below, pytest, and this
checkout of stoker, editable. Its tests are in ``tests/trainers/<name>``; any other Python skips them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
VENVS: Final = HERE / ".venvs"
TORCH: Final = {"torch": "2.13.0"}  # the build without CUDA, where an index has one
PINS: Final[dict[str, dict[str, str]]] = {
    "pytorch": {
        "torchdata": "0.11.0",
        "accelerate": "1.15.0",
        "transformers": "5.23.0",
        "trl": "1.16.0",
        "datasets": "5.2.0",
        "lightning": "2.6.6",
    },
    # Its datasets is older than TRL's.
    "torchtitan": {"torchdata": "0.11.0", "torchtitan": "0.3.0"},
    # The formats that are read by Ray Data need what follows it.
    "ray": {
        "ray[data,train]": "2.60.0",
        "h5py": "3.16.0",
        "pillow": "13.0.0",
        "webdataset": "1.0.2",
        "tfrecord": "1.14.6",
        "crc32c": "2.9.post0",
        "tokenizers": "0.23.3",
        # What the tests of stoker's own parts that use Ray need.
        "hypothesis": "6.170.15",
        "boto3": "1.44.5",
        "moto[s3,server]": "5.2.5",
    },
    "jax": {"jax": "0.10.2", "orbax-checkpoint": "0.12.8", "keras": "3.15.1"},
    "peers": {"litdata": "0.2.76", "webdataset": "1.0.2", "datasets": "5.2.0", "grain": "0.2.18"},
}
"""Packages of each environment. Those that go together share one."""
# Composer asks for torch 2.6 and for clients of clouds: these are what its Trainer imports.
ALONE: Final[dict[str, dict[str, str]]] = {
    "pytorch": {
        "mosaicml": "0.32.1",
        "torch_optimizer": "0.3.0",
        "pytorch_ranger": "0.1.1",
        "coolname": "3.0.0",
        "py-cpuinfo": "9.0.0",
        "tabulate": "0.9.0",
        "importlib-metadata": "8.9.0",
        "zipp": "4.1.2",
        "pillow": "13.0.0",
    }
}
"""Packages that are installed without those that they ask for."""
TOOLS: Final = ("pytest>=8", "pytest-timeout>=2.3")
ALSO: Final[dict[str, tuple[str, ...]]] = {
    "ray": (
        "tests/bench/test_bench_ray.py",
        *(
            f"tests/coordination/test_coordinated_processes.py::{test}"
            for test in ("TestRay", "test_over_ray", "test_an_actor_that_comes_back_without_its_file_is_an_error")
        ),
    ),
}
"""Tests of other folders that need an environment's packages, and are skipped elsewhere."""
_STAMP: Final = "stoker-pins.json"
_SHOWN: Final = 8000
"""Characters of what a failed command said that are printed again at the end."""


def python_of(name: str) -> Path:
    """The interpreter of an environment, whether it is there or not."""
    return VENVS / name / "bin" / "python"


def wanted(name: str) -> list[str]:
    """The requirements of an environment, as pip takes them."""
    return _pinned(TORCH | PINS[name]) + list(TOOLS)


def _pinned(packages: dict[str, str]) -> list[str]:
    return [f"{package}=={version}" for package, version in packages.items()]


def is_made(name: str) -> bool:
    """Whether an environment was made whole, with the pins of now."""
    stamp = VENVS / name / _STAMP
    return stamp.exists() and json.loads(stamp.read_text()) == _stamp(name)


def _stamp(name: str) -> dict[str, Any]:
    packages = wanted(name) + _pinned(ALONE.get(name, {}))
    return {"packages": packages, "python": sys.version.split()[0], "checkout": str(ROOT)}


def make(name: str) -> None:
    """Make an environment anew; the stamp comes last, so that half an environment is none."""
    print(f"{name}: installing {', '.join(wanted(name))} into {VENVS / name}", flush=True)
    shutil.rmtree(VENVS / name, ignore_errors=True)
    venv.create(VENVS / name, with_pip=True)
    # Python compiles what the tests import; compiling all that is installed takes longer than installing it.
    pip = [str(python_of(name)), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *wanted(name), "--editable", str(ROOT)], check=True)
    if name in ALONE:
        subprocess.run([*pip, "--no-deps", *_pinned(ALONE[name])], check=True)
    (VENVS / name / _STAMP).write_text(json.dumps(_stamp(name)))


def test(names: list[str]) -> int:
    """Run the tests of each environment by one command, two at once, then the table; returns how many commands failed."""
    with ThreadPoolExecutor(2) as threads:
        failed = [said for one in threads.map(_test_one, names) for said in one]
    command = [sys.executable, str(HERE / "table.py"), "--check", *names]
    print("+", *command, flush=True)
    wrong = subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    for said in failed:  # again, where whoever sees only the end finds it
        print(said[-_SHOWN:], flush=True)
    return len(failed) + wrong


def _test_one(name: str) -> list[str]:
    """Run the tests of one environment, and print what they said; returns what those said that failed."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # see make()
    env["PYTHONUNBUFFERED"] = "1"  # what a process said that was killed, or that Ray has ended, is printed, too
    failed = []
    for tests in filter(None, ([str(HERE / name)], ALSO.get(name))):
        command = [str(python_of(name)), "-m", "pytest", *tests]
        done = subprocess.run(
            command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
        )
        said = f"+ {' '.join(command)}\n{done.stdout}{name}: exit status {done.returncode}"
        print(said, flush=True)
        if done.returncode:
            failed.append(said)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(PINS)}; default all")
    parser.add_argument("--clear", action="store_true", help="make them anew")
    parser.add_argument("--test", action="store_true", help="run their tests")
    options = parser.parse_args()
    unknown = set(options.names) - set(PINS)
    if unknown:
        parser.error(f"no environment is called {min(unknown)}; there are {', '.join(PINS)}")
    names = options.names or list(PINS)
    if options.test:
        return test(names)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(make, [name for name in names if options.clear or not is_made(name)]))
    for name in names:
        print(f"{name}: {python_of(name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
