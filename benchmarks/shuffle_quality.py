"""How well each shuffle mixes, what it costs and what cache it needs: Markdown tables.

    python benchmarks/shuffle_quality.py

The first table has every shuffle of stoker, and those of mosaicml-streaming 0.13.0 as stoker computes them, over one dataset.
The second sets stoker's block against py1e: for each block size of py1e the largest K with which block needs no more cache in
any of the epochs than py1e in the worst of them.

The measures are those of stoker_bench.simulate.shuffle_quality. Times are of one thread's processor time, so that other
programs matter less.
"""

from __future__ import annotations

import argparse
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stoker.order import ShardTable
from stoker.order.mixture.weights import Mixture
from stoker.order.mosaicml.sample_order import MosaicmlPlan
from stoker.order.mosaicml.settings import MosaicmlSettings
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleSettings
from stoker.types import Ids
from stoker_bench.simulate.shuffle_quality import ShuffleQuality, cache_need, measure

# The loader asks for so many samples at a time.
CALL = 4096
TIMED_CALLS = 64
BATCH = 2048
NODES = 8


@dataclass(frozen=True)
class Shuffle:
    """A way to shuffle: its name, and what gives an epoch's ids as they are delivered."""

    name: str
    ids: Callable[[int], Ids]
    cost: Callable[[], tuple[float, float, float]]
    nodes: int = NODES


