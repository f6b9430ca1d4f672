"""Parquet values of one size: taken where they lie in the file, or decoded, the same; and memory that is used again."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import CorruptDataError
from stoker.formats.common.gather import LEAST, ReusedBlocks, empty
from stoker.formats.parquet.reader import ParquetFormat
from stoker.reading.shard_pool import ShardPool
from support import open_parquet

SHAPE = (3, 5)


def write(path: Path, values: np.ndarray[Any, Any], *, nullable: bool, declared: bool = True, **how: Any) -> None:
    width = values.itemsize * int(np.prod(values.shape[1:]))
    about = {"dtype": str(values.dtype), "shape": ",".join(map(str, values.shape[1:]))} if declared else None
    field = pa.field("x", pa.binary(width), nullable, about)
    column = pa.array([value.tobytes() for value in values], pa.binary(width))
    pq.write_table(pa.Table.from_arrays([column], schema=pa.schema([field])), path, **how)


def pool(folder: Path) -> ShardPool:
    place = open_parquet(folder)
    return ShardPool(place.index, place.cache)


def kind(reader: Any) -> str:
    return type(reader.values("x")).__name__


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    ("how", "in_place"),
    [
        ({"use_dictionary": False, "compression": "none"}, True),
        ({"use_dictionary": False, "compression": "none", "data_page_version": "2.0"}, True),
        ({"use_dictionary": False, "compression": "none", "write_page_checksum": True}, True),
        ({"use_dictionary": False, "compression": "zstd"}, False),
        ({"compression": "none"}, False),  # of a dictionary
    ],
    ids=["plain", "version 2", "checksums", "zstd", "dictionary"],
)
def test_arrays_are_the_same_however_they_lie(nullable: bool, how: Any, in_place: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((1000, *SHAPE)).astype(np.float32)
    write(tmp_path / "a.parquet", values, nullable=nullable, row_group_size=600, data_page_size=3000, **how)
    shards = pool(tmp_path)
    first: Any = shards.get(0)
    second: Any = shards.get(1)
    assert (kind(first) == "_Arrays") == in_place
    rows = np.array([599, 0, 7, 7, 300])
    found = first.read(rows)["x"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, values[rows])
    assert found.flags.writeable
    which, places = np.array([0, 1, 0, 1]), np.array([5, 399, 599, 0])
    gathered = ParquetFormat().read_many([first, second], which, places)["x"]
    np.testing.assert_array_equal(gathered, values[places + 600 * which])


def test_bytes_that_are_not_declared_as_arrays_stay_bytes(tmp_path: Path) -> None:
    values = np.arange(40, dtype=np.uint8).reshape(10, 4)
    write(tmp_path / "a.parquet", values, nullable=True, declared=False, use_dictionary=False, compression="none")
    reader = pool(tmp_path).get(0)
    assert reader.read(np.array([9, 0]))["x"] == [values[9].tobytes(), values[0].tobytes()]
    column = pa.array([b"abcd", None], pa.binary(4))
    pq.write_table(pa.table({"x": column}), tmp_path / "b.parquet", use_dictionary=False, compression="none")
    assert pool(tmp_path / "b.parquet").get(0).read(np.array([1, 0]))["x"] == [None, b"abcd"]


@pytest.mark.parametrize(
    "about", [{"dtype": "float32", "shape": "9"}, {"dtype": "O", "shape": "1"}, {"dtype": "float32", "shape": "x"}]
)
def test_a_declaration_that_does_not_fit_is_not_believed(about: dict[str, str], tmp_path: Path) -> None:
    field = pa.field("x", pa.binary(8), nullable=False, metadata=about)
    pq.write_table(
        pa.Table.from_arrays([pa.array([b"12345678"], pa.binary(8))], schema=pa.schema([field])), tmp_path / "a.parquet"
    )
    assert pool(tmp_path).get(0).read(np.array([0]))["x"] == [b"12345678"]


def test_a_page_whose_checksum_is_wrong_is_an_error(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((100, *SHAPE)).astype(np.float32)
    how: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    write(tmp_path / "a.parquet", values, nullable=False, **how)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[data.index(values[50].tobytes())] ^= 1
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(CorruptDataError, match="column 'x'"):
        pool(tmp_path).get(0).read(np.array([3]))


@given(
    st.sampled_from(["uint8", "int16", "int32", "uint64", "float32", "float64"]),
    st.integers(1, 7),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from(
        [{}, {"use_dictionary": False, "compression": "none"}, {"data_page_version": "2.0", "compression": "zstd"}]
    ),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_lists_of_one_length_are_what_pyarrow_reads(
    dtype: str, length: int, rows: int, fixed: bool, how: Any, ragged: bool
) -> None:
    values = np.random.default_rng(rows).integers(0, 200, rows * length).astype(dtype)
    values = values / 8 if dtype.startswith("float") else values
    flat = pa.array(values.astype(dtype))
    if fixed:
        column: Any = pa.FixedSizeListArray.from_arrays(flat, length)
    else:
        offsets = np.arange(0, rows * length + 1, length, dtype=np.int32)
        if ragged and length > 1 and rows > 1:
            offsets[1] += 1
        column = pa.ListArray.from_arrays(pa.array(offsets), flat)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"x": column}), f"{folder}/a.parquet", data_page_size=64, **how)
        found = pool(Path(folder)).get(0).read(np.arange(rows))["x"]
        expected = column.to_pylist()
        assert [np.asarray(row).tolist() for row in found] == expected
        assert all(np.asarray(row).dtype == dtype for row in found)


def test_memory_is_used_again_but_never_while_someone_holds_it() -> None:
    blocks = ReusedBlocks(64 << 20)
    one = blocks.take(20 << 20)
    view = one[5:9]
    view[:] = 7
    place = one.ctypes.data
    del one
    gc.collect()
    other = blocks.take(20 << 20)  # the first is still held, by a view
    assert other.ctypes.data != place
    other[:] = 1
    assert view.tolist() == [7] * 4
    del view
    gc.collect()
    assert blocks.take(19 << 20).ctypes.data == place


def test_no_more_memory_is_kept_than_was_said() -> None:
    blocks = ReusedBlocks(32 << 20)
    held = [blocks.take(20 << 20) for _ in range(3)]
    assert blocks.kept == 0
    held.clear()
    gc.collect()
    assert blocks.kept == 20 << 20
    small, large = empty(3, 7), empty(2, LEAST)
    assert small.shape == (3, 7)
    assert large.shape == (2, LEAST)
    assert large.flags.writeable
    assert large.flags.c_contiguous
