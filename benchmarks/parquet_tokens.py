"""Tokens a second from Parquet to ``(batch, seq_len)`` arrays, beside pyarrow bare and Hugging Face ``datasets``.

    python3 tools/environments.py hf                       # once: the peer's own environment
    python benchmarks/parquet_tokens.py                       # about 5 minutes on 2 cores, 1.5 GB of disk
    python benchmarks/parquet_tokens.py --memory              # peak memory on a 4 GB file, 4 GB of disk more
    python benchmarks/parquet_tokens.py --s3                  # from the S3 server that STOKER_TEST_S3_ENDPOINT names

The file has 24 row groups of 4,096 rows of 2,048 random ids below 50,000, ``list<uint32>``, as pyarrow writes it by default
(201 M tokens). Every measurement is a process of its own, imports done and the file in the page cache; in every round each
has its turn, in every other round in reverse. Printed are medians, least and greatest, ratios to ``bare`` of that run, and
how many tokens a second of processor time makes, start included, which other work on the machine disturbs less.

* ``bare``: ``pyarrow.parquet.ParquetFile.read_row_group`` of the column, all row groups, one thread, results dropped;
* ``bare, 2 threads``: the same on two threads, each with a file of its own: what the machine has;
* ``loader``: ``StreamingParquetLoader``, 16 x 2,048, shuffled, int64 ids and shifted labels, as it comes;
* ``loader, 2 threads``: the same with ``read_threads=2``; ``int32``: in int32; ``in order``: unshuffled; ``ids``: without
  labels, as torch tensors: what ``hf torch`` delivers, which makes none;
* ``mixed``: three sources, which are the file each, mixed by weights of 0.5, 0.3 and 0.2, as many tokens in all; with one
  canonical node and with the default of 8;
* ``packed``: ``layout="pack"`` of documents of mixed lengths (log-normal, mean 500; a file of its own), eos put behind each;
  only tokens count, and the padding is printed;
* ``hf ...``: ``datasets.load_dataset(streaming=True)``, in batches of 16 as torch tensors, NumPy arrays, Arrow; and in rows.

With ``--s3``, MB/s of the column's chunks: through ``obstore`` bare, eight ranges at a time, dropped; as the loader fetches
them, without decoding; and all that the loader does, with ``read_threads=2``: each with ``cache="memory"``, and through an
empty cache on disk. Where the server runs on the same few cores, decoding competes with it: compare ``MB a CPU second``, in
which the server has no part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HF = HERE.parent / ".venvs" / "hf" / "bin" / "python"
SEQ, ROWS, BATCH = 2048, 4096, 16


# -- files -------------------------------------------------------------------------------------------------------------


def make_rows(path: Path, groups: int) -> None:
    """Rows of one length."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    schema = pa.schema([("input_ids", pa.list_(pa.uint32()))])
    offsets = pa.array(np.arange(ROWS + 1, dtype=np.int32) * SEQ)
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(groups):
            values = pa.array(rng.integers(0, 50_000, ROWS * SEQ, dtype=np.uint32))
            lists = pa.ListArray.from_arrays(offsets, values)
            writer.write_table(pa.table({"input_ids": lists}, schema=schema), row_group_size=ROWS)


