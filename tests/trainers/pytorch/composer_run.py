"""Trains for three epochs with Composer's Trainer; see ``trainers.launch``.

It saves in an epoch's middle, after its last batch, and after an epoch. ``--resume`` goes on from each of these checkpoints
to the end, one after the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Missing(ModuleType):
    """A module of torchvision, which composer imports for its models of images alone, and which is not installed here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else _missing(f"{self.__name__}.{name}")


def _missing(name: str) -> ModuleType:
    made = sys.modules.get(name)
    if made is None:
        made = sys.modules[name] = _Missing(name)
        made.__path__ = []
        made.__spec__ = ModuleSpec(name, None)
    return made


for _name in ("", ".datasets", ".models", ".models.resnet", ".ops", ".transforms", ".transforms.functional", ".utils"):
    _missing(f"torchvision{_name}")
_missing("torchvision.models.detection")
_missing("mcli")
os.environ.setdefault("NODE_RANK", "0")

import torch  # noqa: E402
from composer import ComposerModel, Trainer  # noqa: E402
from composer.core import Event  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from stoker import StreamingDataset  # noqa: E402
from trainers.launch import arguments, record  # noqa: E402

CHECKPOINTS = ("0-3", "0-5", "2-10")
"""Epochs that were ended and batches that were trained, of 5 batches an epoch."""
OPTIONS = arguments(__doc__)


class Model(ComposerModel):  # type: ignore[misc]
    """A layer that notes the samples that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.steps: list[list[int]] = []

    def forward(self, batch: Any) -> Any:
        return self.layer(batch["x"])

    def loss(self, outputs: Any, batch: Any) -> Any:
        self.steps.append(batch["id"].tolist())
        return outputs.square().mean()


def make_loader() -> DataLoader[Any]:
    dataset = StreamingDataset(OPTIONS.data, shuffle=True, batch_size=OPTIONS.batch_size)
    return DataLoader(dataset, batch_size=OPTIONS.batch_size, num_workers=OPTIONS.workers)


def train(loader: Any, **options: Any) -> list[list[int]]:
    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        max_duration="3ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        device="cpu",
        device_train_microbatch_size=OPTIONS.batch_size,
        progress_bar=False,
        **options,
    )
    trainer.fit()
    trainer.close()
    return model.steps


def runs() -> Iterator[list[list[int]]]:
    folder = OPTIONS.checkpoint
    if OPTIONS.resume:
        for name in CHECKPOINTS:
            yield train(make_loader(), load_path=f"{folder}/{name}-rank{{rank}}.pt")
    else:
        name = "{epoch}-{batch}-rank{rank}.pt"
        yield train(make_loader(), save_folder=folder, save_filename=name, save_interval=saves)


def saves(state: Any, event: Any) -> bool:
    """Whether a checkpoint is saved now."""
    return int(state.timestamp.batch) in {Event.BATCH_CHECKPOINT: (3, 5), Event.EPOCH_CHECKPOINT: (10,)}.get(event, ())


if __name__ == "__main__":
    record(OPTIONS.out, int(os.environ["RANK"]), [step for steps in runs() for step in steps])
