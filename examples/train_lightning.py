"""Train with Lightning, on any number of devices; stop in the middle of an epoch, and resume on another number.

    python examples/train_lightning.py out --devices 2 --stop-after 11
    python examples/train_lightning.py out --devices 1 --resume

Rows are written first, so that it runs as it is; put your own dataset in place of ``out/data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset


class Rows(lightning.LightningDataModule):  # type: ignore[misc]
    def __init__(self, data: Path) -> None:
        super().__init__()
        self.data = data

    def prepare_data(self) -> None:
        if not self.data.exists():
            x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
            columns = {"x": "ndarray:float32:8", "y": "ndarray:float32:1"}
            with MDSWriter(columns, str(self.data), size_limit="8kb") as writer:
                writer.write_batch({"x": x, "y": x.sum(axis=1, keepdims=True)})

    def train_dataloader(self) -> StreamingDataLoader:
        dataset = StreamingDataset(str(self.data), shuffle=True, batch_size=16)
        return StreamingDataLoader(dataset, num_workers=2)


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch["x"]), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_train_epoch_end(self) -> None:
        print(f"rank {self.global_rank}: {self.trainer.fit_loop.epoch_loop.batch_progress.current.ready} batches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--stop-after", type=int, default=-1, help="steps after which the run ends")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    options = parser.parse_args()
    saver = ModelCheckpoint(options.out, "run", every_n_train_steps=11, enable_version_counter=False)
    trainer = lightning.Trainer(
        devices=options.devices, max_epochs=1, max_steps=options.stop_after, logger=False, callbacks=[saver]
    )
    checkpoint = options.out / "run.ckpt" if options.resume else None
    trainer.fit(Model(), datamodule=Rows(options.out / "data"), ckpt_path=checkpoint)


if __name__ == "__main__":
    main()
