"""Files of several writers, value for value: in order, and by id in another order, from Parquet, Arrow files and streams."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from stoker import StokerError, StreamingDataset, convert, verify
from stoker.formats.parquet.facts import COMPRESSED, START, ColumnPart, column_footer
from stoker.formats.parquet.pages import page_heads
from support import open_parquet

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS = 30
LONG = "a text that is longer than a view's head"
VIEW, BYTES = pa.string_view(), pa.binary_view()
FAR = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None, dt.datetime(1, 1, 1), dt.datetime(2020, 2, 29, 1, 2, 3)]


def write_parquet(table: Any, path: Path) -> None:
    pq.write_table(table, path, row_group_size=11)


def write_bare(table: Any, path: Path) -> None:
    pq.write_table(table, path, row_group_size=11, store_schema=False)


def write_arrow(table: Any, path: Path, opener: Any = ipc.new_file, **options: Any) -> None:
    with pa.OSFile(str(path), "wb") as file, opener(file, table.schema, options=ipc.IpcWriteOptions(**options)) as out:
        out.write_table(table, max_chunksize=11)


def write_stream(table: Any, path: Path) -> None:
    write_arrow(table, path, ipc.new_stream)


def write_packed(table: Any, path: Path) -> None:
    write_arrow(table, path, compression="zstd")


WRITERS: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "parquet": (write_parquet, "a.parquet"),
    "parquet without Arrow's schema": (write_bare, "a.parquet"),
    "arrow": (write_arrow, "a.arrow"),
    "stream": (write_stream, "a.arrow"),
    "zstd": (write_packed, "a.feather"),
}


def tensors(values: Sequence[Any], shape: Sequence[int], **options: Any) -> Any:
    kind = pa.fixed_shape_tensor(pa.int16(), shape, **options)
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def repeated(values: Sequence[Any]) -> list[Any]:
    return [values[row % len(values)] for row in range(ROWS)]


def column(values: Sequence[Any], kind: Any) -> tuple[Any, list[Any]]:
    """An array of values, and these."""
    return pa.array(repeated(values), kind), repeated(values)


def counted(numbers: Sequence[Any], kind: Any, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Lists of times, by their numbers, and what is expected."""
    number = pa.int64() if kind.bit_width == 64 else pa.int32()
    return pa.array(repeated(numbers), pa.list_(number)).cast(pa.list_(kind)), repeated(values)


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, np.ndarray | np.generic) and not isinstance(expected, np.ndarray | np.generic):
        times: Any = found
        return same([*times] if found.dtype.kind in "mM" else found.tolist(), expected)
    if isinstance(expected, dict):
        return (
            isinstance(found, dict) and list(found) == list(expected) and same([*found.values()], [*expected.values()])
        )
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and found.dtype == expected.dtype and np.array_equal(found, expected)
    return type(found) is type(expected) and bool(found == expected)


