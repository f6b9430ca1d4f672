"""Runs in the peer's environment: asks mosaicml-streaming for its orders. Requests come as :mod:`peer_server`'s do."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE.parents[1]))

import peer_server  # noqa: E402


def shuffle(**arguments: Any) -> Any:
    """``get_shuffle``."""
    import numpy as np
    from streaming.base.shuffle import get_shuffle

    return get_shuffle(**{**arguments, "shard_sizes": np.array(arguments["shard_sizes"], np.int64)})


def partition(**arguments: Any) -> Any:
    """``get_partitions``."""
    from streaming.base.partition import get_partitions

    return get_partitions(**arguments)


def sampling(samples_per_shard: list[int], **arguments: Any) -> Any:
    """``get_sampling``."""
    import numpy as np
    from streaming.base.sampling import get_sampling

    return get_sampling(np.array(samples_per_shard, np.int64), **arguments)


def work(case: dict[str, Any]) -> Any:
    """``generate_work``, for a dataset that has shards' sizes but no shards.

    Also the epoch's size, the dataset's length and each stream's count.
    """
    import numpy as np
    from streaming import Stream, StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    dataset = object.__new__(StreamingDataset)
    streams = [Stream(local="/nowhere", **weight) for weight in case["weights"]]
    Stream.validate_weights(streams)
    sizes = [np.array(stream, np.int64) for stream in case["shard_sizes"]]
    dataset.streams = streams
    dataset.num_streams = len(streams)
    dataset.shards_per_stream = np.array([len(stream) for stream in sizes], np.int64)
    dataset.shard_offset_per_stream = dataset.shards_per_stream.cumsum() - dataset.shards_per_stream
    dataset.samples_per_stream = np.array([stream.sum() for stream in sizes], np.int64)
    dataset.samples_per_shard = np.concatenate(sizes)
    dataset.sample_offset_per_shard = dataset.samples_per_shard.cumsum() - dataset.samples_per_shard
    for name, value in case["settings"].items():
        setattr(dataset, name, value)
    dataset.epoch_seed_change = dataset.shuffle and dataset.sampling_method == "balanced"
    dataset.epoch_size = Stream.apply_weights(
        streams, dataset.samples_per_stream, case["epoch_size"], case["weights_seed"]
    )
    world = World(case["nodes"], case["ranks_per_node"], case["workers"], 0).replicate(case["replication"])
    dataset._set_shuffle_block_size(world)
    ids = generate_work(dataset.batching_method, dataset, world, case["epoch"], case["sample_in_epoch"])
    return ids, dataset.epoch_size, [int(stream.choose) for stream in streams]


def iterate(case: dict[str, Any]) -> Any:
    """Read a dataset with StreamingDataset and StreamingDataLoader, as the rank that the environment says.

    Returns:
        For each pass: the batches' ids, and the loader's state after each batch.
    """
    from streaming import Stream, StreamingDataLoader, StreamingDataset

    options = dict(case["options"])
    if "streams" in case:
        options["streams"] = [Stream(**stream) for stream in case["streams"]]
    dataset = StreamingDataset(**options)
    loader = StreamingDataLoader(dataset, batch_size=options["batch_size"], num_workers=case["workers"])
    if case["state"]:
        loader.load_state_dict(case["state"])
    passes = []
    for stop in case["passes"]:
        batches, states = [], []
        for batch in loader:
            batches.append(batch["id"].tolist())
            states.append(loader.state_dict())
            if len(batches) == stop:
                break
        passes.append((batches, states))
    # A dataset of the same files may follow in this process, so let go of the shared memory.
    del dataset, loader
    gc.collect()
    return passes


def main() -> None:
    """Serve until the pipe closes."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the peer prints is not an answer
    calls: dict[str, Any] = {"shuffle": shuffle, "partition": partition, "sampling": sampling, "work": work}
    calls["iterate"] = iterate
    while True:
        try:
            name, arguments = peer_server.receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            peer_server.send(answers, ("ok", calls[name](**arguments)))
        except Exception as error:
            peer_server.send(answers, ("error", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
