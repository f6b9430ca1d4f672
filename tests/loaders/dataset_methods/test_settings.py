"""What a loader counts on does not change behind its back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import LMStream, MDSWriter, StreamingConfig, StreamingDataset, StreamingParquetLoader, StreamingShardLoader
from stoker.errors import ConfigError


def in_torch(dataset: StreamingDataset) -> Any:
    module = pytest.importorskip("stoker.loaders.dataloader")
    return module.StreamingDataLoader(dataset)


def in_shards(dataset: StreamingDataset) -> Any:
    loader = StreamingShardLoader(dataset, StreamingConfig(1, 0))
    loader.next()
    return loader


def in_tokens(dataset: StreamingDataset) -> Any:
    return LMStream(dataset, "x", batch_size=2, seq_len=4)


@pytest.fixture
def data(tmp_path: Path) -> str:
    with MDSWriter({"x": "ndarray:int64:5"}, str(tmp_path / "data")) as out:
        out.write_batch({"x": np.arange(320).reshape(64, 5)})
    return str(tmp_path / "data")


@pytest.mark.parametrize("make", [in_torch, in_shards, in_tokens])
def test_the_batch_size_is_fixed_once_a_loader_counts_on_it(data: str, make: Callable[[StreamingDataset], Any]) -> None:
    dataset = StreamingDataset(data, batch_size=2)
    dataset.batch_size = 8
    loader = make(dataset)
    with pytest.raises(ConfigError, match=r"batch_size=4: .*rest on batch_size=8\. Give batch_size= when you make it"):
        dataset.batch_size = 4
    dataset.batch_size = 8  # no change
    assert dataset.batch_size == 8
    next(iter(loader))


def test_the_batch_size_of_a_token_loader_is_fixed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [list(range(20))] * 20}), tmp_path / "t.parquet")
    loader = StreamingParquetLoader(str(tmp_path / "t.parquet"), batch_size=2, seq_len=8)
    with pytest.raises(ConfigError, match="rest on batch_size=2"):
        loader.batch_size = 3


def test_a_loader_without_any_batch_size_says_so(data: str, caplog: pytest.LogCaptureFixture) -> None:
    in_torch(StreamingDataset(data))
    assert "each batch has one sample" in caplog.text


def test_tensors_of_samples_are_stacked_in_columns_too(data: str) -> None:
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("stoker.loaders.dataloader")

    def tensors(sample: dict[str, Any]) -> dict[str, Any]:
        tensor = torch.from_numpy(sample["x"])
        return {"x": tensor, "half": tensor.to(torch.bfloat16), "ragged": tensor[: 1 + int(sample["x"][0]) % 2]}

    dataset = StreamingDataset(data, batch_size=8, shuffle=True).map(tensors)
    names = ("x", "half")
    batches = list(module.StreamingDataLoader(dataset, columnar=True))
    assert [type(batches[0][name]) for name in (*names, "ragged")] == [torch.Tensor, torch.Tensor, list]
    plain = list(
        module.StreamingDataLoader(StreamingDataset(data, batch_size=8, shuffle=True).map(tensors).select(list(names)))
    )
    for one, other in zip(batches, plain, strict=True):
        for name in names:
            assert torch.equal(one[name], other[name])
            assert one[name].dtype == other[name].dtype