def make_documents(path: Path, tokens: int) -> None:
    """Documents of log-normal lengths, mean 500, in row groups of 8 M tokens."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    schema = pa.schema([("input_ids", pa.list_(pa.uint32()))])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(tokens >> 23):
            lengths = np.maximum(1, rng.lognormal(np.log(500) - 0.5, 1, (1 << 23) // 500).astype(np.int64))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            values = pa.array(rng.integers(0, 50_000, int(offsets[-1]), dtype=np.uint32))
            lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
            writer.write_table(pa.table({"input_ids": lists}, schema=schema), row_group_size=len(lists))


# -- what is measured, each in a process of its own ----------------------------------------------------------------------


def bare(path: Path, threads: int = 1) -> dict[str, Any]:
    import pyarrow.parquet as pq

    groups = pq.ParquetFile(path).num_row_groups

    def read(first: int) -> None:
        file = pq.ParquetFile(path)
        for group in range(first, groups, threads):
            file.read_row_group(group, columns=["input_ids"], use_threads=False)

    began = time.perf_counter()
    running = [threading.Thread(target=read, args=(first,)) for first in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    seconds = time.perf_counter() - began
    tokens = pq.ParquetFile(path).metadata.num_rows * SEQ
    return {"rate": tokens / seconds, "tokens": tokens}


def loader(path: Any, threads: int = 1, **options: Any) -> dict[str, Any]:
    from stoker import ReadOptions
    from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader

    if options.get("labels") == "none":
        import torch  # noqa: F401

    reading = ReadOptions(read_threads=threads)
    opened = StreamingParquetLoader(path, ShardConfig.single(), BATCH, SEQ, read=reading, **options)
    began = time.perf_counter()
    for batch in opened:
        if options.get("labels") == "none":
            assert batch.torch("input_ids")["input_ids"].shape[1] == SEQ
        else:
            assert batch.labels.shape == batch.input_ids.shape
    seconds = time.perf_counter() - began
    stats = opened.stats()
    return {"rate": stats.tokens / seconds, "padding": stats.padding_waste, "tokens": stats.tokens}


def hugging_face(path: Path, form: str) -> dict[str, Any]:
    from datasets import load_dataset

    found = load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    seconds, tokens = 8.0, 0
    if form == "rows":
        began = time.perf_counter()
        for row in found:
            tokens += len(row["input_ids"])
            if time.perf_counter() - began > seconds:
                break
    else:
        found = found.with_format(form)
        began = time.perf_counter()
        for batch in found.iter(batch_size=BATCH):
            column = batch["input_ids"]
            tokens += len(column) * SEQ
            if time.perf_counter() - began > seconds:
                break
    return {"rate": tokens / (time.perf_counter() - began), "tokens": tokens}


def memory(path: Path, threads: int) -> dict[str, Any]:
    """Peak of what this process has in memory while it reads, and before, with everything imported."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    from stoker import ReadOptions
    from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader

    opened = StreamingParquetLoader(path, ShardConfig.single(), BATCH, SEQ, read=ReadOptions(read_threads=threads))
    iterator = iter(opened)
    base = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    began = time.perf_counter()
    for _ in iterator:
        pass
    seconds = time.perf_counter() - began
    return {"rate": opened.stats().tokens / seconds, "base": base, "peak": status("VmHWM")}


