"""Arrow IPC: files and streams of pyarrow and polars are read, and what stoker writes both read."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import describe
from packed_cases import CASES, opened, sample_of
from stoker import StreamingDataset
from stoker.errors import CorruptDataError, FormatError
from stoker.formats.arrow_layout import arrow_layout
from stoker.formats.base import ReadOptions
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.registry import get_format
from stoker.writing.shard_formats import writer_of


def file_of(table: Any, chunk: int = 7, stream: bool = False, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    opener = ipc.new_stream if stream else ipc.new_file
    with opener(out, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return out.getvalue()


TABLE = pa.table(
    {
        "id": pa.array(range(40), pa.int32()),
        "holed": pa.array([None if i % 5 == 0 else i for i in range(40)]),
        "text": pa.array([f"text {i}" for i in range(40)]),
        "word": pa.array([f"w{i % 3}" for i in range(40)]).dictionary_encode(),
        "row": pa.array([[i, i + 1] for i in range(40)], pa.list_(pa.float32())),
        "ragged": pa.array([list(range(i % 4)) for i in range(40)]),
        "flag": pa.array([i % 2 == 0 for i in range(40)]),
        "struct": pa.array([{"a": i, "b": [str(i)]} for i in range(40)]),
    }
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_files_and_streams_of_pyarrow_are_read(stream: bool, compression: str | None) -> None:
    reader = opened(file_of(TABLE, 7, stream, compression), "arrow")
    assert reader.samples == 40
    rows = np.array([39, 0, 7, 6, 8, 21, 21])
    batch = reader.read(rows)
    for name in TABLE.column_names:
        expected = TABLE[name].take(pa.array(rows)).to_pylist()
        found = [value.tolist() if isinstance(value, np.ndarray) else value for value in batch[name]]
        assert found == expected, name
    form: Any = get_format("arrow")
    both = form.read_many([reader, opened(file_of(TABLE, 3), "arrow")], np.arange(7) % 2, rows)
    assert both["id"].tolist() == rows.tolist()
    assert both["row"].dtype == np.float32
    assert both["text"] == batch["text"]


@pytest.mark.parametrize("version", [ipc.MetadataVersion.V4, ipc.MetadataVersion.V5])
@pytest.mark.parametrize("opener", [ipc.new_file, ipc.new_stream])
def test_messages_as_before_arrow_0_15_are_read(opener: Any, version: Any) -> None:
    out = io.BytesIO()
    options = ipc.IpcWriteOptions(metadata_version=version, use_legacy_format=True)
    with opener(out, TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=7)
    reader = opened(out.getvalue(), "arrow")
    assert reader.samples == 40
    assert reader.read(np.array([39, 0]), ["word", "id"])["word"] == ["w0", "w0"]
    with pytest.raises(CorruptDataError, match="the file: not an Arrow IPC file"):
        opened(out.getvalue()[:-100], "arrow")


def test_columns_of_a_wide_file_are_opened_together(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({f"c{number}": [[str(number)]] if number % 2 else [number] for number in range(50)})
    reader = opened(file_of(table), "arrow")
    calls: list[Any] = []
    open_file = ipc.open_file

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return open_file(*args, **options)

    monkeypatch.setattr(ipc, "open_file", counted)
    found = reader.read(np.array([0]))
    assert {name: [*values] for name, values in found.items()} == table.to_pydict()
    assert len(calls) == 3  # its schema, and what is mapped, and what is copied


def test_pyarrow_and_polars_read_what_is_written(tmp_path: Path) -> None:
    columns = CASES["arrow"].columns
    with writer_of("arrow")(columns, tmp_path) as writer:
        for number in range(50):
            writer.write(sample_of(number, columns))
    path = tmp_path / "shard.00000.arrow"
    table = feather.read_table(path)
    table.validate(full=True)
    expected = [sample_of(number, columns) for number in range(50)]
    assert table["id"].to_pylist() == list(range(50))
    assert table["text"].to_pylist() == [one["text"] for one in expected]
    assert table["flag"].to_pylist() == [one["flag"] for one in expected]
    assert table["blob"].to_pylist() == [one["blob"] for one in expected]
    assert np.array_equal(table["row"].combine_chunks().flatten().to_numpy().reshape(50, 5)[7], expected[7]["row"])
    tensor = table["pixels"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(tensor, np.stack([one["pixels"] for one in expected]))
    frame = pl.read_ipc(path, columns=["id", "text"])
    assert frame["text"].to_list() == table["text"].to_pylist()


def test_files_of_polars_are_read() -> None:
    out = io.BytesIO()
    pl.DataFrame({"a": list(range(30)), "s": [f"{i} and a text that is not short" for i in range(30)]}).write_ipc(out)
    batch = opened(out.getvalue(), "arrow").read(np.array([29, 3]))
    assert batch["a"].tolist() == [29, 3]
    assert batch["s"] == ["29 and a text that is not short", "3 and a text that is not short"]


@given(
    values=st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=30),
    chunk=st.integers(1, 10),
    stream=st.booleans(),
    views=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_and_nulls(values: list[bytes | None], chunk: int, stream: bool, views: bool) -> None:
    data = file_of(pa.table({"x": pa.array(values, pa.binary())}), chunk, stream)
    reader = opened(data, "arrow", options=ReadOptions(views=views))
    found = reader.read(np.arange(len(values)))["x"]
    assert [None if value is None else bytes(value) for value in found] == values


def test_the_layout_is_that_of_pyarrow() -> None:
    for stream in (False, True):
        for compression in (None, "zstd"):
            layout = arrow_layout(MappedSource(file_of(TABLE, 9, stream, compression), "the file"))
            assert layout.rows == (9, 9, 9, 9, 4)
            assert (layout.stream, layout.compressed) == (stream, compression is not None)


def test_bytes_are_views_of_the_file_where_requested(tmp_path: Path) -> None:
    with writer_of("arrow")({"x": "bytes"}, tmp_path) as writer:
        writer.write_batch({"x": [b"ab", b"", b"cde"]})
    from stoker import StreamingDataset

    (found,) = StreamingDataset(local=tmp_path, read=ReadOptions(views=True), batch_size=3).batches()
    assert all(isinstance(value, memoryview) for value in found["x"])
    assert describe([bytes(value) for value in found["x"]]) == describe([b"ab", b"", b"cde"])


@pytest.mark.parametrize(
    "data", [b"", b"ARROW1\0\0", b"x" * 100, file_of(TABLE)[:-3], file_of(TABLE, stream=True)[:700]]
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="the file: not an Arrow IPC file"):
        opened(data, "arrow")


def test_a_column_twice_or_missing_is_refused() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(FormatError, match="same name"):
        opened(file_of(twice), "arrow")
    with pytest.raises(FormatError, match="no column 'z'"):
        opened(file_of(TABLE), "arrow", columns=["z"])
    assert opened(file_of(TABLE), "arrow", columns=["id"]).columns == ("id",)


def test_a_compressed_buffer_that_claims_to_be_huge_is_refused() -> None:
    data = bytearray(file_of(pa.table({"x": np.zeros(100_000)}), 100_000, compression="zstd"))
    place = data.index((800_000).to_bytes(8, "little"))
    data[place : place + 8] = (1 << 45).to_bytes(8, "little")
    with pytest.raises(CorruptDataError, match="claims to hold"):
        opened(bytes(data), "arrow")


@pytest.mark.parametrize("write", [ipc.new_file, ipc.new_stream])
def test_offsets_that_change_in_the_file_later_lead_nowhere(tmp_path: Path, write: Any) -> None:
    """They were checked when the column was first read; only what lies in memory of our own stays as it was."""
    texts = [f"text {number} " * 500 for number in range(20)]
    lists = [list(range(number * 500)) for number in range(20)]
    nested = [{"a": [text, text]} for text in texts]
    table = pa.table({"list": lists, "nested": nested, "text": texts})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, write(file, table.schema) as writer:
        writer.write_table(table)
    dataset = StreamingDataset(local=tmp_path, format="arrow")
    assert len(dataset[3]) == 3
    data = bytearray(path.read_bytes())
    for column in (table["text"], table["list"], table["nested"].combine_chunks().field("a")):
        chunk = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        offsets = chunk.buffers()[1] if not pa.types.is_list(chunk.type) else chunk.offsets.buffers()[1]
        place = bytes(data).index(offsets.to_pybytes()[: 4 * 21])
        data[place + 4 : place + 4 * 20] = np.full(19, 1 << 30, "<i4").tobytes()
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns))
    for number in range(20):
        sample = dataset[number]
        assert sample["text"] == texts[number]
        assert np.asarray(sample["list"]).tolist() == lists[number]
        assert sample["nested"] == nested[number]


LONG = "a text that a view leads to"
DAMAGED = {
    "list view": (pa.array([[1], [2], [3]], pa.list_view(pa.int64())), np.array([0, 1, 2], "i4"), [0, -1, 2]),
    "size of a view": (
        pa.array([[LONG], [], [LONG]], pa.list_view(pa.string())),
        np.array([1, 0, 1], "i4"),
        [1, 0, 1 << 30],
    ),
    "large list view": (
        pa.array([[1], [2], [3]], pa.large_list_view(pa.int8())),
        np.array([0, 1, 2], "i8"),
        [0, 1, 1 << 62],
    ),
    "view in a list": (pa.array([[LONG]], pa.list_(pa.string_view())), np.array([len(LONG)], "i4"), [1 << 24]),
    "runs": (pa.RunEndEncodedArray.from_arrays([3, 5, 9], [6, 7, 8]), np.array([3, 5, 9], "i8"), [3, 99, 9]),
    "dictionary": (pa.array([LONG, "b", LONG]).dictionary_encode(), np.array([0, 1, 0], "i4"), [0, 77, 0]),
    "union": (
        pa.UnionArray.from_dense(pa.array([0] * 3, pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array([7, 8, 9])]),
        np.array([0, 1, 2], "i4"),
        [0, 1, 99],
    ),
    "map": (pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int8())), np.array([0, 1, 2, 3], "i4"), [0, 1, 2, 400]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_numbers_that_lead_out_of_an_array_are_refused(name: str) -> None:
    array, good, bad = DAMAGED[name]
    data = file_of(pa.table({"x": array}), 100)
    assert data.count(good.tobytes())
    reader = opened(data.replace(good.tobytes(), np.array(bad, good.dtype).tobytes()), "arrow")
    with pytest.raises(CorruptDataError, match="column 'x' does not decode"):
        reader.read(np.array([0]))
