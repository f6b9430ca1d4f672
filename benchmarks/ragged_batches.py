"""Columns whose batches are arrays or lists by their values: processor time of a sample.

    python benchmarks/ragged_batches.py [--rounds 7] [--samples 40000] [--source PATH]

Transforms that give arrays of one shape and NumPy's numbers, arrays of which one in 200 has another shape, and arrays of any
length; and Parquet files of numbers with and without nulls, and of lists of one length, of one in 200 of another, and of any.
The cases take turns, and the least time of all rounds counts, as other work of the machine only adds to it. All is read in
the caller's thread, 64 samples a batch. ``--source`` is the ``src`` folder of another version, which takes turns with this
one; its times and the ratio are printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 64
HERE = Path(__file__).resolve().parent.parent / "src"


def uniform(sample: dict[str, Any]) -> dict[str, Any]:
    """Arrays and numbers that stack in every batch."""
    return {"x": np.full(64, sample["n"], np.float32), "y": np.int64(sample["n"])}


def mostly(sample: dict[str, Any]) -> dict[str, Any]:
    """One array in 200 has another shape."""
    return {"x": np.full(64 + (sample["n"] % 200 == 0), sample["n"], np.float32), "y": np.int64(sample["n"])}


def ragged(sample: dict[str, Any]) -> dict[str, Any]:
    """Arrays of any length."""
    return {"x": np.full(32 + sample["n"] * 7919 % 64, sample["n"], np.float32), "y": np.int64(sample["n"])}


def python(sample: dict[str, Any]) -> dict[str, Any]:
    """Text and Python's numbers."""
    return {"x": str(sample["n"]), "y": sample["n"]}


TRANSFORMS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (uniform, mostly, ragged, python)


def write(folder: Path, samples: int) -> None:
    """Write the datasets."""
    from stoker import MDSWriter

    with MDSWriter({"n": "int"}, folder / "samples", size_limit="1mb", hashes=[]) as out:
        out.write_batch({"n": np.arange(samples)})
    lengths = {
        "equal": np.full(samples, 64),
        "mostly": 64 + (np.arange(samples) % 200 == 0),
        "any": 32 + np.arange(samples) * 7919 % 64,
    }
    columns: dict[str, Any] = {
        f"lists {name}": pa.ListArray.from_arrays(
            np.concatenate([[0], np.cumsum(length)]).astype(np.int32), np.zeros(int(length.sum()), np.int32)
        )
        for name, length in lengths.items()
    }
    columns["numbers"] = pa.array(np.arange(samples))
    columns["numbers with nulls"] = pa.array(np.arange(samples), mask=np.arange(samples) % 200 == 0)
    for name, column in columns.items():
        (folder / name).mkdir()
        pq.write_table(pa.table({"x": column}), folder / name / "0.parquet", row_group_size=10_000)


def cases(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name of each case, and what opens its batches."""
    from stoker import ReadOptions, StreamingDataset

    read = ReadOptions(read_threads=0)

    def open_numbers(transform: Any) -> Any:
        return StreamingDataset(folder / "samples", batch_size=BATCH, transform=transform, read=read).batches()

    def open_parquet(name: str) -> Any:
        return StreamingDataset(folder / name, batch_size=BATCH, read=read, local=folder / "cache" / name).batches()

    for transform in TRANSFORMS:
        yield f"transform: {transform.__name__}", lambda transform=transform: open_numbers(transform)  # type: ignore[misc]
    for name in ("numbers", "numbers with nulls", "lists equal", "lists mostly", "lists any"):
        yield f"parquet: {name}", lambda name=name: open_parquet(name)  # type: ignore[misc]


def measure(folder: Path, samples: int) -> dict[str, float]:
    """Microseconds of the processor for a sample of each case; the better of two epochs."""
    found: dict[str, float] = {}
    for name, opened in cases(folder):
        for _ in range(2):
            batches, begun = opened(), time.process_time()
            for _batch in batches:
                pass
            took = 1e6 * (time.process_time() - begun) / samples
            found[name] = min(took, found.get(name, took))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure, arguments.samples)))
        return
    sources = [HERE, *([arguments.source] if arguments.source else [])]
    best: list[dict[str, float]] = [{} for _ in sources]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.samples)
        for _ in range(arguments.rounds):
            for source, least in zip(sources, best, strict=True):
                command = [sys.executable, __file__, "--measure", folder, "--samples", str(arguments.samples)]
                environ = {**os.environ, "PYTHONPATH": str(source), "STOKER_CACHE": f"{folder}/user"}
                run = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
                for name, took in json.loads(run.stdout).items():
                    least[name] = min(took, least.get(name, took))
    for name, took in best[0].items():
        others = "".join(f"{one[name]:9.3f} {took / one[name]:6.2f}" for one in best[1:])
        print(f"{name:30}{took:9.3f}{others}")


if __name__ == "__main__":
    main()
