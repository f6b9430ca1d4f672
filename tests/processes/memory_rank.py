"""Reads as a rank through memory that ranks share: ``memory_rank.py OPTIONS [TIMEOUT]``; prints the ids of each batch."""

import json
import sys
from typing import Any

import numpy as np

from stoker import ReadOptions, StreamingDataset

WIDTH = 4096


def row_of(number: int) -> Any:
    """The data of a sample: no two have the same."""
    return (np.arange(WIDTH) * (number + 1) % 251).astype(np.uint8)


def check(batch: Any) -> list[int]:
    """The ids of a batch whose data is right."""
    ids = [int(number) for number in batch["id"]]
    assert all(np.array_equal(data, row_of(number)) for number, data in zip(ids, batch["data"], strict=True))
    return ids


def main(options: str, timeout: str = "60") -> None:
    dataset = StreamingDataset(
        "s3://bucket/mds",
        storage_options=json.loads(options),
        read=ReadOptions(cache="memory"),
        batch_size=4,
        shuffle=True,
        download_timeout=float(timeout),
        predownload=64,
    )
    for batch in dataset.batches():
        print(json.dumps(check(batch)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
