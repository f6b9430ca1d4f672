"""Time that it takes to tell the samples of a step: ``python benchmarks/lineage.py``.

Of a dataset of 10¹² samples, at steps up to 10⁹: processor and wall seconds of ``ids_of`` for one rank and for eight ranks of
a world of 8, each time with a dataset that has told nothing before.
"""

from __future__ import annotations

import time
from typing import Any

from stoker import StreamingDataset, World

WORLD, BATCH = 8, 64


def main() -> None:
    """Print a line for each shuffle and step."""
    print(f"{'shuffle':<8} {'step':>13} {'ranks':>5} {'CPU s':>8} {'wall s':>8}")
    for shuffle in ("block", "global", "shard"):
        for step in (0, 10**6, 10**9):
            for rank in (3, None):
                cpu, wall = measure(shuffle, step, rank)
                print(f"{shuffle:<8} {step:>13,} {WORLD if rank is None else 1:>5} {cpu:>8.3f} {wall:>8.3f}")


def measure(shuffle: str, step: int, rank: int | None) -> tuple[float, float]:
    """Processor and wall seconds of one call."""
    settings: dict[str, Any] = {
        "shuffle": True,
        "shuffle_algo": shuffle,
        "batch_size": BATCH,
        "world": World(0, WORLD, WORLD),
    }
    options = {"samples": 10**12, "columns": {"x": "int64"}}
    dataset = StreamingDataset(format="synthetic", format_options=options, **settings)
    began = time.process_time(), time.perf_counter()
    ids = dataset.ids_of(step, rank)
    spent = time.process_time() - began[0], time.perf_counter() - began[1]
    assert len(ids) == BATCH * (WORLD if rank is None else 1)
    return spent


if __name__ == "__main__":
    main()
