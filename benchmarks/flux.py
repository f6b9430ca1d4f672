"""Flux's Parquet, rows of 2.16 MB, as arrays: stoker's pipeline against pyarrow, and how many accelerators it feeds.

    python benchmarks/flux.py /dev/shm/flux --files 4 --samples 96 --json flux.json
    python benchmarks/flux.py s3://bucket/flux --options '{"endpoint": "http://...", ...}' --layout binary

Generates the columns of MLPerf Storage's workload (``stoker bench run flux-b200``) in files of fewer rows, unless they are
there, in two layouts:

* ``binary``: each value as bytes of a fixed length, as stoker's generator writes arrays;
* ``list``: ``fixed_size_list<float32>`` without compression or dictionaries, as pyarrow writes DLIO's tables.

Measured, alternating, each on one thread of a process of its own, in its second pass: bytes of decoded values by CPU second,
and by second:

* ``objects``: ``pq.ParquetFile.read_row_group(...).to_pylist()`` of one row group, as Python has rows;
* ``arrow``: ``read_row_group`` of all row groups, memory-mapped, and no more: Arrow tables;
* ``stoker``: ``StreamingDataset.batches()`` of 48 rows, shuffled over two row groups, as NumPy arrays that are the caller's;
* ``raw``: the files' bytes by ``read()``, which is what is left where nothing is decoded.

Then, with ``--accelerators``, ``stoker bench`` with steps of ``--seconds`` for 12 rows, not of the workload's 1.35 s for 48:
utilization against the number of simulated accelerators, with decoding, and without: whole files as bytes, which compute as
long as their rows would. Its figures are for a plot: ``--json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.bench.generation import make_data
from stoker.bench.run import run_benchmark
from stoker.bench.sources import Resolved, read_workload
from stoker.dataset.streams import Stream
from stoker.streaming import StreamingDataset

BATCH = 48


def workload(files: int, samples: int, *settings: str) -> Resolved:
    rows = [f"dataset.files={files}", f"dataset.samples_per_file={samples}", f"dataset.row_group_rows={BATCH}"]
    return read_workload("flux-b200", [*rows, *settings], environ={}, dotenv=None)


def as_lists(source: Path, target: Path) -> None:
    """The same values as lists, a file at a time."""
    target.mkdir(parents=True)
    for path in sorted(source.glob("*.parquet")):
        file = pq.ParquetFile(path)
        writer = None
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            columns, fields = [], []
            for field in table.schema:
                flat = np.frombuffer(table.column(field.name).combine_chunks().buffers()[1], np.float32)
                size = field.type.byte_width // 4
                columns.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), size))
                fields.append(pa.field(field.name, columns[-1].type))
            schema = pa.schema(fields)
            writer = writer or pq.ParquetWriter(target / path.name, schema, compression="none", use_dictionary=False)
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=BATCH)
        if writer is not None:
            writer.close()


def objects(folder: Path) -> int:
    table = pq.ParquetFile(min(folder.glob("*.parquet")), memory_map=True).read_row_group(0, use_threads=False)
    rows = table.to_pylist()
    assert len(rows) == table.num_rows
    return int(table.nbytes)


def arrow(folder: Path) -> int:
    total = 0
    for path in sorted(folder.glob("*.parquet")):
        file = pq.ParquetFile(path, memory_map=True)
        total += sum(file.read_row_group(number, use_threads=False).nbytes for number in range(file.num_row_groups))
    return total


def raw(folder: Path) -> int:
    return sum(len(path.read_bytes()) for path in sorted(folder.glob("*.parquet")))


def stoker(place: str, options: dict[str, Any] | None) -> int:
    with tempfile.TemporaryDirectory() as cache:
        stream = Stream(place, None if options is None else cache, format="parquet", storage_options=options)
        dataset = StreamingDataset(
            streams=[stream],
            batch_size=BATCH,
            shuffle=True,
            shuffle_block_size=2 * BATCH,
            decoded_limit="400mb",  # less than there is: as in the data set's real size, nothing comes twice from memory
            read_threads=0,
        )
        total = sum(np.asarray(column).nbytes for batch in dataset.batches() for column in batch.values())
        dataset.close()
    return total


def timed(way: Callable[..., int], arguments: tuple[Any, ...]) -> tuple[float, float]:
    """Bytes by CPU second and by second of a second pass, in this process."""
    way(*arguments)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    size = way(*arguments)
    return size / (time.process_time() - cpu), size / (time.perf_counter() - wall)


def rates(ways: dict[str, tuple[Callable[..., int], tuple[Any, ...]]], rounds: int) -> dict[str, dict[str, float]]:
    """Bytes by CPU second and by second of each, the median of rounds, each in a process of its own."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                found[name].append(process.submit(timed, *way).result())
    made = {}
    for name, pairs in found.items():
        made[name] = {"cpu": statistics.median(c for c, _ in pairs), "wall": statistics.median(w for _, w in pairs)}
        made[name]["cpu_least"], made[name]["cpu_most"] = min(c for c, _ in pairs), max(c for c, _ in pairs)
    return made


