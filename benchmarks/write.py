"""Measure what writing costs: stoker's two ways beside mosaicml-streaming and beside plain files of as many bytes.

    python3 tools/environments.py mosaic litdata hf grain            # once: the peer's own environment
    python benchmarks/write.py                  # about three minutes
    python benchmarks/write.py --cases tokens tokens+zstd --rounds 5

Every measurement is a fresh process; the writers take turns within each round. ``plain files`` puts the same bytes
into files of 64 MiB with one ``write`` each, from memory that is touched already: no writer can be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / ".venvs" / "mosaic" / "bin" / "python"
SHARD = 64 << 20
ROW = 2048
IMAGE = 110_000

# Name to kind of sample, and what the writers are told beside columns and place.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens": ("tokens", {}),
    "images": ("images", {}),
    "tokens+sha1": ("tokens", {"hashes": ["sha1"]}),
    "tokens+xxh3": ("tokens", {"hashes": ["xxh3_64"]}),
    "tokens+zstd": ("tokens", {"compression": "zstd:1"}),
    "images+sha1": ("images", {"hashes": ["sha1"]}),
}
WRITERS = ("plain files", "stoker write_batch", "stoker write", "mosaicml write")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1024, help="payload of one measurement (default 1024)")
    parser.add_argument("--dir", default="/dev/shm", help="where the data goes (default /dev/shm)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(**json.loads(options.child))))
        return
    writers = [writer for writer in WRITERS if not writer.startswith("mosaicml") or PEER.exists()]
    if len(writers) < len(WRITERS):
        print("no mosaicml-streaming here: run tools/environments.py mosaic to measure it, too")
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.megabytes} MiB each, best of all rounds (median)"
    )
    for case in options.cases:
        rates: dict[str, list[float]] = {writer: [] for writer in writers}
        for _ in range(options.rounds):
            for writer in writers:
                rates[writer].append(run(case, writer, options.megabytes, options.dir))
        best = {writer: max(values) for writer, values in rates.items()}
        print(f"\n{case}")
        for writer in writers:
            line = f"  {writer:20} {best[writer]:6.0f} MB/s ({statistics.median(rates[writer]):6.0f})"
            for other in ("mosaicml write", "plain files"):
                if other in best and other != writer:
                    line += f"   {best[writer] / best[other]:5.2f} x {other}"
            print(line, flush=True)


def run(case: str, writer: str, megabytes: int, where: str) -> float:
    """MB/s of payload, measured in a fresh process."""
    folder = tempfile.mkdtemp(prefix="stoker-write-", dir=where)
    try:
        job = {"case": case, "writer": writer, "megabytes": megabytes, "out": f"{folder}/data"}
        python = str(PEER) if writer.startswith("mosaicml") else sys.executable
        command = [python, __file__, "--child", json.dumps(job)]
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"{writer}, {case}: {done.stderr[-2000:]}")
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer["bytes"] / answer["seconds"] / 1e6
    finally:
        shutil.rmtree(folder)


def measure(case: str, writer: str, megabytes: int, out: str) -> dict[str, float]:
    """Write one dataset; seconds from making the writer to the end of its ``with`` block."""
    kind, told = CASES[case]
    rounds = max(1, (megabytes << 20) // SHARD)
    columns, make = (TOKENS, tokens) if kind == "tokens" else (IMAGES, images)
    samples, batch, payload = make()
    if writer == "plain files":
        return {"seconds": plain(out, rounds), "bytes": rounds * SHARD}
    if writer.startswith("mosaicml"):
        from streaming import MDSWriter
    else:
        from stoker import MDSWriter
    start = perf_counter()
    with MDSWriter(columns=columns, out=out, size_limit=SHARD, **told) as sink:
        for _ in range(rounds):
            if writer.endswith("write_batch"):
                sink.write_batch(batch)
            else:
                for sample in samples():
                    sink.write(sample)
    return {"seconds": perf_counter() - start, "bytes": rounds * payload}


TOKENS = {"tokens": f"ndarray:uint16:{ROW}"}
IMAGES = {"image": "bytes", "label": "int"}
_Made = tuple[Callable[[], Iterator[dict[str, Any]]], dict[str, Any], int]


def tokens() -> _Made:
    """64 MiB of rows: what gives them one by one, all as a batch, and their bytes. About as compressible as text."""
    rng = np.random.default_rng(0)
    rows = np.minimum(rng.zipf(1.3, (SHARD // (2 * ROW), ROW)), 50_000).astype(np.uint16)
    return lambda: ({"tokens": row} for row in rows), {"tokens": rows}, rows.nbytes


def images() -> _Made:
    """About 64 MiB of incompressible values with labels."""
    data = np.random.default_rng(0).bytes(SHARD)
    parts = [data[at : at + IMAGE] for at in range(0, SHARD - IMAGE, IMAGE)]
    labels = np.arange(len(parts))
    pairs = list(zip(parts, labels.tolist(), strict=True))
    single = lambda: ({"image": image, "label": label} for image, label in pairs)  # noqa: E731
    return single, {"image": parts, "label": labels}, sum(map(len, parts)) + labels.nbytes


def plain(out: str, rounds: int) -> float:
    """Seconds to write files of the size of a shard."""
    data = np.full(SHARD, 7, np.uint8)
    os.makedirs(out)
    start = perf_counter()
    for number in range(rounds):
        with open(f"{out}/{number}", "wb", buffering=0) as file:
            file.write(data.data)
    return perf_counter() - start


if __name__ == "__main__":
    main()