def status(name: str) -> int:
    """A line of ``/proc/self/status``, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def bare_s3(url: str, options: dict[str, str], ranges: list[tuple[str, int, int]]) -> dict[str, Any]:
    """The same ranges through obstore, eight at a time, dropped."""
    from concurrent.futures import ThreadPoolExecutor

    from obstore.store import from_url

    store: Any = from_url(url, client_options={"allow_http": True}, **options)
    began = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda one: len(store.get_range(one[0], start=one[1], end=one[2])), ranges))
    return {"rate": sum(sizes) / (time.perf_counter() - began), "tokens": sum(sizes)}


def loader_s3(url: str, options: dict[str, str], cache: str, needed: int, kind: Any) -> dict[str, Any]:
    from stoker import ReadOptions
    from stoker.concurrency.shared.counters import Count
    from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader

    os.environ["STOKER_CACHE"] = cache
    opened = StreamingParquetLoader(
        url, ShardConfig.single(), BATCH, SEQ, read=ReadOptions(cache=kind, read_threads=2), storage_options=options
    )
    pool: Any = opened._builder.sources[0]._pool  # type: ignore[attr-defined]
    began = time.perf_counter()
    for _ in opened:
        pass
    seconds = time.perf_counter() - began
    fetched = int(pool.counts.totals()[0][Count.BYTES_FETCHED])
    return {"rate": needed / seconds, "tokens": needed, "fetched": fetched / needed}


def fetch_s3(url: str, options: dict[str, str], cache: str, needed: int, kind: Any) -> dict[str, Any]:
    """What the loader does before it decodes: fetch, and map what is on disk."""
    from stoker import ReadOptions
    from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader

    os.environ["STOKER_CACHE"] = cache
    read = ReadOptions(cache=kind)
    opened = StreamingParquetLoader(url, ShardConfig.single(), BATCH, SEQ, storage_options=options, read=read)
    source = opened._builder.sources[0]
    began = time.perf_counter()
    for group in range(len(source.groups)):
        source.fetch(range(group, min(group + 8, len(source.groups))))
        source._pool.get(group)  # type: ignore[attr-defined]
        source.done(group)
    return {"rate": needed / (time.perf_counter() - began), "tokens": needed}


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "bare": bare,
    "loader": loader,
    "hf": hugging_face,
    "memory": memory,
    "bare_s3": bare_s3,
    "fetch_s3": fetch_s3,
    "loader_s3": loader_s3,
}


# -- rounds --------------------------------------------------------------------------------------------------------------


def measure(case: str, *arguments: Any, python: Path | None = None, **options: Any) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    job = json.dumps([case, arguments, options], default=str)
    command = [str(python or sys.executable), __file__, "--job", job]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"rate": 0.0, "error": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rounds(cases: dict[str, Callable[[], dict[str, Any]]], count: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for number in range(count):
        order = list(cases) if number % 2 == 0 else list(reversed(cases))
        for name in order:
            found[name].append(cases[name]())
            print(f"round {number + 1}: {name}: {found[name][-1]['rate'] / 1e6:.0f} M/s", file=sys.stderr, flush=True)
    return found


def report(found: dict[str, list[dict[str, Any]]], unit: str, base: str) -> None:
    rates = {name: [one["rate"] / 1e6 for one in many] for name, many in found.items()}
    against = statistics.median(rates[base]) or 1.0
    print(f"{'':28} {unit:>10}   least   most   / {base}   a CPU second   (load {os.getloadavg()[0]:.1f})")
    for name, many in rates.items():
        median = statistics.median(many)
        line = f"{name:28} {median:10.0f}  {min(many):6.0f} {max(many):6.0f}   {median / against:{len(base) + 2}.2f}"
        work = [one["tokens"] / one["cpu"] / 1e6 for one in found[name] if "tokens" in one]
        line += f"   {statistics.median(work) if work else 0:12.0f}"
        last = found[name][-1]
        for key in ("padding", "fetched"):
            if last.get(key):
                line += (
                    f"   {key} {last[key]:.2%}" if key == "padding" else f"   bytes fetched / needed {last[key]:.3f}"
                )
        print(line + (f"   {last['error']}" if "error" in last else ""), flush=True)


def local(folder: Path, options: argparse.Namespace) -> None:
    path, documents = folder / "rows.parquet", folder / "documents.parquet"
    if not path.exists():
        make_rows(path, options.groups)
    if not documents.exists():
        make_documents(documents, options.groups << 23)
    packed = {"layout": "pack", "pad_id": 0, "eos_id": 1}
    sources = {name: str(path) for name in ("a", "b", "c")}
    mixed = {"weights": {"a": 0.5, "b": 0.3, "c": 0.2}, "epoch_tokens": options.groups * ROWS * SEQ}
    measure("loader", documents, **packed)  # the first start counts packed rows, and keeps the counts
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "bare": lambda: measure("bare", path),
        "bare, 2 threads": lambda: measure("bare", path, threads=2),
        "loader": lambda: measure("loader", path),
        "loader, int32": lambda: measure("loader", path, dtype="int32"),
        "loader, in order": lambda: measure("loader", path, shuffle=False),
        "loader, ids": lambda: measure("loader", path, labels="none"),
        "loader, 2 threads": lambda: measure("loader", path, threads=2),
        "loader, 2 threads, ids": lambda: measure("loader", path, threads=2, labels="none"),
        "loader, 2 threads, int32": lambda: measure("loader", path, threads=2, dtype="int32"),
        "mixed, 1 node": lambda: measure("loader", sources, num_canonical_nodes=1, **mixed),
        "mixed, 8 nodes": lambda: measure("loader", sources, num_canonical_nodes=8, **mixed),
        "packed": lambda: measure("loader", documents, **packed),
        "packed, 2 threads": lambda: measure("loader", documents, threads=2, **packed),
    }
    if HF.exists():
        for form in ("torch", "numpy", "arrow", "rows"):
            cases[f"hf {form}"] = lambda form=form: measure("hf", path, form, python=HF)  # type: ignore[misc]
    report(rounds(cases, options.rounds), "M tokens/s", "bare")


def peak(folder: Path, options: argparse.Namespace) -> None:
    path = folder / "large.parquet"
    if not path.exists():
        make_rows(path, 252)
    print(f"a file of {path.stat().st_size / 1e9:.2f} GB, row groups of {ROWS * SEQ * 4 / 1e6:.1f} MB decoded")
    for threads in (1, 2):
        found = [measure("memory", path, threads) for _ in range(options.rounds)]
        if any("error" in one for one in found):
            print(found)
            continue
        most = max(found, key=lambda one: one["peak"])
        above = most["peak"] - most["base"]
        print(
            f"{threads} decode threads: peak {most['peak'] / 1e6:.0f} MB, {above / 1e6:.0f} MB above the "
            f"{most['base'] / 1e6:.0f} MB before, which are {above / (ROWS * SEQ * 4):.2f} row groups"
        )


def from_s3(folder: Path, options: argparse.Namespace) -> None:
    import boto3
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    if not path.exists():
        make_rows(path, options.groups)
    endpoint, key = os.environ["STOKER_TEST_S3_ENDPOINT"], os.environ["STOKER_TEST_S3_KEY"]
    secret = os.environ["STOKER_TEST_S3_SECRET"]
    bucket = f"stoker-bench-{os.getpid()}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1"
    )
    client.create_bucket(Bucket=bucket)
    storage = {"endpoint": endpoint, "access_key_id": key, "secret_access_key": secret, "region": "us-east-1"}
    try:
        client.upload_file(str(path), bucket, "data/rows.parquet")
        meta = pq.ParquetFile(path).metadata
        ranges = []
        for number in range(meta.num_row_groups):
            column = meta.row_group(number).column(0)
            start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            ranges.append(("data/rows.parquet", start, start + column.total_compressed_size))
        needed = sum(end - start for _, start, end in ranges)

        def cold(case: str, kind: str) -> dict[str, Any]:
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                return measure(case, f"s3://{bucket}/data", storage, cache, needed, kind)

        cases = {
            "obstore, bare": lambda: measure("bare_s3", f"s3://{bucket}", storage, ranges),
            "fetching alone, memory": lambda: cold("fetch_s3", "memory"),
            "fetching alone, disk": lambda: cold("fetch_s3", "disk"),
            "loader, memory": lambda: cold("loader_s3", "memory"),
            "loader, disk": lambda: cold("loader_s3", "disk"),
        }
        report(rounds(cases, options.rounds), "MB/s", "obstore, bare")
    finally:
        for item in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            client.delete_object(Bucket=bucket, Key=item["Key"])
        client.delete_bucket(Bucket=bucket)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files are made and kept; default a temporary folder")
    parser.add_argument("--groups", type=int, default=24, help="row groups of the file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="peak memory on a 4 GB file, instead of rates")
    parser.add_argument("--s3", action="store_true", help="from an S3 server, instead of local files")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        case, arguments, named = json.loads(options.job)
        began = time.process_time()
        found = CASES[case](*arguments, **named)
        print(json.dumps({**found, "cpu": time.process_time() - began}))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("STOKER_CACHE", str(folder / "cache"))
        (peak if options.memory else from_s3 if options.s3 else local)(folder, options)


if __name__ == "__main__":
    main()
