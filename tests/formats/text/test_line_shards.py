"""Shards of text lines: read exactly, and refused when they are not what the index says."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import StreamingDataset, rebuild_index
from stoker.errors import ConfigError, CorruptDataError, EncodingError, FormatError
from stoker.formats.base import ShardInfo
from stoker.formats.registry import get_format
from stoker.index.index import Index
from stoker.writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter

COLUMNS = {"b": "int", "a": "str", "c": "float"}
SAMPLES = [{"a": f"text {i}", "b": i, "c": i / 4} for i in range(6)]


def shard(tmp_path: Path, kind: str = "json", samples: list[Any] | None = None) -> tuple[ShardInfo, list[bytes]]:
    writer = JSONWriter if kind == "json" else CSVWriter
    with writer(COLUMNS, tmp_path) as sink:
        for sample in SAMPLES if samples is None else samples:
            sink.write(sample)
    info = Index.from_json((tmp_path / "index.json").read_bytes(), "x").shards[0]
    return info, [(tmp_path / file.basename).read_bytes() for file in info.raw]


def read(info: ShardInfo, files: list[bytes], rows: list[int], columns: list[str] | None = None) -> Any:
    reader = get_format(info.format).open(info, files, where="the shard")
    return reader.read(np.array(rows, np.int64), columns)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_rows_are_read_in_any_order(tmp_path: Path, kind: str) -> None:
    info, files = shard(tmp_path, kind)
    batch = read(info, files, [5, 0, 0])
    assert batch["a"] == ["text 5", "text 0", "text 0"]
    assert batch["b"].dtype == np.int64
    assert batch["b"].tolist() == [5, 0, 0]
    assert batch["c"].dtype == np.float64
    assert batch["c"].tolist() == [1.25, 0, 0]
    assert list(read(info, files, [1], ["c"])) == ["c"]
    assert read(info, files, [])["a"] == []


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_integers_beyond_int64_are_a_list(tmp_path: Path, kind: str) -> None:
    info, files = shard(tmp_path, kind, [{"a": "", "b": 10**30, "c": 0.5}])
    assert read(info, files, [0])["b"] == [10**30]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_unknown_column_or_row_is_named(tmp_path: Path, kind: str) -> None:
    info, files = shard(tmp_path, kind)
    with pytest.raises(FormatError, match="no column 'z'; it has"):
        read(info, files, [0], ["z"])
    with pytest.raises(IndexError):
        read(info, files, [6])


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_files_of_another_size_are_corrupt(tmp_path: Path, kind: str) -> None:
    info, (data, meta) = shard(tmp_path, kind)
    for files in ([data[:-1], meta], [data, meta[:-1]], [data + b"x", meta], [b"", meta], [data, b""]):
        with pytest.raises(CorruptDataError, match="the shard"):
            read(info, files, [0])


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(("word", "value"), [(0, 7), (1, 1), (2, 10**6), (7, 3), (3, 0)])
def test_offsets_that_leave_the_file_or_run_backwards_are_corrupt(
    tmp_path: Path, kind: str, word: int, value: int
) -> None:
    info, (data, meta) = shard(tmp_path, kind)
    words = np.frombuffer(meta[:32], "<u4").copy()
    words[word] = value
    with pytest.raises(CorruptDataError, match="the shard"):
        read(info, [data, words.tobytes() + meta[32:]], [0])


@pytest.mark.parametrize(
    ("kind", "old", "new", "message"),
    [
        ("json", b'"text 1"', b'"text 1 ', "sample 1: not JSON"),
        (
            "json",
            b'{"a": "text 1", "b": 1, "c": 0.25}',
            b"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1]",
            "sample 1: expected a JSON object",
        ),
        ("json", b'"b": 1', b'"z": 1', "sample 1: column 'b' is missing"),
        ("json", b'"b": 1,', b'"b":"1"', "sample 1: not JSON"),
        ("json", b'"c": 0.25', b'"c": null', "sample 1: column 'c': expected float"),
        ("json", b'"b": 1', b'"b":.1', "sample 1: not JSON"),
        ("json", b"text 1", b"text \xff", "sample 1: .*utf-8"),
        ("csv", b"text 1,1,", b"text 1;1,", "sample 1: expected 3 values, found 2"),
        ("csv", b"text 1,1,", b"text 1,x,", "sample 1: column 'b': expected int"),
        ("csv", b"0.25", b"0,25", "sample 1: expected 3 values, found 4"),
        ("csv", b"a,b,c", b"a,b,d", "first line does not name"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, kind: str, old: bytes, new: bytes, message: str) -> None:
    info, (data, meta) = shard(tmp_path, kind)
    assert len(old) == len(new)
    assert old in data
    with pytest.raises(CorruptDataError, match=message):
        read(info, [data.replace(old, new, 1), meta], [0, 1])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["json", "csv"]), st.binary(max_size=60), st.lists(st.integers(0, 70), min_size=0, max_size=4))
def test_no_bytes_make_a_reader_fail_otherwise(kind: str, body: bytes, cuts: list[int]) -> None:
    header = b"" if kind == "json" else b"a,b\n"
    data = header + body
    offsets = [len(header), *sorted(cuts), len(data)]
    meta = np.array([len(offsets) - 1, *offsets], "<u4").tobytes()
    entry: dict[str, Any] = {
        "samples": len(offsets) - 1,
        "version": 2,
        "compression": None,
        "newline": "\n",
        "hashes": [],
        "raw_data": {"basename": "d", "bytes": len(data), "hashes": {}},
        "raw_meta": {"basename": "m", "bytes": len(meta), "hashes": {}},
        "columns": {"a": "int", "b": "str"},
        "column_names": ["a", "b"],
        "column_encodings": ["int", "str"],
    }
    info = get_format(kind).parse_shard(entry, "x")
    with contextlib.suppress(CorruptDataError):
        read(info, [data, meta], list(range(info.samples)))


# -- refused at the write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JSONWriter, CSVWriter])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("a", 3),
        ("a", b"x"),
        ("a", None),
        ("a", "\ud800"),
        ("b", 1.0),
        ("b", True),
        ("b", "1"),
        ("b", None),
        ("c", "1"),
        ("c", True),
        ("c", 2**53 + 1),
        ("c", 10**400),
        ("c", None),
    ],
)
def test_a_value_that_does_not_fit_is_refused(tmp_path: Path, kind: Any, column: str, value: Any) -> None:
    with kind(COLUMNS, tmp_path) as writer:
        writer.write(SAMPLES[0])
        with pytest.raises(EncodingError, match=f"column '{column}' of sample 1: expected"):
            writer.write({**SAMPLES[1], column: value})
        with pytest.raises(EncodingError, match=f"column '{column}' of sample 2: expected"):
            writer.write_batch(
                {name: [SAMPLES[1][name], value if name == column else SAMPLES[1][name]] for name in COLUMNS}
            )
    assert json.loads((tmp_path / "index.json").read_bytes())["shards"][0]["samples"] == 1


@pytest.mark.parametrize("text", ["a,b", "a\nb", ",", "\n"])
def test_text_that_would_split_is_refused(tmp_path: Path, text: str) -> None:
    with CSVWriter(COLUMNS, tmp_path) as writer, pytest.raises(EncodingError, match="separator"):
        writer.write({**SAMPLES[0], "a": text})


@pytest.mark.parametrize(("writer", "form"), [(CSVWriter, "csv"), (TSVWriter, "tsv"), (CSVWriter, "xsv")])
def test_shards_without_quotes_are_not_read_as_files_with_quotes(writer: Any, form: str, tmp_path: Path) -> None:
    texts = ['"quoted"', 'a "b" c', '"', "a\r", "'"]
    with writer({"a": "str"}, tmp_path) as out:
        out.write_batch({"a": texts})
    assert [sample["a"] for sample in StreamingDataset(tmp_path)] == texts
    name = "shard.00000.tsv" if form == "tsv" else "shard.00000.csv"
    options = {"separator": ","} if form == "xsv" else {}
    for files in (tmp_path, tmp_path / name, f"{tmp_path}/*.?sv", [tmp_path / name]):
        with pytest.raises(ConfigError, match=rf"{name} is a shard .* not quoted .*open {tmp_path} without format="):
            StreamingDataset(files, format=form, format_options=options)
    (tmp_path / "index.json").unlink()
    rebuild_index(tmp_path)
    assert [sample["a"] for sample in StreamingDataset(tmp_path)] == texts


def test_a_value_that_continues_a_long_separator_is_refused(tmp_path: Path) -> None:
    with XSVWriter({"a": "str", "b": "str"}, tmp_path, separator="::") as writer:
        with pytest.raises(EncodingError, match="part of the separator"):
            writer.write({"a": "x:", "b": "y"})
        writer.write({"a": ":x", "b": "y"})


@pytest.mark.parametrize(("separator", "newline"), [("", "\n"), (",", ""), ("\n", "\n"), ("\r", "\r\n"), ("ab", "b")])
def test_separators_that_can_not_work_are_refused(tmp_path: Path, separator: str, newline: str) -> None:
    with pytest.raises(ConfigError, match="separator="):
        XSVWriter(COLUMNS, tmp_path, separator=separator, newline=newline)


def test_columns_that_can_not_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'a,b'"):
        CSVWriter({"a,b": "int"}, tmp_path)
    with pytest.raises(ConfigError, match="encoding 'bytes' is unknown"):
        JSONWriter({"a": "bytes"}, tmp_path)
    with pytest.raises(ConfigError, match="columns must be a dict with at least one column"):
        CSVWriter({}, tmp_path)
    with pytest.raises(ConfigError, match="newline"):
        JSONWriter({"a": "int"}, tmp_path, newline=";")


def test_numbers_of_numpy_are_written_as_pythons(tmp_path: Path) -> None:
    with JSONWriter(COLUMNS, tmp_path) as writer:
        writer.write({"a": np.str_("x"), "b": np.int16(3), "c": np.float32(0.1)})
    line = json.loads((tmp_path / "shard.00000.json").read_bytes())
    assert line == {"a": "x", "b": 3, "c": float(np.float32(0.1))}
