"""Count the instructions that a process executes meanwhile, of all its threads: by callgrind of valgrind.

Other programs do not change such a count, as they change times: a difference of 0.2 % shows in two or three runs on a machine
that is busy. A process runs some 50 times slower while it is counted, and 5 times slower otherwise. Where memory is copied,
instructions are fewer than the time that it takes; so shares of all other things are larger by instructions than by time.

Requires valgrind with its headers, and a C compiler: ``apt install valgrind gcc``.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_SOURCE = """
#include <valgrind/callgrind.h>
int counting(void) { return RUNNING_ON_VALGRIND; }
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void note(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
void end(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
_DUMP = re.compile(r"^desc: Trigger: Client Request: (\S+)$.*?^summary: (\d+)$", re.MULTILINE | re.DOTALL)


class Counter:
    """Counts in a process that :func:`counted` has started.

    Args:
        library: as that process was told.
    """

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        if not self._library.counting():
            raise SystemExit("nothing counts the instructions of this process: it does not run under valgrind")

    def count(self, name: str, function: Callable[[], object], times: int) -> None:
        """Call a function so many times and once before, and count each of these by a name, a word."""
        self._library.begin()
        function()  # what the threads did that began before is not known in this one
        for _ in range(times):
            self._library.zero()
            function()
            self._library.note(name.encode())
        self._library.end()


def counted(folder: Path, command: Sequence[str]) -> dict[str, list[int]]:
    """Run a script of Python that counts.

    Args:
        folder: an empty one.
        command: the script and its arguments, after which the path of the library comes that :class:`Counter` takes.

    Returns:
        For each name the instructions, each time that it was counted.
    """
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed, which counts instructions: apt install valgrind gcc")
    library = folder / "counter.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", library], input=_SOURCE.encode(), check=True)
    done = subprocess.run(
        [
            *(
                "valgrind",
                "--quiet",
                "--tool=callgrind",
                "--instr-atstart=no",
                f"--callgrind-out-file={folder / 'out'}",
            ),
            *(sys.executable, *command, str(library)),
        ],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    found: dict[str, list[int]] = {}
    for number in range(1, 1 + sum(1 for _ in folder.glob("out.*"))):
        dump = _DUMP.search((folder / f"out.{number}").read_text())
        if dump is not None:
            found.setdefault(dump[1], []).append(int(dump[2]))
    return found