SOME = 1_577_934_245_123_456_789
NANO = np.datetime64(SOME, "ns")
FIRST = dt.datetime(1970, 1, 1, 0, 0, 0, 7)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59)
WHOLE = dt.datetime(2020, 1, 2, 3, 4, 5, 123456)
TEXTS = [LONG, "b", None, "", "é" * 20]
# What pyarrow does not write to Parquet, and types that only Arrow's schema in the file tells.
NOT_IN_PARQUET = [
    *("struct of views", "no fields", "lists in runs", "runs of views", "runs of numbers", "dictionary of views"),
    *("dictionary of lists", "union", "sparse union"),
]
BY_ARROW_ALONE = [
    "spans",
    "tensors",
    "tensors of another order",
    "tensors and nulls",
    "tensors in lists",
    "truth in bytes",
]
# What each type's values are, nested.
CASES: dict[str, tuple[Any, list[Any]]] = {
    "list of views": column([[text, "x"] for text in TEXTS] + [[], None], pa.list_(VIEW)),
    "large list of views of bytes": column([[b"\xff" * 20, None], [], None], pa.large_list(BYTES)),
    "list of three views": column([[text] * 3 for text in TEXTS] + [None], pa.list_(VIEW, 3)),
    "struct of views": column(
        [{"a": text, "b": 1} for text in TEXTS] + [None], pa.struct([("a", VIEW), ("b", pa.int8())])
    ),
    "map of views": column([[(LONG, b"y"), ("z", None)], [], None], pa.map_(VIEW, BYTES)),
    "lists in lists": column([[[text], [], None] for text in TEXTS] + [None], pa.list_(pa.list_(VIEW))),
    "views": column(TEXTS, VIEW),
    "views of bytes": column([b"a" * 30, None, b""], BYTES),
    "list view of numbers": column([[1, 2], [3], [], None], pa.list_view(pa.int64())),
    "list view of as many numbers": column([[1, 2], [3, 4]], pa.list_view(pa.int32())),
    "large list view of floats": column([[1.5], None, [2.5, 3.5]], pa.large_list_view(pa.float32())),
    "list view with holes": column([[1, None], [2], None], pa.list_view(pa.int16())),
    "list view of views": column([[text] for text in TEXTS] + [None, []], pa.list_view(VIEW)),
    "list view of structs": column([[{"a": 1}, None], []], pa.list_view(pa.struct([("a", pa.int64())]))),
    "struct of list views": column([{"a": [1, 2]}, None, {"a": None}], pa.struct([("a", pa.list_view(pa.int8()))])),
    "numbers of all kinds": column(
        [{"i": 1, "u": 2**64 - 1, "h": 0.5, "f": None, "b": True}, {"i": None, "u": 0, "h": None, "f": 1.5, "b": None}],
        pa.struct([("i", pa.int8()), ("u", pa.uint64()), ("h", pa.float16()), ("f", pa.float64()), ("b", pa.bool_())]),
    ),
    "decimals": column([[decimal.Decimal("1.50"), None], None], pa.list_(pa.decimal128(9, 2))),
    "no fields": column([{}, None], pa.struct([])),
    "nanoseconds": counted([[SOME, None], [SOME - 789], None], pa.timestamp("ns"), [[NANO, None], [WHOLE], None]),
    "nanoseconds of a zone": counted(
        [[SOME], [SOME - 789]], pa.timestamp("ns", "UTC"), [[NANO], [WHOLE.replace(tzinfo=ZoneInfo("UTC"))]]
    ),
    "whole nanoseconds in structs": column([{"a": WHOLE}, {"a": None}], pa.struct([("a", pa.timestamp("ns"))])),
    "spans": counted([[1], [7000]], pa.duration("ns"), [[np.timedelta64(1, "ns")], [dt.timedelta(microseconds=7)]]),
    "times of day": column([dt.time(1, 2, 3, 4), None], pa.time64("ns")),
    "times of day in lists": counted(
        [[1, None], [3_600_000_000_000]], pa.time64("ns"), [[np.timedelta64(1, "ns"), None], [dt.time(1)]]
    ),
    "nanoseconds of a day": (
        pa.array(repeated([3_723_123_456_789, 3_723_000_000_000, None]), pa.int64()).cast(pa.time64("ns")),
        repeated([np.timedelta64(3_723_123_456_789, "ns"), dt.time(1, 2, 3), None]),
    ),
    "milliseconds of a day": column([dt.time(1, 2, 3), None], pa.time32("ms")),
    "far times": counted([[1 << 60, 7], None], pa.timestamp("us"), [[np.datetime64(1 << 60, "us"), FIRST], None]),
    "far days": counted([[1 << 30], [0]], pa.date32(), [[np.datetime64(1 << 30, "D")], [dt.date(1970, 1, 1)]]),
    "uuid": column([b"x" * 16, None], pa.uuid()),
    "lists in runs": (
        pa.RunEndEncodedArray.from_arrays([10, 12, 30], pa.array([[LONG], None, []])),
        [[LONG]] * 10 + [None] * 2 + [[]] * 18,
    ),
    "runs of views": (
        pa.RunEndEncodedArray.from_arrays([10, 30], pa.array([LONG, None], VIEW)),
        [LONG] * 10 + [None] * 20,
    ),
    "runs of numbers": (pa.RunEndEncodedArray.from_arrays([10, 30], [7, 8]), [7] * 10 + [8] * 20),
    "dictionary of views": (
        pa.DictionaryArray.from_arrays(
            pa.array(repeated([0, 1, None, 2]), pa.int8()), pa.array([LONG, "b", None], VIEW)
        ),
        repeated([LONG, "b", None, None]),
    ),
    "dictionary of lists": (
        pa.DictionaryArray.from_arrays(pa.array(repeated([0, 1]), pa.int8()), pa.array([["a"], []])),
        repeated([["a"], []]),
    ),
    "dictionary of nulls": (
        pa.DictionaryArray.from_arrays(pa.array([None] * ROWS, pa.int8()), pa.array([], pa.string())),
        [None] * ROWS,
    ),
    "struct of dictionaries": (
        pa.StructArray.from_arrays([pa.array(repeated(["u", None])).dictionary_encode()], ["a"]),
        repeated([{"a": "u"}, {"a": None}]),
    ),
    "tensors": (tensors(repeated([range(6)]), [2, 3]), repeated([np.arange(6, dtype=np.int16).reshape(2, 3)])),
    "tensors of another order": (
        tensors(repeated([range(24)]), [2, 3, 4], permutation=[2, 0, 1]),
        repeated([np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1)]),
    ),
    "tensors and nulls": (
        tensors(repeated([range(6), None, [1, None, 3, 4, 5, 6]]), [3, 2]),
        repeated([np.arange(6, dtype=np.int16).reshape(3, 2), None, [[1, None], [3, 4], [5, 6]]]),
    ),
    "tensors in lists": (
        pa.ListArray.from_arrays(range(ROWS + 1), tensors(repeated([range(6), None]), [2, 3])),
        repeated([[np.arange(6, dtype=np.int16).reshape(2, 3)], [None]]),
    ),
    "uuid in lists": (
        pa.ListArray.from_arrays(range(ROWS + 1), pa.array(repeated([b"x" * 16, None]), pa.uuid())),
        repeated([[b"x" * 16], [None]]),
    ),
    "truth in bytes": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array(repeated([0, 2, None]), pa.int8())),
        repeated([False, True, None]),
    ),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(repeated(["{}", None]))), repeated(["{}", None])),
    "union": (
        pa.UnionArray.from_dense(
            pa.array(repeated([0, 1]), pa.int8()),
            pa.array(np.arange(ROWS) // 2, pa.int32()),
            [pa.array(range(ROWS)), pa.array([LONG] * ROWS, VIEW)],
        ),
        [LONG if row % 2 else row // 2 for row in range(ROWS)],
    ),
    "sparse union": (
        pa.UnionArray.from_sparse(
            pa.array(repeated([0, 1]), pa.int8()), [pa.array(range(ROWS)), pa.array([None] * ROWS, VIEW)]
        ),
        [None if row % 2 else row for row in range(ROWS)],
    ),
    "list views that overlap, from the last to the first": (
        pa.ListViewArray.from_arrays(
            pa.array(range(ROWS)[::-1], pa.int32()), pa.array([2] * ROWS, pa.int32()), pa.array(range(100, 101 + ROWS))
        ),
        [[100 + row, 101 + row] for row in range(ROWS)[::-1]],
    ),
    "list views of text, from the last to the first": (
        pa.LargeListViewArray.from_arrays(
            pa.array(range(ROWS)[::-1], pa.int64()),
            pa.array([1] * ROWS, pa.int64()),
            pa.array([str(k) for k in range(ROWS)]),
        ),
        [[str(row)] for row in range(ROWS)[::-1]],
    ),
}


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        (name, writer)
        for name in CASES
        for writer in WRITERS
        if not (name in NOT_IN_PARQUET and "parquet" in writer) and not (name in BY_ARROW_ALONE and "without" in writer)
    ],
)
def test_values_of_pyarrow(name: str, writer: str, tmp_path: Path) -> None:
    array, expected = CASES[name]
    write, file = WRITERS[writer]
    write(pa.table({"x": array}), tmp_path / file)
    check(tmp_path / file, expected)


