"""torchtitan: a StreamingDataLoader stands where its trainer has a BaseDataLoader, and goes on with another world."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torchtitan.components.dataloader import BaseDataLoader, ParallelAwareDataloader

from stoker import Mesh, StreamingDataLoader, StreamingDataset, World
from trainers.launch import write_dataset


class Loader(StreamingDataLoader, BaseDataLoader):  # type: ignore[misc]
    """What a training configuration of torchtitan builds."""


def _pair(samples: list[dict[str, object]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    ids = torch.tensor([sample["id"] for sample in samples])
    return {"input": ids}, ids


def _dataset(data: Path, rank: int, size: int) -> StreamingDataset:
    mesh = Mesh({"pp": 1, "dp_replicate": 1, "dp_shard": size // 2, "tp": 2}, data=("dp_replicate", "dp_shard"))
    return StreamingDataset(data, shuffle=True, batch_size=4, replication=mesh, world=World(rank, size))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "data", 96)


def test_a_state_of_one_world_goes_on_in_another(data: Path) -> None:
    before, states = [], []
    for rank in range(4):
        loader = Loader(_dataset(data, rank, 4), collate_fn=_pair)
        assert isinstance(loader, BaseDataLoader)
        assert isinstance(loader, Stateful)
        batches = iter(loader)
        before.append([one for _ in range(5) for one in next(batches)[1].tolist()])
        states.append(loader.state_dict())
    assert before[0] == before[1]
    assert states == [states[0]] * 4
    loader = Loader(_dataset(data, 0, 2), collate_fn=_pair)
    loader.load_state_dict(states[3])
    rest = [one for batch, labels in loader for one in labels.tolist()]
    assert sorted(before[0] + before[2] + rest) == list(range(96))


def test_its_own_loader_of_a_dataset_goes_on_in_the_same_world(data: Path) -> None:
    seen: list[int] = []
    for rank in (0, 2):
        for workers in (0, 2):
            first = ParallelAwareDataloader(
                _dataset(data, rank, 4), rank // 2, 2, batch_size=4, collate_fn=_pair, num_workers=workers
            )
            batches = iter(first)
            part = [one for _ in range(5) for one in next(batches)[1].tolist()]
            state = first.state_dict()
            then = ParallelAwareDataloader(
                _dataset(data, rank, 4), rank // 2, 2, batch_size=4, collate_fn=_pair, num_workers=workers
            )
            then.load_state_dict(state)
            part += [one for _, labels in then for one in labels.tolist()]
            assert len(set(part)) == len(part) == 48
        seen += part
    assert sorted(seen) == list(range(96))
