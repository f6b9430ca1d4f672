"""Measure zip and join: rows/s beside reading the same columns from one dataset, and the index of keys at 10⁷ keys.

    python benchmarks/join.py
    python benchmarks/join.py --rounds 21 --reads batches
    python benchmarks/join.py --keys 10000000 --rounds 0

The rows are in local directories: an id, a text and 16 floats on one side, a label and 64 floats on the other, and all
columns in a third dataset. Each round reads an epoch of each way, one after the other, in an order that changes from round
to round; a figure is the processor time of the process. The table has the median of the ratios to the single dataset of the
same round, and their quartiles. ``again`` is that dataset once more, which says how exact the others are.

Of the index of keys, each kind is made once in an empty cache, and its keys are then looked up in batches of 4,096 at random.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stoker
from stoker import MDSWriter, StreamingDataset
from stoker.streams.key_index import KeyIndex

BATCH: Final = 256
WAYS: Final = ("whole", "again", "zip", "join", "join by text", "join in order")


def write(folder: Path, rows: int) -> None:
    """Write the data sets."""
    chance = np.random.default_rng(0)
    ids = chance.permutation(rows).astype(np.int64) * 3
    names = [f"sample-{number:012d}" for number in ids.tolist()]
    left = {"id": ids, "name": names, "x": chance.random((rows, 16), np.float32)}
    right = {"label": ids % 1000, "vector": chance.random((rows, 64), np.float32)}
    order = chance.permutation(rows)
    parts: dict[str, dict[str, Any]] = {
        "whole": {**left, **right},
        "left": left,
        "beside": right,
        "ordered": {"id": ids, **right},
        "other": {"id": ids[order], **{name: column[order] for name, column in right.items()}},
        "texts": {"name": [names[at] for at in order], **{name: column[order] for name, column in right.items()}},
    }
    kinds = {"id": "int", "name": "str", "x": "ndarray:float32:16", "label": "int", "vector": "ndarray:float32:64"}
    for name, columns in parts.items():
        with MDSWriter({one: kinds[one] for one in columns}, folder / name, size_limit="8MB") as out:
            out.write_batch(columns)


def opened(folder: Path, way: str) -> StreamingDataset:
    """The dataset of a way, of which all give the same columns."""
    settings: dict[str, Any] = {"shuffle": True, "batch_size": BATCH}
    if way in ("whole", "again"):
        return StreamingDataset(folder / "whole", **settings)
    left = StreamingDataset(folder / "left", **settings)
    if way == "zip":
        return left.zip(StreamingDataset(folder / "beside"))
    name, key = {"join": ("other", "id"), "join by text": ("texts", "name"), "join in order": ("ordered", "id")}[way]
    return left.join(StreamingDataset(folder / name), on=key)


def batches_of(dataset: StreamingDataset) -> int:
    rows = 0
    for batch in dataset.batches():
        rows += len(batch["label"])
    return rows


def samples_of(dataset: StreamingDataset) -> int:
    rows = 0
    for sample in dataset:
        rows += len(sample) == 5
    return rows


READS: Final[dict[str, Callable[[StreamingDataset], int]]] = {"batches": batches_of, "samples": samples_of}


def rounds(folder: Path, read: Callable[[StreamingDataset], int], count: int, rows: int) -> Iterator[dict[str, float]]:
    """Processor seconds of each way, round by round."""
    datasets = {way: opened(folder, way) for way in WAYS}
    for number in range(count + 1):
        found = {}
        for turn in range(len(WAYS)):
            way = WAYS[(turn + number) % len(WAYS)]
            datasets[way].set_epoch(0)
            begun = time.process_time()
            assert read(datasets[way]) == rows
            found[way] = time.process_time() - begun
        if number:  # the first one opens the shards
            yield found


def measure_keys(folder: Path, count: int) -> None:
    """Make an index of each kind of keys, and look keys up."""
    chance = np.random.default_rng(1)
    numbers = np.unique(chance.integers(0, 1 << 62, count + count // 8))[:count]
    chance.shuffle(numbers)
    kinds: dict[str, Any] = {
        "integers": pa.array(numbers),
        "consecutive integers": pa.array(chance.permutation(count)),
        "text of 20 characters": pa.array(numbers).cast(pa.string()),
    }
    heads = ("count", "s", "CPU s", "bytes/key", "s again", "µs a look-up", "GB at most")
    print(f"\n{'keys':24}" + "".join(f"{head:>14}" for head in heads))
    for name, keys in kinds.items():
        place = folder / name.replace(" ", "_")
        place.mkdir()
        pq.write_table(pa.table({"key": keys}), place / "keys.parquet", row_group_size=1 << 18)
        location = StreamingDataset(place)._streams.locations
        wall, work = time.perf_counter(), time.process_time()
        index = KeyIndex(location, "key")
        wall, work = time.perf_counter() - wall, time.process_time() - work
        again = time.perf_counter()
        index = KeyIndex(location, "key")
        again = time.perf_counter() - again
        asked = [keys.take(pa.array(chance.integers(0, count, 4096))) for _ in range(40)]
        values = [one.to_numpy() if name.endswith("integers") else one.to_pylist() for one in asked]
        begun = time.process_time()
        for one in values:
            assert int(index.find(one, "asked").min()) >= 0
        each = (time.process_time() - begun) / (40 * 4096) * 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        figures = (
            f"{wall:.1f}",
            f"{work:.1f}",
            f"{index.nbytes / count:.1f}",
            f"{again:.3f}",
            f"{each:.2f}",
            f"{peak:.2f}",
        )
        print(f"{name:24}{count:>14,}" + "".join(f"{figure:>14}" for figure in figures))
        del index


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="default: 11; 0: only keys")
    parser.add_argument("--rows", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--reads", nargs="*", choices=READS, default=list(READS), metavar="READ")
    parser.add_argument("--keys", type=int, default=0, help="keys of the index, such as 10000000; default: 0, none")
    chosen = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"stoker {stoker.__version__}, {time.strftime('%Y-%m-%d')}, {chosen.rows:,} rows, {chosen.rounds} rounds"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["STOKER_CACHE"] = str(folder / "cache")
        if chosen.rounds:
            write(folder, chosen.rows)
            print(f"{'':12}{'rows/s':>12}" + "".join(f"{way:>22}" for way in WAYS[1:]))
            for read in chosen.reads:
                found = list(rounds(folder, READS[read], chosen.rounds, chosen.rows))
                least = min(one["whole"] for one in found)
                cells = []
                for way in WAYS[1:]:
                    ratios = [one[way] / one["whole"] for one in found]
                    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                    cells.append(f"{middle:8.2f} ({low:.2f} to {high:.2f})".rjust(22))
                print(f"{read:12}{chosen.rows / least:>12,.0f}" + "".join(cells))
        if chosen.keys:
            measure_keys(folder, chosen.keys)


if __name__ == "__main__":
    main()
