"""One training process of the demo: streams its part of the epoch and records the samples.

StreamingDataset finds rank and world size in ``RANK``, ``WORLD_SIZE`` and ``LOCAL_WORLD_SIZE``, as under torchrun. The
process reports its progress on stdout, one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from demo_record import Record
from stoker import StokerError, StreamingDataset

# More reports would take time from reading.
_SECONDS_BETWEEN_REPORTS = 0.05


def main() -> None:
    """Read batches, report progress, save a record."""
    options = _arguments()
    began = time.perf_counter()
    dataset = StreamingDataset(
        remote=options.remote,
        local=options.local,
        batch_size=options.batch_size,
        shuffle=True,
        shuffle_seed=options.seed,
        num_canonical_nodes=options.canonical_nodes,
        predownload=options.predownload,
        # The last global batch is smaller than the others: divide it as it is, without repeated samples.
        remainder="uneven",
    )
    if options.resume:
        dataset.load_state_dict(json.loads(options.resume.read_text(encoding="utf-8")))
    batches, first, finished = _stream(dataset, options.stop_after)
    if options.save and dataset.world.rank == 0:
        options.save.write_text(json.dumps(dataset.state_dict(), indent=2), encoding="utf-8")
    again = _stream_again(dataset, options.more_epochs)
    dataset.close()
    record = Record.of(batches)
    record.save(options.record)
    _report(
        samples=len(record.ids),
        done={"first_batch": first - began, "total": finished - began, "again": again},
    )


def _stream(dataset: StreamingDataset, stop_after: int | None) -> tuple[list[dict[str, Any]], float, float]:
    """Read batches up to ``stop_after``, or to the end of the epoch; returns them and the times of the first and the last."""
    batches: list[dict[str, Any]] = []
    first = reported = 0.0
    samples = 0
    for batch in dataset.batches():
        now = time.perf_counter()
        first = first or now
        batches.append(batch)
        samples += len(batch["id"])
        if now - reported > _SECONDS_BETWEEN_REPORTS:
            reported = now
            _report(samples=samples)
        if len(batches) == stop_after:
            break
    return batches, first, time.perf_counter()


def _stream_again(dataset: StreamingDataset, epochs: int) -> float:
    """Samples per second over further epochs, whose shards are in the cache by now; 0.0 if there are none."""
    began = time.perf_counter()
    samples = sum(len(batch["id"]) for _ in range(epochs) for batch in dataset.batches())
    return samples / (time.perf_counter() - began)


def _report(**news: Any) -> None:
    print(json.dumps(news), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remote", required=True, help="URL of the dataset")
    parser.add_argument("--local", required=True, help="directory of the cache")
    parser.add_argument("--batch-size", type=int, required=True, help="samples of a batch on this rank")
    parser.add_argument("--seed", type=int, required=True, help="seed of the shuffle")
    parser.add_argument("--canonical-nodes", type=int, required=True, help="spans that the order interleaves")
    parser.add_argument("--predownload", type=int, required=True, help="samples ahead whose shards are fetched")
    parser.add_argument("--record", type=Path, required=True, help="file for the ids that came")
    parser.add_argument("--resume", type=Path, help="state to resume from")
    parser.add_argument("--stop-after", type=int, help="batches to read; default: to the epoch's end")
    parser.add_argument("--save", type=Path, help="file for the state, written by rank 0")
    parser.add_argument("--more-epochs", type=int, default=0, help="epochs to read after the recorded one")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except StokerError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except (KeyboardInterrupt, BrokenPipeError):
        # Stopped by the user, or the demo has ended: nobody reads the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(130)
