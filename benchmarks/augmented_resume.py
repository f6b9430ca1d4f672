"""Augmented batches are the same bytes after any stop, in any world, with any workers; and Grain with the same chain.

    python benchmarks/augmented_resume.py [--stops 100] [--samples 3000]
    python3 tools/environments.py grain && python benchmarks/augmented_resume.py --speed

Each stop is a random step. A run on a random world, with random workers, saves its state there; from that state, runs
with 0, 2 and 4 workers, as threads, stoker's own processes, forked and spawned DataLoader workers, on 1 to 4 ranks, take
the next ``--steps`` batches (each tenth stop: all of the epoch). Each of their samples is compared byte by byte with
those of one run without workers that never stopped. Spawned workers take a second to start, so one rank of a world,
another at each stop, has them, and its peers have none; and at each stop it is one world that has such a rank, in turn.

``--speed``: stoker and Grain, alternating, with the same samples and functions: samples a second, the size of a state, and
which of the resumes above go on with the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker import MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset, World

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
from augmentation import BATCH, crop, jitter, pictures  # noqa: E402  # as the runner of the peer imports it

METHODS = ("threads", "processes", "fork", "spawn")
WORKERS = (0, 2, 4)
WORLDS = (1, 2, 3, 4)
Batches = list[Counter[bytes]]


def write(out: Path, samples: int) -> None:
    """Pictures and labels as MDS."""
    with MDSWriter({"id": "int", "image": "ndarray:uint8:40,40,3"}, out, size_limit="1mb") as writer:
        writer.write_batch({"id": np.arange(samples), "image": pictures(samples)})


def loader(data: Path, rank: int, ranks: int, method: str, workers: int) -> StreamingDataLoader:
    """A loader of one rank: its workers are threads, processes of stoker's own, or a DataLoader's."""
    read = ReadOptions(read_threads=workers if method == "threads" else 0)
    if method == "processes" and workers:
        read = ReadOptions(run_in="processes", read_processes=workers, start_method="fork")
    dataset = StreamingDataset(
        data,
        shuffle=True,
        shuffle_seed=7,
        batch_size=BATCH // ranks,
        world=World(rank, ranks),
        read=read,
    )
    chained = dataset.random_map(crop).random_map(jitter)
    if method in ("threads", "processes") or not workers:
        return StreamingDataLoader(chained)
    return StreamingDataLoader(chained, num_workers=workers, multiprocessing_context=method)


def digest(batch: dict[str, Any]) -> Counter[bytes]:
    """The samples of a batch as bytes."""
    columns = [np.asarray(batch[name]) for name in ("id", "image")]
    return Counter(b"".join(column[row].tobytes() for column in columns) for row in range(len(columns[0])))


def run(
    data: Path, ranks: int, ways: list[tuple[str, int]], state: dict[str, Any] | None, steps: int | None
) -> Batches:
    """The next steps of all ranks of a world, of which each has workers of its own, joined."""
    joined: Batches = []
    for rank, (method, workers) in enumerate(ways):
        with loader(data, rank, ranks, method, workers) as batches:
            if state is not None:
                batches.load_state_dict(state)
            for step, batch in enumerate(islice(batches, steps)):
                if step == len(joined):
                    joined.append(Counter())
                joined[step] += digest(batch)
    return joined


def saved(data: Path, step: int, ranks: int, method: str, workers: int) -> dict[str, Any]:
    """The state of a run, of which rank 0 has taken so many steps."""
    with loader(data, 0, ranks, method, workers) as batches:
        for _ in islice(batches, step):
            pass
        return dict(batches.state_dict())


def compare(data: Path, stops: int, steps: int, seed: int) -> int:
    """How many of the resumed runs differ. Prints what it does."""
    draw = random.Random(seed)
    whole = run(data, 1, [("threads", 0)], None, None)
    compared: Counter[str] = Counter()
    runs = wrong = 0
    for stop in range(stops):
        step = draw.randrange(len(whole))
        by = (draw.choice(WORLDS), draw.choice(METHODS[:3]), draw.choice(WORKERS))
        state = json.loads(json.dumps(saved(data, step, *by)))
        most = None if stop % 10 == 0 else steps
        expected = whole[step:] if most is None else whole[step : step + most]
        for method in METHODS:
            for workers in WORKERS:
                for ranks in WORLDS if method != "spawn" or not workers else WORLDS[stop % 4 :][:1]:
                    ways = [(method, workers)] * ranks
                    if method == "spawn":
                        ways = [("threads", 0)] * ranks
                        ways[stop // 4 % ranks] = (method, workers)
                    found = run(data, ranks, ways, state, most)
                    compared[f"{method}, {workers} workers"] += sum(sum(batch.values()) for batch in found)
                    runs += 1
                    if found != expected:
                        wrong += 1
                        print(
                            f"differs: stop at step {step} of {by}, then {workers} workers ({method}) on {ranks} ranks"
                        )
        print(f"stop {stop + 1} of {stops}: step {step}, saved by {by}", flush=True)
    for way, samples in compared.items():
        print(f"{way}: {samples:,} samples compared")
    print(f"{stops} stops, {runs:,} resumed runs, {wrong} differ")
    return wrong


def measure(data: Path, folder: Path, samples: int, rounds: int) -> None:
    """Samples a second of stoker and Grain with the same functions, alternating, and what their states are like."""
    grain = HERE.parent / ".venvs" / "grain" / "bin" / "python"
    if not grain.exists():
        raise SystemExit("Grain is not there: python3 tools/environments.py grain")
    runner = str(HERE / "peers" / "run_grain.py")

    def peer(action: str, workers: int) -> dict[str, Any]:
        job = json.dumps({"action": action, "workers": workers, "samples": samples, "folder": str(folder)})
        return dict(json.loads(subprocess.run([str(grain), runner, job], check=True, capture_output=True).stdout))

    peer("write", 0)
    for workers in (0, 2):
        rates: dict[str, list[float]] = {"stoker": [], "grain": []}
        for _ in range(rounds):
            with loader(data, 0, 1, "fork", workers) as batches:
                for _batch in islice(iter(batches), 4):
                    pass
            with loader(data, 0, 1, "fork", workers) as batches:
                begun = time.perf_counter()
                seen = sum(len(batch["id"]) for batch in batches)
                rates["stoker"].append(seen / (time.perf_counter() - begun))
            rates["grain"].append(peer("read", workers)["rate"])
        for name, found in rates.items():
            middle = sorted(found)[len(found) // 2]
            print(f"{workers} workers, {name}: {middle:,.0f} samples/s ({min(found):,.0f} to {max(found):,.0f})")
    state = json.dumps(saved(data, 20, 1, "fork", 2))
    print(f"state of stoker {stoker.__version__}, on any world and with any workers: {len(state)} bytes")
    for workers in (0, 2, 4):
        told = peer("state", workers)
        print(f"state of Grain {told['version']} with {workers} workers: {told['bytes']} bytes; with {told['resumes']}")
    print(f"Grain, {peer('ranks', 0)['resumes']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=4, help="batches after a stop that are compared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--speed", action="store_true", help="compare the speed with Grain's, and no stops")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write(data, args.samples)
        warnings.filterwarnings("ignore", "This DataLoader will create")
        if args.speed:
            measure(data, Path(folder), args.samples, args.rounds)
        elif compare(data, args.stops, args.steps, args.seed):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