def make_table(shards: int, samples: int) -> ShardTable:
    """Shards of about equal size, as writers with a size limit make them: 10 % up or down."""
    sizes = np.random.default_rng(0).integers(samples * 9 // 10, samples * 11 // 10 + 1, shards)
    # The incumbent repeats samples where they do not divide among canonical nodes.
    sizes[0] -= sizes.sum() % NODES
    return ShardTable(sizes)


def native(table: ShardTable, shuffle: str, block_size: int | None = None, name: str = "") -> Shuffle:
    nodes = 1 if shuffle == "global" else NODES
    settings = ShuffleSettings.resolve(table.sizes, shuffle=shuffle, num_canonical_nodes=nodes, block_size=block_size)

    def ids(seed: int) -> Ids:
        shards, rows = ShuffledStream(table, settings, seed).locate(np.arange(table.total))
        return table.starts[shards] + rows

    def cost() -> tuple[float, float, float]:
        calls = np.array_split(np.arange(table.total // 3, table.total // 3 + TIMED_CALLS * CALL), TIMED_CALLS)
        line = ShuffledStream(table, settings, 1)
        # The best of many for each call, as other programs share the processor's caches.
        best = [min(timed(partial(line.locate, call))[0] for _ in range(40)) for call in calls]
        each = sum(best) / (TIMED_CALLS * CALL)
        start = min(timed(lambda: ShuffledStream(table, settings, 1).locate(calls[0]))[0] for _ in range(7))
        return each, start, peak(lambda: ShuffledStream(table, settings, 1).locate(calls[0])) / table.total

    return Shuffle(name or f"`{shuffle}`", ids, cost, nodes)


def incumbent(table: ShardTable, algo: str, block_size: int | None = None, name: str = "") -> Shuffle:
    mixture = Mixture.resolve([table.sizes])

    def plan(seed: int) -> MosaicmlPlan:
        settings = MosaicmlSettings(
            batch_size=1,
            num_canonical_nodes=NODES,
            shuffle=True,
            shuffle_algo=algo,
            shuffle_seed=seed,
            shuffle_block_size=block_size,
        )
        return MosaicmlPlan(mixture, settings)

    def ids(seed: int) -> Ids:
        return np.concatenate([np.concatenate(batches) for batches in plan(seed).chunks(1 << 16)])

    def cost() -> tuple[float, float, float]:
        # To ask for the first samples builds the epoch.
        start = min(timed(lambda: next(plan(1).chunks(CALL)))[0] for _ in range(3))
        return start / table.total, start, peak(lambda: next(plan(1).chunks(CALL))) / table.total

    return Shuffle(name or algo, ids, cost)


def timed(run: Callable[[], object]) -> tuple[float, object]:
    begin = time.thread_time()
    result = run()
    return time.thread_time() - begin, result


def peak(run: Callable[[], object]) -> float:
    """The most bytes that were held at once."""
    tracemalloc.start()
    run()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def mean(found: Sequence[ShuffleQuality], name: str) -> float:
    return float(np.mean([getattr(quality, name) for quality in found]))


def row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def table_of_all(table: ShardTable, seeds: int) -> None:
    average = table.total // len(table)
    shuffles = [
        native(table, "none"),
        native(table, "shard"),
        native(table, "block"),
        native(table, "block", 8 * average, "`block`, K = 8 shards"),
        native(table, "global"),
        incumbent(table, "naive"),
        incumbent(table, "py1s"),
        incumbent(table, "py2s"),
        incumbent(table, "py1br"),
        incumbent(table, "py1e"),
        incumbent(table, "py1e", 8 * average, "py1e, block = 8 shards"),
    ]
    print(
        row(
            [
                "shuffle",
                "ns a sample",
                "start",
                "bytes a sample",
                "cache, shards",
                "cache, % of data",
                "position correlation",
                "neighbour distance",
                "in a node",
                "separation",
                "batch mixing",
                "download peak",
            ]
        )
    )
    print(row(["---"] * 12))
    for shuffle in shuffles:
        each, start, memory = shuffle.cost()
        found = [measure(shuffle.ids(seed), table, BATCH, shuffle.nodes) for seed in range(1, seeds + 1)]
        cache = np.mean([quality.cache.shards for quality in found])
        share = np.mean([quality.cache.weight for quality in found]) / table.total
        print(
            row(
                [
                    shuffle.name,
                    f"{each * 1e9:.0f}",
                    f"{start * 1e3:.1f} ms" if start < 0.1 else f"{start:.1f} s",
                    f"{memory:.2g}",
                    f"{cache:.0f}",
                    f"{share:.1%}",
                    f"{mean(found, 'position_correlation'):.4f}",
                    *(
                        f"{mean(found, name):.3f}"
                        for name in ("neighbour_distance", "node_distance", "separation", "batch_mixing")
                    ),
                    f"{mean(found, 'download_peak'):.1f}" if mean(found, "download_peak") else "all at once",
                ]
            ),
            flush=True,
        )


def table_at_same_cache(table: ShardTable, seeds: int) -> None:
    average = table.total // len(table)
    names = ("position_correlation", "neighbour_distance", "node_distance", "separation", "batch_mixing")
    print(
        row(
            [
                "shuffle",
                "block, shards",
                "cache, shards",
                "position correlation",
                "neighbour distance",
                "in a node",
                "separation",
                "batch mixing",
            ]
        )
    )
    print(row(["---"] * 8))
    for times in (2, 3, 4, 8, 16, 32):
        theirs = qualities(incumbent(table, "py1e", times * average), table, seeds)
        room = max(quality.cache.shards for quality in theirs)
        low, high = 1, 2 * times * average
        while high - low > max(1, average // 64):
            middle = (low + high) // 2
            shuffle = native(table, "block", middle)
            need = [cache_need(table.locate(shuffle.ids(seed))[0], table.sizes).shards for seed in range(1, seeds + 1)]
            low, high = (middle, high) if max(need) <= room else (low, middle)
        ours = qualities(native(table, "block", low), table, seeds)
        for name, size, found in (("py1e", times * average, theirs), ("`block`", low, ours)):
            cache = max(quality.cache.shards for quality in found)
            values = [f"{mean(found, measure_name):.4f}" for measure_name in names]
            print(row([name, f"{size / average:.2f}", cache, *values]), flush=True)


def qualities(shuffle: Shuffle, table: ShardTable, seeds: int) -> list[ShuffleQuality]:
    return [measure(shuffle.ids(seed), table, BATCH, shuffle.nodes) for seed in range(1, seeds + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=4096, help="samples in an average shard")
    parser.add_argument("--seeds", type=int, default=3, help="epochs that the first table's measures are averaged over")
    parser.add_argument("--small", type=int, default=256, help="samples in an average shard, second table")
    parser.add_argument("--small-seeds", type=int, default=16, help="likewise, second table")
    options = parser.parse_args()
    print(f"{processor()}; NumPy {np.__version__}, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}\n")
    print(
        f"{options.shards} shards of about {options.samples} samples, {NODES} canonical nodes, global batches of {BATCH}; "
        f"mean of {options.seeds} seeds\n"
    )
    table_of_all(make_table(options.shards, options.samples), options.seeds)
    print(
        f"\nThe same cache: {options.shards} shards of about {options.small} samples; mean of {options.small_seeds} seeds\n"
    )
    table_at_same_cache(make_table(options.shards, options.small), options.small_seeds)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


if __name__ == "__main__":
    main()
