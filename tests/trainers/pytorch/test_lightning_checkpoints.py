"""Lightning: from any of its checkpoints, training goes on as a run that was never interrupted, batch for batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from stoker import LMStream, StreamingDataLoader, StreamingDataset, StreamingParquetLoader
from stoker.tokens.batch import LMBatch
from trainers.launch import write_dataset

Seen = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples, 6 batches of 4; next to them as many rows of tokens."""
    folder = tmp_path_factory.mktemp("data")
    pq.write_table(pa.table({"input_ids": [[row] * 8 for row in range(24)]}), folder / "rows.parquet", row_group_size=5)
    return write_dataset(folder / "data", 24)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Notes the epoch and the ids of each step, and fails in the step of a number."""

    def __init__(self, fails_in: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.seen: Seen = []
        self.fails_in = fails_in

    def training_step(self, batch: Any) -> torch.Tensor:
        if len(self.seen) == self.fails_in:
            raise RuntimeError("as the test wants")
        if isinstance(batch, LMBatch):
            rows = torch.as_tensor(batch.input_ids)
            batch = {"id": rows[:, 0], "x": rows.float()}
        batches = batch if isinstance(batch, list | tuple) else [batch]
        self.seen.append((self.current_epoch, *(one["id"].tolist() for one in batches)))
        loss: torch.Tensor = self.layer(batches[0]["x"]).square().mean()
        return loss

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # Lightning moves no LMBatch

    def validation_step(self, batch: Any) -> None:
        self.log("loss", self.layer(batch["x"]).square().mean(), batch_size=4)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def _fit(data: Path, *, kind: str = "", checkpoint: Path | None = None, model: Model | None = None, **how: Any) -> Seen:
    def loader(size: int | None = None) -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(str(data), shuffle=True, batch_size=4, epoch_size=size))

    train: Any = loader(16 if kind == "part" else None)
    if kind == "tokens":
        train = StreamingParquetLoader(str(data.parent / "rows.parquet"), shuffle=True, batch_size=4, seq_len=8)
    if kind == "combined":
        train = CombinedLoader([train, loader(16)], "max_size_cycle")
    if kind == "stream":
        dataset = StreamingDataset(str(data.parent / "rows.parquet"), shuffle=True)
        train = LMStream(dataset, "input_ids", batch_size=4, seq_len=8)
    after = how.pop("after", None)
    model = model or Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing="callbacks" in how,
        num_sanity_val_steps=0,
        **how,
    )
    trainer.fit(model, train, loader(8) if kind == "validated" else None, ckpt_path=checkpoint)
    if after is not None:
        trainer.save_checkpoint(after)
    return model.seen


STEPS = {"max_steps": 15, "max_epochs": -1}


@pytest.mark.parametrize(
    ("kind", "first", "whole", "both"),
    [
        ("part", {"max_epochs": 2}, {"max_epochs": 4}, {}),
        ("validated", {"max_epochs": 2}, {"max_epochs": 3}, {"val_check_interval": 3}),
        ("combined", {"max_epochs": 2}, {"max_epochs": 3}, {}),
        ("", {"max_steps": 12, "max_epochs": -1}, {"max_steps": 24, "max_epochs": -1}, {}),
        ("validated", STEPS, {"max_steps": 24, "max_epochs": 4}, {}),
        ("combined", STEPS, {"max_steps": 24, "max_epochs": -1}, {}),
        ("", STEPS, {"max_epochs": 4}, {}),
        ("tokens", {"max_epochs": 2}, {"max_epochs": 4}, {}),
        ("tokens", STEPS, {"max_steps": 24, "max_epochs": -1}, {}),
        ("tokens", {"max_epochs": 2}, {"max_epochs": 3}, {"limit_train_batches": 4}),
        ("stream", {"max_epochs": 2}, {"max_epochs": 4}, {}),
        ("stream", STEPS, {"max_steps": 24, "max_epochs": -1}, {}),
        ("", {"max_steps": 8, "max_epochs": -1}, {"max_steps": 15, "max_epochs": -1}, {"limit_train_batches": 4}),
        ("validated", {"max_epochs": 2}, {"max_epochs": 3}, {"limit_train_batches": 4}),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(f"{name}{value}" for name, value in one.items()),
)
def test_every_checkpoint_goes_on_as_the_run_that_was_not_interrupted(
    kind: str, first: dict[str, Any], whole: dict[str, Any], both: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    full = _fit(data, kind=kind, **whole, **both)
    saves = [
        ModelCheckpoint(tmp_path, filename="end-{step}", save_top_k=-1),
        ModelCheckpoint(tmp_path, filename="step-{step}", save_top_k=-1, every_n_train_steps=2),
    ]
    _fit(data, kind=kind, callbacks=saves, after=tmp_path / "after.ckpt", **first, **both)
    found = sorted(tmp_path.glob("*.ckpt"))
    assert len(found) >= 6
    for checkpoint in found:
        step = torch.load(checkpoint, weights_only=False)["global_step"]
        assert _fit(data, kind=kind, checkpoint=checkpoint, **whole, **both) == full[step:], checkpoint.name


def test_a_checkpoint_of_a_checkpoint_of_an_epochs_last_batch_goes_on_right(data: Path, tmp_path: Path) -> None:
    full = _fit(data, max_epochs=4)
    every = {"save_top_k": -1, "every_n_train_steps": 1, "filename": "{step}"}
    _fit(data, callbacks=[ModelCheckpoint(tmp_path / "1", **every)], max_epochs=1)
    last = tmp_path / "1" / "step=6.ckpt"
    _fit(data, callbacks=[ModelCheckpoint(tmp_path / "2", **every)], max_epochs=2, checkpoint=last)
    for step in (8, 12):
        assert _fit(data, checkpoint=tmp_path / "2" / f"step={step}.ckpt", max_epochs=4) == full[step:]


@pytest.mark.parametrize("step", [0, 2, 5, 6])
def test_a_batch_whose_step_failed_comes_again(step: int, data: Path, tmp_path: Path) -> None:
    full = _fit(data, max_epochs=2)
    with suppress(RuntimeError):
        _fit(data, model=Model(fails_in=step), callbacks=[OnExceptionCheckpoint(tmp_path, "failed")], max_epochs=2)
    assert _fit(data, checkpoint=tmp_path / "failed.ckpt", max_epochs=2) == full[step:]
