"""Code that divides samples by their ids, and takes a rank's length for their number."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ChainDataset, DataLoader, Dataset, RandomSampler, random_split
from torch.utils.data.distributed import DistributedSampler

from stoker import StreamingDataset, World
from stoker.errors import ConfigError
from support import make_dataset

RANK = World(rank=0, world_size=2)


@pytest.fixture
def dataset(tmp_path: Path) -> StreamingDataset:
    make_dataset(tmp_path / "data", 40)
    return StreamingDataset(tmp_path / "data", batch_size=4, world=RANK)


class Own(Dataset[Any]):
    """A dataset by id, as people write it around another."""

    def __init__(self, inner: StreamingDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, number: int) -> Any:
        return self.inner[number]


def test_torch_does_not_divide_by_a_ranks_length(dataset: StreamingDataset) -> None:
    with pytest.raises(ConfigError, match=r"random_split takes the length .*, 20, .*ids are 0 to 39"):
        random_split(dataset, [0.8, 0.2])
    with pytest.raises(ConfigError, match="DistributedSampler takes the length"):
        DistributedSampler(dataset, num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match="RandomSampler"):
        len(RandomSampler(dataset))


def test_torch_divides_by_the_length_of_one_rank_that_reads_all(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 40)
    dataset = StreamingDataset(tmp_path / "data")
    assert [len(part) for part in random_split(dataset, [0.8, 0.2])] == [32, 8]
    with pytest.raises(ConfigError, match="takes the length"):
        random_split(StreamingDataset(tmp_path / "data", epoch_size=20), [0.5, 0.5])


def test_what_reads_in_order_may_ask_for_the_length(dataset: StreamingDataset) -> None:
    assert len(ChainDataset([dataset, dataset])) == 40
    assert len(DataLoader(dataset, 4)) == 5


def test_a_dataset_around_it_that_has_its_length_is_warned(
    dataset: StreamingDataset, caplog: pytest.LogCaptureFixture
) -> None:
    assert sum(len(batch["id"]) for batch in DataLoader(Own(dataset), 4)) == 20
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "that is 20, what this rank gets in an epoch. Of all samples there are 40" in caplog.text
    caplog.clear()
    assert len(dataset) == 20
    assert dataset[7] is not None
    assert not caplog.text
