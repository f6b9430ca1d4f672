"""Directions of object stores that answer late, and of caches before them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scaling.direction import Direction, Figures

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

_DELAY = 0.02
_BYTES = 100_000
_AT_ONCE = (8, 32, 64, 128)


def _write_objects(folder: Path, size: int) -> None:
    import numpy as np

    from stoker import MDSWriter

    (folder / "data" / "files").mkdir(parents=True)
    with MDSWriter({"data": f"ndarray:uint8:{_BYTES}"}, folder / "data" / "mds", size_limit=None) as writer:
        for number in range(size):
            value = np.full((1, _BYTES), number % 251, np.uint8)
            writer.write_batch({"data": value})
            writer.flush_shard()
            (folder / "data" / "files" / f"{number:06}.bin").write_bytes(value.tobytes())


def _figures(size: int, begin: float, work: float) -> Figures:
    seconds, work = time.perf_counter() - begin, time.process_time() - work
    return {"MB_per_s": size / 1e6 / seconds, "processor_us": work / size * _BYTES * 1e6}


def _read(name: str, *, held: bool = True, **settings: Any) -> Callable[[Path], Figures]:
    """MB/s of all objects of 100 kB, each a shard, read once, and the processor's time of each in this process."""

    def measure(folder: Path) -> Figures:
        from slow_store import slow_store
        from stoker import ReadOptions, StreamingDataset

        read = ReadOptions(cache="memory" if held else "disk")
        with slow_store(folder / "data", _DELAY) as options:
            place = {} if held else {"local": folder / f"cache-{time.time_ns()}"}
            dataset = StreamingDataset(
                f"s3://bucket/{name}",
                storage_options=options,
                batch_size=16,
                shuffle=True,
                read=read,
                **place,
                **settings,
            )
            begin, work = time.perf_counter(), time.process_time()
            size = sum(len(one) for batch in dataset.batches() for one in batch["data"])
            return _figures(size, begin, work)

    return measure


def _read_bound(folder: Path, into: Path | None = None) -> Figures:
    """MB/s of obstore alone at its best number of requests, into memory, or into a new file each, as a cache writes them."""
    import obstore
    from obstore.store import S3Store

    from slow_store import slow_store

    def fetch(key: str) -> int:
        data = obstore.get(store, key).bytes()
        if into is not None:
            path = into / key.replace("/", "-")
            path.with_suffix(".part").write_bytes(data)
            path.with_suffix(".part").rename(path)
        return len(data)

    with slow_store(folder / "data", _DELAY) as options:
        config: Any = options
        store = S3Store("bucket", config=config, client_options={"allow_http": True})
        keys = [f"files/{path.name}" for path in (folder / "data" / "files").iterdir()]
        best: Figures = {"MB_per_s": 0.0}
        for count in _AT_ONCE:
            with ThreadPoolExecutor(count) as threads:
                begin, work = time.perf_counter(), time.process_time()
                found = _figures(sum(threads.map(fetch, keys)), begin, work)
                best = max(best, found, key=lambda one: one["MB_per_s"])
        return best


def _write_bound(folder: Path) -> Figures:
    into = folder / f"cache-{time.time_ns()}"
    into.mkdir()
    return _read_bound(folder, into)


STORES = (
    Direction(
        "latency",
        "objects of 100 kB of a store whose requests take 20 ms",
        (250, 500, 1_000),
        (500, 2_000, 4_000),
        _write_objects,
        {
            "stoker": _read("mds"),
            "bound": _read_bound,
            "on disk": _read("mds", held=False),
            "bound on disk": _write_bound,
            "files": _read("files", format="files"),
        },
        {"MB_per_s": 0},
        "0.9 of obstore at its best number of requests at once",
    ),
)
