"""Methods and arguments of other libraries are errors that say what to write here, and that is there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import MDSWriter, StreamingDataset
from stoker.errors import ConfigError
from stoker.loaders.dataset_methods.checks import _METHODS, OTHER_ARGUMENTS, OTHER_OF_MAP

ARGUMENTS = frozenset(inspect.signature(StreamingDataset.__init__).parameters)
CHAIN = ("map", "filter", "flat_map", "batch_map", "random_map")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> StreamingDataset:
    out = tmp_path_factory.mktemp("data") / "data"
    with MDSWriter({"id": "int"}, out) as writer:
        for number in range(10):
            writer.write({"id": number})
    return StreamingDataset(out, shuffle=True)


USED: dict[str, tuple[Callable[[Any], Any], str]] = {
    # Hugging Face's datasets
    "shuffle(seed=)": (lambda data: data.shuffle(seed=1), "shuffle=True, shuffle_seed="),
    "shuffle(buffer_size=)": (lambda data: data.shuffle(buffer_size=1000), "shuffle=True"),
    "shuffle()": (lambda data: data.shuffle(), "shuffle=True"),
    "sort": (lambda data: data.sort("id"), "shuffle=True"),
    "cast_column": (lambda data: data.cast_column("id", None), r"map\(\)"),
    "take": (lambda data: data.take(5), r"subset=KeepIds\(range\(n\)\)"),
    "skip": (lambda data: data.skip(5), r"subset=SkipIds\(range\(n\)\)"),
    "with_format": (lambda data: data.with_format("torch"), r"batches\(\)"),
    "batch": (lambda data: data.batch(8), "batch_size="),
    "iter": (lambda data: data.iter(8), "batch_size="),
    "shard": (lambda data: data.shard(4, 0), "divided"),
    "train_test_split": (lambda data: data.train_test_split(0.1), r"train_validation_split\(\)"),
    "remove_columns": (lambda data: data.remove_columns(["id"]), r"select\(\)"),
    "rename_column": (lambda data: data.rename_column("id", "number"), r"rename\(\)"),
    "map(batched=)": (lambda data: data.map(dict, batched=True), r"batch_map\(\)"),
    "map(num_proc=)": (lambda data: data.map(dict, num_proc=4), "run_in='processes'"),
    "map(with_indices=)": (lambda data: data.map(dict, with_indices=True), "enumerate"),
    "map(remove_columns=)": (lambda data: data.map(dict, remove_columns=["id"]), r"select\(\)"),
    "filter(num_proc=)": (lambda data: data.filter(bool, num_proc=4), "run_in='processes'"),
    "select(range)": (lambda data: data.select(range(5)), r"KeepIds"),
    "save_to_disk": (lambda data: data.save_to_disk("x"), r"convert\(\)"),
    # Grain
    "seed": (lambda data: data.seed(1), "shuffle_seed="),
    "repeat": (lambda data: data.repeat(), "epoch"),
    "to_iter_dataset": (lambda data: data.to_iter_dataset(), "iterate"),
    "mix": (lambda data: data.mix([data]), "proportion="),
    "slice": (lambda data: data.slice(slice(5)), "KeepIds"),
    "mp_prefetch": (lambda data: data.mp_prefetch(), "predownload="),
    # torchdata, Ray Data and tf.data
    "map_batches": (lambda data: data.map_batches(dict), r"batch_map\(\)"),
    "prefetch": (lambda data: data.prefetch(2), "predownload="),
    "prefetcher": (lambda data: data.prefetcher(), "predownload="),
    "concatenate": (lambda data: data.concatenate(data), "streams="),
    "interleave": (lambda data: data.interleave([data]), "proportion="),
    "cache": (lambda data: data.cache(), "local="),
    "sharding_filter": (lambda data: data.sharding_filter(), "divided"),
    "cycle": (lambda data: data.cycle(), "epoch"),
    "unbatch": (lambda data: data.unbatch(), r"flat_map\(\)"),
}


@pytest.mark.parametrize("name", USED)
def test_calls_of_other_libraries_say_what_to_write(dataset: StreamingDataset, name: str) -> None:
    call, remedy = USED[name]
    with pytest.raises((AttributeError, ConfigError), match=remedy) as raised:
        call(dataset)
    assert "StreamingDataset" in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("seed", "shuffle_seed="),
        ("streaming", "leave it out"),
        ("data_files", "remote="),
        ("num_workers", "StreamingDataLoader"),
        ("drop_remainder", 'remainder="drop"'),
        ("num_replicas", r"world=World\("),
        ("prefetch_factor", "StreamingDataLoader"),
        ("operations", "transform="),
    ],
)
def test_arguments_of_other_libraries_say_what_to_write(tmp_path: Path, argument: str, remedy: str) -> None:
    wrong: dict[str, Any] = {argument: 3}
    with pytest.raises(ConfigError, match=f"no argument '{argument}': .*{remedy}"):
        StreamingDataset(tmp_path, **wrong)


def test_whether_a_dataset_shuffles_can_be_asked(dataset: StreamingDataset) -> None:
    assert dataset.shuffle is True
    asked = dataset.shuffle
    assert [asked, getattr(dataset, "shuffle"), *(one.shuffle for one in (dataset,))] == [True] * 3  # noqa: B009
    assert [one for one in [dataset] if one.shuffle]
    assert str(dataset.shuffle) == "True"


def test_remedies_name_what_is_there() -> None:
    assert not [name for name in _METHODS if hasattr(StreamingDataset, name)]
    assert not OTHER_ARGUMENTS.keys() & ARGUMENTS
    for method in CHAIN:
        assert not OTHER_OF_MAP.keys() & set(inspect.signature(getattr(StreamingDataset, method)).parameters)
    told = [*_METHODS.values(), *OTHER_OF_MAP.values()]
    for name in {name for text in told for name in re.findall(r"(?<![.\w])([a-z_]+)\(\)", text)} - {"len"}:
        assert hasattr(StreamingDataset, name) or hasattr(stoker, name), name
    for text in told:
        for arguments in re.findall(r"give ([^.]*?)(?: of each)? to the constructor", text):
            named = re.findall(r"(?<!\w)([a-z_]+)=", arguments.partition("(")[0])
            assert named
            assert set(named) <= ARGUMENTS, text
    for name in {name for text in told for name in re.findall(r"stoker\.([a-z_]+)\(", text)}:
        assert hasattr(stoker, name), name
