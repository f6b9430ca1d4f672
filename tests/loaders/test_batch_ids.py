"""``ReadOptions(ids=)``: each sample's id, in every batch and of the sample that is really there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import (
    BadSamples,
    HashSplit,
    LMStream,
    ReadOptions,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.errors import ConfigError
from support import write_columns, write_samples

STREAMS = ("a", "b")
SAMPLES = 300
BAD = frozenset(range(0, len(STREAMS) * SAMPLES, 13))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams whose column tells each sample's id: ``-id``."""
    out = tmp_path_factory.mktemp("data")
    for number, name in enumerate(STREAMS):
        write_columns(out / name, {"x": -np.arange(number * SAMPLES, (number + 1) * SAMPLES)}, size_limit=400)
    return out


def raises_for_bad(sample: dict[str, Any]) -> dict[str, Any]:
    if -sample["x"] in BAD:
        raise ValueError("a bad one")
    return {"x": sample["x"], "number": sample["number"]}


def opened(data: Path, **settings: Any) -> StreamingDataset:
    chosen = {"shuffle": True, "batch_size": 16, "read": ReadOptions(ids="number"), **settings}
    return StreamingDataset(streams=[Stream(local=data / name, repeat=1.2) for name in STREAMS], **chosen)


def check(batches: Iterator[Any], expected: list[list[int]] | None = None) -> None:
    """Every id is that of the sample beside it, as an int64, and batches are those that ``ids_of`` tells."""
    found = [batch["number"] for batch in batches]
    assert found
    for n, batch in enumerate(found):
        assert str(batch.dtype).endswith("int64")
        assert expected is None or batch.tolist() == expected[n]


def pairs(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        assert (np.asarray(batch["x"]) == -np.asarray(batch["number"])).all()
        yield batch


def told(dataset: StreamingDataset) -> list[list[int]]:
    return [dataset.ids_of(step).tolist() for step in range(-(-dataset.epoch_size // 16))]


@pytest.mark.parametrize("settings", [{}, {"subset": HashSplit(0, 0.5)}, {"cache_limit": 3000, "split": None}])
def test_ids_are_those_of_the_order(data: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    if "cache_limit" in settings:  # so little that samples are read together, shard by shard
        dataset = StreamingDataset(
            f"file://{data}/a",
            local=tmp_path,
            shuffle=True,
            batch_size=16,
            read=ReadOptions(ids="number"),
            cache_limit=3000,
        )
    else:
        dataset = opened(data, **settings)
    expected = told(dataset)
    check(pairs(dataset.batches()), expected)
    dataset.set_epoch(0)
    assert [sample["number"] for sample in dataset] == [number for batch in expected for number in batch]
    assert dataset[17]["number"] == 17
    assert dataset[[3, 250]][1]["number"] == 250
    assert list(dataset.read([5, -1])["number"]) == [5, dataset.size - 1]


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_a_loader_delivers_them(data: Path, columnar: bool, workers: int) -> None:
    dataset = opened(data)
    loader = StreamingDataLoader(dataset, num_workers=workers, columnar=columnar)
    check(pairs(iter(loader)), told(opened(data)))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
@pytest.mark.parametrize("collated", [False, True])
def test_the_id_is_that_of_the_sample_that_is_there(
    data: Path, on_bad_sample: str, threads: int, collated: bool
) -> None:
    settings: dict[str, Any] = {
        "on_bad_sample": on_bad_sample,
        "transform": raises_for_bad,
        "read": ReadOptions(ids="number", read_threads=threads),
    }
    dataset = opened(data, **settings)
    found = [*pairs(iter(StreamingDataLoader(dataset)) if collated else dataset.batches())]
    assert len(found) == len(told(dataset))
    for batch, ids in zip(found, told(opened(data)), strict=True):
        delivered = np.asarray(batch["number"]).tolist()
        assert BAD.isdisjoint(delivered)
        kept = [number for number in ids if number not in BAD]
        assert kept == (
            delivered if on_bad_sample == "skip" else [b for a, b in zip(ids, delivered, strict=True) if a == b]
        )


def test_a_batch_of_no_samples_has_the_column(tmp_path: Path) -> None:
    write_samples(tmp_path, ({"x": ["sample"]} for _ in range(4)), hashes=[])
    (shard,) = tmp_path.glob("*.mds")
    shard.write_bytes(shard.read_bytes().replace(b'["sample"]', b'["sample"}'))
    skips = BadSamples("skip", max_share=None)
    for batch in StreamingDataset(
        tmp_path, read=ReadOptions(ids="number"), on_bad_sample=skips, batch_size=2
    ).batches():
        assert batch["x"] == []
        assert np.array_equal(batch["number"], np.zeros(0))


def test_a_shard_loader_delivers_them(data: Path) -> None:
    assert len([*pairs(StreamingShardLoader(opened(data)))]) == len(told(opened(data)))


@pytest.mark.parametrize("name", ["x", ""])
def test_a_name_that_is_taken_is_refused(data: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="choose another name"):
        opened(data, read=ReadOptions(ids=name))


def test_a_stream_of_tokens_refuses_them(data: Path) -> None:
    with pytest.raises(ConfigError, match="which have no ids"):
        LMStream(opened(data), column="x", batch_size=2, seq_len=4)