def utilization(
    place: str, counts: list[int], files: int, samples: int, seconds: float, options: str
) -> list[dict[str, Any]]:
    """AU against accelerators, with and without decoding."""
    found = []
    for accelerators in counts:
        for decode in (True, False):
            settings = [
                f"compute.seconds={seconds}",
                "train.epochs=2",
                "reader.threads=1",
                f"reader.decode={str(decode).lower()}",
            ]
            settings += [
                "storage.cache=keep",
                "train.barrier=false",
                f"storage.options={options}",
                "reader.batch_size=12",
            ]
            if not decode:  # a file is then a sample
                settings += ["reader.batch_size=1", "dataset.columns=[]", f"compute.seconds={seconds * samples / 12}"]
            resolved = workload(files, samples if decode else 1, *settings)
            with tempfile.TemporaryDirectory() as results:
                result = run_benchmark(
                    resolved, results=Path(results) / "r", url=place, accelerators=accelerators, stages=("train",)
                )
            last = result["epochs"][-1]
            if last["au"] is None:
                raise SystemExit(f"{accelerators} accelerators have too few steps: give more --files")
            found.append(
                {
                    "accelerators": accelerators,
                    "decode": decode,
                    "au": last["au"],
                    "bytes_per_second": last["bytes_per_second"],
                }
            )
            told = f"AU {last['au']:.2%}  {last['bytes_per_second'] / 1e9:.2f} GB/s"
            print(f"{accelerators:3} accelerators, decode {decode!s:5}  {told}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", help="a directory, best on a disk in memory, or a URL; with train/ below")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--samples", type=int, default=96, help="rows of a file; flux has 288")
    parser.add_argument("--layout", choices=["binary", "list", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--options", default="{}", help="storage options of a URL, as JSON")
    parser.add_argument("--accelerators", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=0.05, help="of a step of 12 rows")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    remote = "://" in chosen.place
    options = json.loads(chosen.options) if remote else None
    resolved = workload(chosen.files, chosen.samples, f"storage.options={chosen.options}")
    made = make_data(resolved.workload, chosen.place)
    print(f"{made['files']} files, {made['samples']} rows")
    result: dict[str, Any] = {"files": made["files"], "rows": made["samples"], "pyarrow": pa.__version__, "rates": {}}
    for layout in ("binary",) if remote else ("binary", "list") if chosen.layout == "both" else (chosen.layout,):
        place = f"{chosen.place.rstrip('/')}/train"
        ways: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {}
        if not remote:
            folder = Path(place)
            if layout == "list":
                folder = Path(chosen.place) / "list"
                if not folder.exists():
                    as_lists(Path(place), folder)
                place = str(folder)
            ways = {"objects": (objects, (folder,)), "arrow": (arrow, (folder,)), "raw": (raw, (folder,))}
        ways["stoker"] = (stoker, (place, options))
        found = result["rates"][layout] = rates(ways, chosen.rounds)
        for name, one in found.items():
            print(f"{layout:7} {name:8} {one['cpu'] / 1e9:7.3f} GB a CPU second   {one['wall'] / 1e9:7.3f} GB/s")
        if not remote:
            over = {name: found["stoker"]["cpu"] / found[name]["cpu"] for name in ("objects", "arrow", "raw")}
            print(f"{layout:7} stoker has " + ", ".join(f"{ratio:.2f} x {name}" for name, ratio in over.items()))
            result.setdefault("ratios", {})[layout] = over
    if chosen.accelerators:
        result["utilization"] = utilization(
            chosen.place, chosen.accelerators, chosen.files, chosen.samples, chosen.seconds, chosen.options
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
