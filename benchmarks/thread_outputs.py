"""Chains in 8 threads: the same samples, byte for byte, as in one thread, and as another Python gives them.

    python benchmarks/thread_outputs.py [--rounds 5] [--with .venvs/python3.14t/bin/python]

Four chains of functions in pure Python over three small MDS datasets, shuffled with another seed in each round: map and
random_map; with a filter, as batches and as samples; with a filter whose places others take; and that over a mix of the
three. The digest of all columns of all batches of 8 threads is compared with that of one thread (in the first round), and
with those of the Python of ``--with``: a free-threaded one, in which threads run functions at once, must give the same. It
also says whether that ran without a global lock to the end. stoker's dependencies are enough, without torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stoker import MDSWriter, ReadOptions, Stream, StreamingDataset

THREADS = 8
CHAINS = ("plain", "filtered", "replaced", "mixed")


def write(folder: Path) -> None:
    """Three datasets of some hundred shards each."""
    rng = np.random.default_rng(0)
    columns = {"tokens": "ndarray:uint16:64", "n": "int", "text": "str"}
    for part in range(3):
        with MDSWriter(columns, folder / f"s{part}", size_limit="20kb") as out:
            for number in range(6000):
                tokens = rng.integers(0, 60_000, 64).astype(np.uint16)
                out.write({"tokens": tokens, "n": 3 * number + part, "text": f"x{number}" * (number % 7 + 1)})


def hashed(sample: dict[str, Any]) -> dict[str, Any]:
    total = 0
    for token in sample["tokens"].tolist():
        total = (total * 31 + token) & 0xFFFFFFFF
    return {**sample, "hash": np.int64(total)}


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.integers(0, 1 << 40, 5), "part": np.float64(rng.random())}


def kept(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 5)


def digest(found: Iterable[dict[str, Any]]) -> str:
    """A hash of all values of batches or samples, in order."""
    made = hashlib.blake2b(digest_size=12)
    for one in found:
        for name in sorted(one):
            value = one[name]
            made.update(f"{name} {getattr(value, 'dtype', '')} ".encode())
            made.update(value.tobytes() if isinstance(value, np.ndarray | np.generic) else repr(value).encode())
    return made.hexdigest()


def outputs(folder: Path, chain: str, threads: int, seed: int) -> list[str]:
    """Digests of an epoch of batches, and of one of samples where the chain filters."""
    streams = [Stream(local=str(folder / f"s{part}"), proportion=share) for part, share in enumerate((0.5, 0.3, 0.2))]
    source: dict[str, Any] = {"streams": streams} if chain == "mixed" else {"local": folder / "s0"}
    read = ReadOptions(read_threads=threads)
    dataset = StreamingDataset(shuffle=True, shuffle_seed=seed, batch_size=16, read=read, **source)
    dataset = dataset.map(hashed).random_map(noisy)
    if chain == "filtered":
        dataset = dataset.filter(kept)
    elif chain != "plain":
        dataset = dataset.filter(kept, dropped="replace")
    found = [digest(dataset.batches())]
    if chain == "filtered":
        found.append(digest(dataset))
    dataset.close()
    return found


def all_outputs(folder: Path, rounds: int) -> dict[str, list[str]]:
    """Digests by chain and seed, with 8 threads."""
    found: dict[str, list[str]] = {}
    for seed in range(rounds):
        for chain in CHAINS:
            found[f"{chain} {seed}"] = outputs(folder, chain, THREADS, seed)
            if not seed and outputs(folder, chain, 1, seed) != found[f"{chain} {seed}"]:
                sys.exit(f"{chain}: {THREADS} threads give other samples than one")
    return found


def has_lock() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--with", dest="other", help="another Python that has stoker")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the process that asks
    args = parser.parse_args()
    if args.folder is not None:
        print(json.dumps({"found": all_outputs(args.folder, args.rounds), "lock": has_lock(), "python": sys.version}))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        begun, computed = time.perf_counter(), time.process_time()
        found = all_outputs(folder, args.rounds)
        took = f"{time.perf_counter() - begun:.0f} s, {time.process_time() - computed:.1f} s of processors"
        print(f"{len(found)} epochs with {THREADS} threads: {took}")
        if args.other is not None:
            asked = [args.other, __file__, "--rounds", str(args.rounds), "--folder", name]
            begun = time.perf_counter()
            other = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
            differ = [chain for chain in found if found[chain] != other["found"][chain]]
            print(f"Python {other['python'].split(' (')[0]}: {time.perf_counter() - begun:.0f} s")
            print(f"{'with' if other['lock'] else 'without'} a global lock at its end")
            if differ:
                sys.exit(f"other samples: {', '.join(differ)}")
    print("the same samples")


if __name__ == "__main__":
    main()
