"""Compare the tuner with the best of a grid of the settings that it chooses, where one thing is slow.

    python benchmarks/tuning.py --quick                  # 4 to 5 minutes
    python benchmarks/tuning.py --rounds 3               # all points of the grids
    python benchmarks/tuning.py --cases store decoding

Each point is a fresh process, in turn with the others and with the tuner, within the same memory (``tune_memory=``). It
reads for a warm-up (2 s at a point of the grid, ``--warm`` s with the tuner), then for ``--seconds``; its figure is the
samples a second after the warm-up, the most of the rounds. ``ratio`` is the tuner's by that of the best point: 0.95 is to be
reached. ``cost`` are the seconds that the warm-up took longer than at the rate of the best point. ``untuned`` is
``tune="off"`` with nothing set, by the best point, too; it knows no ``tune_memory``, so that it takes more in the case
``buffer``.

The cases: ``store``: each request takes 100 ms. ``decoding``: a sample is decompressed and summed up in some milliseconds by
code that leaves the interpreter's lock. ``service``: a function of a sample waits 4 ms. ``consumer``: a training step sleeps
20 ms.
``buffer``: each 6th request takes 25 times as long as the others, shards are held in memory, and 1 MB of it is allowed.
``rank``: of two ranks that wait for each other at each step, one has a store whose requests take 100 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS)]

CASES = ("store", "decoding", "service", "consumer", "buffer", "rank")
_WARM_OF_POINT = 2.0
_PATIENCE = 600.0

_SHARDS = {"store": 20_000, "buffer": 6000, "rank": 12_000, "decoding": 60, "service": 60, "consumer": 60}
_BATCH = 8
_STEP = {"consumer": 0.02, "buffer": 0.004, "rank": 0.002}
_MEMORY = {"buffer": "1mb"}


def write(folder: Path, case: str) -> None:
    """Write the data of a case: shards of 8 samples of 1 kB, or of 4 kB in the case ``buffer``; else shards of 64."""
    import numpy as np

    from stoker import MDSWriter

    rng = np.random.default_rng(0)
    if case in ("store", "rank", "buffer"):
        size = 4096 if case == "buffer" else 1024
        samples = {"x": rng.integers(0, 255, (_BATCH, size), np.uint8)}
        columns = {"x": f"ndarray:uint8:{size}"}
    elif case == "decoding":
        values = np.sort(rng.integers(0, 1 << 30, 200_000, dtype=np.int32))
        samples, columns = {"x": [zlib.compress(values.tobytes(), 1)] * 64}, {"x": "bytes"}
    else:
        samples, columns = {"x": rng.integers(0, 255, (64, 1 << 16), np.uint8)}, {"x": "ndarray:uint8:65536"}
    with MDSWriter(columns, folder, size_limit=None, hashes=()) as out:
        for _ in range(_SHARDS[case]):
            out.write_batch(samples)
            out.flush_shard()


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    """Decompress a sample."""
    import numpy as np

    values = np.frombuffer(zlib.decompress(sample["x"]), np.int32)
    return {"x": np.sqrt(values.astype(np.float64)).reshape(1000, -1).sum(axis=1)}


def ask(sample: dict[str, Any]) -> dict[str, Any]:
    """Wait, as for another machine."""
    time.sleep(0.004)
    return sample


def grid(case: str, *, quick: bool) -> list[dict[str, int]]:
    """Settings of the points of a case's grid, all within its memory."""
    threads = [0, 2, 4] if quick else [0, 1, 2, 4, 8]
    if case in ("store", "rank"):
        widths = [8, 32, 128] if quick else [4, 8, 16, 32, 64, 128]
        return [
            {"read_threads": one, "download_threads": width}
            for one, width in itertools.product([0] if quick else [0, 2], widths)
        ]
    if case == "buffer":
        # 256 samples are 1 MB, of which steps of reading take some.
        return [
            {"read_threads": one, "predownload": ahead, "download_threads": width}
            for one, ahead, width in itertools.product(
                [0] if quick else [0, 2], [32, 96, 224] if quick else [16, 32, 64, 96, 128, 160, 192, 224], [8, 64]
            )
        ]
    return [{"read_threads": one} for one in ([*threads, 16] if case == "service" else threads)]


# -- one point -----------------------------------------------------------------------------------------------------------


def _dataset(job: dict[str, Any], store: dict[str, str] | None, local: Path, rank: int) -> Any:
    from stoker import ReadOptions, StreamingDataset, World

    settings, case = dict(job["settings"]), job["case"]
    given: dict[str, Any] = {"batch_size": _BATCH, "shuffle": True, "predownload": settings.pop("predownload", None)}
    read = ReadOptions(tune="auto" if job["tuned"] else "off", tune_memory=_MEMORY.get(case, "256mb"), **settings)
    transform = {"decoding": decode, "service": ask}.get(case)
    if case == "buffer":
        given["cache"] = "memory"
    elif store is not None:
        given["local"] = local / str(rank)
    if store is not None:
        given["storage_options"] = store
    if case == "rank":
        given["world"] = World(rank=rank, world_size=2, local_world_size=2)
    return StreamingDataset(
        f"s3://any/{job['name']}" if store is not None else job["data"], read=read, transform=transform, **given
    )


