"""Trains for an epoch under Lightning, which starts its ranks itself; see ``trainers.launch``.

``--variant`` has words. Where the dataset is made: ``hook`` (in ``train_dataloader``), ``module`` (a datamodule's
``__init__``), ``setup`` (its ``setup``), else before ``fit``. And ``spawn`` (``ddp_spawn``), ``torch`` (torch's DataLoader,
else StreamingDataLoader), ``columnar``, ``combined`` (two loaders in a CombinedLoader), ``val`` (a validation set, twice an
epoch), ``reload`` (loaders made anew each epoch), ``own_sampler`` (``use_distributed_sampler=False``), ``epochs`` (two of
them, and the checkpoint is of the first one's end).
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from stoker import StreamingDataLoader, StreamingDataset
from trainers.launch import arguments, record

OPTIONS = arguments(__doc__)
WORDS = set(OPTIONS.variant.split())
warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning").setLevel(logging.ERROR)


def make_dataset(shuffle: bool = True) -> StreamingDataset:
    return StreamingDataset(OPTIONS.data, shuffle=shuffle, batch_size=OPTIONS.batch_size)


def make_loader(dataset: StreamingDataset) -> Any:
    if "torch" in WORDS:
        return DataLoader(dataset, batch_size=OPTIONS.batch_size, num_workers=OPTIONS.workers)
    loader = StreamingDataLoader(dataset, num_workers=OPTIONS.workers, columnar="columnar" in WORDS)
    return CombinedLoader([loader, make_loader_beside()], "max_size_cycle") if "combined" in WORDS else loader


def make_loader_beside() -> StreamingDataLoader:
    return StreamingDataLoader(make_dataset(shuffle=False), num_workers=OPTIONS.workers)


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.steps: list[Any] = []
        self.beside: list[Any] = []
        self.seen: list[Any] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        if "combined" in WORDS:
            batch, beside = batch
            self.beside.append(beside["id"])
        self.steps.append(batch["id"])
        loss: torch.Tensor = self.layer(batch["x"]).square().mean()
        return loss

    def validation_step(self, batch: Any) -> None:
        self.seen.append(batch["id"])

    def on_validation_epoch_end(self) -> None:
        ids = self.all_gather(torch.cat(self.seen)).flatten().tolist()
        if not self.trainer.sanity_checking:
            assert sorted(set(ids)) == list(range(100)), sorted(ids)
        self.seen.clear()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == OPTIONS.stop_after and "epochs" not in WORDS:
            self.save()

    def on_train_epoch_end(self) -> None:
        if OPTIONS.stop_after is not None and "epochs" in WORDS:
            self.save()

    def save(self) -> None:
        self.trainer.save_checkpoint(Path(OPTIONS.checkpoint) / "run.ckpt")
        self.trainer.should_stop = True

    def on_train_end(self) -> None:
        if "combined" in WORDS:
            assert [one.tolist() for one in self.beside] != [one.tolist() for one in self.steps]
            assert len(self.beside) == len(self.steps)
        record(OPTIONS.out, self.global_rank, self.steps)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Loaders(lightning.LightningDataModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dataset = make_dataset() if WORDS & {"module", "before"} else None

    def setup(self, stage: str) -> None:
        if "setup" in WORDS:
            self.dataset = make_dataset()

    def train_dataloader(self) -> Any:
        return make_loader(self.dataset or make_dataset())

    def val_dataloader(self) -> Any:
        return make_loader_beside() if "val" in WORDS else []


def main() -> None:
    how: dict[str, Any] = {}
    if WORDS & {"module", "setup", "hook", "val", "reload"}:
        how["datamodule"] = Loaders()
    else:
        how["train_dataloaders"] = make_loader(make_dataset())
    ranks = int(os.environ.get("STOKER_RANKS", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp_spawn" if "spawn" in WORDS else "ddp" if ranks > 1 else "auto",
        max_epochs=2 if "epochs" in WORDS else 1,
        use_distributed_sampler="own_sampler" not in WORDS,
        reload_dataloaders_every_n_epochs=1 if "reload" in WORDS else 0,
        val_check_interval=0.5 if "val" in WORDS else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), ckpt_path=Path(OPTIONS.checkpoint) / "run.ckpt" if OPTIONS.resume else None, **how)


if __name__ == "__main__":
    main()
