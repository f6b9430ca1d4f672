"""A node's reading, measured: its ranks step together through a cache that they share; prints what they held as JSON.

Arguments: URL, cache, first rank, ranks, ranks of the world, batch size, samples ahead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from stoker import ReadOptions, StreamingDataset, World


def held() -> tuple[int, int]:
    """Descriptors, and private bytes in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    anonymous = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return len(os.listdir("/proc/self/fd")), anonymous << 10


def await_fetches(datasets: list[StreamingDataset]) -> None:
    """Wait until nothing more is fetched."""
    before, fetched = -1, 0
    while fetched != before:
        time.sleep(1.0)
        before, fetched = fetched, sum(dataset.stats().bytes_fetched for dataset in datasets)


def main(url: str, cache: str, *numbers: str) -> None:
    """Read an epoch."""
    first, ranks, world, batch, ahead = map(int, numbers)
    datasets = [
        StreamingDataset(
            remote=url,
            local=cache,
            shuffle=True,
            batch_size=batch,
            predownload=ahead,
            world=World(rank, world, ranks),
            read=ReadOptions(download_threads=8),
        )
        for rank in range(first, first + ranks)
    ]
    samples, most = 0, (0, 0)
    for step, batches in enumerate(zip(*(dataset.batches() for dataset in datasets), strict=True)):
        samples += sum(len(batch["id"]) for batch in batches)
        if step == ahead // batch:  # all is located that will be: what is ahead comes in, as where training is slow
            await_fetches(datasets)
        if step % 8 == 0 or step == ahead // batch:
            now = held()
            most = max(most[0], now[0]), max(most[1], now[1])
    json.dump({"samples": samples, "descriptors": most[0], "memory": most[1]}, sys.stdout)


main(*sys.argv[1:])
