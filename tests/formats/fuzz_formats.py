"""Damage small files of a format at random and read them: samples, or an error of stoker's own, in bounded memory.

    python tests/formats/fuzz_formats.py FORMAT [--mutations N] [--seed S] [--first K] [--only K] [--progress FILE]

Prints how many damaged files were read and how many were refused, the growth of memory in MiB, the CPU seconds of all and of
the slowest, and its number. The first that gives anything else is an error, with the command that makes it again. All
formats: fuzz_all.py.
"""

from __future__ import annotations

import argparse
import base64
import json
import mmap
import resource
import signal
import struct
import sys
import time
import warnings
from typing import Any

from fuzz_damage import Draws, damaged
from fuzz_files import FORMATS, targets_of
from fuzz_reading import WHERE

from stoker.errors import StokerError

_ADDRESSES = 2 << 30
"""Bytes of address space that reading may take beyond what the process had when all modules were loaded."""

MOST_MIB = 300
"""MiB that the process may grow by."""
_LONGEST = 120
"""CPU seconds after which a thousand files, which take about one, are said to hang."""


def status(name: str) -> int:
    """KiB by a name of ``/proc/self/status``. Not getrusage(): its peak includes that of the process that forked this."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def fuzz(name: str, mutations: range, seed: int, progress: Any) -> dict[str, Any]:
    """Damage files and read them; what became of them."""
    targets, draws = targets_of(name), Draws(seed)
    for target in targets:
        for bits in range(16):
            target.read(list(target.files), bits)
        target.probe(StokerError)
    limit = status("VmSize") * 1024 + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    before = status("VmHWM")
    read = slowest = which = number = 0
    began = last = time.process_time_ns()
    for number in mutations:
        if not number % 1000:  # what hangs ends by SIGPROF, also in a library
            signal.setitimer(signal.ITIMER_PROF, _LONGEST)
            if status("VmHWM") - before > MOST_MIB * 1024:
                break
        struct.pack_into("<q", progress, 0, number)
        draw = draws[number]
        target = targets[draw[0] % len(targets)]
        files = damaged(target, draw)
        try:
            target.read(files, draw[0] >> 32)
            read += 1
        except StokerError as error:
            if WHERE not in str(error):
                _tell(name, number, seed, files, f"the error does not name the file: {error}")
                raise
        except BaseException:
            _tell(name, number, seed, files, "neither samples nor an error of stoker's own")
            raise
        now = time.process_time_ns()
        if now - last > slowest:
            slowest, which = now - last, number
        last = now
    peak = (status("VmHWM") - before) // 1024
    if peak > MOST_MIB:
        first = max(mutations.start, number - 1000)
        told = f"python tests/formats/fuzz_formats.py {name} --seed {seed} --first {first} --mutations {number - first + 1}"
        raise MemoryError(f"{name}: took {peak} MiB. Again: {told}")
    return {
        "read": read,
        "refused": len(mutations) - read,
        "peak": peak,
        "cpu": round((last - began) / 1e9, 2),
        "slowest": round(slowest / 1e9, 3),
        "which": which,
    }


def _tell(name: str, number: int, seed: int, files: list[bytes], what: str) -> None:
    print(f"{name}: {what}. Again: {again(name, number, seed)}", file=sys.stderr)
    for file in files:
        print(f"  {len(file)} bytes, in base64: {base64.b64encode(file[:20_000]).decode()}", file=sys.stderr)


def again(name: str, number: int, seed: int) -> str:
    """The command that makes one damaged file again."""
    return f"python tests/formats/fuzz_formats.py {name} --seed {seed} --only {number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--progress", help="a file of 8 bytes that always holds the number of the file being read")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    numbers = range(chosen.first, chosen.first + chosen.mutations)
    if chosen.only is not None:
        numbers = range(chosen.only, chosen.only + 1)
    progress: Any = bytearray(8)
    if chosen.progress:
        with open(chosen.progress, "r+b") as file:
            progress = mmap.mmap(file.fileno(), 8)
    print(json.dumps(fuzz(chosen.format, numbers, chosen.seed, progress)))


if __name__ == "__main__":
    main()
