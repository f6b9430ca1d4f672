"""Compare the tuner with the best of a grid of the settings that it chooses, where one thing is slow.

    python benchmarks/tuning.py --rounds 3                 # 17 minutes
    python benchmarks/tuning.py --quick                    # one round; 8 minutes
    python benchmarks/tuning.py --cases decoding
    python benchmarks/tuning.py --cases plain views        # 3 minutes
    python benchmarks/tuning.py --cases processes          # not among the others, as it starts many processes

Each point is a fresh process, in turn with the others and with the tuner, within the same memory (``tune_memory=``). It
reads for a warm-up (``--warm`` s with the tuner; at a point of the grid 2 s, or 5 s where there is a store), then for
``--seconds``; its figure is the samples a second after the warm-up. A point marked ``cut`` cuts its steps of reading as the
tuner does. All points are run in the first round, and the two best of them in all others. The best of the grid is the one
with the highest median; ``ratio`` is the median over the rounds of the tuner's figure by that of the best point in the same
round, and is to reach 0.95. ``cost`` are the seconds that the warm-up took longer than at the rate of the best point.
``untuned`` is ``tune="off"`` with nothing set, by the best point, too; it knows no ``tune_memory``, so that it takes more in
the case ``buffer``.

The cases: ``store``: each request takes 100 ms, and a training step 1.5 ms. ``decoding``: a sample is decompressed and summed
up in some milliseconds by code that leaves the interpreter's lock. ``service``: a function of a sample waits 4 ms.
``consumer``: a training step sleeps 20 ms. ``buffer``: each 6th request takes 100 ms, the others 4 ms, as a training step
does; shards are held in memory, and 1 MB of it is allowed. ``rank``: of two ranks that wait for each other at each step of
4 ms, one has a store whose requests take 100 ms. ``processes``: as ``service``, in processes.

``plain`` and ``views`` show what the tuner costs where it can not help: a loop that only reads columns, or views, of files of
this machine, for 5 s from its beginning, in turns with ``tune="off"``. The ratio is the tuner's figure by that one's, and is
to reach 0.98; so is, the other way round, that of the processor time of a sample.

A point beside which other processes used more than 15 % of the machine's processors is measured again, up to three times, and
the one with the least of it counts; how often is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.pipeline.tuning.knobs import Knob
from stoker.pipeline.tuning.tuner import Tuner

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS)]

_PLAIN = ("plain", "views")
CASES = ("store", "decoding", "service", "consumer", "buffer", "rank", *_PLAIN)
_ALL_CASES = (*CASES, "processes")
_WARM_OF_POINT = {"store": 5.0, "buffer": 5.0, "rank": 5.0}
_USUAL_WARM = 2.0
_FINALISTS = 2
_TO_REACH = 0.95
_PLAIN_TO_REACH = 0.98
_PLAIN_SECONDS = 5.0
_PLAIN_TIMES = 3
"""Runs of a plain loop in each round."""
_DISTURBED = 0.15
_AGAIN = 3
_PATIENCE = 600.0

_SHARDS = {"store": 20_000, "buffer": 6000, "rank": 12_000}
_BATCH, _PLAIN_BATCH = 8, 64
_STEP = {"consumer": 0.02, "store": 0.0015, "buffer": 0.004, "rank": 0.004}
_MEMORY = {"buffer": "1mb"}


def write(folder: Path, case: str) -> None:
    """Write the data of a case: shards of 8 samples of 1 kB, or of 4 kB in the case ``buffer``; else shards of 64.

    Those that are only read have 1,024 samples of 4 kB.
    """
    import numpy as np

    from stoker import MDSWriter

    rng = np.random.default_rng(0)
    if case in ("store", "rank", "buffer"):
        size = 4096 if case == "buffer" else 1024
        samples = {"x": rng.integers(0, 255, (_BATCH, size), np.uint8)}
        columns = {"x": f"ndarray:uint8:{size}"}
    elif case in _PLAIN:
        values = rng.integers(0, 255, (1024, 4096), np.uint8)
        plain = case == "plain"
        samples = {"x": values if plain else [row.tobytes() for row in values]}
        columns = {"x": "ndarray:uint8:4096" if plain else "bytes"}
    elif case == "decoding":
        values = np.sort(rng.integers(0, 1 << 30, 200_000, dtype=np.int32))
        samples, columns = {"x": [zlib.compress(values.tobytes(), 1)] * 64}, {"x": "bytes"}
    else:
        samples, columns = {"x": rng.integers(0, 255, (64, 1 << 16), np.uint8)}, {"x": "ndarray:uint8:65536"}
    with MDSWriter(columns, folder, size_limit=None, hashes=()) as out:
        for _ in range(_SHARDS.get(case, 60)):
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


def grid(case: str) -> list[dict[str, int]]:
    """Settings of the points of a case's grid, all within its memory; ``cut`` is 1 where steps are cut as the tuner does."""
    if case in _PLAIN:
        return []
    if case == "store":
        points = itertools.product([0, 2], [16, 64, 128], [1])
        uncut = itertools.product([0], [64, 128], [0])
        return [
            {"read_threads": threads, "download_threads": width, "cut": cut}
            for threads, width, cut in itertools.chain(points, uncut)
        ]
    if case == "rank":
        return [
            {"read_threads": 0, "download_threads": width, "cut": cut}
            for width, cut in itertools.product([8, 32, 128], [0, 1])
        ]
    if case == "buffer":
        # 256 samples are 1 MB, of which steps of reading take 32 each: one, or with two threads three.
        aheads = [(0, 96), (0, 224), (2, 64), (2, 160)]
        points = [(*ahead, width, 1) for ahead, width in itertools.product(aheads, [8, 64])]
        uncut = [(0, ahead, 64, 0) for ahead in (96, 224)]
        return [
            {"read_threads": threads, "predownload": ahead, "download_threads": width, "cut": cut}
            for threads, ahead, width, cut in itertools.chain(points, uncut)
        ]
    if case == "processes":
        return [{"read_processes": processes, "cut": cut} for processes, cut in itertools.product([1, 2, 4, 8], [1])]
    uncut = {"decoding": [0, 1, 2, 4, 8], "service": [2, 4, 8, 16], "consumer": [0, 1, 2, 4]}[case]
    cut = {"decoding": [2, 4], "service": [8, 16], "consumer": [0, 2]}[case]
    ready = {"decoding": [(2, 4)], "service": [(16, 4)], "consumer": []}[case]
    return [
        *({"read_threads": threads} for threads in uncut),
        *({"read_threads": threads, "cut": 1} for threads in cut),
        *({"read_threads": threads, "chunks_ahead": chunks, "cut": 1} for threads, chunks in ready),
    ]


