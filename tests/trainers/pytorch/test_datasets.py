"""A dataset beneath ``datasets.IterableDataset.from_generator``: that package divides among workers and ranks itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from stoker import StreamingDataset, World
from trainers.launch import write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples."""
    return write_dataset(tmp_path_factory.mktemp("data") / "data", 100)


def ids(samples: Any) -> list[int]:
    return [int(sample["id"]) for sample in samples]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_sample_is_lost_among_workers(data: Path, workers: int) -> None:
    dataset = StreamingDataset(str(data), shuffle=True, batch_size=4)
    wrapped = datasets.IterableDataset.from_generator(lambda: iter(dataset))
    loader: Any = DataLoader(wrapped, batch_size=None, num_workers=workers)
    assert sorted(ids(loader)) == list(range(100))


def test_ranks_get_different_samples(data: Path) -> None:
    seen = []
    for rank in range(2):
        dataset = StreamingDataset(str(data), shuffle=True, batch_size=4, world=World(rank, 2))
        wrapped = datasets.IterableDataset.from_generator(lambda dataset=dataset: iter(dataset))
        assert len(ids(wrapped)) == 50
        dataset.set_epoch(0)
        seen += ids(split_dataset_by_node(wrapped, rank=rank, world_size=2))
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("made", ["before", "in the thread"])
@pytest.mark.parametrize("way", ["shuffle", "map and shuffle", "interleave"])
def test_threads_of_the_package_read_for_its_division(data: Path, way: str, made: str, workers: int) -> None:
    """It fetches in threads where it shuffles or interleaves: the division is not on their stacks."""

    def stream(rank: int) -> datasets.IterableDataset:
        def make() -> StreamingDataset:
            return StreamingDataset(str(data), columns=["id"], shuffle=True, batch_size=4, world=World(rank, 2))

        if made == "before":
            dataset = make()
            return datasets.IterableDataset.from_generator(lambda: iter(dataset))
        return datasets.IterableDataset.from_generator(lambda: iter(make()))

    def wrapped(rank: int) -> datasets.IterableDataset:
        if way == "interleave":
            return datasets.interleave_datasets([stream(rank), stream(rank)])
        found = stream(rank)
        if way == "map and shuffle":
            found = found.map(lambda sample: {"id": sample["id"]})
        return found.shuffle(buffer_size=10, seed=1)

    alone, divided = [], []
    for rank in range(2):
        loader: Any = DataLoader(wrapped(rank), batch_size=None, num_workers=workers)
        alone += ids(loader)
        loader = DataLoader(split_dataset_by_node(wrapped(rank), rank, 2), batch_size=None, num_workers=workers)
        divided += ids(loader)
    for seen in (alone, divided):
        assert sorted(set(seen)) == list(range(100))
        assert len(seen) in ((198, 199, 200) if way == "interleave" else (100,))  # it ends with the first that ends
