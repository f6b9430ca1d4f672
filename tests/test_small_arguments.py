"""Arguments of a dataset whose type fits, and whose value makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Stream, StreamingDataset
from stoker.errors import ConfigError, StateError


@pytest.fixture
def data(tmp_path: Path) -> str:
    pq.write_table(pa.table({"y": range(1000)}), tmp_path / "data.parquet")
    return str(tmp_path)


@pytest.mark.parametrize("samples", [1001, 1002, 2500])
@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_state_after_more_samples_than_the_epoch_has_is_refused(data: str, samples: int, batch_size: int) -> None:
    dataset = StreamingDataset(remote=data, format="parquet", batch_size=batch_size)
    with pytest.raises(StateError, match=f"num_samples={samples}: epoch 0 has 1000 at most"):
        dataset.state_dict(num_samples=samples)
    assert dataset.state_dict(num_samples=1000)["epoch"] == 1
    dataset.load_state_dict(dataset.state_dict(num_samples=400))
    assert dataset.state_dict(num_samples=600, from_beginning=False)["epoch"] == 1
    with pytest.raises(StateError, match="epoch 0 has 600 at most"):
        dataset.state_dict(num_samples=610, from_beginning=False)


@pytest.mark.parametrize("seconds", [0, -1, float("inf")])
def test_a_timeout_is_seconds_above_zero_for_local_data_too(data: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match="download_timeout is seconds above 0"):
        StreamingDataset(remote=data, format="parquet", download_timeout=seconds)


def test_columns_to_read_are_a_list(data: str) -> None:
    dataset = StreamingDataset(remote=data, format="parquet")
    with pytest.raises(ConfigError, match=r"columns=\['y'\]"):
        dataset.read([1], columns="y")
    assert list(dataset.read([1], columns=["y"])["y"]) == [1]


@pytest.mark.parametrize("index", [True, np.bool_(True), 1.0, "1"])
def test_a_truth_value_is_no_index(data: str, index: Any) -> None:
    with pytest.raises(TypeError, match="an index is an int, a slice or an array of ints, got"):
        StreamingDataset(remote=data, format="parquet")[index]


def test_columns_to_read_are_some(data: str) -> None:
    with pytest.raises(ConfigError, match="columns is empty: name at least one, or leave it out"):
        StreamingDataset(remote=data, format="parquet", columns=[])


@pytest.mark.parametrize("value", [3, 1.5, b"eu", ["eu"]])
def test_a_storage_option_of_another_type_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"storage_options\['region'\] is an? .*: give a string"):
        StreamingDataset(remote="s3://bucket/data", storage_options={"region": value})


@pytest.mark.parametrize("remote", ["az://box/data?sig=SECRET", ["https://user:SECRET@host/a.parquet"]])
def test_a_stream_shows_no_secret_of_its_url(remote: Any) -> None:
    shown = repr(Stream(remote, name="mine", format="parquet"))
    assert "SECRET" not in shown
    assert "name='mine'" in shown
    assert "data" in shown or "a.parquet" in shown
