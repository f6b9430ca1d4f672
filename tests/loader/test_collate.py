"""Collating gives what torch's default_collate gives, in this process and in workers whose user knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset
from stoker.errors import ConfigError
from stoker.loader.collate import collate


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
    with pytest.raises(RuntimeError):
        collate([{"a": np.ones(2)}, {"a": np.ones(3)}])


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