def check(path: Path, expected: list[Any], name: str = "x") -> None:
    dataset = StreamingDataset(path, batch_size=7)
    order = np.random.default_rng(1).permutation(len(expected))
    assert same([sample[name] for sample in dataset], expected)
    assert same([value for batch in dataset.batches() for value in batch[name]], expected)
    found = dataset.read(order.tolist())[name]
    assert same(list(found), [expected[row] for row in order])


# -- times of INT96, as Spark and Impala write them ---------------------------------------------------------------------


def write_int96(path: Path, array: Any) -> None:
    pq.write_table(pa.table({"x": array}), path, use_deprecated_int96_timestamps=True, store_schema=False)


def test_int96_reaches_all_years(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_int96(path, pa.array(FAR, pa.timestamp("us")))
    dataset = StreamingDataset(path, batch_size=4)
    found = dataset.read([3, 0, 1, 2])["x"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [FAR[3], FAR[0], None, FAR[2]]
    convert(path, tmp_path / "out", to="parquet")
    assert pq.read_table(tmp_path / "out").column("x").to_pylist() == FAR


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.timestamp("us")), FAR),
        (pa.struct([("a", pa.timestamp("us")), ("b", pa.list_(pa.timestamp("us")))]), {"a": FAR[0], "b": FAR}),
        (pa.map_(pa.string(), pa.timestamp("us")), [("k", FAR[2])]),
    ],
    ids=str,
)
def test_int96_in_others_reaches_all_years(kind: Any, value: Any, tmp_path: Path) -> None:
    write_int96(tmp_path / "a.parquet", pa.array([value, None], kind))
    check(tmp_path / "a.parquet", [value, None])


