"""What may be read of an open dataset and its streams, by the names that mosaicml-streaming's users know."""

from __future__ import annotations

import functools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import (
    LocalDataset,
    MDSWriter,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError, DestinationExistsError, FormatError, IndexFileError, UnsafeDataError
from stoker.lazy import cached_property
from stoker.partitions import Elastic
from stoker.streams.registry import streams_registry
from stoker.util import bytes_to_int, clean_stale_shared_memory, get_list_arg, merge_index, number_abbrev_to_int

SIZES = {"a": 100, "b": 60}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    for name, size in SIZES.items():
        for split in ("train", "val"):
            with MDSWriter({"id": "int"}, out / name / split, size_limit=200) as writer:
                writer.write_batch({"id": np.arange(size if split == "train" else 5)})
    return out


def both(root: Path, **options: Any) -> StreamingDataset:
    streams = [Stream(str(root / name)) for name in SIZES]
    return StreamingDataset(streams=streams, split="train", **options)


def test_samples_and_shards(root: Path) -> None:
    dataset = both(root, batch_size=8)
    assert (dataset.num_samples, dataset.size, dataset.length, dataset.epoch_size) == (160, 160, 160, 160)
    assert dataset.num_streams == len(dataset.streams) == 2
    assert dataset.stream_names == ("a", "b")
    assert dataset.num_shards == len(dataset.shards) == len(dataset.samples_per_shard)
    assert [shard.samples for shard in dataset.shards] == dataset.samples_per_shard.tolist()
    assert dataset.samples_per_stream.tolist() == [100, 60]
    assert dataset.sample_offset_per_stream.tolist() == [0, 100]
    first = int(dataset.shard_offset_per_stream[1])
    assert dataset.shards_per_stream.tolist() == [first, dataset.num_shards - first]
    assert dataset.sample_offset_per_shard[first] == 100
    assert np.bincount(dataset.stream_per_shard).tolist() == dataset.shards_per_stream.tolist()


def test_a_split_of_the_dataset_is_for_streams_without_one(root: Path) -> None:
    streams = [Stream(str(root / "a")), Stream(str(root / "b"), split="val")]
    assert StreamingDataset(streams=streams, split="train").samples_per_stream.tolist() == [100, 5]


def test_arguments_are_attributes_that_can_not_be_changed(root: Path) -> None:
    given: dict[str, Any] = {
        "allow_unsafe_types": True,
        "batch_size": 4,
        "batching_method": "stratified",
        "num_canonical_nodes": 2,
        "predownload": 16,
        "replication": 1,
        "sampling_granularity": 2,
        "sampling_method": "fixed",
        "shuffle": True,
        "shuffle_algo": "global",
        "shuffle_block_size": 50,
        "shuffle_seed": 5,
    }
    dataset = both(root, **given)
    assert {name: getattr(dataset, name) for name in given} == given
    assert (dataset.partition_algo, dataset.cache_limit) == (Elastic(), None)
    dataset.shuffle_seed = 5  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"shuffle_seed tells of the open dataset.*give it to the constructor"):
        dataset.shuffle_seed = 6  # type: ignore[assignment]
    with pytest.raises(
        ConfigError, match=r"columns tells of the open dataset.*call an attribute of your own otherwise"
    ):
        dataset.columns = ("mine",)  # type: ignore[misc]


def test_attributes_have_docstrings_of_their_own() -> None:
    assert StreamingDataset.shuffle_algo.__doc__ == "Name of the shuffle."
    assert StreamingDataset.num_shards.__doc__ == "Number of shards, all streams together."


class Noted(StreamingDataset):
    """Sets attributes before and after the dataset is open."""

    def __init__(self, *, note: str, shuffle: bool, **options: Any) -> None:
        self.shuffle = not shuffle  # type: ignore[assignment]
        self.note = note
        super().__init__(shuffle=shuffle, **options)
        self.shuffle = shuffle  # type: ignore[assignment]


