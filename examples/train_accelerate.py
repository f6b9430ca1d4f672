"""Train with Hugging Face accelerate: one script for one process, several GPUs and several nodes.

    python examples/train_accelerate.py out
    torchrun --nproc-per-node 2 examples/train_accelerate.py out
    torchrun --nproc-per-node 2 examples/train_accelerate.py out --resume

Rows are written first, so that it runs as it is; put your own dataset in place of ``out/data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from stoker import MDSWriter, StreamingDataset

BATCH = 16


def write(out: Path) -> None:
    """Rows of a line with noise; text and images are written the same way."""
    x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    with MDSWriter({"x": "ndarray:float32:8", "y": "ndarray:float32:1"}, str(out), size_limit="8kb") as writer:
        writer.write_batch({"x": x, "y": x.sum(axis=1, keepdims=True)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, help="steps after which a checkpoint is saved and the run ends")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    options = parser.parse_args()

    # Each rank reads its own samples; by default rank 0 would read for all and send them theirs.
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    if accelerator.is_main_process and not (options.out / "data").exists():
        write(options.out / "data")
    accelerator.wait_for_everyone()

    dataset = StreamingDataset(str(options.out / "data"), shuffle=True, batch_size=BATCH, remainder="drop")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    checkpoint, samples = options.out / "checkpoint", torch.zeros(2, dtype=torch.int64)  # epoch, and samples of it
    if options.resume:
        accelerator.load_state(str(checkpoint))
        samples = torch.load(checkpoint / "samples.pt")
    for epoch in range(int(samples[0]), options.epochs):
        loader.set_epoch(epoch)
        # The samples of all ranks: the run can resume on another number of ranks.
        done = int(samples[1]) if epoch == int(samples[0]) else 0
        step = done // (BATCH * accelerator.num_processes)
        for batch in accelerator.skip_first_batches(loader, step) if step else loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == options.stop_after:
                accelerator.save_state(str(checkpoint))
                if accelerator.is_main_process:
                    torch.save(
                        torch.tensor([epoch, step * BATCH * accelerator.num_processes]), checkpoint / "samples.pt"
                    )
                return
        accelerator.print(f"epoch {epoch}: {step} steps, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