def test_int96_keeps_nanoseconds(tmp_path: Path) -> None:
    values = np.array([SOME, -SOME, 0], "M8[ns]")
    write_int96(tmp_path / "a.parquet", pa.array(values))
    found = StreamingDataset(tmp_path).read([0, 1, 2])["x"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == values.tolist()
    assert found.dtype == values.dtype


def test_int96_of_nanoseconds_beyond_their_range_is_refused(tmp_path: Path) -> None:
    """pyarrow does not write such; a page of two plain values does."""
    path = tmp_path / "a.parquet"
    write_int96(path, pa.array([1, 0], pa.timestamp("ns")))
    data = bytearray(path.read_bytes())
    place = data.index((2440588).to_bytes(4, "little"))  # the day 1970-01-01
    data[place : place + 4] = (5373484).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(
        StokerError, match=r"row group 0, column 'x' holds nanoseconds, and times before 1677 or after 2262"
    ):
        StreamingDataset(path).read([0])


# -- others -----------------------------------------------------------------------------------------------------------


def test_two_fields_of_one_name_are_an_error(tmp_path: Path) -> None:
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    write_arrow(pa.table({"x": array}), tmp_path / "a.arrow")
    with pytest.raises(StokerError, match=r"a\.arrow.*column 'x'.*two fields of one name: a, a"):
        StreamingDataset(tmp_path / "a.arrow").read([0])


def test_lists_that_share_values_again_and_again_are_refused(tmp_path: Path) -> None:
    array = pa.array(["x"] * 10)
    for _ in range(9):
        offsets, sizes = (pa.array([number] * 10, pa.int32()) for number in (0, 10))
        array = pa.ListViewArray.from_arrays(offsets, sizes, array)
    write_arrow(pa.table({"x": array}), tmp_path / "a.arrow")
    with pytest.raises(StokerError, match=r"column 'x'.*lists share 10 values so that they hold"):
        StreamingDataset(tmp_path / "a.arrow").read([0])


@pytest.mark.parametrize("writer", ["parquet", "arrow"])
def test_converted_tensors_and_other_extension_types_stay_such(writer: str, tmp_path: Path) -> None:
    names = ["tensors", "tensors of another order", "uuid", "truth in bytes", "json"]
    table = pa.table({name: CASES[name][0] for name in names})
    write, file = WRITERS[writer]
    write(table, tmp_path / file)
    convert(tmp_path / file, tmp_path / "parquet", to="parquet")
    found = pq.read_table(tmp_path / "parquet")
    assert found.schema.types == table.schema.types
    assert found.to_pylist() == table.to_pylist()
    convert(tmp_path / file, tmp_path / "mds", to="mds", select=["tensors of another order"])
    values = StreamingDataset(tmp_path / "mds").read([0])["tensors of another order"]
    assert same(list(values), CASES["tensors of another order"][1][:1])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("list view of as many numbers", pa.list_(pa.int32())),
        ("large list view of floats", pa.large_list(pa.float32())),
        ("list view of views", pa.list_(pa.string())),
        ("lists in runs", pa.list_(pa.string())),
        ("dictionary of views", pa.string()),
        ("dictionary of lists", pa.list_(pa.string())),
        ("uuid in lists", pa.list_(pa.binary(16))),
    ],
)
def test_layouts_that_parquet_has_not_are_converted_to_plain_ones(name: str, kind: Any, tmp_path: Path) -> None:
    write_arrow(pa.table({"x": CASES[name][0]}), tmp_path / "a.arrow")
    convert(tmp_path / "a.arrow", tmp_path / "out", to="parquet")
    assert str(pq.read_table(tmp_path / "out").schema.field("x").type) in (
        str(kind),
        str(kind).replace("item", "element"),
    )
    check(tmp_path / "out", CASES[name][1])


