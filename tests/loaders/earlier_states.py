"""Runs whose states an earlier version saved, and what each of them has yet to deliver.

``python earlier_states.py states.json`` writes the states; the file beside this one was written by the last version that kept
an epoch's start as a list of numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from loader_cases import MemorySource

from stoker import (
    MDSWriter,
    Stream,
    StreamingConfig,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
    World,
)
from stoker.partitions import RoundRobin

WORLD, BATCH, STOP = 2, 4, 3


def write_data(root: Path) -> None:
    """Three streams of 50, 40 and 30 samples."""
    for number, (name, count) in enumerate((("a", 50), ("b", 40), ("c", 30))):
        with MDSWriter({"id": "int"}, str(root / name), size_limit=200) as out:
            out.write_batch({"id": np.arange(count) + 1000 * number})


def _datasets(root: Path, names: str, **options: Any) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        streams = [Stream(local=str(root / name)) for name in names]
        given: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "shuffle_seed": 7, **options}
        return [StreamingDataset(streams=streams, world=World(rank, WORLD), **given) for rank in range(WORLD)]

    return make


def _token_loaders() -> list[Any]:
    files = [[[5, 9, 20]] * 2, [[30, 7]], [[12] * 6], [[8] * 9]]
    return [
        StreamingParquetLoader(
            MemorySource(files), batch_size=2, seq_len=7, pad_id=0, shuffle_tokens=30, world=World(rank, WORLD)
        )
        for rank in range(WORLD)
    ]


def _shard_loaders(root: Path) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        return [
            StreamingShardLoader(
                StreamingDataset(local=str(root / "a"), world=World(rank, WORLD), batch_size=BATCH),
                StreamingConfig(rank=rank, world_size=WORLD, batch_size=BATCH, partition=RoundRobin(), shuffle_seed=3),
            )
            for rank in range(WORLD)
        ]

    return make


def runs(root: Path) -> dict[str, Callable[[], list[Any]]]:
    """By name, what makes the readers of all ranks."""
    return {
        "elastic": _datasets(root, "a"),
        "samples": _datasets(root, "a"),
        "per stream": _datasets(root, "ab", batching_method="per_stream"),
        "device per stream": _datasets(root, "ab", batching_method="device_per_stream"),
        "parts": _datasets(root, "ab", partition_algo=RoundRobin()),
        "mosaicml": _datasets(root, "ab", shuffle_algo="py1e", num_canonical_nodes=2, batching_method="stratified"),
        "two streams": _datasets(root, "ab"),
        "streams changed": _datasets(root, "ac"),
        "tokens": _token_loaders,
        "checkpoint": _shard_loaders(root),
    }


def read(name: str, reader: Any) -> Iterator[Any]:
    """What a reader of this run delivers in an epoch, or the rest of one."""
    if name == "samples":
        for sample in reader:
            yield int(sample["id"])
    elif name == "tokens":
        for batch in reader:
            yield batch.input_ids.tolist()
    else:
        for batch in reader if name == "checkpoint" else reader.batches():
            yield np.asarray(batch["id"]).tolist()


def save(name: str, reader: Any) -> Any:
    """Its state."""
    return reader.get_checkpoint().as_dict() if name == "checkpoint" else reader.state_dict()


def rest(name: str, reader: Any, delivering: Iterator[Any] | None = None) -> list[Any]:
    """What is left of this epoch, and some of the next."""
    left = list(delivering or read(name, reader))
    if name == "checkpoint":
        reader.reset()
    return [left, list(islice(read(name, reader), 3))]


def _main() -> None:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_data(root)
        for name, make in runs(root).items():
            states, left = [], []
            for reader in make():
                if name == "streams changed":
                    reader.load_state_dict(found["two streams"]["states"][0], change_streams=True)
                delivering = read(name, reader)
                list(islice(delivering, STOP))
                states.append(save(name, reader))
                left.append(rest(name, reader, delivering))
            found[name] = {"states": states, "left": left}
    Path(sys.argv[1]).write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _main()