def _consume(job: dict[str, Any], dataset: Any, barrier: Any) -> dict[str, Any]:
    """Read for a warm-up, and then some seconds."""
    step, warm, seconds = _STEP.get(job["case"], 0.0), job["warm"], job["seconds"]
    begun = time.perf_counter()
    samples = since = warmed = 0
    for batch in itertools.chain.from_iterable(dataset.batches() for _ in itertools.count()):
        try:
            if barrier is not None:
                barrier.wait(_PATIENCE)
        except threading.BrokenBarrierError:  # the other rank has read for long enough
            break
        if step:
            time.sleep(step)
        samples += len(batch["x"])
        now = time.perf_counter() - begun
        if not warmed and now >= warm:
            since, warmed = samples, now
        elif warmed and now >= warmed + seconds:
            break
    if barrier is not None:
        barrier.abort()
    return _result(dataset, (samples - since) / (now - warmed), warmed, since)


def _result(dataset: Any, rate: float, warmed: float, since: int) -> dict[str, Any]:
    tuning = [(one.setting, one.before, one.after, one.kept, round(one.gain, 3)) for one in dataset.stats().tuning]
    return {"rate": rate, "warm": warmed, "warm_samples": since, "tuning": tuning}


def _rank(job: dict[str, Any], store: dict[str, str], local: Path, rank: int, barrier: Any, results: Any) -> None:
    results.put(_consume(job, _dataset(job, store, local, rank), barrier))


def point(job: dict[str, Any]) -> dict[str, Any]:
    """Run one point in this process."""
    local = Path(tempfile.mkdtemp(dir=job["scratch"]))
    stores = job["stores"]
    if job["case"] != "rank":
        return _consume(job, _dataset(job, stores[0] if stores else None, local, 0), None)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    ranks = [
        context.Process(target=_rank, args=(job, stores[rank], local, rank, barrier, results)) for rank in range(2)
    ]
    for one in ranks:
        one.start()
    found = [results.get(timeout=_PATIENCE) for _ in ranks]
    for one in ranks:
        one.join()
    return {**min(found, key=lambda one: one["rate"]), "tuning": [each for one in found for each in one["tuning"]]}


# -- all of them ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stores(case: str, folder: Path) -> Iterator[list[dict[str, str]]]:
    """The stores of a case: one for each rank, or none."""
    from slow_store import slow_store, started

    with contextlib.ExitStack() as stack:
        if case == "store":
            yield [stack.enter_context(slow_store(folder, 0.1))]
        elif case == "buffer":
            script = str(TESTS / "pipeline" / "jittery_store.py")
            yield [stack.enter_context(started(script, folder, 0.004))]
        elif case == "rank":
            yield [stack.enter_context(slow_store(folder, delay)) for delay in (0.0, 0.1)]
        else:
            yield []


def run_point(job: dict[str, Any]) -> dict[str, Any]:
    """Run one point in a fresh process."""
    command = [sys.executable, __file__, "--point", json.dumps(job)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_case(case: str, chosen: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The rates of all points of a case, of the tuner and of what is not tuned."""
    folder = scratch / case
    write(folder / "data", case)
    points = [("grid", settings) for settings in grid(case, quick=chosen.quick)] + [("tuner", {}), ("untuned", {})]
    rates: dict[str, list[float]] = {}
    tuners: list[dict[str, Any]] = []
    with stores(case, folder) as served:
        for number in range(chosen.rounds):
            random.Random(number).shuffle(points)
            for kind, settings in points:
                job = {
                    "case": case,
                    "settings": settings,
                    "tuned": kind == "tuner",
                    "warm": chosen.warm if kind == "tuner" else _WARM_OF_POINT,
                    "seconds": chosen.seconds,
                    "stores": served,
                    "name": "data",
                    "data": str(folder / "data"),
                    "scratch": str(scratch),
                }
                found = run_point(job)
                name = kind if kind != "grid" else " ".join(f"{key}={value}" for key, value in settings.items())
                rates.setdefault(name, []).append(found["rate"])
                if kind == "tuner":
                    tuners.append(found)
                print(f"  {case:9} {name:50} {found['rate']:10.1f} samples/s", flush=True)
                subprocess.run(["rm", "-rf", *map(str, scratch.glob("tmp*"))], check=True)
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    most = {name: max(each) for name, each in rates.items()}
    best = max((name for name in most if name not in ("tuner", "untuned")), key=most.__getitem__)
    tuner = max(tuners, key=lambda one: one["rate"])
    return {
        "case": case,
        "best": best,
        "rate": most[best],
        "ratio": most["tuner"] / most[best],
        "untuned": most["untuned"] / most[best],
        "cost": max(0.0, tuner["warm"] - tuner["warm_samples"] / most[best]),
        "warm": tuner["warm"],
        "tuning": tuner["tuning"],
        "rates": rates,
    }


def main() -> None:
    """Run the chosen cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=None, help="default: 2; 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--warm", type=float, default=12.0, help="seconds of the tuner's warm-up; default: 12")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured after it; default: 4")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.point:
        print(json.dumps(point(json.loads(chosen.point))))
        return
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 2)
    with tempfile.TemporaryDirectory(prefix="stoker-tuning-") as scratch:
        found = [run_case(case, chosen, Path(scratch)) for case in chosen.cases]
    print(f"\n{'case':9} {'best of the grid':50} {'samples/s':>10} {'ratio':>6} {'untuned':>8} {'cost of warm-up':>16}")
    for one in found:
        cost = f"{one['cost']:.1f} of {one['warm']:.1f} s"
        print(
            f"{one['case']:9} {one['best']:50} {one['rate']:10.1f} {one['ratio']:6.2f} {one['untuned']:8.2f} {cost:>16}"
        )
        for setting, before, after, kept, gain in one["tuning"]:
            print(f"          {setting} {before} -> {after} {'kept' if kept else 'withdrawn'} ({100 * gain:.0f} %)")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if not all(one["ratio"] >= 0.95 for one in found):
        raise SystemExit("below 0.95 of the best of the grid")


if __name__ == "__main__":
    main()
