"""Batches by length beside Lhotse's DynamicBucketingSampler: padding, and how alike the ranks' batches of a step are.

    python benchmarks/by_length.py                     # stoker
    python benchmarks/by_length.py --lhotse PYTHON     # beside Lhotse, of a Python that has torch, lhotse, urllib3, requests

Both get the same lengths, 8 ranks, as many buckets, and the same bound of a batch's padded cost. Then what it costs to open
10 million lengths, to begin in the middle of their epoch, and to count its batches: seconds of a processor, medians of five.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RANKS, BUCKETS, MOST = 8, 12, 12_000
SAMPLES = 300_000


def draw(kind: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Lengths in hundredths of a second like LibriSpeech's (most are 12 to 16 s), or tokens like those of an SFT set."""
    rng = np.random.default_rng(0)
    if kind == "speech":
        short = rng.uniform(100, 1200, SAMPLES)
        long = rng.normal(1430, 130, SAMPLES)
        return np.where(rng.random(SAMPLES) < 0.35, short, long).clip(100, 3500).astype(np.int64)
    return rng.lognormal(5.6, 1.0, SAMPLES).clip(8, 4096).astype(np.int64)


def report(name: str, lengths: Any, steps: list[list[Any]]) -> dict[str, Any]:
    """Of steps of the ids of each rank's batch: tokens in padded batches, and largest over mean cost of a step."""
    whole = [step for step in steps if len(step) == RANKS]
    costs = np.array([[len(batch) * int(lengths[batch].max()) for batch in step] for step in whole])
    tokens = sum(int(lengths[batch].sum()) for step in whole for batch in step)
    return {
        "of": name,
        "steps": len(whole),
        "samples": sum(len(batch) for step in whole for batch in step),
        "tokens in padded batches, %": round(100 * tokens / int(costs.sum()), 2),
        "largest over mean cost": round(float((costs.max(1) / costs.mean(1)).mean()), 3),
        "cost over the bound, %": round(100 * float((costs > MOST).mean()), 2),
    }


def stoker_steps(lengths: Any) -> list[list[Any]]:
    """The ids of each rank's batch in each step of an epoch, by the order alone."""
    from stoker.order.sample_order import DataRank, EpochPosition

    order = order_of(lengths, 100)
    ranks = []
    for rank in range(RANKS):
        run = order.run(EpochPosition(0), DataRank(rank, RANKS))
        batches = (batch for some in run.plan.chunks(1 << 16) for batch in some)
        ranks.append([order.table.ids(*run.order.locate(batch)) for batch in batches])
    return [list(step) for step in zip(*ranks, strict=False)]


def order_of(lengths: Any, shards: int) -> Any:
    """The order by length of a shuffled stream of so many shards."""
    from stoker import Lengths
    from stoker.order import ShardTable
    from stoker.order.by_length import ByLengthOrder
    from stoker.order.native import NativeOrder
    from stoker.order.settings import NativeSettings, StreamSource

    table = ShardTable(np.array([part.size for part in np.array_split(lengths, shards)]))
    base = NativeOrder([StreamSource.whole("data", table)], NativeSettings(shuffle="block"))
    return ByLengthOrder(base, table, lengths, Lengths(lengths, max_tokens=MOST, buckets=BUCKETS, ranks=RANKS))


def lhotse_steps(path: Path) -> None:
    """Prints the batches of each rank of Lhotse, in its Python."""
    import lhotse
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicBucketingSampler

    lengths = np.load(path)
    cuts = [MonoCut(str(number), start=0, duration=float(length), channel=0) for number, length in enumerate(lengths)]
    ranks = []
    for rank in range(RANKS):
        sampler = DynamicBucketingSampler(
            CutSet.from_cuts(cuts),
            max_duration=float(MOST),
            num_buckets=BUCKETS,
            shuffle=True,
            drop_last=True,
            world_size=RANKS,
            rank=rank,
        )
        ranks.append([[int(cut.id) for cut in batch] for batch in sampler])
    print(json.dumps({"version": lhotse.__version__, "ranks": ranks}))


def processor_seconds(function: Any) -> float:
    """The median of five calls."""
    taken = []
    for _ in range(5):
        begun = time.process_time()
        function()
        taken.append(time.process_time() - begun)
    return round(statistics.median(taken), 3)


def scale() -> dict[str, float]:
    """What 10 million lengths cost."""
    from stoker.order.sample_order import DataRank, EpochPosition

    lengths = np.tile(draw("tokens"), 34)[:10_000_000].astype(np.uint32)
    order = order_of(lengths, 1000)

    def begin(position: int) -> None:
        order._windows.clear()
        run = order.run(EpochPosition(0, position), DataRank(3, RANKS))
        run.order.locate(next(run.plan.chunks(1))[0])

    def count() -> None:
        order._windows.clear()
        len(order.run(EpochPosition(0), DataRank(3, RANKS)).plan)

    return {
        "open, s": processor_seconds(lambda: order_of(lengths, 1000)),
        "first batch, s": processor_seconds(lambda: begin(0)),
        "first batch of a resume in the middle, s": processor_seconds(lambda: begin(5_000_011)),
        "len(), s": processor_seconds(count),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lhotse", help="a Python that has lhotse")
    parser.add_argument("--steps-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps_of is not None:
        lhotse_steps(options.steps_of)
        return
    for kind in ("speech", "tokens"):
        lengths = draw(kind)
        print(kind, json.dumps(report("stoker", lengths, stoker_steps(lengths))))
        if options.lhotse:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "lengths.npy"
                np.save(path, lengths)
                command = [options.lhotse, __file__, "--steps-of", str(path)]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            steps = [[np.array(batch) for batch in step] for step in zip(*found["ranks"], strict=False)]
            print(kind, json.dumps(report(f"lhotse {found['version']}", lengths, steps)))
    print("10 million lengths", json.dumps(scale()))


if __name__ == "__main__":
    main()