def test_a_subclass_may_set_what_it_gave_to_the_constructor(root: Path) -> None:
    dataset = Noted(note="mine", shuffle=True, local=root / "a", split="train")
    assert (dataset.note, dataset.shuffle) == ("mine", True)
    with pytest.raises(ConfigError, match="unknown"):
        Noted(note="mine", shuffle=True, local=root / "a", bach_size=3)


OWN = ("columns", "ids", "index", "order", "world", "counts", "chain", "remainder", "stream_names")


class Poison:
    """Fails where anything is done with it."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"):
            return object.__getattribute__(self, name)
        raise AssertionError(f"{name} of a subclass's own value was asked for")


class Own(StreamingDataset):
    """Has values of its own under names that mosaicml-streaming's dataset does not have."""

    def __init__(self, *, when: str, **options: Any) -> None:
        values = {name: Poison() for name in OWN}
        if when == "before":
            self.__dict__["kept"] = values
            for name in OWN:
                setattr(self, name, values[name])
        super().__init__(**options)
        if when == "after":
            self.__dict__["kept"] = values
            for name in OWN:
                setattr(self, name, values[name])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_subclass_has_its_own_values_under_names_of_ours(root: Path, when: str) -> None:
    options: dict[str, Any] = {"local": root / "a", "split": "train", "batch_size": 4, "shuffle": True}
    plain, own = StreamingDataset(**options), Own(when=when, **options)

    def given(dataset: StreamingDataset) -> list[Any]:
        mapped = dataset.map(_same)
        loader = StreamingDataLoader(dataset, batch_size=4)
        found: list[Any] = [str(sorted(sample)) + str(sample["id"]) for sample in dataset]
        found += [str(batch) for batch in loader]
        state = loader.state_dict()
        loader.load_state_dict(state)
        found += [state, str(loader.remainder), loader.world, len(dataset), len(loader)]
        found += [str(batch) for batch in mapped.batches()]
        found += [str(sample) for sample in StreamingShardLoader(mapped, world=World())]
        return [*found, dataset.where(3), dataset.ids_of(1).tolist(), type(dataset.stats())]

    expected, found = given(plain), given(own)
    assert [str(one) for one in found] == [str(one).replace("<StreamingDataset", "<Own") for one in expected]
    assert {name: own.__dict__[name] for name in OWN} == own.__dict__["kept"]
    assert pickle.loads(pickle.dumps(own)).__dict__.keys() >= set(OWN)
    with pytest.raises(ConfigError, match="columns tells of the open dataset"):
        plain.columns = ("id",)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["size", "leaves_out", "epoch_reader", "states_loaded"])
def test_what_can_not_be_set_after_opening_can_not_be_set_before(root: Path, name: str) -> None:
    class Sets(StreamingDataset):
        def __init__(self) -> None:
            setattr(self, name, 3)
            super().__init__(local=root / "a", split="train")

    with pytest.raises(ConfigError, match=f"{name} tells of the open dataset"):
        Sets()


def _same(sample: Any) -> Any:
    return sample


