"""Kill writers and readers with SIGKILL at every step that they take with files, one step further each time.

    python tests/processes/kill_steps.py

Random moments seldom hit what takes microseconds; this hits all of it. A step is an opening, a renaming, a linking, a
removal, or a write, of which half is done. Prints a JSON object: how many steps each kind took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent))

from kill_readers import READERS, ReaderJob, write_remote
from kill_writers import WRITERS

KINDS = [*(f"writer {name}" for name in WRITERS), *(f"reader {name}" for name in READERS)]
SAMPLES = 42  # a multiple of the parts that are merged
_PATIENCE = 60.0
_EVENTS = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate", "shutil.rmtree", "fcntl.flock"}


class Steps:
    """Counts steps, and kills the process before one of them.

    Args:
        last: number of the step at which to kill.
        folder: only files below it count.
    """

    def __init__(self, last: int, folder: Path) -> None:
        self._left = last
        self._lock = threading.Lock()
        self._folder = str(folder)

    def install(self) -> None:
        sys.addaudithook(self._event)
        for name in ("write", "pwrite", "copy_file_range", "sendfile"):
            setattr(os, name, self._halving(name, getattr(os, name)))

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        counts = event in _EVENTS or (event == "open" and str(args[0]).startswith(self._folder))
        if counts and self._is_last():
            _die()

    def _halving(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        def write(*args: Any) -> int:
            if not self._is_last():
                return real(*args)
            if name in ("write", "pwrite"):
                real(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
            else:
                real(*args[:2], 700, *args[3:]) if name == "copy_file_range" else real(*args[:3], 700)
            _die()

        return write

    def _is_last(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _child(last: int, folder: Path, work: Callable[..., None], *args: Any) -> None:
    Steps(last, folder).install()
    work(*args)


def run_killed(last: int, folder: Path, work: Callable[..., None], *args: Any) -> bool:
    """Do work in a process that is killed at step ``last``; whether it was."""
    child = multiprocessing.get_context("fork").Process(target=_child, args=(last, folder, work, *args))
    child.start()
    child.join(_PATIENCE)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("it hangs")
    assert child.exitcode in (0, -signal.SIGKILL), f"it failed with {child.exitcode}"
    return child.exitcode != 0


def step_writer(name: str, folder: Path, last: int) -> bool:
    job = WRITERS[name](folder, str(folder / "remote"), samples=SAMPLES)
    job.prepare()
    killed = run_killed(last, folder, job.write)
    found = job.look()
    assert killed or found == "whole"
    job.resume()
    job.look_at_end()
    return killed


def step_reader(name: str, folder: Path, last: int) -> bool:
    job = ReaderJob(name, str(folder.parent / "shared"), folder / "cache", samples=SAMPLES)
    killed = run_killed(last, folder, job.read, last)
    job.look()
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these; default: all")
    parser.add_argument("--every", type=int, default=1, help="only every so many steps")
    parser.add_argument("--first", type=int, default=1, help="step to begin with")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as root:
        write_remote(f"{root}/shared", samples=SAMPLES)
        for kind in options.kind or KINDS:
            what, _, name = kind.partition(" ")
            step = step_writer if what == "writer" else step_reader
            last, killed = options.first, True
            while killed:
                folder = Path(root, f"step{last}")
                folder.mkdir()
                try:
                    killed = step(name, folder, last)
                except BaseException:
                    print(f"{kind}, killed at step {last}, left {sorted(folder.rglob('*'))}", file=sys.stderr)
                    raise
                shutil.rmtree(folder)
                last += options.every
            counts[kind] = last - options.every
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
