"""One rank under torchrun: reads a dataset in step with the others and writes down what all of them got.

``gloo_rank.py DATA CACHE STATE OUT``: reads an epoch by samples and one by a loader, then stops in mid-epoch and writes
STATE; where STATE is there, goes on from it. Rank 0 writes OUT.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stoker import StreamingDataLoader, StreamingDataset
from support import check_batch, ids_of

GLOBAL = 12
STOP_AFTER = 9


def gathered(mine: Any) -> list[Any]:
    """What every rank has, in the order of the ranks. Hangs, and so fails, if the ranks are not in step."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def global_batches(loader: Any, most: int | None = None) -> list[list[int]]:
    """The next global batches, exchanged step by step."""
    found: list[list[int]] = []
    running = iter(loader)
    while most is None or len(found) < most:
        batch = next(running, None)
        parts = gathered(None if batch is None else check_batch(batch))
        assert (None in parts) == all(part is None for part in parts), "one rank ended before another"
        if batch is None:
            break
        found.append([number for part in parts for number in part])
    return found


def main(data: str, cache: str, state_path: str, out: str) -> None:
    assert not dist.is_initialized()
    by_environment = StreamingDataset(local=data, shuffle=True)
    assert (by_environment.world.rank, by_environment.world.source) == (int(os.environ["RANK"]), "torchrun")
    next(iter(by_environment))
    assert not dist.is_initialized(), "a process group was made behind the user's back"

    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    ranks = dist.get_world_size()
    groups = len(torch.distributed.distributed_c10d._world.pg_map)
    found: dict[str, Any] = {"ranks": ranks}

    dataset = StreamingDataset(remote=data, local=cache, shuffle=True, batch_size=GLOBAL // ranks)
    assert dataset.world.source == "torch.distributed"
    found["by samples"] = gathered(ids_of(dataset))

    start: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = StreamingDataLoader(dataset, columnar=True, **start)
    found["by loader"] = global_batches(loader)

    state_file = Path(state_path)
    if state_file.exists():
        loader.load_state_dict(json.loads(state_file.read_text()))
        found["resumed"] = global_batches(loader)
    else:
        found["begun"] = global_batches(loader, STOP_AFTER)
        states = gathered(loader.state_dict())
        assert all(state == states[0] for state in states)
        if dist.get_rank() == 0:
            state_file.write_text(json.dumps(states[0]))
    assert len(torch.distributed.distributed_c10d._world.pg_map) == groups
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
