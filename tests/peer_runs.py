"""Runs in the peer's environment: has mosaicml-streaming's StreamingDataset read real files as any rank of any world.

Requests come as :mod:`peer_server`'s do. The world is not started but said: the dataset is told which rank it is before it is
iterated. All else is its own: its order, its states, its reading of the files.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import peer_server


def read(options: dict[str, Any], streams: list[dict[str, Any]], leg: dict[str, Any]) -> list[Any]:
    """A leg of a run, as each of its ranks.

    Args:
        options: of StreamingDataset.
        streams: of each Stream.
        leg: ``nodes``, ``ranks_per_node`` and ``replication`` of the world; the ``state`` to go on from, or ``None``;
            ``steps`` after which it stops, or ``None``; and how many whole ``epochs`` are read after that one.

    Returns:
        For each rank: samples of each epoch, by ids, and the state where the first one stopped.
    """
    from streaming import Stream, StreamingDataset
    from streaming.base.world import World

    told = []
    for rank in range(leg["nodes"] * leg["ranks_per_node"]):
        dataset = StreamingDataset(streams=[Stream(**stream) for stream in streams], **options)
        world = World(leg["nodes"], leg["ranks_per_node"], 1, rank)
        if leg["replication"] > 1:
            world = world.replicate(leg["replication"])
            dataset.replication = leg["replication"]
        dataset._parallel_rank_world = world
        if leg["state"] is not None:
            dataset.load_state_dict(leg["state"])
        most = None if leg["steps"] is None else leg["steps"] * options["batch_size"]
        first = [sample["id"] for sample in islice(iter(dataset), most)]
        state = dataset.state_dict(len(first) * world.num_ranks, False)
        epochs = [first, *([sample["id"] for sample in dataset] for _ in range(leg["epochs"]))]
        told.append((epochs, state))
        # A dataset of the same files follows in this process, so let go of the shared memory.
        del dataset
        gc.collect()
    return told


def main() -> None:
    """Serve until the pipe closes."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the peer prints is not an answer
    import streaming  # noqa: F401

    gc.freeze()  # torch's many objects need not be gone through with every dataset
    while True:
        try:
            _, arguments = peer_server.receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            peer_server.send(answers, ("ok", read(**arguments)))
        except Exception as error:
            peer_server.send(answers, ("error", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
