"""Token columns of Parquet: stoker's decoder against pyarrow's bare row groups, on the same file.

    python benchmarks/parquet_read.py /tmp/tokens.parquet --rounds 3

Writes 200 M tokens as ``list<uint32>`` in row groups of 4,096 rows of 2,048 unless the file is there, then, alternating:

* ``bare``: ``ParquetFile(memory_map=True).read_row_group(k, columns=[...], use_threads=False)`` on one thread;
* ``tokens``: :func:`stoker.tokens.sources.parquet.decode_chunks`, tokens and offsets a page at a time, on one thread;
* ``tokens x2``: the same on two threads;
* ``batches``: ``read`` of consecutive rows as ``(64, 2048)`` arrays, on one thread.

Prints M tokens/s of each, the ratio to ``bare`` of the same round, and the most memory that the process held.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.formats.parquet.reader import ParquetReader
from stoker.formats.parquet.tokens import token_column, token_counts
from stoker.reading.shard_pool import ShardPool
from stoker.tokens.sources.parquet import decode_chunks

LENGTH = 2048
ROWS = 4096


def write(path: Path, tokens: int) -> None:
    """Token ids as a tokenizer of 50,000 words makes them, with pyarrow's own settings."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("input_ids", pa.list_(pa.uint32()))])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, tokens // LENGTH, ROWS):
            rows = min(ROWS, tokens // LENGTH - first)
            values = rng.integers(0, 50_000, rows * LENGTH, dtype=np.uint32)
            offsets = np.arange(rows + 1, dtype=np.int32) * LENGTH
            column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
            writer.write_table(pa.Table.from_arrays([column], schema=schema), row_group_size=ROWS)


def bare(path: Path) -> int:
    file = pq.ParquetFile(path, memory_map=True)
    return sum(
        len(file.read_row_group(k, columns=["input_ids"], use_threads=False).column(0).chunk(0).values)
        for k in range(file.num_row_groups)
    )


def tokens(pool: ShardPool, column: str, threads: int) -> int:
    def one(shard: int) -> int:
        reader = pool.get(shard)
        assert isinstance(reader, ParquetReader)
        return sum(piece.values.size for piece in decode_chunks(reader, column, "here"))

    shards = range(len(pool.index))
    if threads == 1:
        return sum(map(one, shards))
    with ThreadPoolExecutor(threads) as executor:
        return sum(executor.map(one, shards))


def batches(pool: ShardPool, column: str) -> int:
    total = 0
    for shard, size in enumerate(pool.index.sizes.tolist()):
        reader = pool.get(shard)
        for first in range(0, size, 64):
            total += np.asarray(reader.read(np.arange(first, min(first + 64, size)), [column])[column]).size
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", choices=["bare", "tokens", "tokens x2", "batches"], help="measure memory of one alone"
    )
    arguments = parser.parse_args()
    if not arguments.file.exists():
        write(arguments.file, arguments.tokens)
    place = open_unindexed(arguments.file, "parquet")
    column = token_column(place.index)
    ways = {
        "bare": lambda: bare(arguments.file),
        "tokens": lambda: tokens(ShardPool(place.index, place.cache), column, 1),
        "tokens x2": lambda: tokens(ShardPool(place.index, place.cache), column, 2),
        "batches": lambda: batches(ShardPool(place.index, place.cache), column),
    }
    if arguments.only:
        ways = {arguments.only: ways[arguments.only]}
    expected = int(token_counts(place.index, column).sum())
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        base = 0.0
        for name, way in ways.items():
            begin = time.perf_counter()
            count = way()
            rate = count / (time.perf_counter() - begin) / 1e6
            assert count == expected
            base = base or rate
            ratios[name].append(rate / base)
            print(f"{name:10s} {rate:8.1f} M tokens/s   {rate / base:5.2f}")
    print({name: round(statistics.median(values), 3) for name, values in ratios.items()})
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
