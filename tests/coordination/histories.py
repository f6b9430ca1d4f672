"""Run many simulated histories, on several processes.

    python tests/coordination/histories.py --histories 100000 --processes 2

A history that fails is named by its seed; ``--seed 1234 --histories 1`` runs it again.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections import Counter

from simulation import run_history

_SUMMED = ("samples", "delivered", "commits", "operations", "crashes", "pauses", "engine_crashes", "again", "exposed")
_CHUNK = 50


def run_many(first: int, encoded: bool = False) -> Counter[str]:
    """Some histories, and what came of them together.

    Raises:
        AssertionError: one failed; names its seed.
    """
    total: Counter[str] = Counter()
    for seed in range(first, first + _CHUNK):
        try:
            history = run_history(seed, encoded=encoded)
        except Exception as error:
            raise AssertionError(f"history {seed} failed: {error!r}") from error
        total.update({name: getattr(history, name) for name in _SUMMED})
        total["histories"] += 1
        total["seconds"] += int(history.seconds)
    return total


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--processes", type=int, default=1)
    chosen = parser.parse_args()
    begun = time.perf_counter()
    if chosen.histories == 1:
        print(run_history(chosen.seed))
        return
    total: Counter[str] = Counter()
    firsts = range(chosen.seed, chosen.seed + chosen.histories, _CHUNK)
    # What is there when a process begins need not be looked at again and again.
    with multiprocessing.get_context("spawn").Pool(chosen.processes, initializer=gc.freeze) as pool:
        for done, counts in enumerate(pool.imap_unordered(run_many, firsts), 1):
            total.update(counts)
            if done % 100 == 0:
                print(f"{total['histories']} histories, {total['commits']} commits", flush=True)
    print(dict(total), f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
