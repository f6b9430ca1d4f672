"""Trains for an epoch with FSDP2 and torch.distributed.checkpoint; see ``trainers.launch``.

``--variant`` has words: ``mesh`` (all ranks are one reader: a DeviceMesh of ``dp`` 1 and ``tp`` ranks), ``mixture``
(two streams), ``columnar``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stoker import Stream, StreamingDataLoader, StreamingDataset
from trainers.launch import arguments, record


class Run:
    """Model and optimizer as torch.distributed.checkpoint takes them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parts = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self.parts)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(*self.parts, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    options = arguments(__doc__)
    words = set(options.variant.split())
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, ranks) if "mesh" in words else (ranks, 1), mesh_dim_names=("dp", "tp"))
    source: dict[str, Any] = {"remote": options.data}
    if "mixture" in words:
        source = {"streams": [Stream(options.data, repeat=1), Stream(options.data, repeat=1)]}
    dataset = StreamingDataset(**source, shuffle=True, batch_size=options.batch_size, replication=mesh)
    loader = StreamingDataLoader(dataset, num_workers=options.workers, columnar="columnar" in words)
    model = torch.nn.Linear(8, 1)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"run": Run(model, optimizer), "loader": loader}
    if options.resume:
        dcp.load(state, checkpoint_id=options.checkpoint)  # type: ignore[attr-defined]
    steps = []
    for batch in loader:
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(batch["id"])
        if len(steps) == options.stop_after:
            dcp.save(state, checkpoint_id=options.checkpoint)  # type: ignore[attr-defined]
            break
    record(options.out, dist.get_rank(), steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
