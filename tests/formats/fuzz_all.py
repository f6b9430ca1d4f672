"""Damage files of all formats at random and read them; see fuzz_formats.py.

    python tests/formats/fuzz_all.py --mutations 1000000 [--formats npy tar] [--seed 7]

Prints a line a format, and fails where a damaged file gave anything but samples or an error of stoker's own, or memory grew;
then with the command that makes that file again. The tests run the same, few thousand of each format.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz_files import FORMATS
from fuzz_formats import again

__all__ = ["HEAVY", "SEED", "FuzzError", "run", "run_tested"]

TESTED, SEED = 6_000, 1
HEAVY = ("arrow", "hdf5", "parquet")
"""Formats whose libraries take about half of the time of all."""
SCRIPT = Path(__file__).with_name("fuzz_formats.py")


class FuzzError(AssertionError):
    """A damaged file that was neither read nor refused, and how to make it again."""


def run(name: str, count: int, seed: int, timeout: float | None = None, script: Path = SCRIPT) -> dict[str, Any]:
    """One format in a process of its own, which may crash; ``script`` is what it runs.

    Returns:
        ``read`` and ``refused``, which make ``count``; ``peak``, MiB more than before; CPU seconds ``cpu`` of all and
        ``slowest`` of one, whose number is ``which``.

    Raises:
        FuzzError: see there; or it took more memory than 300 MiB.
    """
    with tempfile.NamedTemporaryFile(prefix="fuzz") as progress:
        progress.write(struct.pack("<q", -1))
        progress.flush()
        code = [sys.executable, script, name, "--mutations", count, "--seed", seed, "--progress", progress.name]
        try:
            done = subprocess.run(
                list(map(str, code)),
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise FuzzError(f"{name}: not done after {timeout} s, {_last(Path(progress.name), name, seed)}") from None
        if done.returncode < 0:
            how = signal.Signals(-done.returncode).name
            told = f"{name}: ended by {how}, {_last(Path(progress.name), name, seed)}"
            raise FuzzError(f"{told}\n{done.stderr[-3000:]}")
    if done.returncode:
        raise FuzzError(f"{name}: {done.stderr[-6000:]}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def run_tested(name: str) -> None:
    """One format as the tests run it.

    Raises:
        FuzzError: see :func:`run`; or damage of the wrong measure, of which little is learnt.
    """
    outcome = run(name, TESTED, SEED, timeout=1400)
    least = 0 if name == "side" else TESTED // 20  # what is kept of files is hardly read if it is not what was written
    if outcome["refused"] < TESTED // 50 or outcome["read"] < least:
        raise FuzzError(f"{name}: {outcome['read']} of {TESTED} damaged files were read: too many or too few")


def _last(progress: Path, name: str, seed: int) -> str:
    number = struct.unpack("<q", progress.read_bytes())[0]
    return "before the first damaged file" if number < 0 else f"in {again(name, number, seed)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--formats", nargs="*", default=FORMATS, choices=FORMATS)
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)

    def one(name: str) -> bool:
        try:
            told = run(name, chosen.mutations, chosen.seed)
        except FuzzError as error:
            print(error, file=sys.stderr, flush=True)
            return False
        print(
            f"{name:10} {told['read']:8} read {told['refused']:8} refused in {told['cpu']:7.1f} s of CPU, "
            f"{told['peak']:4} MiB more, the slowest {told['slowest']} s (number {told['which']})",
            flush=True,
        )
        return True

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return 0 if all(list(pool.map(one, chosen.formats))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