def test_dates_of_milliseconds_keep_their_time_of_day(tmp_path: Path) -> None:
    dates = pa.array([1_577_934_245_123, None, 0], pa.int64()).view(pa.date64())
    offsets = [0, 1, 2, 3]
    columns = {
        "flat": dates,
        "struct": pa.StructArray.from_arrays([dates], ["d"]),
        "list": pa.ListArray.from_arrays(offsets, dates),
        "large list": pa.LargeListArray.from_arrays(offsets, pa.StructArray.from_arrays([dates], ["d"])),
        "fixed": pa.FixedSizeListArray.from_arrays(dates, 1),
        "map": pa.MapArray.from_arrays(offsets, pa.array(["k"] * 3), dates),
    }
    write_arrow(pa.table(columns), tmp_path / "a.arrow")
    convert(tmp_path / "a.arrow", tmp_path / "out", to="parquet")
    times = [dt.datetime(2020, 1, 2, 3, 4, 5, 123000), None, dt.datetime(1970, 1, 1)]
    for path in (tmp_path / "a.arrow", tmp_path / "out"):
        flat = StreamingDataset(path).read([2, 0, 1])["flat"]
        assert isinstance(flat, np.ndarray)
        assert flat.tolist() == [times[2], times[0], None]
        for name in ("list", "fixed"):
            check(path, [[time] for time in times], name)
        check(path, [{"d": time} for time in times], "struct")
        check(path, [[{"d": time}] for time in times], "large list")
        check(path, [[("k", time)] for time in times], "map")


def test_times_of_day_are_converted_to_text(tmp_path: Path) -> None:
    write_parquet(pa.table({"x": CASES["nanoseconds of a day"][0][:2]}), tmp_path / "a.parquet")
    convert(tmp_path / "a.parquet", tmp_path / "out", to="mds")
    assert StreamingDataset(tmp_path / "out").read([0, 1])["x"] == ["01:02:03.123456789", "01:02:03"]


def test_files_of_polars(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "texts": repeated([[LONG, "b", None], [], None]),
            "struct": repeated([{"a": LONG, "b": [b"x" * 20]}, {"a": None, "b": None}]),
            "nano": pl.Series(repeated([[SOME], []]), dtype=pl.List(pl.Int64)).cast(pl.List(pl.Datetime("ns"))),
            "time": repeated([dt.time(1, 2, 3), None]),
            "category": pl.Series(repeated(["a", None, "b"]), dtype=pl.Categorical),
            "enum": pl.Series(repeated(["u", "v"]), dtype=pl.Enum(["u", "v"])),
            "array": pl.Series(repeated([["p", "q"]]), dtype=pl.Array(pl.String, 2)),
        }
    )
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=11)
    frame.write_ipc(tmp_path / "a.arrow")
    frame.write_ipc_stream(tmp_path / "b.arrow")
    for file in ("a.parquet", "a.arrow", "b.arrow"):
        for name in frame.columns:
            nano = repeated([[NANO], []])
            check(tmp_path / file, nano if name == "nano" else frame[name].to_list(), name)


