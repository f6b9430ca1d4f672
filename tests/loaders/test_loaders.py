"""Every loader of stoker's follows the protocol, by the tests that others' loaders are tested by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import (
    LMStream,
    MDSWriter,
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

PAD = 99


class OverSamples(LoaderTests):
    """Of loaders of samples with an ``id``."""

    def write(self, folder: Path, numbers: range) -> None:
        with MDSWriter({"id": "int"}, folder, size_limit=100) as out:
            for number in numbers:
                out.write({"id": number})

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
