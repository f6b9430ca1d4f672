"""Reads batches in processes, prints the numbers of these, and goes on until it is stopped: ``DATA METHOD``."""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

from stoker import ReadOptions, StreamingDataset


def slow(sample: Any) -> Any:
    time.sleep(0.01)
    return sample


if __name__ == "__main__":
    read = ReadOptions(run_in="processes", read_processes=2, start_method="spawn" if sys.argv[2] == "spawn" else "fork")
    dataset = StreamingDataset(sys.argv[1], batch_size=2, read=read).map(slow)
    while True:
        for batch in dataset.batches():
            assert len(batch["id"])
            print(*(process.pid for process in multiprocessing.active_children()), flush=True)
