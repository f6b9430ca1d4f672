"""The world is asked for when iteration starts: a trainer may make this process one of several after a loader was made."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
from loader_cases import write_parquet

from stoker import (
    LMStream,
    Mesh,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError, StateError
from support import make_dataset

SAMPLES = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_dataset(folder / "shards", SAMPLES)
    documents = [list(range(8 * n, 8 * n + 8)) for n in range(SAMPLES)]
    write_parquet(folder / "tokens", [documents[: SAMPLES // 2], documents[SAMPLES // 2 :]])
    return folder


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def _dataset(data: Path) -> StreamingDataset:
    return StreamingDataset(local=data / "shards", batch_size=2, shuffle=True)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "dataset": _dataset,
    "dataset, half a cache": lambda data: StreamingDataset(
        remote=str(data / "shards"), local=data / "cache", cache_limit="1mb", batch_size=2
    ),
    "mesh": lambda data: StreamingDataset(
        local=data / "shards", batch_size=2, replication=Mesh({"dp": 2, "tp": 1}), shuffle=True
    ),
    "loader": lambda data: StreamingDataLoader(_dataset(data)),
    "columnar loader": lambda data: StreamingDataLoader(_dataset(data), columnar=True),
    "shard loader": lambda data: StreamingShardLoader(_dataset(data)),
    "shard loader of arrays": lambda data: StreamingShardLoader({"id": np.arange(SAMPLES)}),
    "parquet loader": lambda data: StreamingParquetLoader(data / "tokens", batch_size=2, seq_len=8),
    "parquet loader of whole row groups": lambda data: StreamingParquetLoader(
        data / "tokens", batch_size=2, seq_len=8, granularity="row_group"
    ),
    "LM stream": lambda data: LMStream(
        StreamingDataset(local=data / "shards", transform=lambda sample: {"text": str(sample["id"])}),
        "text",
        2,
        8,
        tokenizer=lambda texts: [[int(text)] * 8 for text in texts],
    ),
}


def _ids(items: Iterator[Any]) -> list[int]:
    found: list[int] = []
    for item in items:
        if hasattr(item, "input_ids"):
            found += [int(row[0]) for row in item.input_ids]
        else:
            found += np.asarray(item["id"]).reshape(-1).tolist()
    return found


def _rank(environ: pytest.MonkeyPatch, rank: int) -> None:
    environ.setenv("RANK", str(rank))
    environ.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("made", [{}, {"WORLD_SIZE": "2"}, {"RANK": "0"}], ids=["alone", "world size", "rank"])
def test_a_loader_made_before_the_world_is_known_reads_its_part(
    kind: str, made: dict[str, str], data: Path, environ: pytest.MonkeyPatch
) -> None:
    parts = []
    for rank in range(2):
        environ.delenv("RANK", raising=False)
        environ.delenv("WORLD_SIZE", raising=False)
        for name, value in made.items():
            environ.setenv(name, value)
        loader = copy.deepcopy(MAKERS[kind](data)) if kind != "LM stream" else MAKERS[kind](data)
        _rank(environ, rank)
        parts.append(_ids(iter(loader)))
        loader.close()
    assert len(parts[0]) == len(parts[1])
    assert len({*parts[0], *parts[1]}) == len(parts[0]) + len(parts[1]) == SAMPLES


@pytest.mark.parametrize("kind", MAKERS)
def test_iteration_in_half_a_world_is_refused(kind: str, data: Path, environ: pytest.MonkeyPatch) -> None:
    environ.setenv("WORLD_SIZE", "2")
    loader = MAKERS[kind](data)
    with pytest.raises(ConfigError, match="WORLD_SIZE is set but RANK is not"):
        next(iter(loader))
    loader.close()


@pytest.mark.parametrize("kind", ["dataset", "mesh", "loader", "parquet loader"])
def test_states_are_loaded_before_the_world_is_known(kind: str, data: Path, environ: pytest.MonkeyPatch) -> None:
    whole, states = [], []
    for rank in range(2):
        _rank(environ, rank)
        loader = MAKERS[kind](data)
        running = iter(loader)
        whole.append(_ids(iter([next(running) for _ in range(4)])))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    for rank in range(2):
        environ.delenv("RANK")
        loader = MAKERS[kind](data)
        loader.load_state_dict(states[0])
        _rank(environ, rank)
        whole.append(_ids(iter(loader)))
    ids = [one for part in whole for one in part]
    assert len(ids) == len(set(ids)) == SAMPLES


def test_random_access_needs_no_world(data: Path, environ: pytest.MonkeyPatch) -> None:
    environ.setenv("WORLD_SIZE", "2")
    assert _dataset(data)[7]["id"] == 7


def test_a_copy_of_a_lone_process_finds_its_own_world(data: Path, environ: pytest.MonkeyPatch) -> None:
    """As a trainer spawns ranks: the dataset travels to them from a process that is none."""
    sent = pickle.dumps(_dataset(data))
    parts = []
    for rank in range(2):
        _rank(environ, rank)
        parts.append(_ids(iter(pickle.loads(sent))))
    assert sorted(parts[0] + parts[1]) == list(range(SAMPLES))


def test_a_copy_of_a_rank_keeps_its_world_where_there_is_none(data: Path, environ: pytest.MonkeyPatch) -> None:
    """As a DataLoader spawns workers, which have no process group."""
    _rank(environ, 1)
    expected = _ids(iter(_dataset(data)))
    sent = pickle.dumps(_dataset(data))
    environ.delenv("RANK")
    environ.delenv("WORLD_SIZE")
    assert _ids(iter(pickle.loads(sent))) == expected


def test_a_copy_of_a_rank_that_joins_a_process_group_is_of_that(
    data: Path, tmp_path: Path, environ: pytest.MonkeyPatch
) -> None:
    _rank(environ, 1)
    sent = pickle.dumps(_dataset(data))
    torch.distributed.init_process_group("gloo", init_method=(tmp_path / "joined").as_uri(), rank=0, world_size=1)
    try:
        assert pickle.loads(sent).world == World(0, 1, 1, "torch.distributed")
    finally:
        torch.distributed.destroy_process_group()


def test_a_shard_loader_that_was_used_alone_does_not_read_as_if_it_were(
    data: Path, environ: pytest.MonkeyPatch
) -> None:
    loader = StreamingShardLoader(_dataset(data))
    assert len(loader) == SAMPLES // 2
    _rank(environ, 1)
    with pytest.raises(StateError, match="in a world of 1, and now there are 2 ranks"):
        next(iter(loader))
    with pytest.raises(StateError, match="in a world of 1"):
        loader.next()
    loader.close()


def test_an_iteration_does_not_go_on_as_that_of_the_only_rank(data: Path, environ: pytest.MonkeyPatch) -> None:
    begun = iter(_dataset(data)), _dataset(data).batches(), iter(_dataset(data))
    for one in begun[:2]:
        next(one)
    environ.setenv("RANK", "0")
    environ.setenv("WORLD_SIZE", "2")
    for one in begun[:2]:
        with pytest.raises(ConfigError, match="began as that of 1 rank of 1, and this process has become 1 of 2 since"):
            list(one)
    assert len(list(begun[2])) == SAMPLES // 2  # which had not begun
