"""One rank of a node, with workers of a loader: says ``ready`` after the first batch of each worker, and waits for a line.

Started by :mod:`scaling.many`, with the variables that torchrun sets.
"""

from __future__ import annotations

import sys

from stoker import StreamingDataLoader, StreamingDataset


def main() -> None:
    folder, workers = sys.argv[1], int(sys.argv[2])
    dataset = StreamingDataset(folder, shuffle=True, batch_size=16)
    batches = iter(StreamingDataLoader(dataset, batch_size=16, num_workers=workers))
    for _ in range(workers):
        next(batches)
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
