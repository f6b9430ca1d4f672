"""One worker of leased work whose chain filters and makes several samples of one: ``chain_worker.py '{"rank": 0, ...}'``.

It notes each sample in a file before it asks for the next. With its first it waits until the file ``awaited`` has
something, so neither can do all before the other has begun. With ``die`` it kills itself by its ``die``-th.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from patience import PATIENCE, wait_until
from stoker import Adaptive, StreamingConfig, StreamingDataset, StreamingShardLoader
from stoker.coordination import CoordinationSettings


def copies(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**sample, "turn": turn} for turn in range(int(sample["id"]) % 4)]


def is_kept(sample: dict[str, Any]) -> bool:
    return (int(sample["id"]) + int(sample["turn"])) % 3 != 1


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": int(rng.integers(1 << 40))}


def counted(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "n": np.full(len(columns["id"]), len(columns["id"]))}


def chained(remote: str, *, batched: bool) -> StreamingDataset:
    dataset = StreamingDataset(remote, shuffle=True, shuffle_seed=7).flat_map(copies)
    return (dataset.batch_map(counted) if batched else dataset).filter(is_kept).random_map(noise)


def main(told: dict[str, Any]) -> None:
    config = StreamingConfig(
        2,
        told["rank"],
        Adaptive(),
        coordinator=told["engine"],
        coordination=CoordinationSettings(lease=2.0 * PATIENCE / 120, heartbeat=0.2, split=0.1, grid=16, attempts=1000),
        batch_size=5 if told["batched"] else None,
        patience=PATIENCE,
        commit_every=0.1,
    )
    with StreamingShardLoader(chained(told["remote"], batched=told["batched"]), config) as loader:
        awaited = Path(told["awaited"])
        out = os.open(told["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, item in enumerate(loader, 1):
            rows = [item]
            if told["batched"]:
                rows = [dict(zip(item, row, strict=True)) for row in zip(*item.values(), strict=True)]
            os.write(out, "".join(f"{row['id']} {row['turn']} {row['noise']}\n" for row in rows).encode())
            if number == 1:
                wait_until(lambda: awaited.exists() and awaited.stat().st_size)
            if number == told["die"]:
                os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps([entry[:3] for entry in loader.assignment()["entries"]]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