# -- one point -----------------------------------------------------------------------------------------------------------


class _Fixed:
    """Rules of a tuner that changes nothing, so that steps are cut and the rest stays."""

    idle, rests, tick_seconds, tick_chunks = True, False, 1.0, 1
    tick_limit = math.inf, 0.0

    def __init__(self, chunks_ahead: int, ranges: Any) -> None:
        self.values = {knob: one.start for knob, one in ranges.items()}
        self.values[Knob.CHUNKS_AHEAD] = chunks_ahead

    @property
    def settled(self) -> dict[Knob, int]:
        return self.values

    def bar(self, *knobs: Knob) -> None:
        pass

    def restarted(self, *, goes_on: bool, settles: bool) -> None:
        pass

    def observe(self, _: Any) -> list[Any]:
        return []


def _dataset(job: dict[str, Any], store: dict[str, str] | None, local: Path, rank: int) -> Any:
    from stoker import ReadOptions, StreamingDataset, World

    settings, case = dict(job["settings"]), job["case"]
    # In the order of shards, as the first of a shuffle's blocks need more shards for each batch than those that follow.
    batch = _PLAIN_BATCH if case in _PLAIN else _BATCH
    given: dict[str, Any] = {"batch_size": batch, "predownload": settings.pop("predownload", None)}
    cut, chunks = settings.pop("cut", 0), settings.pop("chunks_ahead", 1)
    if cut:
        Tuner.rules = lambda _, ranges, __: _Fixed(chunks, ranges)  # type: ignore[method-assign]
    if job["tuned"] or cut:
        settings.update(tune="auto", tune_memory=_MEMORY.get(case, "256mb"))
    if case == "views":
        settings["views"] = True
    if case == "processes":
        settings["run_in"] = "processes"
    if case == "buffer":
        settings["cache"] = "memory"
    read = ReadOptions(**{"tune": "off", **settings})
    transform = {"decoding": decode, "service": ask, "processes": ask}.get(case)
    if store is not None and case != "buffer":
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
    begun = warmed = 0.0
    samples = since = 0
    for batch in itertools.chain.from_iterable(dataset.batches() for _ in itertools.count()):
        try:
            if barrier is not None:
                barrier.wait(_PATIENCE)
        except threading.BrokenBarrierError:  # the other rank has read for long enough
            break
        if step:
            time.sleep(step)
        begun = begun or time.perf_counter()  # of both ranks at once: after the first barrier
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
    decisions = dataset.stats().tuning
    tuning = [
        (one.setting, one.before, one.after, one.kept, round(one.gain, 3), round(one.seconds, 1)) for one in decisions
    ]
    return {"rate": rate, "warm": warmed, "warm_samples": since, "tuning": tuning}


