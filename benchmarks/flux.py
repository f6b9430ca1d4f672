"""Flux's Parquet, rows of 2.16 MB, as arrays: stoker's pipeline against pyarrow, and how many accelerators it feeds.

    python benchmarks/flux.py /dev/shm/flux --files 4 --samples 96 --json flux.json
    python benchmarks/flux.py --s3 --files 2 --samples 96          # from the S3 server that STOKER_TEST_S3_ENDPOINT names
    python benchmarks/flux.py /dev/shm/flux --files 48 --samples 12 --rounds 0 --accelerators 1 2 4 8 --results flux-au
    stoker bench report flux-au                                    # the plot

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

With ``--s3`` (``STOKER_TEST_S3_ENDPOINT``, ``_KEY`` and ``_SECRET``) the files lie in a bucket of their own, which goes at
the end. CPU seconds are those of the reading process and all of its threads, not those of the server:

* ``objects`` of one file, ``arrow``: as above, through ``pyarrow.fs.S3FileSystem``, and once more as ``objects-obstore`` and
  ``arrow-obstore``, whole files by ``obstore.get``, decoded from memory;
* ``stoker``: from the URL, with ``cache="memory"``; ``stoker-disk``: through a cache in ``--cache`` that is empty at the
  begin of each pass;
* ``raw``: the files' bytes by ``obstore.get``, dropped.

Then, with ``--accelerators``, ``stoker bench`` with steps of ``--seconds`` for 12 rows, not of the workload's 1.35 s for 48:
utilization against the number of simulated accelerators, with decoding, and without: whole files as bytes, which compute as
long as their rows would. ``--results`` keeps all runs, for ``stoker bench report``, which plots them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker import ReadOptions
from stoker.loaders.dataset import StreamingDataset
from stoker.storage import open_store
from stoker.streams.streams import Stream
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import Resolved, read_workload

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


def row_group_objects(file: pq.ParquetFile, number: int = 0) -> int:
    table = file.read_row_group(number, use_threads=False)
    rows = table.to_pylist()
    assert len(rows) == table.num_rows
    return int(table.nbytes)


def whole_objects(file: pq.ParquetFile) -> int:
    return sum(row_group_objects(file, number) for number in range(file.num_row_groups))


def row_group_tables(file: pq.ParquetFile) -> int:
    return sum(file.read_row_group(number, use_threads=False).nbytes for number in range(file.num_row_groups))


# -- of a directory --------------------------------------------------------------------------------------------------


def mapped(folder: Path) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(path, memory_map=True) for path in sorted(folder.glob("*.parquet"))]


def objects(folder: Path) -> int:
    return row_group_objects(mapped(folder)[0])


def arrow(folder: Path) -> int:
    return sum(map(row_group_tables, mapped(folder)))


def raw(folder: Path) -> int:
    return sum(len(path.read_bytes()) for path in sorted(folder.glob("*.parquet")))


# -- of a bucket -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Objects:
    """Files of a bucket, and what opens it."""

    bucket: str
    names: tuple[str, ...]
    options: dict[str, str]

    def by_pyarrow(self, name: str) -> pq.ParquetFile:
        files = file_system(*self.options.items())
        return pq.ParquetFile(files.open_input_file(f"{self.bucket}/{name}"), pre_buffer=True)

    def fetched(self, name: str) -> Any:
        return obstore_of(f"s3://{self.bucket}", *self.options.items()).get(name).bytes()

    def by_obstore(self, name: str) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(pa.py_buffer(self.fetched(name))))


@cache
def file_system(*given: tuple[str, str]) -> Any:
    from pyarrow.fs import S3FileSystem

    options = dict(given)
    endpoint = urlsplit(options["endpoint"])
    return S3FileSystem(
        access_key=options["access_key_id"],
        secret_key=options["secret_access_key"],
        region=options["region"],
        scheme=endpoint.scheme,
        endpoint_override=endpoint.netloc,
    )


@cache
def obstore_of(url: str, *given: tuple[str, str]) -> Any:
    from obstore.store import from_url

    return from_url(url, client_options={"allow_http": True}, **dict(given))


def s3_objects(place: Objects) -> int:
    return whole_objects(place.by_pyarrow(place.names[0]))


def s3_objects_obstore(place: Objects) -> int:
    return whole_objects(place.by_obstore(place.names[0]))


def s3_arrow(place: Objects) -> int:
    return sum(row_group_tables(place.by_pyarrow(name)) for name in place.names)


def s3_arrow_obstore(place: Objects) -> int:
    return sum(row_group_tables(place.by_obstore(name)) for name in place.names)


def s3_raw(place: Objects) -> int:
    return sum(len(place.fetched(name)) for name in place.names)


@contextlib.contextmanager
def bucket_of_its_own() -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket's URL and its options; at the end it goes, with all that is in it."""
    import boto3

    options = {"endpoint": os.environ["STOKER_TEST_S3_ENDPOINT"], "access_key_id": os.environ["STOKER_TEST_S3_KEY"]}
    options |= {"secret_access_key": os.environ["STOKER_TEST_S3_SECRET"], "region": "us-east-1"}
    name = f"stoker-flux-{os.getpid()}"
    client = boto3.client(
        "s3",
        endpoint_url=options["endpoint"],
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        region_name=options["region"],
    )
    client.create_bucket(Bucket=name)
    try:
        yield f"s3://{name}", options
    finally:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for item in page.get("Contents", []):
                client.delete_object(Bucket=name, Key=item["Key"])
        client.delete_bucket(Bucket=name)


