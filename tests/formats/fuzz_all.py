"""Damage files of all formats at random and read them; see fuzz_formats.py.

    python tests/formats/fuzz_all.py --mutations 100000 [--formats npy tar] [--seed 1]

Prints a line a format, and fails where a damaged file gave anything but samples or an error of stoker's own, or memory grew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz_formats import FORMATS

MOST_MIB = 300


def run(name: str, count: int, seed: int) -> tuple[str, str]:
    """One format in a process of its own: what it printed, and what it failed with."""
    script = Path(__file__).with_name("fuzz_formats.py")
    done = subprocess.run(
        [sys.executable, script, name, str(count), str(seed)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return name, f"failed with status {done.returncode}: {done.stderr[-2000:]}"
    outcome = json.loads(done.stdout)
    if outcome["peak"] > MOST_MIB:
        return name, f"took {outcome['peak']} MiB"
    print(
        f"{name:10} {outcome['read']:8} read {outcome['refused']:8} refused {outcome['peak']:4} MiB more, "
        f"the slowest in {outcome['slowest']} s (number {outcome['which']})",
        flush=True,
    )
    return name, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda name: run(name, chosen.mutations, chosen.seed), chosen.formats))
    for name, problem in results:
        if problem:
            print(f"{name}: {problem}", file=sys.stderr)
    return 1 if any(problem for _, problem in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