def _read(job: dict[str, Any]) -> dict[str, Any]:
    """Read for some seconds from the beginning."""
    begun, computed, samples = time.perf_counter(), time.process_time(), 0
    dataset = _dataset(job, None, Path(), 0)
    until = begun + _PLAIN_SECONDS
    for batch in itertools.chain.from_iterable(dataset.batches() for _ in itertools.count()):
        samples += len(batch["x"])
        if time.perf_counter() >= until:
            break
    took, computed = time.perf_counter() - begun, time.process_time() - computed
    return {**_result(dataset, samples / took, 0.0, 0), "work": computed / samples}


def _rank(job: dict[str, Any], store: dict[str, str], local: Path, rank: int, barrier: Any, results: Any) -> None:
    results.put(_consume(job, _dataset(job, store, local, rank), barrier))


def point(job: dict[str, Any]) -> dict[str, Any]:
    """Run one point in this process."""
    local = Path(tempfile.mkdtemp(dir=job["scratch"]))
    stores = job["stores"]
    if job["case"] in _PLAIN:
        return _read(job)
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
    """Run one point in a fresh process; again where others disturbed it. ``others`` are the processors that they used."""
    tries: list[dict[str, Any]] = []
    while len(tries) <= _AGAIN and all(one["others"] > _DISTURBED for one in tries):
        before, begun = _others(), time.perf_counter()
        found = _run_once(job)
        used = (_others() - before) / (time.perf_counter() - begun) / (os.cpu_count() or 1)
        tries.append({**found, "others": used})
    return {**min(tries, key=lambda one: one["others"]), "again": len(tries) - 1}


