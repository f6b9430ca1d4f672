"""A cold epoch from an object store, against the rate at which obstore alone fetches the same shards.

    python benchmarks/cold_epoch.py s3://bucket/prefix --threads 8 --rounds 5

Writes a dataset of token rows below the URL (credentials and endpoint from the environment), then, alternating:

* ``obstore``: every shard by ``obstore.get(...).bytes()`` on so many threads, thrown away;
* ``files``: every shard by ``obstore.get(...).stream()`` on so many threads, written into a new file of an empty directory;
* ``disk``: ``StreamingDataset(remote=URL, local=<empty directory>)``, one shuffled epoch of ``batches()``, every row
  delivered once, shards written to the cache on the way, with as many download threads;
* ``memory``: the same with ``cache="memory"``.

Prints MB/s of shard bytes and the processor's seconds per GB of this process for each, and the ratios round by round. What
server and readers take of the same processors, no reader has.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.index.index import load_index
from stoker.storage import open_store

ROW = 2048
_CHUNK = 96 << 10


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


def bare(url: str, threads: int, folder: Path | None = None) -> tuple[float, float]:
    """MB/s, and the processor's seconds per GB, of all shards by obstore alone: into memory, or into files of a folder."""
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

    def fetch(key: str) -> int:
        found = obstore.get(store, key)
        if folder is None:
            return len(found.bytes())
        with open(folder / key, "wb", buffering=0) as file:
            return sum(file.write(chunk) for chunk in found.stream(_CHUNK))

    begin, work = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(fetch, keys))
    assert total == index.total_bytes
    return total / (time.perf_counter() - begin) / 1e6, (time.process_time() - work) / total * 1e9


def cold(url: str, threads: int, cache: Path | None, batch: int) -> tuple[float, float, float]:
    begin, work = time.perf_counter(), time.process_time()
    kind: Literal["disk", "memory"] = "disk" if cache else "memory"
    dataset = StreamingDataset(
        remote=url, local=cache, shuffle=True, read=ReadOptions(cache=kind, download_threads=threads)
    )
    rows, ids, first = 0, 0, 0.0
    for columns in dataset.batches(batch):
        first = first or time.perf_counter() - begin
        rows += len(columns["tokens"])
        ids += int(columns["id"].sum())
    seconds, work = time.perf_counter() - begin, time.process_time() - work
    assert rows == dataset.size
    assert ids == rows * (rows - 1) // 2
    total = dataset.index.total_bytes
    dataset.close()
    return total / seconds / 1e6, work / total * 1e9, first


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
    ways: dict[str, Callable[[Path], tuple[float, ...]]] = {
        "obstore": lambda _: bare(options.url, options.threads),
        "files": lambda folder: bare(options.url, options.threads, folder),
        "disk": lambda folder: cold(options.url, options.threads, folder, options.batch),
        "memory": lambda _: cold(options.url, options.threads, None, options.batch),
    }
    rounds: list[dict[str, tuple[float, ...]]] = []
    for number in range(options.rounds + 1):
        found: dict[str, tuple[float, ...]] = {}
        for name, way in ways.items():
            folder = Path(tempfile.mkdtemp(dir=options.cache, prefix="stoker-cold-"))
            try:
                found[name] = way(folder)
            finally:
                shutil.rmtree(folder)
        said = [f"{name} {rate:5.0f} MB/s {work:.2f} s/GB" for name, (rate, work, *_) in found.items()]
        firsts = "first batch {:.3f} s, {:.3f} s in memory".format(found["disk"][2], found["memory"][2])
        print(f"{'warm-up' if number == 0 else f'round {number}'}: {', '.join(said)}; {firsts}", flush=True)
        if number:
            rounds.append(found)
    for what, place in (("MB/s", 0), ("s/GB", 1)):
        for name in ways:
            show(f"{name} {what}", [found[name][place] for found in rounds])
    for name, other in (("files", "obstore"), ("disk", "obstore"), ("disk", "files"), ("memory", "obstore")):
        show(f"ratio {name} to {other}", [found[name][0] / found[other][0] for found in rounds])


def show(name: str, values: list[float]) -> None:
    print(f"{name:>24}: median {statistics.median(values):.3f}  min {min(values):.3f}  max {max(values):.3f}")


if __name__ == "__main__":
    main()
