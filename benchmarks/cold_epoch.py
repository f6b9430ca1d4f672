"""A cold epoch from an object store, against the rate at which obstore alone fetches the same shards.

    python benchmarks/cold_epoch.py s3://bucket/prefix --threads 8 --rounds 5

Writes a dataset of token rows below the URL (credentials and endpoint from the environment), then, alternating:

* ``obstore``: every shard by ``obstore.get(...).bytes()`` on so many threads, thrown away;
* ``disk``: ``StreamingDataset(remote=URL, local=<empty directory>)``, one shuffled epoch of ``batches()``, every row
  delivered once, shards written to the cache on the way, with as many download threads;
* ``memory``: the same with ``cache="memory"``.

Prints MB/s of shard bytes for each, and the ratio round by round.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.index.index import load_index
from stoker.storage import open_store

ROW = 2048


def write(url: str, megabytes: int, shard: str) -> None:
    rng = np.random.default_rng(0)
    rows = megabytes * (1 << 20) // (2 * ROW)
    with MDSWriter(
        columns={"tokens": f"ndarray:uint16:{ROW}", "id": "int"}, out=url, size_limit=shard, exist_ok=True
    ) as out:
        for first in range(0, rows, 4096):
            count = min(4096, rows - first)
            tokens = rng.integers(0, 1 << 16, (count, ROW), dtype=np.uint16)
            out.write_batch({"tokens": tokens, "id": np.arange(first, first + count)})


def bare(url: str, threads: int) -> float:
    import os

    import obstore
    from obstore.store import S3Store, from_url

    index = load_index(open_store(url))
    keys = [shard.raw[0].basename for shard in index.shards]
    endpoint = os.environ.get("S3_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL")
    if url.startswith("s3://"):
        options = {"client_options": {"allow_http": True}}
        store = S3Store.from_url(url, **({"endpoint": endpoint} if endpoint else {}), **options)  # type: ignore[arg-type]
    else:
        store = from_url(url)  # type: ignore[assignment]
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(lambda key: len(obstore.get(store, key).bytes()), keys))
    assert total == index.total_bytes
    return total / (time.perf_counter() - begin) / 1e6


def cold(url: str, threads: int, cache: Path | None, batch: int) -> tuple[float, float]:
    begin = time.perf_counter()
    kind: Literal["disk", "memory"] = "disk" if cache else "memory"
    dataset = StreamingDataset(
        remote=url, local=cache, cache=kind, shuffle=True, read=ReadOptions(download_threads=threads)
    )
    rows, ids, first = 0, 0, 0.0
    for columns in dataset.batches(batch):
        first = first or time.perf_counter() - begin
        rows += len(columns["tokens"])
        ids += int(columns["id"].sum())
    seconds = time.perf_counter() - begin
    assert rows == dataset.size
    assert ids == rows * (rows - 1) // 2
    total = dataset.index.total_bytes
    dataset.close()
    return total / seconds / 1e6, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--shard", default="64MB")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--cache", type=Path, default=Path("/dev/shm"), help="where the cold caches are made")
    options = parser.parse_args()
    write(options.url, options.megabytes, options.shard)
    rates: list[tuple[float, ...]] = []
    for number in range(options.rounds + 1):
        alone = bare(options.url, options.threads)
        cache = Path(tempfile.mkdtemp(dir=options.cache, prefix="stoker-cold-"))
        try:
            disk, first = cold(options.url, options.threads, cache, options.batch)
        finally:
            shutil.rmtree(cache)
        memory, soon = cold(options.url, options.threads, None, options.batch)
        word = "warm-up" if number == 0 else f"round {number}"
        print(
            f"{word}: obstore {alone:5.0f} MB/s   disk {disk:5.0f} MB/s, ratio {disk / alone:.3f}, first batch {first:.3f} s"
            f"   memory {memory:5.0f} MB/s, ratio {memory / alone:.3f}, first batch {soon:.3f} s",
            flush=True,
        )
        if number:
            rates.append((alone, disk, memory, disk / alone, memory / alone))
    names = ("obstore MB/s", "disk MB/s", "memory MB/s", "ratio disk", "ratio memory")
    for name, values in zip(names, zip(*rates, strict=True), strict=True):
        print(f"{name:>13}: median {statistics.median(values):.3f}  min {min(values):.3f}  max {max(values):.3f}")


if __name__ == "__main__":
    main()