def test_shards_are_fetched_and_evicted_by_number(root: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(str(root / "a"), local=tmp_path / "cache", split="train")
    assert dataset.cache_usage == 0
    dataset.prepare_shard(1)
    used = dataset.cache_usage
    assert used == dataset.shards[1].size
    dataset.prepare_shard(0)
    assert dataset.cache_usage == used + dataset.shards[0].size
    dataset.evict_shard(1)
    assert dataset.cache_usage == dataset.shards[0].size
    assert [sample["id"] for sample in dataset] == list(range(100))
    for number in (-1, dataset.num_shards):
        with pytest.raises(IndexError):
            dataset.prepare_shard(number)
    here = StreamingDataset(local=root / "a", split="train")
    assert here.cache_usage == 0
    with pytest.raises(ConfigError, match="nothing to evict"):
        here.evict_shard(0)


# -- streams -------------------------------------------------------------------------------------------------------------


def weights(dataset: StreamingDataset) -> list[tuple[Any, Any, Any]]:
    return [(stream.proportion, stream.repeat, stream.choose) for stream in dataset.streams]


def test_a_streams_weights_can_be_read_once_it_is_open(root: Path) -> None:
    streams = [
        Stream(str(root / "a"), split="train", proportion=3),
        Stream(str(root / "b"), split="train", proportion=1),
    ]
    assert (streams[0].proportion, streams[0].repeat) == (3, None)
    dataset = StreamingDataset(streams=streams, epoch_size=80)
    assert dataset.streams == tuple(streams)
    assert weights(dataset) == [(0.75, 0.6, 60), (0.25, 20 / 60, 20)]
    assert weights(StreamingDataset(streams=streams, epoch_size=40)) == [(0.75, 0.3, 30), (0.25, 10 / 60, 10)]
    streams[1].proportion = 3
    assert [choose for _, _, choose in weights(StreamingDataset(streams=streams, epoch_size=80))] == [40, 40]
    assert "proportion=3" in repr(streams[1])
    assert "choose" not in repr(streams[1])
    assert weights(both(root)) == [(100 / 160, 1.0, 100), (60 / 160, 1.0, 60)]
    mosaicml = [Stream(str(root / "a"), split="train", choose=50), Stream(str(root / "b"), split="train", repeat=0.5)]
    opened = StreamingDataset(streams=mosaicml, shuffle_algo="py1e", batch_size=4)
    assert weights(opened) == [(50 / 80, 0.5, 50), (30 / 80, 0.5, 30)]


def test_a_schedule_leaves_streams_without_weights(root: Path) -> None:
    dataset = both(root, epoch_size=40, sampling_method=Schedule(((0, (("a", 1), ("b", 1))),)))
    assert weights(dataset) == [(None, None, None)] * 2


class Counting(Stream):
    """Has an argument and a state of its own."""

    def __init__(self, *, start: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.count = start


def test_subclasses_of_stream_keep_what_is_theirs(root: Path) -> None:
    stream = Counting(start=3, remote=str(root / "a"), split="train", choose=10)
    dataset = StreamingDataset(streams=[stream])
    assert dataset.streams[0] is stream
    stream.count += 1
    copied = pickle.loads(pickle.dumps(dataset)).streams[0]
    assert (type(copied), copied.count, copied.choose) == (Counting, 4, 10)
    assert repr(stream).startswith("Counting(remote=")
    with pytest.raises(ConfigError, match="unknown"):
        Counting(remot="x")


def test_a_stream_whose_methods_would_fetch_shards_is_refused(root: Path) -> None:
    class Fetching(Stream):
        def prepare_shard(self, shard: Any) -> int:
            return 0

    with pytest.raises(ConfigError, match=r"Fetching\.prepare_shard\(\) would never be called"):
        StreamingDataset(streams=[Fetching(str(root / "a"), split="train")])


def test_a_streams_class_is_chosen_by_name(root: Path) -> None:
    streams_registry.register("counting", func=Counting)
    options: dict[str, Any] = {"remote": str(root / "a"), "split": "train"}
    dataset = StreamingDataset(stream_name="counting", stream_config={"start": 7}, **options)
    assert isinstance(dataset.streams[0], Counting)
    assert dataset.streams[0].count == 7
    assert StreamingDataset(stream_config={"repeat": 2.0}, **options).epoch_size == 200
    assert StreamingDataset(stream_config=None, **options).epoch_size == 100
    with pytest.raises(ConfigError, match="stream_name 'countin' is unknown; did you mean 'counting'"):
        StreamingDataset(stream_name="countin", **options)
    with pytest.raises(ConfigError, match="remote= is in stream_config= and an argument"):
        StreamingDataset(stream_config={"remote": "x"}, **options)
    with pytest.raises(ConfigError, match="give streams=, or"):
        StreamingDataset(streams=[Stream(**options)], stream_config={"repeat": 2.0})
    with pytest.raises(ConfigError, match="must be a subclass"):
        streams_registry.register("none", func=dict)  # type: ignore[arg-type]


# -- order, warnings, errors -----------------------------------------------------------------------------------------------


def test_an_order_of_mosaicml_streaming_is_its_own_without_shuffling_too(root: Path) -> None:
    dataset = both(root, shuffle_algo="py1e", batch_size=4)
    assert dataset.order["like"] == "mosaicml-streaming"
    assert "like" not in both(root, batch_size=4).order
    with pytest.raises(ConfigError, match="remainder= cannot be combined with shuffle_algo='py1e'"):
        both(root, shuffle_algo="py1e", remainder="drop")


def test_a_lookahead_of_less_than_a_batch_is_said(root: Path) -> None:
    with pytest.warns(UserWarning, match="predownload=4 is less than batch_size=8") as found:
        both(root, batch_size=8, predownload=4)
    assert found[0].filename == __file__


def test_errors_are_those_that_callers_wait_for(root: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="exist_ok=True") as raised:
        MDSWriter({"id": "int"}, root / "a" / "train")
    assert isinstance(raised.value, DestinationExistsError)
    assert isinstance(raised.value, ValueError)
    (tmp_path / "index.json").write_text('{"version": 2,')
    with pytest.raises(json.JSONDecodeError, match="not valid JSON") as broken:
        StreamingDataset(local=tmp_path)
    assert isinstance(broken.value, IndexFileError)
    assert isinstance(broken.value, FormatError)
    copied = pickle.loads(pickle.dumps(broken.value))
    assert (str(copied), copied.pos) == (str(broken.value), broken.value.pos)


def test_a_writer_tells_its_settings_and_ends_a_shard(tmp_path: Path) -> None:
    with MDSWriter({"id": "int"}, tmp_path, compression="zstd", hashes=["sha1"], size_limit="1kb") as writer:
        config = writer.get_config()
        writer.write({"id": 1})
        writer.flush_shard()
        writer.write({"id": 2})
    assert config == {
        "version": 2,
        "format": "mds",
        "compression": "zstd",
        "hashes": ["sha1"],
        "size_limit": 1024,
        "column_names": ["id"],
        "column_encodings": ["int"],
        "column_sizes": [8],
    }
    assert StreamingDataset(local=tmp_path).num_shards == 2


def test_a_local_dataset_is_read_by_id(root: Path) -> None:
    dataset = LocalDataset(root / "a", split="train")
    assert not hasattr(dataset, "ids_of")  # it has no order
    assert len(dataset) == dataset.size == dataset.num_samples == 100
    assert sum(shard.samples for shard in dataset.shards) == 100
    assert dataset[7] == dataset[np.int64(7)] == dataset[-93] == {"id": 7}
    assert [sample["id"] for sample in dataset[3:6]] == [3, 4, 5]
    assert [sample["id"] for sample in dataset[np.array([4, 2])]] == [4, 2]
    with pytest.raises(IndexError):
        dataset[100]

    class Negative(LocalDataset):
        def get_item(self, sample_id: int) -> Any:  # type: ignore[override]  # as users of mosaicml-streaming write it
            return -super().get_item(sample_id)["id"]

    assert Negative(str(root / "a"), "train")[[1, 2]] == [-1, -2]


def test_shared_memory_needs_no_cleaning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "stoker.util"):
        clean_stale_shared_memory()
    assert "does nothing" in caplog.text
    assert merge_index.__module__ == "stoker.index.merge"


# -- torch -----------------------------------------------------------------------------------------------------------------

TORCH = """
import sys
{before}
from stoker import MDSWriter, StreamingDataset
class Mine(StreamingDataset): pass
with MDSWriter({{"id": "int"}}, "data") as out: out.write({{"id": 1}})
datasets = [StreamingDataset(local="data"), Mine(local="data")]
{after}
import pickle
from torch.utils.data import Dataset, IterableDataset, DataLoader
for dataset in datasets:
    {first}
    assert isinstance(dataset, Dataset) and isinstance(dataset, IterableDataset)
    assert dataset.__class__ is type(dataset) and isinstance(dataset, StreamingDataset)
    assert [int(batch["id"][0]) for batch in DataLoader(dataset)] == [1]
class Later(StreamingDataset, Dataset): pass
assert isinstance(Later(local="data"), Dataset)
"""


@pytest.mark.processes
@pytest.mark.parametrize("before", ["", "import torch"])
@pytest.mark.parametrize(
    "first", ["pass", "assert isinstance(dataset, Dataset)", "pickle.loads(pickle.dumps(dataset))"]
)
def test_a_dataset_is_torchs_dataset_however_late_torch_is_imported(tmp_path: Path, before: str, first: str) -> None:
    pytest.importorskip("torch")
    after = "" if before else 'assert "torch" not in sys.modules'
    code = TORCH.format(before=before, after=after, first=first)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


def test_small_functions_of_the_utilities() -> None:
    assert get_list_arg("text,tokens") == ["text", "tokens"]
    assert get_list_arg("") == []
    assert bytes_to_int("1.5kb") == 1536
    assert number_abbrev_to_int("10k") == 10_000


class Lazy:
    def __getattr__(self, name: str) -> str:
        if name.startswith("lazy_"):
            return name
        raise AttributeError(name)


class Mixed(StreamingDataset, Lazy):
    pass


class Broken(StreamingDataset):
    @property
    def broken(self) -> int:
        raise AttributeError("inside of the property")

    @functools.cached_property
    def broken_once(self) -> int:
        raise AttributeError("inside of the property")

    @cached_property
    def broken_here(self) -> int:
        raise AttributeError("inside of the property")


def test_a_subclass_may_have_attributes_that_are_looked_up(root: Path) -> None:
    assert Mixed(root / "a" / "train").lazy_one == "lazy_one"
    for name in ("broken", "broken_once", "broken_here"):
        with pytest.raises(AttributeError, match="inside of the property"):
            getattr(Broken(root / "a" / "train"), name)


def test_a_shard_is_evicted_with_its_compressed_file(tmp_path: Path) -> None:
    with MDSWriter({"id": "int"}, tmp_path / "remote", compression="zstd", size_limit=200) as out:
        out.write_batch({"id": np.arange(100)})
    dataset = StreamingDataset(str(tmp_path / "remote"), local=tmp_path / "cache", keep_zip=True)
    assert len(list(dataset)) == 100
    kept = {path.name for path in (tmp_path / "cache").rglob("shard.*")}
    assert {"shard.00001.mds", "shard.00001.mds.zstd"} < kept
    dataset.evict_shard(1)
    assert kept - {path.name for path in (tmp_path / "cache").rglob("shard.*")} == {
        "shard.00001.mds",
        "shard.00001.mds.zstd",
    }
    assert len(list(dataset)) == 100


def test_a_local_dataset_is_one_of_torchs(root: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = LocalDataset(root / "a", split="train")
    assert isinstance(dataset, data.Dataset)
    assert not isinstance(dataset, data.IterableDataset)
    assert len(data.DataLoader(dataset, batch_size=10, shuffle=True)) == 10
    assert pickle.loads(pickle.dumps(dataset))[3] == {"id": 3}


def test_unsafe_data_is_a_value_error_as_with_mosaicml(tmp_path: Path) -> None:
    with MDSWriter({"thing": "pkl"}, tmp_path) as out:
        out.write({"thing": {1, 2}})
    with pytest.raises(ValueError, match="allow_unsafe_types=True"):
        _ = StreamingDataset(str(tmp_path))[0]
    with pytest.raises(UnsafeDataError):
        list(StreamingDataset(str(tmp_path), on_bad_sample="skip"))