# -- of both ---------------------------------------------------------------------------------------------------------


def stoker(place: str, options: dict[str, Any] | None, cache: str | None) -> int:
    # Whoever started this removes what is in the cache: that is not timed.
    local = None if cache is None else tempfile.mkdtemp(dir=cache)
    dataset = StreamingDataset(
        streams=[Stream(place, local, format="parquet", storage_options=options)],
        batch_size=BATCH,
        shuffle=True,
        shuffle_block_size=2 * BATCH,
        # Less than there is: as in the data set's real size, nothing comes twice from memory.
        read=ReadOptions(cache="disk" if local else "memory", decoded_limit="400mb", read_threads=0),
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


def rates(
    ways: dict[str, tuple[Callable[..., int], tuple[Any, ...]]], rounds: int, cache: Path
) -> dict[str, dict[str, float]]:
    """Bytes by CPU second and by second of each, the median of rounds, each in a process of its own."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                found[name].append(process.submit(timed, *way).result())
            for one in cache.iterdir():
                shutil.rmtree(one)
    made = {}
    for name, pairs in found.items():
        made[name] = {"cpu": statistics.median(c for c, _ in pairs), "wall": statistics.median(w for _, w in pairs)}
        made[name]["cpu_least"], made[name]["cpu_most"] = min(c for c, _ in pairs), max(c for c, _ in pairs)
    return made


def utilization(
    place: str, counts: list[int], files: int, samples: int, seconds: float, options: str, results: Path
) -> list[dict[str, Any]]:
    """AU against accelerators, with and without decoding; mean of three epochs, as ``stoker bench report`` shows it."""
    found = []
    for accelerators in counts:
        steps = files * samples // 12 // accelerators
        for decode in (True, False):
            settings = [
                f"compute.seconds={seconds}",
                "train.epochs=3",
                "train.barrier=false",
                f"metric.exclude_start={max(1, steps // 3)}",  # what was read ahead hides for so long what comes too late
                "reader.threads=1",
                "reader.batch_size=12",
                f"reader.decode={str(decode).lower()}",
                "storage.cache=keep",
                f"storage.options={options}",
            ]
            if not decode:  # a file is then a sample
                settings += ["reader.batch_size=1", "dataset.columns=[]", f"compute.seconds={seconds * samples / 12}"]
            resolved = workload(files, samples if decode else 1, *settings)
            result = run_benchmark(
                resolved,
                results=results / f"{accelerators:03d}-{'arrays' if decode else 'bytes'}",
                url=place,
                accelerators=accelerators,
                stages=("train",),
                command=sys.argv,
            )
            train = result["train"]
            if train["au"] is None:
                raise SystemExit(f"{accelerators} accelerators have too few steps: give more --files")
            one = {"au": train["au"]["mean"], "bytes_per_second": train["delivered_bytes_per_second"]["mean"]}
            found.append({"accelerators": accelerators, "decode": decode, **one})
            told = f"AU {one['au']:.2%}  {one['bytes_per_second'] / 1e9:.2f} GB/s"
            print(f"{accelerators:3} accelerators, decode {decode!s:5}  {told}", flush=True)
    return found


def ways_of(layout: str, place: str, options: dict[str, str] | None, cache: str) -> dict[str, Any]:
    """What is measured: names to functions and their arguments."""
    where = f"{place.rstrip('/')}/{'train' if options is None or layout == 'binary' else 'list'}"
    if options is not None:
        bucket, _, folder_of = where.removeprefix("s3://").partition("/")
        store = open_store(where, options)
        keys = sorted(f"{folder_of}/{one.key}" for one in store.list() if one.key.endswith(".parquet"))
        if not keys:
            with tempfile.TemporaryDirectory(dir=cache) as made:
                written = open_store(f"{place.rstrip('/')}/train", options)
                for one in [one for one in written.list() if one.key.endswith(".parquet")]:
                    (Path(made) / "in").mkdir(exist_ok=True)
                    written.download(one.key, Path(made) / "in" / one.key)
                    as_lists(Path(made) / "in", Path(made) / "out")
                    store.put_file(one.key, Path(made) / "out" / one.key)
                    keys.append(f"{folder_of}/{one.key}")
                    for used in ("in", "out"):
                        shutil.rmtree(Path(made) / used)
        held = (Objects(bucket, tuple(keys), options),)
        return {
            "objects": (s3_objects, held),
            "objects-obstore": (s3_objects_obstore, held),
            "arrow": (s3_arrow, held),
            "arrow-obstore": (s3_arrow_obstore, held),
            "raw": (s3_raw, held),
            "stoker-disk": (stoker, (where, options, cache)),
            "stoker": (stoker, (where, options, None)),
        }
    folder = Path(where)
    if layout == "list":
        folder = Path(place) / "list"
        if not folder.exists():
            as_lists(Path(where), folder)
    return {
        "objects": (objects, (folder,)),
        "arrow": (arrow, (folder,)),
        "raw": (raw, (folder,)),
        "stoker": (stoker, (str(folder), None, None)),
    }


def measure(place: str, options: dict[str, str] | None, chosen: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for."""
    given = json.dumps(options or {})
    resolved = workload(chosen.files, chosen.samples, f"storage.options={given}")
    with tempfile.TemporaryDirectory() as told:
        made = run_benchmark(resolved, results=told, url=place, stages=("generate",))["generate"]
    print(f"{made['files']} files, {made['samples']} rows")
    result: dict[str, Any] = {"files": made["files"], "rows": made["samples"], "pyarrow": pa.__version__}
    result |= {"from": "s3" if options else "directory", "rates": {}, "ratios": {}}
    layouts = ("binary", "list") if chosen.layout == "both" else (chosen.layout,)
    for layout in layouts if chosen.rounds else ():
        with tempfile.TemporaryDirectory(dir=chosen.cache) as cache:
            ways = ways_of(layout, place, options, cache)
            found = result["rates"][layout] = rates(ways, chosen.rounds, Path(cache))
        for name, one in found.items():
            print(f"{layout:7} {name:15} {one['cpu'] / 1e9:7.3f} GB a CPU second   {one['wall'] / 1e9:7.3f} GB/s")
        over = {name: found["stoker"]["cpu"] / one["cpu"] for name, one in found.items() if name != "stoker"}
        print(
            f"{layout:7} stoker has, by CPU second, "
            + ", ".join(f"{ratio:.2f} x {name}" for name, ratio in over.items())
        )
        result["ratios"][layout] = over
    if chosen.accelerators:
        with contextlib.ExitStack() as stack:
            results = chosen.results or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            result["utilization"] = utilization(
                place, chosen.accelerators, chosen.files, chosen.samples, chosen.seconds, given, results
            )
        if chosen.results:
            print(f"stoker bench report {chosen.results}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", nargs="?", help="a directory, best on a disk in memory; with train/ below")
    parser.add_argument("--s3", action="store_true", help="from an S3 server, instead of a directory")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--samples", type=int, default=96, help="rows of a file; flux has 288")
    parser.add_argument("--layout", choices=["binary", "list", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=5, help="of the rates; 0: none")
    parser.add_argument(
        "--cache", help="where stoker's cache of a bucket is made; default: the folder for temporary files"
    )
    parser.add_argument("--accelerators", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=0.05, help="of a step of 12 rows")
    parser.add_argument("--results", type=Path, help="a directory, for the results of all runs with --accelerators")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.s3 == (chosen.place is not None):
        parser.error("give a directory, or --s3")
    if chosen.s3:
        with bucket_of_its_own() as (place, options):
            result = measure(place, options, chosen)
    else:
        result = measure(chosen.place, None, chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
