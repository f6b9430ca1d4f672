"""Downloads into files, against what obstore alone fetches into memory with as many threads.

    python benchmarks/storage_download.py s3://bucket/prefix --objects 24 --size 16MB --threads 4 --dir
    /dev/shm

Credentials and endpoint come from the environment (AWS_*, S3_ENDPOINT_URL). Objects are written first where
they are missing, and stay. The ways take turns, round by round; medians and their ratio to obstore alone
are printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stoker.storage import Store, open_store
from stoker.units import parse_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where the objects are, e.g. s3://bucket/prefix")
    parser.add_argument("--objects", type=int, default=24)
    parser.add_argument("--size", type=parse_bytes, default=16 << 20, help="bytes an object (default 16MB)")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", type=Path, help="where the files go (default: the folder for temporary files)")
    args = parser.parse_args()

    store = open_store(args.url)
    keys = [f"{args.size}/{number}" for number in range(args.objects)]
    prepare(store, keys, args.size)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        compare(store, keys, args.size, args.threads, args.rounds, Path(folder))


def prepare(store: Store, keys: list[str], size: int) -> None:
    """Write what is missing."""
    there = {info.key: info.size for info in store.list(str(size))}
    for key in keys:
        if there.get(key) != size:
            store.put(key, os.urandom(size))


def compare(store: Store, keys: list[str], size: int, threads: int, rounds: int, folder: Path) -> None:
    """Measure every way, taking turns, and print a table."""
    bare = bare_client(store)

    def alone(key: str) -> int:
        import obstore

        return len(obstore.get(bare, f"{store._location.prefix}/{key}".lstrip("/")).bytes())

    def fresh(key: str) -> int:
        return store.download(key, folder / f"new-{key.replace('/', '-')}").size

    def again(key: str) -> int:
        return store.download(key, folder / f"kept-{key.replace('/', '-')}").size

    def memory(key: str) -> int:
        return len(store.get(key, max_bytes=1 << 30))

    ways: dict[str, Callable[[str], int]] = {
        "obstore alone, to memory": alone,
        "download, new files": fresh,
        "download, over old files": again,
        "get": memory,
    }
    rates: dict[str, list[float]] = {name: [] for name in [*ways, "download, forked process"]}
    for number in range(rounds + 1):
        for name, way in ways.items():
            rate = measure(way, keys, size, threads)
            clear(folder)
            if number:
                rates[name].append(rate)
        rate = forked(fresh, keys, size, threads)
        clear(folder)
        if number:
            rates["download, forked process"].append(rate)
    base = statistics.median(rates["obstore alone, to memory"])
    print(f"{len(keys)} x {size / 2**20:g} MiB, {threads} threads, median of {rounds} rounds, to {folder.parent}")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"  {name:26} {median:7.0f} MB/s  {median / base:5.2f} x  ({min(values):.0f} to {max(values):.0f})")


def clear(folder: Path) -> None:
    """Remove the files that have to be new the next time."""
    for path in folder.glob("new-*"):
        path.unlink()


def bare_client(store: Store) -> Any:
    """The client that the store itself uses."""
    return store._backend()._next.plain  # type: ignore[attr-defined]


def measure(way: Callable[[str], int], keys: list[str], size: int, threads: int) -> float:
    """MB/s of one pass over all objects."""
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(way, keys))
    seconds = time.perf_counter() - start
    assert total == size * len(keys)
    return total / seconds / 1e6


def forked(way: Callable[[str], int], keys: list[str], size: int, threads: int) -> float:
    """The same in a process forked from this one, whose helper is already up."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        way(keys[0])  # starts the helper
        theirs.send(measure(way, keys, size, threads))

    process = context.Process(target=child)
    process.start()
    rate: float = ours.recv()
    process.join()
    return rate


if __name__ == "__main__":
    main()
