"""One rank of a training under torchrun that survives the death of another: ``elastic_rank.py DATA CACHE FOLDER``.

The "model" is what all ranks have summed up of the samples' ids. Rank 0 saves it with the loader's checkpoint every few
steps, in one file. Rank 1 kills itself once. Each rank notes every step that it has finished, in one file before that and
in another after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from stoker import StreamingDataset
from stoker.loaders.shard_loader import StreamingConfig, StreamingShardLoader
from support import check_batch

EVERY, DIES_AT = 5, 13
BATCH = 6


def main(data: str, cache: str, folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    saved, killed = Path(folder, "saved.json"), Path(folder, "killed")
    life = int(killed.exists())

    dataset = StreamingDataset(remote=data, local=cache, shuffle=True, batch_size=BATCH)
    loader = StreamingShardLoader(dataset, StreamingConfig(world, rank, batch_size=BATCH, remainder="drop"))
    model = torch.zeros(1, dtype=torch.int64)
    step = 0
    if saved.exists():
        state = json.loads(saved.read_text())
        loader.restore_from_checkpoint(state["loader"], any_rank=True)
        model += state["model"]
        step = state["step"]
    with Path(folder, f"steps{life}.{rank}").open("w") as notes:
        for batch in loader:
            ids = check_batch(batch)
            if life == 0 and rank == 1 and step == DIES_AT:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            gradient = torch.tensor([sum(ids)])
            dist.all_reduce(gradient)
            model += gradient
            step += 1
            print(json.dumps([step, ids]), file=notes, flush=True)
            if step % EVERY == 0 and rank == 0:
                state = {"loader": loader.get_checkpoint().as_dict(), "model": int(model), "step": step}
                beside = saved.with_suffix(".new")
                beside.write_text(json.dumps(state))
                beside.replace(saved)
    loader.close()
    if rank == 0:
        Path(folder, "out.json").write_text(json.dumps({"model": int(model), "step": step, "life": life}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
