"""Values that were taken without a word, or ended in an error of Python's own, are stoker's errors, which name them."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import (
    Adaptive,
    BadSamples,
    Chain,
    HashSplit,
    KeepIds,
    LMStream,
    MDSWriter,
    Mesh,
    ReadOptions,
    Schedule,
    ShardConfig,
    SkipSteps,
    StreamingConfig,
    StreamingDataset,
    StreamingShardLoader,
    Where,
    World,
    convert,
    inspect,
    merge_index,
    open_writer,
    rebuild_index,
    train_validation_split,
    verify,
)
from stoker.coordination.records import CoordinationSettings
from stoker.errors import StokerError
from stoker.image import RandomResizedCrop
from support import write_columns


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("odd") / "data"
    return write_columns(out, {"id": np.arange(8), "tokens": np.ones((8, 4), np.uint16)})


def leased(data: Path, **settings: Any) -> None:
    config = StreamingConfig(
        partition=Adaptive(),
        coordinator=f"sqlite://{data}.sqlite",
        batch_size=2,
        coordination=CoordinationSettings(**settings),
    )
    next(iter(StreamingShardLoader(StreamingDataset(data), config)))


ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "batches(0)": (
        lambda data: StreamingDataset(data, batch_size=2).batches(0),
        "batch_size must be at least 1, got 0",
    ),
    "read(columns=number)": (
        lambda data: StreamingDataset(data).read([1], columns=5),  # type: ignore[arg-type]
        r"StreamingDataset.read: columns must be a list of strings, got 5",
    ),
    "read(columns=[])": (lambda data: StreamingDataset(data).read([1], columns=[]), "columns is empty"),
    "where(text)": (
        lambda data: StreamingDataset(data).where("1"),  # type: ignore[arg-type]
        "StreamingDataset.where: sample_id must be an int",
    ),
    "where([])": (
        lambda data: StreamingDataset(data).where([]),  # type: ignore[arg-type]
        "StreamingDataset.where: sample_id must be an int",
    ),
    "load_state_dict(change_streams=text)": (
        lambda data: StreamingDataset(data).load_state_dict({}, change_streams="no"),  # type: ignore[arg-type]
        "StreamingDataset.load_state_dict: change_streams must be",
    ),
    "partition_algo": (
        lambda data: StreamingDataset(data, partition_algo=""),
        "partition '' is unknown; known: elastic, .*, relaxed",
    ),
    "map(name='')": (lambda _: Chain().map(dict, name=""), "name=''"),
    "enumerate('')": (lambda _: Chain().enumerate(""), "name must not be empty"),
    "rename to nothing": (lambda _: Chain().rename({"id": ""}), "name must not be empty"),
    "lookahead": (
        lambda data: LMStream(StreamingDataset(data), "tokens", 2, 4, lookahead=0),
        "lookahead must be at least 1, got 0",
    ),
    "token_dtype": (
        lambda data: LMStream(StreamingDataset(data), "tokens", 2, 4, token_dtype="float32"),
        "token_dtype='float32': tokens are integers",
    ),
    "merge_index(())": (lambda _: merge_index(()), r"the root is empty, \(\)"),
    "convert(shuffle='')": (lambda data: convert(data, f"{data}-to", shuffle=""), "shuffle '' is unknown"),
    "verify(format='')": (lambda data: verify(data, format=""), "''"),
    "verify(memory=0)": (lambda data: verify(data, memory=0), "memory must be at least 1, got 0"),
    "verify(format_options=)": (
        lambda data: verify(data, format_options={"filters": []}),
        "has an index.json, and format_options= is only for",
    ),
    "inspect(format_options=)": (
        lambda data: inspect(data, format_options={"filters": []}),
        "has an index.json, and format_options= is only for",
    ),
    "max_workers=0": (
        lambda data: MDSWriter({"id": "int"}, f"{data}-to", max_workers=0),
        "max_workers must be at least 1",
    ),
    "size_limit=''": (lambda data: MDSWriter({"id": "int"}, f"{data}-to", size_limit=""), "'' is not"),
    "first=-1": (lambda data: open_writer("tar", {"txt": "str"}, f"{data}-to", first=-1), "first must be at least 0"),
    "coordination(smallest=0)": (lambda data: leased(data, smallest=0), "coordination: smallest must be at least 1"),
    "coordination(multiple=5)": (
        lambda data: leased(data, multiple=5),
        "multiple=5, which is the config's batch_size, 2",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_value_is_named(data: Path, name: str) -> None:
    use, told = ODD[name]
    with pytest.raises(StokerError, match=told):
        use(data)
    assert not Path(f"{data}-to").exists()


def changed(state: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {name: value for name, value in {**state, **values}.items() if value is not None}


REMEDIED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a rank beyond the world": (lambda _: World(2, 2), "ranks are numbered from 0 to world_size - 1; give world=World"),
    "a rank of a config": (lambda _: StreamingConfig(2, 2), "ranks are numbered from 0 to world_size - 1"),
    "a state without an epoch": (
        lambda data: StreamingDataset(data).load_state_dict(changed(StreamingDataset(data).state_dict(), epoch=None)),
        "is incomplete: it lacks 'epoch'. Give what state_dict.. returned, whole",
    ),
    "a state beyond the epoch": (
        lambda data: StreamingDataset(data).load_state_dict(
            changed(StreamingDataset(data).state_dict(), position=10**6)
        ),
        "lies beyond the epoch of 8 samples: it was changed, or is of a dataset that had more",
    ),
    "a checkpoint that is none": (
        lambda data: StreamingShardLoader(StreamingDataset(data)).load_state_dict({"x": 1}),
        "is not a checkpoint of a StreamingShardLoader: give what",
    ),
    "a state of a stream that is none": (
        lambda data: LMStream(StreamingDataset(data), "tokens", 2, 4).load_state_dict({"x": 1}),
        "give what LMStream.state_dict.. returned",
    ),
    "a transform beside a dataset": (
        lambda data: StreamingShardLoader(StreamingDataset(data), transform=dict),
        "give it to the StreamingDataset",
    ),
    "a folder without shards": (
        lambda data: rebuild_index(data.parent / "none"),
        "give the directory that they lie in",
    ),
}


@pytest.mark.parametrize("name", REMEDIED)
def test_an_error_says_what_to_do(data: Path, name: str) -> None:
    (data.parent / "none").mkdir(exist_ok=True)
    use, told = REMEDIED[name]
    with pytest.raises(StokerError, match=told):
        use(data)


VALUES: tuple[Any, ...] = (
    *(None, "", "x", "\0", "a/../b", b"", b"x", -1, 0, 1 << 70, True, 1.5, math.nan, math.inf, -math.inf),
    *([], ["x"], [None], (), {}, {"x": 1}, {1: 2}, {1}, range(3), int, len, object(), iter([1])),
    *(np.int64(-1), np.float32(0.5), np.zeros(0), np.ones((2, 2))),
)
SETTINGS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "ReadOptions": (ReadOptions, {}),
    "BadSamples": (BadSamples, {}),
    "Where": (Where, {"column": "id", "op": "==", "value": 3}),
    "HashSplit": (HashSplit, {"low": 0, "high": 0.5}),
    "KeepIds": (KeepIds, {"ids": [1]}),
    "SkipSteps": (SkipSteps, {"begin": 0, "end": 1, "epoch": 0, "global_batch": 2}),
    "Schedule": (Schedule, {"points": [(0, [("a", 1.0)])]}),
    "World": (World, {}),
    "Mesh": (Mesh, {"shape": {"dp": 1}}),
    "Adaptive": (Adaptive, {}),
    "ShardConfig": (ShardConfig, {"rank": 0, "world_size": 1}),
    "StreamingConfig": (StreamingConfig, {}),
    "train_validation_split": (train_validation_split, {}),
    "RandomResizedCrop": (RandomResizedCrop, {"size": 16}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_any_value_of_a_setting_is_taken_or_refused_by_stoker(name: str) -> None:
    make, base = SETTINGS[name]
    make(**base)
    for argument in signature(make).parameters:
        refused = []
        for value in VALUES:
            try:
                make(**{**base, argument: value})
            except StokerError as error:
                refused.append(str(error))
        assert len(refused) > len(VALUES) / 3, argument
        assert all(refused)


def test_numbers_of_numpy_are_numbers(data: Path) -> None:
    dataset = StreamingDataset(data, batch_size=2)
    assert dataset.where(np.int64(3)).row == 3  # type: ignore[arg-type]
    assert len(next(iter(dataset.batches(np.int64(4))))["id"]) == 4  # type: ignore[arg-type]
    assert list(dataset.read([1], columns=("id",))["id"]) == [1]
