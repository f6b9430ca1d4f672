"""One rank under torchrun: where torch's device meshes place it. ``mesh_rank.py OUT``; rank 0 writes what all found."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from stoker.cluster import Mesh, World


def main(out: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    world = World.detect()
    inside = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp"))
    outside = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    placed = {
        "dp inside": Mesh.of(inside).data_world(world),
        "dp outside": Mesh.of(outside).data_world(world),
        "sub mesh": Mesh.of(outside["dp"]).data_world(world),
        "both": Mesh.of(inside, data=("tp", "dp")).data_world(world),
    }
    mine = {name: [at.rank, at.world_size, at.local_world_size] for name, at in placed.items()}
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps({name: [found[name] for found in everyone] for name in mine}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