def _others() -> float:
    """Seconds of processors that processes other than this one and its descendants have had."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    own, parents, times = 0, {}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            # Those of children that have ended, too.
            parents[int(entry.name)], times[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    for process, time_of_it in times.items():
        ancestor = process
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        own += time_of_it if ancestor else 0
    return (user + nice + system + sum(interrupts) - own) / ticks


def _run_once(job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--point", json.dumps(job)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_case(case: str, chosen: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The figures of all points of a case, of the tuner and of what is not tuned."""
    folder = scratch / case
    write(folder / "data", case)
    points: dict[str, dict[str, int]] = {_named(settings): settings for settings in grid(case)}
    rates: dict[str, list[float]] = {}
    work: dict[str, list[float]] = {}
    again = disturbed = 0
    tuners: list[dict[str, Any]] = []
    with stores(case, folder) as served:
        for number in range(chosen.rounds * (_PLAIN_TIMES if case in _PLAIN else 1)):
            names = [*(points if not number else _best(rates, _FINALISTS)), "tuner", "untuned"]
            random.Random(number).shuffle(names)
            for name in names:
                job = {
                    "case": case,
                    "settings": points.get(name, {}),
                    "tuned": name == "tuner",
                    "warm": chosen.warm if name == "tuner" else _WARM_OF_POINT.get(case, _USUAL_WARM),
                    "seconds": chosen.seconds,
                    "stores": served,
                    "name": "data",
                    "data": str(folder / "data"),
                    "scratch": str(scratch),
                }
                found = run_point(job)
                rates.setdefault(name, []).append(found["rate"])
                work.setdefault(name, []).append(found.get("work", 0.0))
                again, disturbed = again + found["again"], disturbed + (found["others"] > _DISTURBED)
                if name == "tuner":
                    tuners.append(found)
                print(f"  {case:9} {name:60} {found['rate']:10.1f} samples/s", flush=True)
                subprocess.run(["rm", "-rf", *map(str, scratch.glob("tmp*"))], check=True)
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    best = _best(rates, 1)[0] if points else "untuned"
    tuner = tuners[-1]
    return {
        "case": case,
        "best": best,
        "rate": statistics.median(rates[best]),
        **{name: statistics.median(_ratios(rates[name], rates[best])) for name in ("tuner", "untuned")},
        "ratios": _ratios(rates["tuner"], rates[best]),
        "cost": max(0.0, tuner["warm"] - tuner["warm_samples"] / rates[best][-1]),
        "warm": tuner["warm"],
        "tuning": tuner["tuning"],
        "rates": rates,
        "work": statistics.median(_ratios(work["tuner"], work["untuned"])) if case in _PLAIN else None,
        "again": again,
        "disturbed": disturbed,
    }


def _named(settings: dict[str, int]) -> str:
    return " ".join(
        "cut" if key == "cut" else f"{key}={value}" for key, value in settings.items() if key != "cut" or value
    )


def _best(rates: dict[str, list[float]], count: int) -> list[str]:
    """The points with the highest medians, of those that were run in all rounds."""
    rounds = max(map(len, rates.values()))
    points = [name for name, each in rates.items() if name not in ("tuner", "untuned") and len(each) == rounds]
    return sorted(points, key=lambda name: -statistics.median(rates[name]))[:count]


def _ratios(these: list[float], those: list[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


def main() -> None:
    """Run the chosen cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=_ALL_CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=None, help="default: 3; 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--warm", type=float, default=12.0, help="seconds of the tuner's warm-up; default: 12")
    parser.add_argument("--seconds", type=float, default=2.5, help="measured after it; default: 2.5")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.point:
        print(json.dumps(point(json.loads(chosen.point))))
        return
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 3)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="stoker-tuning-") as scratch:
        found = [run_case(case, chosen, Path(scratch)) for case in chosen.cases]
    head = f"{'case':9} {'best of the grid':54} {'samples/s':>10} {'ratio':>6} {'untuned':>8} {'cost of warm-up':>16}"
    print(f"\n{head}  rounds")
    for one in found:
        cost, ratios = f"{one['cost']:.1f} of {one['warm']:.1f} s", " ".join(f"{each:.2f}" for each in one["ratios"])
        line = f"{one['case']:9} {one['best']:54} {one['rate']:10.1f} {one['tuner']:6.2f} {one['untuned']:8.2f}"
        print(f"{line} {cost:>16}  {ratios}")
        for setting, before, after, kept, gain, seconds in one["tuning"]:
            outcome = f"{'kept' if kept else 'withdrawn'} ({100 * gain:.0f} %)"
            print(f"          after {seconds:4} s: {setting} {before} -> {after} {outcome}")
        if one["work"] is not None:
            print(f"          processor time of a sample: {one['work']:.3f} of that without the tuner")
        if one["again"]:
            print(
                f"          measured again as others were at work: {one['again']} times; still so: {one['disturbed']}"
            )
    print(f"{time.perf_counter() - begun:.0f} s")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))
    if not all(one["tuner"] >= (_TO_REACH if one["work"] is None else _PLAIN_TO_REACH) for one in found):
        raise SystemExit(f"below {_TO_REACH} of the best of the grid, or {_PLAIN_TO_REACH} of what is not tuned")
    if not all(one["work"] is None or one["work"] <= 1 / _PLAIN_TO_REACH for one in found):
        raise SystemExit(f"more processor time than what is not tuned by {_PLAIN_TO_REACH}")


if __name__ == "__main__":
    main()
