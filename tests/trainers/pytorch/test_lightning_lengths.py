"""Lightning and loaders whose length is not known, of which it reads a batch ahead: a resumed run has all that was left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader

from stoker import (
    LMStream,
    MDSWriter,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)
from stoker.errors import StateError

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SIZES = {"long": 60, "short": 24}
"""Rows of 8 tokens, each of which is the row's number. Batches are of 4 rows."""
Make = Callable[[Path], Any]


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Notes the rows that come from each loader."""

    def __init__(self, checkpoint: Path, stop_after: int | None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = [[], []]
        self.checkpoint, self.stop_after = checkpoint, stop_after

    def training_step(self, batch: Any) -> torch.Tensor:
        for seen, part in zip(self.seen, batch if isinstance(batch, list) else [batch], strict=False):
            if part is not None:
                rows = part["input_ids"] if isinstance(part, dict) else part.input_ids
                seen += np.asarray(rows)[:, 0].tolist()
        loss: torch.Tensor = self.layer(torch.ones(1, 1)).sum()
        return loss

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == self.stop_after:
            self.trainer.save_checkpoint(self.checkpoint)
            self.trainer.should_stop = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows, in two sizes, as MDS and as Parquet."""
    root = tmp_path_factory.mktemp("data")
    for name, count in SIZES.items():
        rows = np.repeat(np.arange(count, dtype=np.int32)[:, None], 8, 1)
        with MDSWriter({"input_ids": "ndarray:int32:8"}, str(root / name), size_limit=1000) as writer:
            writer.write_batch({"input_ids": rows})
        pq.write_table(pa.table({"input_ids": rows.tolist()}), root / f"{name}.parquet", row_group_size=8)
    return root


def stream(name: str) -> Make:
    return lambda root: LMStream(StreamingDataset(str(root / name), shuffle=True), "input_ids", 4, 8)


def loader(name: str) -> Make:
    return lambda root: StreamingDataLoader(StreamingDataset(str(root / name), shuffle=True, batch_size=4))


def parquet(name: str) -> Make:
    return lambda root: StreamingParquetLoader(str(root / f"{name}.parquet"), batch_size=4, seq_len=8)


def shard_loader(name: str) -> Make:
    return lambda root: StreamingShardLoader(StreamingDataset(str(root / name), batch_size=4))


def fit(data: Path, makes: tuple[Make, ...], mode: str, out: Path, stop: int | None, resume: bool) -> list[list[int]]:
    """Train for an epoch, or a part of one; what came from each loader."""
    model = Model(out / "run.ckpt", stop)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [make(data) for make in makes]
    trainer.fit(
        model,
        CombinedLoader(loaders, mode) if len(loaders) > 1 else loaders[0],
        ckpt_path=str(model.checkpoint) if resume else None,
    )
    return model.seen


@pytest.mark.parametrize(
    ("makes", "mode", "stop"),
    [
        ((stream("long"),), "", 6),
        ((loader("long"), stream("short")), "min_size", 4),
        ((stream("short"), stream("long")), "min_size", 4),
        ((loader("long"), stream("short")), "max_size_cycle", 8),
        ((loader("short"), stream("long")), "max_size_cycle", 8),
        ((loader("short"), stream("long")), "max_size", 4),
        ((parquet("long"), stream("short")), "max_size_cycle", 8),
    ],
)
def test_what_was_left_comes(data: Path, tmp_path: Path, makes: tuple[Make, ...], mode: str, stop: int) -> None:
    whole = fit(data, makes, mode, tmp_path, None, False)
    assert any(len(set(one)) == len(one) >= SIZES["short"] for one in whole)
    first = fit(data, makes, mode, tmp_path, stop, False)
    rest = fit(data, makes, mode, tmp_path, None, True)
    assert [len(one) for one in first] == [4 * stop if one else 0 for one in whole]
    assert [one + other for one, other in zip(first, rest, strict=True)] == whole


@pytest.mark.parametrize("makes", [(loader("short"), stream("long")), (stream("short"), loader("long"))])
def test_a_loader_that_had_ended_before_a_longer_one_is_not_resumed(
    data: Path, tmp_path: Path, makes: tuple[Make, ...]
) -> None:
    seen = fit(data, makes, "max_size", tmp_path, 12, False)
    assert sorted(map(len, seen)) == [24, 48]
    with pytest.raises(StateError, match=r"when this loader of a CombinedLoader.* had ended"):
        fit(data, makes, "max_size", tmp_path, None, True)


def test_a_shard_loader_next_to_one_without_a_length_gives_no_state(data: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"asked for ahead of training.* this loader alone"):
        fit(data, (shard_loader("long"), stream("long")), "max_size_cycle", tmp_path, 4, False)
