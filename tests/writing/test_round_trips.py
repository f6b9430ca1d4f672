"""What a writer takes for a column of any encoding is what the dataset gives back, in every format that can hold it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stoker import ReadOptions, StreamingDataset, convert, open_writer
from stoker.errors import ConfigError, UnsafeDataError

PICTURE = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)

VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "bytes": [b"", b"\x00\xff"],
    "float32": [0.5, -1.0],
    "int": [-(2**40), 3],
    "json": [{"a": [1, None]}, "text"],
    "ndarray": [ARRAY, np.ones(3, np.float32)],
    "ndarray:float32": [np.ones(3, np.float32), np.ones(1, np.float32)],
    "ndarray:bfloat16": [np.ones(3, np.float32), np.ones((2, 2), np.float32)],
    "ndarray:bfloat16:2": [np.ones(2, np.float32), np.zeros(2, np.float32)],
    "ndarray:int16:2,3": [ARRAY, ARRAY + 1],
    "ndarray:uint8:3": [np.arange(3, dtype=np.uint8), np.ones(3, np.uint8)],
    "bfloat16": [1.5, -2.0],
    "pil": [PICTURE, PICTURE.convert("L")],
    "png": [PICTURE, PICTURE.convert("L")],
    "list[png]": [[PICTURE], [PICTURE, PICTURE.convert("L")]],
    "pkl": [{1: (2, 3)}, None],
    "str": ["", "é"],
    "str_decimal": [Decimal("1.50"), Decimal(-3)],
    "str_float": [0.25, 1e300],
    "str_int": [10**30, -1],
}


def plain(value: Any) -> Any:
    """A value as what can be compared: arrays with their data type and shape, pictures with their mode and pixels."""
    if isinstance(value, Image.Image):
        return (value.mode, value.size, value.tobytes())
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist())
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def samples(path: Path) -> list[Any]:
    dataset = StreamingDataset(path, batch_size=2, read=ReadOptions(allow_unsafe_types=True))
    single = [plain(dataset[number]["x"]) for number in range(len(dataset))]
    whole = [plain(value) for batch in dataset.batches() for value in batch["x"]]
    assert [plain(sample["x"]) for sample in dataset] == single
    assert whole == single
    return single


@pytest.mark.parametrize("form", ["arrow", "parquet", "tar", "tfrecord"])
@pytest.mark.parametrize("encoding", VALUES)
@pytest.mark.parametrize("together", [False, True])
def test_values_come_back_as_from_mds(form: str, encoding: str, together: bool, tmp_path: Path) -> None:
    for name in ("mds", form):
        with open_writer(name, {"x": encoding}, tmp_path / name, size_limit=1 << 20) as writer:
            if together:
                writer.write_batch({"x": VALUES[encoding]})
            else:
                for value in VALUES[encoding]:
                    writer.write({"x": value})
    assert samples(tmp_path / form) == samples(tmp_path / "mds")


@pytest.mark.parametrize("encoding", VALUES)
def test_a_conversion_to_parquet_and_back_keeps_the_values(encoding: str, tmp_path: Path) -> None:
    with open_writer("mds", {"x": encoding}, tmp_path / "mds") as writer:
        writer.write_batch({"x": VALUES[encoding]})
    convert(tmp_path / "mds", tmp_path / "parquet", to="parquet", allow_unsafe_types=True, processes=1)
    convert(tmp_path / "parquet", tmp_path / "again", to="mds", allow_unsafe_types=True, processes=1)
    convert(tmp_path / "parquet", tmp_path / "copy", to="parquet", allow_unsafe_types=True, processes=1)
    assert samples(tmp_path / "parquet") == samples(tmp_path / "again") == samples(tmp_path / "mds")
    assert samples(tmp_path / "copy") == samples(tmp_path / "mds")


def test_pickles_in_parquet_need_consent(tmp_path: Path) -> None:
    with open_writer("parquet", {"x": "pkl", "y": "int"}, tmp_path) as writer:
        writer.write({"x": {1: 2}, "y": 3})
    with pytest.raises(UnsafeDataError, match="column 'x' is pkl"):
        next(iter(StreamingDataset(tmp_path)))
    assert StreamingDataset(tmp_path, columns=["y"])[0] == {"y": 3}


def test_filters_need_columns_of_parquets_own_types(tmp_path: Path) -> None:
    with open_writer("parquet", {"x": "str_int", "y": "int"}, tmp_path) as writer:
        writer.write({"x": 12, "y": 3})
    with pytest.raises(ConfigError, match="'x', which holds str_int"):
        StreamingDataset(tmp_path, format="parquet", format_options={"filters": [("x", ">", 3)]})
