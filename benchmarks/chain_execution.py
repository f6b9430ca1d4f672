"""Functions of samples in threads, in processes, by measurement, and in DataLoader workers: samples a second.

    python benchmarks/chain_execution.py [--rounds 5] [--cases python numpy jpeg tiny] [--seconds 4]

Four functions: pure Python (holds Python's lock), NumPy and the decoding of a JPEG (release it), and one that does next to
nothing. The ways take turns, each reads for ``--seconds`` after its first batches; the best of all rounds counts, as other
work of the machine only takes time. Processes are forked, so that the start is not what is measured; ``--start-method
spawn`` starts fresh ones. For each function it says what ``"auto"`` chose and why, and its part of the better of threads and
processes, of which the least is to be 0.95.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stoker import MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset

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
        return dataset, iter(StreamingDataLoader(dataset, num_workers=2, columnar=True, multiprocessing_context=method))
    return dataset, dataset.batches()


def rate(folder: Path, case: str, way: str, method: str, seconds: float) -> tuple[float, str]:
    """Samples a second, and what ran them."""
    dataset, batches = batches_of(folder, case, way, method)
    until = time.perf_counter() + 2 * seconds
    for number, _ in enumerate(batches):
        if number == _FIRST or time.perf_counter() > until:
            break
    begun, samples = time.perf_counter(), 0
    for _ in batches:
        samples += BATCH
        took = time.perf_counter() - begun
        if took > seconds:
            break
    execution = dataset.stats().execution
    del batches
    dataset.close()
    return samples / took, "" if execution is None else f"{execution.run_in}: {execution.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--start-method", choices=("fork", "spawn"), default="fork")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    print(f"{len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}")
    least = 1.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for case in args.cases:
            best = dict.fromkeys(WAYS, 0.0)
            told: list[str] = []
            for number in range(args.rounds):
                for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                    found, execution = rate(folder, case, way, args.start_method, args.seconds)
                    best[way] = max(best[way], found)
                    told += [execution] * (way == "auto")
            part = best["auto"] / max(best["threads"], best["processes"])
            least = min(least, part)
            print(f"\n{case}: " + ", ".join(f"{way} {found:,.0f}/s" for way, found in best.items()))
            print(f"auto gets {part:.2f} of the better. It took")
            for one in dict.fromkeys(told):
                print(f"  {one} ({told.count(one)} of {len(told)})")
            print(json.dumps({"case": case, "rates": best, "auto_of_better": part}), flush=True)
    print(f"\nthe least part: {least:.2f}")


if __name__ == "__main__":
    main()
