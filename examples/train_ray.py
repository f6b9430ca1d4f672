"""Train with Ray Train on several workers; a checkpoint holds the place in the data, and any number of workers goes on.

    python examples/train_ray.py out --workers 2 --stop-after 11
    python examples/train_ray.py out --workers 1

Rows are written first, so that it runs as it is; put your own dataset in place of ``out/data``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset

BATCH = 16


def write(out: Path) -> None:
    """Rows of a line; text and images are written the same way."""
    x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    with MDSWriter({"x": "ndarray:float32:8", "y": "ndarray:float32:1"}, str(out), size_limit="8kb") as writer:
        writer.write_batch({"x": x, "y": x.sum(axis=1, keepdims=True)})


def train(options: dict[str, Any]) -> None:
    """The training function of each worker; Ray Train has told it its rank."""
    dataset = StreamingDataset(options["data"], shuffle=True, batch_size=BATCH)
    loader = StreamingDataLoader(dataset)
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    saved = ray.train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        getattr(model, "module", model).load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    while dataset.next_epoch < options["epochs"]:
        for step, batch in enumerate(prepare_data_loader(loader), 1):  # tensors on the worker's device
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step == options["stop_after"]:
                report(loss, model, loader)
                return
        report(loss, model, loader)


def report(loss: torch.Tensor, model: torch.nn.Module, loader: StreamingDataLoader) -> None:
    """Save a checkpoint, which rank 0 has for all, after a step."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, state = None, {"model": getattr(model, "module", model).state_dict(), "loader": loader.state_dict()}
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(state, Path(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"loss": loss.item(), "epoch": state["loader"]["epoch"]}, checkpoint=checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, default in (("--workers", 2), ("--epochs", 2), ("--stop-after", 0)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    if not (given.out / "data").exists():
        write(given.out / "data")
    config = {"data": str(given.out.resolve() / "data"), "epochs": given.epochs, "stop_after": given.stop_after}
    scaling = ray.train.ScalingConfig(num_workers=given.workers)
    run = ray.train.RunConfig(name="run", storage_path=str(given.out.resolve()))
    print(TorchTrainer(train, train_loop_config=config, scaling_config=scaling, run_config=run).fit().metrics)
