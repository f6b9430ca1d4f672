"""Rows of a Lance table: stoker against Lance's own scanner and ``take``, on the same table.

    python benchmarks/lance_read.py /tmp/rows.lance --rounds 3

Writes 400,000 rows of 1.2 KB (a number, text, 256 tokens) in 4 fragments unless the table is there, then, alternating and
each in a process of its own, as Lance is not safe in a fork:

* ``scanner``: all rows in order, by ``scanner(batch_size=1024).to_batches()``;
* ``take``: batches of 256 rows drawn at random, by ``take``;
* ``epoch``: ``StreamingDataset.batches()`` of 256 rows in order, from opening the table on;
* ``shuffled``: the same, shuffled;
* ``rows``: ``StreamingDataset.read`` of 256 rows drawn at random.

Prints thousand rows/s of each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROWS = 400_000
DRAWN = 40_000
BATCH = 256
WAYS = ("scanner", "take", "epoch", "shuffled", "rows")


def write(path: str) -> None:
    import lance
    import pyarrow as pa

    rng = np.random.default_rng(0)
    tokens = pa.array(rng.integers(0, 50_000, ROWS * 256, dtype=np.int32))
    text = [f"some text of row {number} " * 8 for number in range(ROWS)]
    table = {"x": np.arange(ROWS), "tokens": pa.FixedSizeListArray.from_arrays(tokens, 256), "text": text}
    lance.write_dataset(pa.table(table), path, max_rows_per_file=ROWS // 4)


def drawn() -> np.ndarray:
    return np.random.default_rng(1).permutation(ROWS)[:DRAWN]


def measure(way: str, path: str) -> float:
    """Rows a second."""
    ids = drawn()
    if way in ("scanner", "take"):
        import lance

        begun = time.perf_counter()
        table = lance.dataset(path)
        if way == "take":
            rows = sum(table.take(ids[at : at + BATCH].tolist()).num_rows for at in range(0, DRAWN, BATCH))
        else:
            rows = sum(batch.num_rows for batch in table.scanner(batch_size=1024).to_batches())
        return rows / (time.perf_counter() - begun)
    from stoker import StreamingDataset

    begun = time.perf_counter()
    with StreamingDataset(path, batch_size=BATCH, shuffle=way == "shuffled") as dataset:
        if way == "rows":
            rows = sum(len(dataset.read(ids[at : at + BATCH])["x"]) for at in range(0, DRAWN, BATCH))
        else:
            rows = sum(len(batch["x"]) for batch in dataset.batches())
    return rows / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        print(measure(args.way, args.path))
        return
    if not Path(args.path).exists():
        write(args.path)
    for _ in range(args.rounds):
        rates = []
        for way in WAYS:
            command = [sys.executable, __file__, args.path, "--way", way]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
            rates.append(f"{way} {float(done.stdout) / 1e3:.0f}")
        print("k rows/s: " + ", ".join(rates), flush=True)


if __name__ == "__main__":
    main()