def test_files_of_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    some = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    columns = {
        "u": (f"'{some}'::uuid", some.bytes),
        "us": (f"['{some}'::uuid, null]", [some.bytes, None]),
        "texts": ("[['a text of more than twelve', null], []]", [["a text of more than twelve", None], []]),
        "map": ("map {'k': [1, 2], 'l': null}", [("k", [1, 2]), ("l", None)]),
        "struct": (
            "{'t': timestamp '9999-12-31 23:59:59', 'd': date '0001-01-01'}",
            {"t": LAST, "d": dt.date(1, 1, 1)},
        ),
        "nano": ("[timestamp_ns '2020-01-02 03:04:05.123456789']", [NANO]),
        "time": ("time '01:02:03.000004'", dt.time(1, 2, 3, 4)),
        "kind": ("'b'::enum('a', 'b')", "b"),
        "decimal": ("[1.50::decimal(30, 2)]", [decimal.Decimal("1.50")]),
        "array": ("[1.5, 2.5]::float[2]", [1.5, 2.5]),
        "blob": (r"'\xAA'::blob", b"\xaa"),
    }
    chosen = ", ".join(f"{sql} as {name}" for name, (sql, _) in columns.items())
    duckdb.sql(f"copy (select {chosen} from range({ROWS})) to '{tmp_path}/a.parquet'")
    for name, (_, value) in columns.items():
        check(tmp_path / "a.parquet", [value] * ROWS, name)


# -- parquet-mr before 1.2.9, whose sizes of chunks leave out the head of the dictionary's page (PARQUET-816) --------------


def write_short_chunks(path: Path, table: Any, created_by: str) -> None:
    """The chunks' sizes in the footer are made smaller by the heads of their dictionaries' pages."""
    pq.write_table(table, path, compression="none", store_schema=False, row_group_size=50)
    shards = open_parquet(path).index.shards
    data = path.read_bytes()
    schema = shards[0].detail.file.schema  # type: ignore[union-attr]
    (column,) = schema.columns
    parts = []
    for facts in shards[0].detail.file.chunks[:, 0].tolist():  # type: ignore[union-attr]
        head = next(page_heads(data, facts[START], facts[COMPRESSED]))
        facts[COMPRESSED] -= head.start - head.at
        parts.append(ColumnPart(50, [facts]))
    path.write_bytes(data[: -8 - int.from_bytes(data[-8:-4], "little")] + column_footer(column, parts, created_by))


def test_chunks_whose_sizes_are_too_small_are_read_of_the_writer_that_does_so(tmp_path: Path) -> None:
    words = [f"word {number % 7}" for number in range(150)]
    path = tmp_path / "a.parquet"
    write_short_chunks(path, pa.table({"x": words}), "parquet-mr version 1.2.8 (build 0)")
    assert pq.read_table(path)["x"].to_pylist() == words
    check(path, words)
    assert not verify(path, deep=True).problems
    dataset = StreamingDataset(path.as_uri(), local=tmp_path / "cache", columns=["x"])
    assert dataset.read([0, 149])["x"] == [words[0], words[149]]
    write_short_chunks(path, pa.table({"x": words}), "parquet-mr version 1.2.9 (build 0)")
    with pytest.raises(StokerError, match="can not be decoded"):
        StreamingDataset(path).read([0])


# -- wide tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["parquet", "arrow", "stream", "zstd"])
def test_work_grows_as_columns_do(writer: str, tmp_path: Path) -> None:
    def calls(columns: int) -> int:
        write, file = WRITERS[writer]
        path = tmp_path / str(columns) / file
        path.parent.mkdir()
        write(pa.table({f"c{number}": [number] for number in range(columns)}), path)
        count = 0

        def counted(*_: Any) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            assert len(StreamingDataset(path).read([0])) == columns
        finally:
            sys.setprofile(None)
        return count

    calls(3)  # imports
    few, some, many = (calls(columns) for columns in (40, 220, 400))
    assert many - some < 1.2 * (some - few)
