"""Collating gives what torch's default_collate gives, in this process and in workers whose user knows nothing of it."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset
from stoker.errors import ConfigError
from stoker.pipeline.collate import collate


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)


SAMPLES: list[list[dict[str, Any]]] = [
    [{"x": np.full((2, 3), n, dtype), "n": n} for n in range(4)]
    for dtype in (np.uint8, np.int16, np.uint16, np.int64, np.float16, np.float32, np.float64, np.bool_)
] + [
    [{"f": n / 2, "s": f"word {n}", "scalar": np.float32(n)} for n in range(3)],
    [{"t": torch.ones(2) * n, "nested": {"a": np.ones(2), "b": n}} for n in range(3)],
]


@pytest.mark.parametrize("samples", SAMPLES, ids=range(len(SAMPLES)))
def test_it_equals_default_collate(samples: list[dict[str, Any]]) -> None:
    assert equal(collate(samples), default_collate(samples))


def test_what_torch_refuses_stays_a_list() -> None:
    assert collate([{"b": b"ab"}, {"b": b"c"}]) == {"b": [b"ab", b"c"]}
    assert collate([b"1", b"2"]) == [b"1", b"2"]
    with pytest.raises(ConfigError, match="different columns"):
        collate([{"a": 1}, {"b": 1}])


UNLIKE: list[tuple[list[Any], str]] = [
    ([1, None, 2], r"column 'c': a batch of int, None \(null\) cannot be"),
    ([0.5, None], "float, None"),
    ([True, None], "bool, None"),
    ([np.ones(2), np.ones(3)], r"float64 arrays of shape \(2,\), float64 arrays of shape \(3,\)"),
    ([np.ones(2), None], "float64 arrays"),
    ([torch.ones(2), torch.ones(3)], "torch.float32 arrays"),
    ([np.float32(1), None], "float32, None"),
    ([[1, 2], [3]], "lists of 2, lists of 1"),
    ([[1, 2], None], "lists of 2, None"),
    ([[1, 2], [3, None]], r"column 'c'\[1\]: a batch of int, None"),
    ([{"a": 1}, {"b": 1}], "dicts with a, dicts with b"),
    ([{"a": 1}, None], "dicts with a, None"),
    ([{"a": 1}, {"a": None}], r"column 'c'.a: a batch of int, None"),
    ([1, "text"], "int, str"),
    ([1, Decimal(1), None], "int, Decimal, None"),
]


@pytest.mark.parametrize(("values", "message"), UNLIKE, ids=range(len(UNLIKE)))
def test_unlike_values_are_refused_by_column_in_any_order(values: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message}.*columnar=True.*collate_fn=.*transform="):
        collate([{"id": 1, "c": value} for value in values])
    for order in itertools.permutations(values):
        with pytest.raises(ConfigError, match="column 'c'"):
            collate([{"id": 1, "c": value} for value in order])


LISTS: list[list[Any]] = [[None, None], ["a", None], [Decimal(1), None], [b"a", None], [dt.date(2024, 1, 1), None]]


@pytest.mark.parametrize("values", LISTS, ids=["nulls", "text", "decimals", "bytes", "dates"])
def test_nulls_among_values_that_are_lists_anyway_stay(values: list[Any]) -> None:
    for order in itertools.permutations(values):
        assert collate([{"c": value} for value in order]) == {"c": list(order)}
        assert collate([{"c": {"d": value}} for value in order]) == {"c": {"d": list(order)}}


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_column_with_nulls_is_refused_by_name_in_workers_too(tmp_path: Path, workers: int) -> None:
    lines = [{"y": None if number % 4 == 0 else number, "tags": ["a"] * (number % 3)} for number in range(16)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for column in ("y", "tags"):
        dataset = StreamingDataset(remote=str(tmp_path), format="jsonl", columns=[column], batch_size=4)
        with pytest.raises(ConfigError, match=f"column '{column}': a batch of .*columnar=True"):
            list(StreamingDataLoader(dataset, num_workers=workers))
        batches = list(StreamingDataLoader(dataset, num_workers=workers, columnar=True))
        assert [one for batch in batches for one in batch[column]] == [line[column] for line in lines]


@pytest.mark.processes
@pytest.mark.parametrize("make", [DataLoader, StreamingDataLoader])
def test_in_workers_too(tmp_path: Path, make: Any) -> None:
    with MDSWriter({"id": "int", "x": "ndarray:float32:5", "w": "str"}, str(tmp_path)) as out:
        for number in range(64):
            out.write({"id": number, "x": np.full(5, number, np.float32), "w": str(number)})
    loader = make(StreamingDataset(local=tmp_path, shuffle=True, batch_size=8), batch_size=8, num_workers=2)
    seen = []
    for batch in loader:
        assert batch["x"].dtype == torch.float32
        assert torch.equal(batch["x"], batch["id"].float()[:, None].expand(-1, 5))
        assert batch["w"] == [str(number) for number in batch["id"].tolist()]
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(64))
    # The workers' table of functions is not this process's.
    assert type(default_collate([np.ones(2)])) is torch.Tensor
