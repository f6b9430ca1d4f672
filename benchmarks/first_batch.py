"""Seconds from a fresh process to the first batch of a pasted URL: ``hf://`` and ``s3://``, from servers on this machine.

And of a StreamingDataLoader with two workers, its parts: imports, opening the dataset, and from there to the first batch.

    python benchmarks/first_batch.py [--files 16] [--rows 20000] [--runs 5]

Each run is a new Python process with an empty cache. Prints the median, and how many requests came before the first batch.
A real server adds its delay to each: requests to different files run side by side.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hub_server import Repo, serve_hub
from s3server import make_bucket, run_s3_server

LINES = "from stoker import StreamingDataset\nbatch = next(iter(StreamingDataset({url!r}, batch_size=64).batches()))"
IMPORTS = "import numpy, pyarrow.parquet"
WORKERS = """
import json, time
times = [time.perf_counter()]
import torch
from stoker import ReadOptions, StreamingDataLoader, StreamingDataset
times.append(time.perf_counter())
dataset = StreamingDataset({url!r}, batch_size=64, shuffle=True, read=ReadOptions(cache={cache!r}))
times.append(time.perf_counter())
loader = StreamingDataLoader(dataset, num_workers=2)
batch = next(iter(loader))
times.append(time.perf_counter())
loader.close()
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def parquet(first: int, rows: int) -> bytes:
    out = io.BytesIO()
    table = pa.table({"id": pa.array(range(first, first + rows)), "text": [f"document {i} " * 20 for i in range(rows)]})
    pq.write_table(table, out)
    return out.getvalue()


def seconds(code: str, environ: dict[str, str], runs: int) -> float:
    """The median time of a process that runs the code, each time with an empty cache."""
    taken = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", code], env={**os.environ, **environ, "STOKER_CACHE": cache}, check=True
            )
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def parts(code: str, environ: dict[str, str], runs: int) -> list[float]:
    """Medians of the times that a process prints, each time with an empty cache."""
    taken = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            found = subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, **environ, "STOKER_CACHE": cache},
                check=True,
                stdout=subprocess.PIPE,
            )
            taken.append(json.loads(found.stdout))
    return [statistics.median(times) for times in zip(*taken, strict=True)]


def write_shards(url: str, environ: dict[str, str]) -> None:
    """32 shards of a thousand rows of 4 KiB."""
    code = f"""
import numpy as np
from stoker import MDSWriter
with MDSWriter({{"tokens": "ndarray:uint16:2048"}}, {url!r}, size_limit="4mb") as writer:
    for _ in range(32):
        writer.write_batch({{"tokens": np.zeros((1000, 2048), np.uint16)}})
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **environ}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    files = {f"data/part-{i:05d}.parquet": parquet(i * options.rows, options.rows) for i in range(options.files)}
    print(f"{options.files} files of {sum(map(len, files.values())) / options.files / 1e6:.1f} MB")
    print(f"an empty process: {seconds('pass', {}, options.runs):.2f} s")
    print(f"one that imports NumPy and PyArrow's Parquet: {seconds(IMPORTS, {}, options.runs):.2f} s")
    with serve_hub() as hub:
        hub.repos["owner/name"] = Repo([files])
        took = seconds(LINES.format(url="hf://datasets/owner/name"), {"HF_ENDPOINT": hub.endpoint}, options.runs)
        asked, bytes_asked = len(hub.requests) / options.runs, len(hub.cdn_requests) / options.runs
        print(f"hf://: {took:.2f} s; {asked:.0f} requests to the Hub, {bytes_asked:.0f} for bytes of files")
    with run_s3_server() as server, make_bucket(server) as bucket:
        for key, data in files.items():
            server.client().put_object(Bucket=bucket.name, Key=f"data/{key}", Body=data)
        took = seconds(LINES.format(url=f"s3://{bucket.name}/data"), server.environ, options.runs)
        print(f"s3://: {took:.2f} s")
        write_shards(f"s3://{bucket.name}/mds", server.environ)
        for cache in ("disk", "memory"):
            code = WORKERS.format(url=f"s3://{bucket.name}/mds", cache=cache)
            imports, opening, first = parts(code, server.environ, options.runs)
            print(
                f"two DataLoader workers, cache={cache!r}: {opening + first:.2f} s, of which opening {opening:.2f} and the "
                f"first batch {first:.2f}; imports, torch's among them, {imports:.2f} s before"
            )


if __name__ == "__main__":
    main()
