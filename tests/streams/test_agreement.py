"""Samples of streams, and shards of one stream, that differ in columns or types keep their own; whole columns are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import (
    LMStream,
    MDSWriter,
    ReadOptions,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
    merge_index,
)
from stoker.errors import ConfigError, FormatError
from stoker.writers import CSVWriter, JSONWriter
from stoker.writing.parquet_writer import ParquetWriter
from stoker.writing.shard_formats import TFRecordWriter, writer_of
from support import write_samples

VALUES: dict[str, Any] = {
    "id": 1,
    "text": "x",
    "blob": b"y",
    "score": np.float32(0.5),
    "image": np.zeros((2, 3), np.uint8),
    "tokens": np.zeros(4, np.uint16),
}


def write(out: Path, columns: Mapping[str, str], writer: Any = MDSWriter, **values: Any) -> Path:
    """Four samples."""
    sample = {name: values.get(name, VALUES.get(name)) for name in columns}
    return write_samples(out, [sample] * 4, dict(columns), writer=writer)


def opened(*paths: Path, **options: Any) -> StreamingDataset:
    streams = [Stream(local=path, name=path.name) for path in paths]
    return StreamingDataset(streams=streams, batch_size=4, shuffle=True, **options)


# -- streams -------------------------------------------------------------------------------------------------------------


def read_whole(dataset: StreamingDataset) -> list[Callable[[], Any]]:
    """All that reads whole columns."""
    return [
        dataset.batches,
        lambda: StreamingDataLoader(dataset, columnar=True),
        lambda: StreamingDataLoader(dataset.batch_map(dict)),
        lambda: StreamingShardLoader(dataset),
        lambda: dataset.zip(dataset),
        lambda: next(iter(LMStream(dataset, column="id", batch_size=1, seq_len=2))),
    ]


def test_samples_of_streams_have_their_own_columns(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"id": "int", "text": "str", "tokens": "bytes"}, tokens=b"old")
    b = write(tmp_path / "b", {"id": "int", "tokens": "ndarray:uint16:4"})
    one = {"id": 1, "text": "x", "tokens": b"old"}
    for options in ({}, {"transform": dict}, {"on_bad_sample": "skip"}, {"shuffle_algo": "py1e"}):
        dataset = opened(a, b, **options)
        samples = list(dataset)
        assert [sample for sample in samples if "text" in sample] == [one] * 4
        others = [sample for sample in samples if "text" not in sample]
        assert all(set(sample) == {"id", "tokens"} and sample["tokens"].tolist() == [0] * 4 for sample in others)
        assert len(others) == 4
        assert (dataset[0], set(dataset[4])) == (one, {"id", "tokens"})
        loader = StreamingDataLoader(opened(a, b, batching_method="per_stream", **options), collate_fn=list)
        assert sorted(len({*map(len, batch)}) for batch in loader) == [1, 1]
    renamed = sorted(opened(a, b).rename({"id": "number"}), key=len)
    assert [set(sample) for sample in renamed] == [{"number", "tokens"}] * 4 + [{"number", "text", "tokens"}] * 4
    assert [set(sample) for sample in opened(a, b).select(["id"])] == [{"id"}] * 8
    assert {len(sample) for sample in opened(a, b).enumerate()} == {3, 4}
    with pytest.raises(ConfigError, match="ids='text' names a column"):
        opened(a, b, read=ReadOptions(ids="text"))
    with pytest.raises(FormatError, match="read only columns of one type with columns="):
        dataset.read([0, 4])


def test_streams_of_different_columns_are_refused_and_common_ones_may_be_chosen(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"id": "int", "text": "str"})
    b = write(tmp_path / "b", {"id": "int", "score": "float32"})
    for read in read_whole(opened(a, b)):
        with pytest.raises(
            ConfigError,
            match=r"streams 'a' and 'b' .*'text' is str in the first and missing in the second; 'score' is missing in the "
            r"first and float32 in the second.*columns=\['id'\].*or iterate over samples",
        ):
            read()
    batches = list(opened(a, b, columns=["id"]).batches())
    assert [set(batch) for batch in batches] == [{"id"}, {"id"}]
    with pytest.raises(ConfigError, match="'text' is str in the first and missing in the second"):
        opened(a, b, columns=["id", "text"])
    with pytest.raises(ConfigError, match="columns: column 'nothing' is unknown; known: id, text"):
        opened(a, b, columns=["nothing"])


def test_streams_without_a_common_column_are_refused(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", {"id": "int"}), write(tmp_path / "b", {"text": "str"})
    with pytest.raises(ConfigError, match="No column agrees in all of them"):
        opened(a, b).batches()


@pytest.mark.parametrize(
    ("one", "two", "value"),
    [
        ("int", "str", "1"),
        ("int", "int32", 1),
        ("float32", "float64", 0.5),
        ("str", "bytes", b"x"),
        ("ndarray:uint8:2,3", "ndarray:uint8:3,2", np.zeros((3, 2), np.uint8)),
        ("ndarray:uint16:4", "ndarray:int32:4", np.zeros(4, np.int32)),
        ("ndarray:uint16:4", "uint16", 1),
        ("json", "int", 1),
    ],
)
def test_columns_of_one_name_and_different_types_are_refused(tmp_path: Path, one: str, two: str, value: Any) -> None:
    first = {"ndarray:uint8:2,3": VALUES["image"], "ndarray:uint16:4": VALUES["tokens"], "float32": VALUES["score"]}
    a = write(tmp_path / "a", {"id": "int", "x": one}, x=first.get(one, "x" if one == "str" else 1))
    b = write(tmp_path / "b", {"id": "int", "x": two}, x=value)
    with pytest.raises(ConfigError, match=rf"'x' is {one} in the first and {two} in the second.*columns=\['id'\]"):
        opened(a, b).batches()
    assert opened(a, b, columns=["id"]).size == 8


def test_the_same_types_of_several_formats_are_read_together(tmp_path: Path) -> None:
    columns = {"id": "int", "text": "str"}
    paths = [
        write(tmp_path / writer.__name__, columns, writer)
        for writer in (MDSWriter, JSONWriter, CSVWriter, writer_of("arrow"), TFRecordWriter)
    ]
    streams = [Stream(local=path) for path in paths]
    write(tmp_path / "parquet", columns, ParquetWriter)
    streams.append(Stream(remote=tmp_path / "parquet", format="parquet"))
    for batch in StreamingDataset(streams=streams, batch_size=8, shuffle=True, batching_method="random").batches():
        assert np.asarray(batch["id"]).dtype == np.int64
        assert isinstance(batch["id"], np.ndarray)
        assert set(batch["text"]) == {"x"}


def test_arrays_of_several_formats_are_read_together_and_their_types_compared(tmp_path: Path) -> None:
    columns = {"score": "float32", "tokens": "ndarray:uint16"}
    a = Stream(local=write(tmp_path / "a", columns))
    write(tmp_path / "b", columns, ParquetWriter)
    b = Stream(remote=tmp_path / "b", format="parquet")
    (batch,) = StreamingDataset(streams=[a, b], batch_size=8).batches()
    assert isinstance(batch["score"], np.ndarray)
    assert batch["score"].dtype == np.float32
    assert all(value.dtype == np.uint16 for value in batch["tokens"])
    other = Stream(local=write(tmp_path / "c", {"score": "float64", "tokens": "ndarray:uint16"}))
    with pytest.raises(ConfigError, match="'score' is float in the first and float64 in the second"):
        StreamingDataset(streams=[b, other]).batches(2)


# -- within one dataset --------------------------------------------------------------------------------------------------


def test_merged_shards_of_different_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m" / "0", {"id": "int", "text": "str"})
    write(tmp_path / "m" / "1", {"id": "int"})
    merge_index(str(tmp_path / "m"))
    with pytest.raises(
        ConfigError, match=r"shards '0/shard.00000.mds' and '1/shard.00000.mds' of stream .*'text' is str"
    ):
        StreamingDataset(local=tmp_path / "m").batches(2)
    assert StreamingDataset(local=tmp_path / "m", columns=["id"]).size == 8
    assert [len(sample) for sample in StreamingDataset(local=tmp_path / "m")] == [2] * 4 + [1] * 4


def test_merged_shards_of_different_types_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m" / "0", {"id": "int", "x": "ndarray:uint8:2,3"}, x=VALUES["image"])
    write(tmp_path / "m" / "1", {"id": "int", "x": "ndarray:uint8:3,2"}, x=np.zeros((3, 2), np.uint8))
    merge_index(str(tmp_path / "m"))
    with pytest.raises(ConfigError, match=r"'x' is ndarray:uint8:2,3 in the first and ndarray:uint8:3,2 in the second"):
        StreamingDataset(local=tmp_path / "m").batches(2)


def test_shards_that_differ_only_in_what_their_writer_was_told_are_read_together(tmp_path: Path) -> None:
    for part, limit in enumerate((1 << 20, 1 << 21)):
        with MDSWriter({"id": "int"}, str(tmp_path / str(part)), size_limit=limit, hashes=["sha1"][:part]) as out:
            out.write({"id": part})
    merge_index(str(tmp_path))
    assert sorted(sample["id"] for sample in StreamingDataset(local=tmp_path)) == [0, 1]


def test_parquet_files_of_different_columns_or_types_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"id": [1], "x": ["1"]}), tmp_path / "1.parquet")
    with pytest.raises(Exception, match="'x' is int64 in the first and string in the second"):
        StreamingDataset(remote=tmp_path, format="parquet")
    assert StreamingDataset(remote=tmp_path, format="parquet", columns=["id"]).size == 2


def test_values_of_unlike_types_in_one_batch_are_an_error(tmp_path: Path) -> None:
    """What no index tells is noticed where samples are read."""
    a = write(tmp_path / "a", {"x": "json"}, x="text")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "lines.jsonl").write_text('{"x": 1}\n{"x": null}\n')
    dataset = StreamingDataset(streams=[Stream(local=a), Stream(remote=tmp_path / "b", format="json")], batch_size=6)
    with pytest.raises(FormatError, match=r"column 'x' is text in \S*a/shard.00000.mds and integer in \S*lines.jsonl"):
        list(dataset.batches())
