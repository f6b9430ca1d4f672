"""Directions of a store with very many objects, and of a node with very many processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scaling import timing
from scaling.direction import Direction, Figures
from scaling.memory import children, descriptors, in_child, own_mib, proportional_mib, resident_mib

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

# -- objects of a store, each a sample -----------------------------------------------------------------------------------


def _count(folder: Path, size: int) -> None:
    (folder / "count").write_text(str(size))


def _open_objects(folder: Path, options: dict[str, str]) -> Any:
    from stoker import StreamingDataset

    return StreamingDataset(
        "s3://bucket",
        local=folder / "cache",
        format="files",
        storage_options=options,
        shuffle=True,
        batch_size=256,
    )


def _objects_again(folder: Path, options: dict[str, str]) -> Figures:
    from stoker import StreamingDataset  # noqa: F401

    before = resident_mib()
    opened, dataset = timing.timed(lambda: _open_objects(folder, options))
    memory = resident_mib() - before
    first, _ = timing.timed(lambda: next(iter(dataset.batches())))
    return {
        "open_again_s": opened,
        "first_batch_s": first,
        "memory_MiB": memory,
        "own_MiB": own_mib(),
        "descriptors": float(descriptors()),
    }


def _objects_first(folder: Path, options: dict[str, str]) -> Figures:
    from stoker import StreamingDataset  # noqa: F401

    before = resident_mib()
    opened, _ = timing.timed(lambda: _open_objects(folder, options))
    return {"open_first_s": opened, "peak_MiB": resident_mib("VmHWM") - before}


def _objects(folder: Path) -> Figures:
    from listed_store import listed_store

    with listed_store(int((folder / "count").read_text())) as options:
        first: Figures = in_child("spawn", _objects_first, folder, options)
        return {**first, **in_child("spawn", _objects_again, folder, options)}


def _objects_bound(folder: Path) -> Figures:
    """Lists by obstore, and keeps nothing."""
    import obstore
    from obstore.store import S3Store

    from listed_store import listed_store

    with listed_store(int((folder / "count").read_text())) as options:
        config: Any = options
        store = S3Store("bucket", config=config, client_options={"allow_http": True})
        seconds, _ = timing.timed(lambda: sum(len(page) for page in obstore.list(store, chunk_size=1000)))
        return {"open_first_s": seconds, "open_again_s": seconds}


# -- processes of a node -------------------------------------------------------------------------------------------------

_FEW = 8
"""Up to so many processes are ranks of two workers, over few shards; more are ranks of eight, over many."""


def _write_node(folder: Path, size: int) -> None:
    from order_scale import make_links

    shards = 10_000 if size <= _FEW else 100_000
    make_links(folder / "data", shards * 100, shards)
    (folder / "size").write_text(str(size))


def _node(folder: Path) -> Figures:
    """Ranks as torchrun starts them, each with workers of a loader."""
    size = int((folder / "size").read_text())
    workers = 2 if size <= _FEW else 8
    ranks = size // workers
    begin, begun = timing.now(), time.perf_counter()
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_rank(folder / "data", rank, ranks, workers)) for rank in range(ranks)]
        for one in started:
            assert one.stdout is not None
            if one.stdout.readline() != "ready\n":
                raise RuntimeError("a rank ended before its first batch")
        ready = time.perf_counter() - begun
        family = [pid for one in started for pid in (one.pid, *children(one.pid))]
        found = {
            "all_MiB": sum(map(proportional_mib, family)),
            "own_MiB": sum(map(own_mib, family)) / len(family),
            "descriptors": float(max(map(descriptors, family))),
        }
        for one in started:
            one.communicate("\n", timeout=100)
    # The time of the processor is known of those that ended.
    return {"first_batch_s": timing.now() - begin if timing.by_processor() else ready, **found}


@contextlib.contextmanager
def _rank(folder: Path, rank: int, ranks: int, workers: int) -> Iterator[subprocess.Popen[str]]:
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": 29_500}
    command = [sys.executable, str(Path(__file__).with_name("run_rank.py")), str(folder), str(workers)]
    with subprocess.Popen(
        command,
        env={**os.environ, **{name: str(value) for name, value in world.items()}, "MASTER_ADDR": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


MANY = (
    Direction(
        "objects",
        "objects of a store, each a sample: it makes up their names",
        (70_000, 120_000, 200_000),
        (100_000, 1_000_000, 10_000_000),
        _count,
        {"stoker": _objects, "bound": _objects_bound},
        {"open_first_s": 1, "peak_MiB": 1, "open_again_s": 1, "first_batch_s": 1, "memory_MiB": 1},
        "memory and time as the listing, 10,000,000 objects in some minutes and 2 GB",
    ),
    Direction(
        "processes",
        "processes of a node, loaders' workers of 8 each of a rank, over 100,000 shards",
        (2, 4, 8),
        (16, 32, 64),
        _write_node,
        {"stoker": _node},
        {"first_batch_s": 1, "all_MiB": 1, "own_MiB": 0, "descriptors": 0},
        "30 MiB for one more worker; what starts a process of torch, and no more",
    ),
)
