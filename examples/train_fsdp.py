"""Train with FSDP2 and save with torch.distributed.checkpoint: the loader is one more Stateful of the checkpoint.

    torchrun --nproc-per-node 2 examples/train_fsdp.py out --stop-after 11
    torchrun --nproc-per-node 1 examples/train_fsdp.py out --resume

Rows are written first, so that it runs as it is; put your own dataset in place of ``out/data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset


class Training:
    """Model and optimizer, as torch.distributed.checkpoint saves and loads them."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self.parts)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(*self.parts, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stop-after", type=int, help="steps after which a checkpoint is saved and the run ends")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group()
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp",))
    data = options.out / "data"
    if dist.get_rank() == 0 and not data.exists():
        x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
        with MDSWriter({"x": "ndarray:float32:8", "y": "ndarray:float32:1"}, str(data), size_limit="8kb") as writer:
            writer.write_batch({"x": x, "y": x.sum(axis=1, keepdims=True)})
    dist.barrier()

    dataset = StreamingDataset(str(data), shuffle=True, batch_size=16, replication=mesh)
    loader = StreamingDataLoader(dataset, num_workers=2)
    model = torch.nn.Linear(8, 1).to(device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"training": Training(model, optimizer), "loader": loader}
    if options.resume:
        dcp.load(state, checkpoint_id=options.out / "checkpoint")  # type: ignore[attr-defined]
    steps = 0
    for batch in loader:
        loss: Any = torch.nn.functional.mse_loss(model(batch["x"].to(device)), batch["y"].to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps == options.stop_after:
            dcp.save(state, checkpoint_id=options.out / "checkpoint")  # type: ignore[attr-defined]
            break
    print(f"rank {dist.get_rank()}: {steps} steps, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
