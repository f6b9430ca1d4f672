"""Grain with the samples and functions of ``augmented_resume.py``: ArrayRecord files, random maps, batches, states.

Started by it in Grain's environment with a JSON job; prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
from augmentation import BATCH, crop, jitter, pictures

STEP = 20  # of the state
WORKERS = (0, 2, 4)


class Decode(grain.transforms.Map):
    def map(self, element: bytes) -> dict[str, Any]:
        """A record as a sample."""
        number = np.frombuffer(element, np.int64, 1)[0]
        return {"id": number, "image": np.frombuffer(element, np.uint8, offset=8).reshape(40, 40, 3)}


class Crop(grain.transforms.RandomMap):
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """See ``augmentation.crop``."""
        return crop(element, rng)


class Jitter(grain.transforms.RandomMap):
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """See ``augmentation.jitter``."""
        return jitter(element, rng)


def write(path: Path, samples: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number, image in enumerate(pictures(samples)):
        writer.write(np.int64(number).tobytes() + image.tobytes())
    writer.close()


def chain(path: Path) -> Any:
    source = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(path))).seed(7).shuffle()
    return source.map(Decode()).random_map(Crop()).random_map(Jitter())


def processes(workers: int) -> Any:
    return grain.MultiprocessingOptions(num_workers=workers) if workers else None


def batches(path: Path, workers: int, rank: int = 0, ranks: int = 1) -> Any:
    """A rank's part of each global batch: the chain sliced ``[rank::ranks]``, as Grain's pages have it."""
    part = chain(path)[rank::ranks].batch(BATCH // ranks, drop_remainder=False)
    made = part.to_iter_dataset(grain.ReadOptions(num_threads=0))
    return iter(made.mp_prefetch(processes(workers)) if workers else made)


def elastic(path: Path, rank: int, ranks: int, workers: int) -> Any:
    """Grain's iterator for another number of ranks."""
    shard = grain.sharding.ShardOptions(shard_index=rank, shard_count=ranks)
    read = grain.ReadOptions(num_threads=0)
    kind = grain.experimental.ElasticIterator
    return iter(kind(chain(path), BATCH, shard, read_options=read, multiprocessing_options=processes(workers)))


def resumed(path: Path, workers: int) -> str:
    """With how many workers the state of a run can be resumed, to the same bytes."""
    first = batches(path, workers)
    for _ in islice(first, STEP):
        pass
    state = first.get_state()
    expected = next(first)["image"].tobytes()
    told = []
    for others in WORKERS:
        second = batches(path, others)
        try:
            second.set_state(state)
            same = next(second)["image"].tobytes() == expected
            told.append(f"{others} workers: {'the same' if same else 'OTHER BYTES, no error'}")
        except Exception as error:
            told.append(f"{others} workers: {type(error).__name__}")
    return "; ".join(told)


def on_other_ranks(made: Callable[[int, int, int], Any], saved_by: int, ways: Sequence[tuple[int, int]]) -> str:
    """To how many of these ranks and workers the state of one rank goes, to the same bytes in the next global batch."""
    first = made(0, 1, saved_by)
    for _ in islice(first, STEP):
        pass
    state = first.get_state()
    expected = sorted(image.tobytes() for image in next(first)["image"])
    same = 0
    for ranks, workers in ways:
        found = []
        for rank in range(ranks):
            second = made(rank, ranks, workers)
            second.set_state(state)
            found += [image.tobytes() for image in next(second)["image"]]
        same += sorted(found) == expected
    return f"{len(json.dumps(state))} bytes, {same} of {len(ways)} the same"


def resumed_on_other_ranks(path: Path) -> str:
    """What becomes of a state on other ranks: of a source that is sliced, and of an ElasticIterator."""
    told = []
    for saved_by in (0, 2):
        ways = [(ranks, saved_by) for ranks in (1, 2, 4)]  # which divide the global batch
        sliced = on_other_ranks(lambda rank, ranks, workers: batches(path, workers, rank, ranks), saved_by, ways)
        told.append(f"[rank::ranks] with {saved_by} workers, to 1, 2 and 4 ranks: {sliced}")
    ways = [(ranks, workers) for ranks in (1, 2, 3, 4) for workers in (0, 2)]
    found = on_other_ranks(lambda rank, ranks, workers: elastic(path, rank, ranks, workers), 0, ways)
    return "; ".join([*told, f"ElasticIterator, to 1 to 4 ranks with 0 and 2 workers: {found}"])


def main(job: dict[str, Any]) -> dict[str, Any]:
    path = Path(job["folder"]) / "data.array_record"
    if job["action"] == "write":
        write(path, job["samples"])
        return {}
    if job["action"] == "state":
        first = batches(path, job["workers"])
        for _ in islice(first, STEP):
            pass
        size = len(json.dumps(first.get_state()))
        return {"bytes": size, "version": version("grain"), "resumes": resumed(path, job["workers"])}
    if job["action"] == "ranks":
        return {"resumes": resumed_on_other_ranks(path)}
    for _ in islice(batches(path, job["workers"]), 4):
        pass
    begun = time.perf_counter()
    seen = sum(len(batch["id"]) for batch in batches(path, job["workers"]))
    return {"rate": seen / (time.perf_counter() - begun)}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # the iterators of version 0.2 print tracebacks as the interpreter ends
