"""Every loader of stoker's follows the protocol, by the tests that others' loaders are tested by."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from stoker import (
    Adaptive,
    LMStream,
    ReadOptions,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError, StateError
from stoker.partitions import Elastic
from stoker.testing import LoaderTests
from support import all_of, write_samples

PAD = 99


class OverSamples(LoaderTests):
    """Of loaders of samples with an ``id``."""

    def write(self, folder: Path, numbers: range) -> None:
        write_samples(folder, ({"id": number} for number in numbers), size_limit=100)

    def dataset(self, folder: Path, world: World, **more: Any) -> StreamingDataset:
        options: dict[str, Any] = {"shuffle": True, "batch_size": 1, "remainder": "uneven", **more}
        return StreamingDataset(folder, world=world, **options)

    def samples(self, item: Any) -> list[int]:
        return [int(number) for number in np.atleast_1d(np.asarray(item["id"]))]


class TestStreamingDataset(OverSamples):
    def make(self, folder: Path, world: World) -> StreamingDataset:
        return self.dataset(folder, world)


class TestStreamingDatasetPadded(OverSamples):
    def make(self, folder: Path, world: World) -> StreamingDataset:
        return self.dataset(folder, world, remainder="pad")


class TestStreamingDataLoader(OverSamples):
    workers = 0

    def make(self, folder: Path, world: World) -> StreamingDataLoader:
        return StreamingDataLoader(self.dataset(folder, world, batch_size=2), num_workers=self.workers)


@pytest.mark.processes
class TestStreamingDataLoaderWithWorkers(TestStreamingDataLoader):
    workers = 1


class TestStreamingShardLoader(OverSamples):
    def make(self, folder: Path, world: World) -> StreamingShardLoader:
        return StreamingShardLoader(self.dataset(folder, world), world=world, remainder="pad")


class TestStreamingShardLoaderOfArrays(OverSamples):
    def write(self, folder: Path, numbers: range) -> None:
        np.save(folder / "id.npy", np.array(numbers))

    def make(self, folder: Path, world: World) -> StreamingShardLoader:
        config = StreamingConfig(
            world.world_size,
            world.rank,
            Elastic(),
            prefetch_buffer_size=4,
            shuffle_seed=3,
            batch_size=2,
            remainder="drop",
        )
        return StreamingShardLoader({"id": np.load(folder / "id.npy")}, config)


class OverTokens(LoaderTests):
    """Of loaders of batches for language models, whose samples are tokens."""

    def write(self, folder: Path, numbers: range) -> None:
        for start in range(numbers.start, numbers.stop, 6):
            documents = [[number] for number in range(start, min(start + 6, numbers.stop))]
            table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
            pq.write_table(table, folder / f"{start:02}.parquet", row_group_size=3)

    def samples(self, item: Any) -> list[int]:
        return [token for token in item.input_ids.reshape(-1).tolist() if token != PAD]


class TestStreamingParquetLoader(OverTokens):
    def make(self, folder: Path, world: World) -> StreamingParquetLoader:
        return StreamingParquetLoader(
            folder, batch_size=1, seq_len=2, layout="pad", pad_id=PAD, world=world, remainder="uneven"
        )


class TestLMStream(OverTokens):
    any_world = False
    known_length = False

    def make(self, folder: Path, world: World) -> LMStream:
        dataset = StreamingDataset(folder, format="parquet", shuffle=True, world=world, remainder="uneven")
        dataset.batch_size = 2
        return LMStream(dataset, "tokens", batch_size=1, seq_len=2, pad_id=PAD)


class TestLMStreamOfPaddedDocuments(TestLMStream):
    known_length = True

    def make(self, folder: Path, world: World) -> LMStream:
        dataset = StreamingDataset(folder, format="parquet", shuffle=True, world=world, remainder="uneven")
        return LMStream(dataset, "tokens", batch_size=1, seq_len=2, layout="pad", pad_id=PAD)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iteration_whose_loader_is_closed_says_so_and_the_next_continues(tmp_path: Path, workers: int) -> None:
    over = TestStreamingDataLoader()
    over.write(tmp_path, range(47))
    dataset = over.dataset(tmp_path, World(0, 1), batch_size=2)
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
    iterator = iter(loader)
    first = over.samples(next(iterator))
    loader.close()
    with pytest.raises(StateError, match="was closed in the middle of this iteration"):
        next(iterator)
    rest = StreamingDataLoader(over.dataset(tmp_path, World(0, 1), batch_size=2))
    rest.load_state_dict(loader.state_dict())
    assert sorted(first + [number for batch in rest for number in over.samples(batch)]) == list(range(47))
    assert len(list(loader)) == 24


def test_a_shard_loader_has_its_rank_from_one_argument(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give world= and remainder= without a config"):
        StreamingShardLoader({"id": np.arange(9)}, StreamingConfig(), world=World(0, 2))
    loader = StreamingShardLoader({"id": np.arange(9)}, world=World(1, 2), remainder="drop")
    assert (loader.config.rank, loader.config.world_size, loader.config.remainder) == (1, 2, "drop")


def test_a_stream_whose_length_is_unknown_says_with_which_layout_it_is_known(tmp_path: Path) -> None:
    over = TestLMStream()
    over.write(tmp_path, range(47))
    with pytest.raises(TypeError, match=r"known only with layout='pad' or 'truncate', not with 'concat'"):
        len(over.make(tmp_path, World(0, 1)))


@pytest.mark.parametrize("into", ["loader", "dataset"])
def test_a_loader_sees_a_state_that_is_loaded_into_its_dataset(tmp_path: Path, into: str) -> None:
    over = TestStreamingDataLoader()
    over.write(tmp_path, range(47))
    dataset = over.dataset(tmp_path, World(0, 1), batch_size=2)
    loader = StreamingDataLoader(dataset)
    begun = dataset.state_dict()
    running = iter(loader)
    first = [over.samples(next(running)) for _ in range(3)]
    (loader if into == "loader" else dataset).load_state_dict(begun)
    assert loader.state_dict() == begun
    with pytest.raises(StateError, match=r"load_state_dict\(\), set_weights\(\) or set_epoch\(\) was called"):
        next(running)
    assert [over.samples(batch) for batch in loader][:3] == first


def test_samples_end_at_once_when_a_state_is_loaded(tmp_path: Path) -> None:
    over = TestStreamingDataset()
    over.write(tmp_path, range(47))
    for options in ({}, {"transform": lambda sample: sample}, {"read": ReadOptions(read_threads=2)}):
        dataset = over.dataset(tmp_path, World(0, 1), batch_size=16, shuffle=False, **options)
        running = iter(dataset)
        assert [next(running)["id"] for _ in range(20)] == list(range(20)), "in the middle of a read"
        state = dataset.state_dict()
        dataset.load_state_dict(state)
        with pytest.raises(StateError, match="Create a new iterator"):
            next(running)
        assert dataset.state_dict() == state
        assert [sample["id"] for sample in dataset] == list(range(20, 47))


@pytest.mark.processes
def test_workers_of_torchs_own_loader_end_when_a_state_is_loaded(tmp_path: Path) -> None:
    over = TestStreamingDataset()
    over.write(tmp_path, range(400))
    dataset = over.dataset(tmp_path, World(0, 1), batch_size=4, shuffle=False)
    running = iter(DataLoader(dataset, batch_size=4, num_workers=1, prefetch_factor=1))
    next(running)
    dataset.load_state_dict(over.dataset(tmp_path, World(0, 1), batch_size=4, shuffle=False).state_dict())
    with pytest.raises(StateError, match=r"load_state_dict\(\), set_weights\(\) or set_epoch\(\) was called"):
        list(running)
    assert [int(one) for batch in DataLoader(dataset, batch_size=4, num_workers=1) for one in batch["id"]] == [
        *range(400)
    ]


def test_a_shard_loader_without_a_config_has_that_of_its_dataset(tmp_path: Path) -> None:
    over = TestStreamingDataset()
    over.write(tmp_path, range(47))
    found = []
    for rank in range(2):
        dataset = over.dataset(tmp_path, World(rank, 2), batch_size=8, remainder="uneven")
        loader = StreamingShardLoader(dataset)
        assert (loader.world.rank, loader.world.world_size) == (rank, 2)
        batches = [batch["id"].tolist() for batch in loader]
        assert {len(batch) for batch in batches[:-1]} == {8}
        found += [number for batch in batches for number in batch]
        again = over.dataset(tmp_path, World(rank, 2), batch_size=8)
        assert [sample["id"] for sample in StreamingShardLoader(again, StreamingConfig(2, rank))] == [
            number for batch in batches for number in batch
        ]
    assert sorted(found) == list(range(47))


def test_a_shard_loader_counts_the_ranks_that_read_different_samples(tmp_path: Path) -> None:
    over = TestStreamingDataset()
    over.write(tmp_path, range(47))
    datasets = [over.dataset(tmp_path, World(rank, 4), replication=2) for rank in range(4)]
    parts = [[batch["id"].tolist() for batch in StreamingShardLoader(dataset)] for dataset in datasets]
    assert parts[0] == parts[1] != parts[2] == parts[3]
    with pytest.raises(ConfigError, match=r"2 ranks read different samples, and the config says world_size=4"):
        StreamingShardLoader(datasets[0], StreamingConfig(4, 0))


def test_a_checkpoint_inside_a_batch_is_not_gone_on_with_in_batches(tmp_path: Path) -> None:
    over = TestStreamingDataset()
    over.write(tmp_path, range(47))
    one_by_one = StreamingShardLoader(over.dataset(tmp_path, World(0, 1), batch_size=8), StreamingConfig())
    for _ in range(3):
        one_by_one.next()
    with pytest.raises(StateError, match="taken 3 samples into a batch"):
        StreamingShardLoader(over.dataset(tmp_path, World(0, 1), batch_size=8)).load_state_dict(one_by_one.state_dict())


def test_a_loader_that_takes_part_in_leased_work_is_not_pickled(tmp_path: Path) -> None:
    config = StreamingConfig(1, 0, Adaptive(), coordinator=f"sqlite://{tmp_path / 'engine'}")
    with StreamingShardLoader({"id": np.arange(9)}, config) as loader:
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert copy.config == config
        loader.next()
        with pytest.raises(StateError, match="takes part in its run as rank 0"):
            pickle.dumps(loader)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("over", [TestLMStream(), TestLMStreamOfPaddedDocuments()])
def test_torchs_loader_takes_a_stream_and_its_workers_share_the_documents(
    tmp_path: Path, workers: int, over: OverTokens
) -> None:
    over.write(tmp_path, range(47))
    stream: Any = over.make(tmp_path, World(0, 1))
    found = [
        token for batch in DataLoader(stream, batch_size=None, num_workers=workers) for token in over.samples(batch)
    ]
    assert sorted(found) == list(range(47))
    if workers:
        stream.load_state_dict(over.make(tmp_path, World(0, 1)).state_dict())
        with pytest.raises(ConfigError, match="a state of an LMStream is resumed in one process"):
            all_of(DataLoader(stream, batch_size=None, num_workers=workers))
    with pytest.raises(ConfigError, match=r"for an LMStream use torch's DataLoader\(stream, batch_size=None\)"):
        StreamingDataLoader(stream)
