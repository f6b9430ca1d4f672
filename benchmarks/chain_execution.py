"""Functions of samples in threads, in processes, by measurement, and in DataLoader workers: samples a second.

    python benchmarks/chain_execution.py [--rounds 5] [--cases python numpy jpeg tiny] [--ways threads auto] [--seconds 4]

Four functions: pure Python (holds Python's lock), NumPy and the decoding of a JPEG (release it), and one that does next to
nothing. The ways take turns, each reads for ``--seconds`` after its first batches; the best of all rounds counts, as other
work of the machine only takes time. Processes are forked, so that the start is not what is measured; ``--start-method
spawn`` starts fresh ones. For each function it says what ``"auto"`` chose and why, and its part of the better of threads and
processes, of which the least is to be 0.95. The processor time of this process for a sample, the least of all rounds, is what
a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stoker import MDSWriter, ReadOptions, StreamingDataset

BATCH = 32
WAYS = ("threads", "processes", "auto", "DataLoader, 2 workers")
# Batches until auto has measured, processes are there, and chunks are as large as they become.
_FIRST = 400


def python(sample: dict[str, Any]) -> dict[str, Any]:
    """A loop over tokens, about 0.1 ms."""
    total = 0
    for token in sample["tokens"].tolist() * 4:
        total = (total * 31 + token) % 65_521
    return {"x": sample["tokens"], "sum": total}


def numpy(sample: dict[str, Any]) -> dict[str, Any]:
    """A sort and a transform of 32,768 numbers."""
    numbers = np.tile(sample["tokens"], 128).astype(np.float64)
    return {"x": np.sort(np.sqrt(numbers))[::128]}


def jpeg(sample: dict[str, Any]) -> dict[str, Any]:
    """A picture of 500 x 375, decoded by Pillow."""
    from PIL import Image

    return {"x": np.asarray(Image.open(io.BytesIO(sample["picture"])))[::4, ::4]}


def tiny(sample: dict[str, Any]) -> dict[str, Any]:
    """Next to nothing."""
    return {"x": sample["tokens"]}


CASES: dict[str, Callable[[Any], Any]] = {"python": python, "numpy": numpy, "jpeg": jpeg, "tiny": tiny}


def write(folder: Path) -> None:
    """Tokens, and pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    with MDSWriter({"tokens": "ndarray:uint16:256"}, folder / "tokens", size_limit="1mb") as out:
        out.write_batch({"tokens": rng.integers(0, 1000, (20_000, 256), dtype=np.uint16)})
    with MDSWriter({"picture": "bytes"}, folder / "pictures", size_limit="4mb") as out:
        for _ in range(200):
            small = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
            file = io.BytesIO()
            small.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            out.write({"picture": file.getvalue()})


def batches_of(folder: Path, case: str, way: str, method: Any) -> tuple[StreamingDataset, Iterator[Any]]:
    """Batches without an end, nearly."""
    chosen: dict[str, ReadOptions] = {
        "processes": ReadOptions(run_in="processes", start_method=method),
        "auto": ReadOptions(run_in="auto", start_method=method),
    }
    source = folder / ("pictures" if case == "jpeg" else "tokens")
    read = chosen.get(way, ReadOptions())
    dataset = StreamingDataset(source, shuffle=True, batch_size=BATCH, epoch_size=1 << 30, read=read).map(CASES[case])
    if way.startswith("DataLoader"):
        from stoker import StreamingDataLoader

        return dataset, iter(StreamingDataLoader(dataset, num_workers=2, columnar=True, multiprocessing_context=method))
    return dataset, dataset.batches()


def rate(folder: Path, case: str, way: str, method: str, seconds: float) -> tuple[float, float, str]:
    """Samples a second, the processor time of one in µs, and what ran them."""
    dataset, batches = batches_of(folder, case, way, method)
    until = time.perf_counter() + 2 * seconds
    for number, _ in enumerate(batches):
        if number == _FIRST or time.perf_counter() > until:
            break
    begun, computed, samples = time.perf_counter(), time.process_time(), 0
    for _ in batches:
        samples += BATCH
        took = time.perf_counter() - begun
        if took > seconds:
            break
    computed = time.process_time() - computed
    execution = dataset.stats().execution
    del batches
    dataset.close()
    told = "" if execution is None else f"{execution.run_in}: {execution.reason}"
    return samples / took, 1e6 * computed / samples, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="the last one needs torch")
    parser.add_argument("--start-method", choices=("fork", "spawn"), default="fork")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    python = f"Python {sys.version.split()[0]} {'with' if lock else 'without'} a global lock"
    print(f"{python}, {len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}")
    ways, least = tuple(args.ways), 1.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for case in args.cases:
            best = dict.fromkeys(ways, 0.0)
            own = dict.fromkeys(ways, math.inf)
            told: list[str] = []
            for number in range(args.rounds):
                for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                    found, computed, execution = rate(folder, case, way, args.start_method, args.seconds)
                    best[way], own[way] = max(best[way], found), min(own[way], computed)
                    told += [execution] * (way == "auto")
            print(f"\n{case}: " + ", ".join(f"{way} {found:,.0f}/s" for way, found in best.items()))
            print("processor time of a sample here: " + ", ".join(f"{way} {took:.1f} µs" for way, took in own.items()))
            line: dict[str, Any] = {"case": case, "rates": best, "own_us": own}
            if {"auto", "threads"} <= best.keys():
                line["auto_of_better"] = best["auto"] / max(best["threads"], best.get("processes", 0.0))
                least = min(least, line["auto_of_better"])
                print(f"auto gets {line['auto_of_better']:.2f} of the better. It took")
                for one in dict.fromkeys(told):
                    print(f"  {one} ({told.count(one)} of {len(told)})")
            print(json.dumps(line), flush=True)
    print(f"\nthe least part: {least:.2f}")


if __name__ == "__main__":
    main()
