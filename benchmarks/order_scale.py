"""What an order costs at scale: time to the first batch of an epoch, and of a resume at its middle, and memory.

    python benchmarks/order_scale.py

Every figure comes from a fresh process and is the median of several. The rows named by a partition and a shuffle compute
where the samples of a batch lie from the shards' sizes alone; "streams" mixes three, stratified. "dataset" goes all the way:
it opens an index of as many shards (links to one) and reads the samples.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = ((10**9, 10**5), (10**12, 10**6))
BATCH = 512
RANK, RANKS, WORKERS = 37, 64, 8
SHUFFLES = ("none", "shard", "block", "global")
PARTITIONS = ("elastic", "round_robin", "contiguous", "hash", "range")
KINDS = [
    *(f"elastic {shuffle}" for shuffle in SHUFFLES),
    *(f"{name} block" for name in PARTITIONS[1:]),
    "streams block",
]


def measure_order(samples: int, shards: int, start: str, partition: str, shuffle: str) -> dict[str, float]:
    """Places of a rank's first batch, in a loader worker, from the start or the middle of an epoch."""
    import numpy as np

    from stoker.order import ShardTable
    from stoker.order.native import NativeOrder, NativeStart
    from stoker.order.sample_order import DataRank, EpochPosition
    from stoker.order.selection import Everything
    from stoker.order.settings import NativeSettings, StreamSource
    from stoker.partitions import Contiguous, Elastic, HashBased, RangeBased, RoundRobin

    # Uneven shards: one gets what another lacks.
    extra = np.random.default_rng(0).integers(0, samples // shards // 2, shards // 2)
    sizes = samples // shards + np.concatenate([extra, -extra])
    total = int(sizes.sum())
    ranges = [(rank * total // RANKS, (rank + 1) * total // RANKS) for rank in range(RANKS)]
    chosen = {
        "round_robin": RoundRobin(),
        "contiguous": Contiguous(),
        "hash": HashBased(1024),
        "range": RangeBased(ranges),
    }.get(partition, Elastic())
    begin = time.perf_counter()
    sources = []
    for number, part in enumerate(np.array_split(sizes, 3 if partition == "streams" else 1)):
        table = ShardTable(part)
        sources.append(StreamSource(f"stream {number}", table, Everything(table), about={"fingerprint": str(number)}))
    batching = "stratified" if partition == "streams" else "random"
    sample_order = NativeOrder(sources, NativeSettings(shuffle=shuffle, partition=chosen, batching_method=batching))
    data_rank = DataRank(RANK, RANKS, 8, BATCH)
    # The fourth epoch.
    position = 0 if start == "first" else samples // 2 // (BATCH * RANKS) * BATCH * RANKS
    run = sample_order.run(EpochPosition(3, position, start=NativeStart(RANKS, BATCH)), data_rank)
    places = next(run.plan.chunks(4096, 1, WORKERS))[0]
    found, rows = run.order.locate(places)
    seconds = time.perf_counter() - begin
    assert len(np.unique(ShardTable(sizes).starts[found] + rows)) == BATCH
    return {"seconds": seconds}


def measure_dataset(folder: str, start: str) -> dict[str, float]:
    """The first batch of a dataset on disk, index and all."""
    from stoker import StreamingDataset, World

    begin = time.perf_counter()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH, world=World(RANK, RANKS))
    opened = time.perf_counter()
    if start == "middle":
        state = dataset.state_dict()
        dataset.load_state_dict({**state, "position": dataset.epoch_size // 2})
    batch = next(iter(dataset.batches()))
    seconds = time.perf_counter() - opened
    assert len(batch["id"]) == BATCH
    return {"seconds": seconds, "opened": opened - begin}


def make_links(folder: Path, samples: int, shards: int) -> None:
    """A dataset of equal shards: one file under many names."""
    import numpy as np

    from stoker import MDSWriter

    each = samples // shards
    with MDSWriter(columns={"id": "int"}, out=folder, size_limit=None) as writer:
        writer.write_batch({"id": np.arange(each)})
    index = json.loads((folder / "index.json").read_text())
    (entry,) = index["shards"]
    first = folder / entry["raw_data"]["basename"]
    index["shards"] = []
    for number in range(shards):
        name = f"shard.{number:05}.mds"
        if number:
            os.symlink(first.name, folder / name)
        index["shards"].append({**entry, "raw_data": {**entry["raw_data"], "basename": name}})
    (folder / "index.json").write_text(json.dumps(index))


def in_fresh_processes(times: int, *arguments: object) -> dict[str, float]:
    """Run this script's measurement several times; medians of its figures, and the largest peak of memory."""
    runs: list[dict[str, float]] = []
    for _ in range(times):
        command = [sys.executable, __file__, "--measure", *map(str, arguments)]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**found, "peak": max(run["peak"] for run in runs)}


def peak_bytes() -> int:
    """The most memory that this process has held, in bytes."""
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes) * 1024


def report(times: int, whole: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("samples", "shards", "what", "first batch", "at the middle", "opening", "peak memory")
    for samples, shards in CASES:
        for kind in KINDS:
            first, middle = (
                in_fresh_processes(times, "order", samples, shards, start, *kind.split())
                for start in ("first", "middle")
            )
            table.add_row(*_row(samples, shards, kind, first, middle))
    if whole:
        with tempfile.TemporaryDirectory() as name:
            make_links(Path(name), *CASES[0])
            first, middle = (in_fresh_processes(times, "dataset", name, start) for start in ("first", "middle"))
            table.add_row(*_row(*CASES[0], "dataset", first, middle))
    Console().print(table)


def _row(samples: int, shards: int, what: str, first: dict[str, float], middle: dict[str, float]) -> list[str]:
    opening = f"{first['opened']:.2f} s" if "opened" in first else ""
    times = [f"{found['seconds'] * 1000:.1f} ms" for found in (first, middle)]
    return [
        f"{samples:.0e}",
        f"{shards:.0e}",
        what,
        *times,
        opening,
        f"{max(first['peak'], middle['peak']) / 1e6:.0f} MB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="processes for each figure")
    parser.add_argument("--order-only", action="store_true", help="leave out the dataset on disk")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is None:
        report(options.times, not options.order_only)
        return
    what, *arguments = options.measure
    if what == "order":
        samples, shards, start, *kind = arguments
        found = measure_order(int(samples), int(shards), start, *kind)
    else:
        found = measure_dataset(*arguments)
    print(json.dumps({**found, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
