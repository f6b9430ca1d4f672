"""Parquet: whatever writers make of a column, its rows come out as pyarrow reads them."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from patience import PATIENCE
from stoker.errors import ConfigError, CorruptDataError, FormatError, IndexFileError
from stoker.formats.base import ReadOptions
from stoker.formats.common.decoded_memory import DecodedMemory, Shelf
from stoker.formats.parquet import thrift as compact
from stoker.formats.parquet.facts import ColumnPart, column_footer, token_column, token_counts
from stoker.formats.registry import get_format
from stoker.reading.samples import iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch
from support import open_parquet

pytestmark = pytest.mark.usefixtures("own_cache")

GOLDEN = Path(__file__).parent / "golden"
ROWS = 230
GROUP = 64


def pool_of(path: Path, **options: Any) -> ShardPool:
    place = open_parquet(path, **options)
    return ShardPool(place.index, place.cache)


def read_all(path: Path, order: np.ndarray[Any, Any] | None = None, **options: Any) -> Batch:
    """Every row of a dataset, in an order that hops between row groups."""
    pool = pool_of(path, **options)
    sizes = pool.index.sizes
    shards = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes.tolist()])
    order = np.arange(len(rows)) if order is None else order
    return read_samples(pool, shards[order], rows[order])


def plain(values: Any) -> list[Any]:
    """A column as Python's own values, to be compared with what pyarrow makes."""
    out = []
    for value in values:
        if isinstance(value, np.ndarray):
            out.append(value.tolist())
        elif isinstance(value, np.datetime64 | np.timedelta64):
            out.append(None if np.isnat(value) else value.astype("int64").item())
        elif isinstance(value, np.generic):
            item = value.item()
            out.append(None if item != item else item)
        else:
            out.append(value)
    return out


def write(path: Path, column: Any, **options: Any) -> pa.Table:
    table = pa.table({"x": column, "y": pa.array(range(len(column)), pa.int64())})
    pq.write_table(table, path, **{"row_group_size": GROUP, **options})
    return table


def holes(values: list[Any], every: int = 5) -> list[Any]:
    return [None if number % every == 0 else value for number, value in enumerate(values)]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
LISTS = [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 3)]


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_integers_of_all_widths(tmp_path: Path, kind: Any, nulls: bool) -> None:
    info = np.iinfo(kind.to_pandas_dtype())
    low, high = int(info.min), int(info.max)
    values = [low + (high - low) * i // (ROWS - 1) for i in range(ROWS)]
    column = pa.array(holes(values) if nulls else values, kind)
    write(tmp_path / "a.parquet", column)
    found = read_all(tmp_path)["x"]
    assert isinstance(found, list) if nulls else isinstance(found, np.ndarray) and found.dtype == kind.to_pandas_dtype()
    assert plain(found) == column.to_pylist()


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pa.array([i / 3 for i in range(ROWS)], pa.float32()), "f4"),
        (pa.array(holes([i / 3 for i in range(ROWS)]), pa.float64()), "f8"),
        (pa.array(np.arange(ROWS, dtype="f2"), pa.float16()), "f2"),
        (pa.array([i % 3 == 0 for i in range(ROWS)]), "?"),
        (pa.array(holes(list(range(ROWS))), pa.timestamp("us", "Europe/Paris")), "M8[us]"),
        (pa.array(list(range(ROWS)), pa.timestamp("ns")), "M8[ns]"),
        (pa.array(list(range(ROWS)), pa.date32()), "M8[D]"),
        (pa.array(holes(list(range(ROWS))), pa.duration("ms")), "m8[ms]"),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_fixed_widths_are_arrays(tmp_path: Path, column: Any, dtype: str) -> None:
    write(tmp_path / "a.parquet", column)
    found = read_all(tmp_path)["x"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.dtype(dtype)
    if found.dtype.kind in "mM":
        column = column.cast(pa.int32() if column.type == pa.date32() else pa.int64())
    assert plain(found) == column.to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(holes([f"é{i}" for i in range(ROWS)])),
        pa.array(holes([f"é{i}" for i in range(ROWS)]), pa.large_string()),
        pa.array(holes([f"é{i}" for i in range(ROWS)]), pa.string_view()),
        pa.array(holes([b"\xff%d" % i for i in range(ROWS)])),
        pa.array([b"%03d" % i for i in range(ROWS)], pa.binary(3)),
        pa.array(holes([f"v{i % 7}" for i in range(ROWS)])).dictionary_encode(),
        pa.array([i % 7 for i in range(ROWS)]).dictionary_encode(),
        pa.array(holes([decimal.Decimal(i) / 100 for i in range(ROWS)]), pa.decimal128(12, 2)),
        pa.array([dt.time(1, 2, i % 60) for i in range(ROWS)]),
        pa.array(holes([{"a": i, "b": {"c": [str(i)] * (i % 3)}} for i in range(ROWS)])),
        pa.array([[(str(i), i)] * (i % 3) for i in range(ROWS)], pa.map_(pa.string(), pa.int32())),
        pa.array(holes([[[i], [], None] for i in range(ROWS)]), pa.list_(pa.list_(pa.int32()))),
        pa.array(holes([["a", None] * (i % 3) for i in range(ROWS)])),
        pa.array([None] * ROWS),
    ],
    ids=lambda value: str(value.type),
)
def test_other_values_are_python_objects(tmp_path: Path, column: Any) -> None:
    write(tmp_path / "a.parquet", column)
    order = np.random.default_rng(0).permutation(ROWS)
    expected = column.to_pylist()
    assert plain(read_all(tmp_path)["x"]) == expected
    assert plain(read_all(tmp_path, order)["x"]) == [expected[place] for place in order]


@pytest.mark.parametrize("layout", LISTS, ids=["list", "large_list", "fixed_size_list"])
@pytest.mark.parametrize("kind", [*INTEGERS, pa.float32(), pa.bool_()], ids=str)
def test_lists_of_one_length_are_an_array(tmp_path: Path, layout: Any, kind: Any) -> None:
    column = pa.array([[i % 2, 1, 0] for i in range(ROWS)], pa.list_(pa.int64())).cast(layout(kind))
    write(tmp_path / "a.parquet", column)
    found = read_all(tmp_path, np.arange(ROWS)[::-1])["x"]
    assert isinstance(found, np.ndarray)
    assert found.shape == (ROWS, 3)
    assert found.dtype == kind.to_pandas_dtype()
    assert found.tolist() == column.to_pylist()[::-1]


@pytest.mark.parametrize("layout", [pa.list_, pa.large_list], ids=["list", "large_list"])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_lists_of_many_lengths(tmp_path: Path, layout: Any, outer: bool, inner: bool) -> None:
    values: list[Any] = [[i + k if not inner or k % 2 else None for k in range(i % 4)] for i in range(ROWS)]
    column = pa.array(holes(values) if outer else values, layout(pa.uint16()))
    write(tmp_path / "a.parquet", column)
    order = np.random.default_rng(1).permutation(ROWS)
    expected = column.to_pylist()
    assert plain(read_all(tmp_path)["x"]) == expected
    assert plain(read_all(tmp_path, order)["x"]) == [expected[place] for place in order]


CODECS = ["NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4", "BROTLI"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("checksums", [False, True])
def test_codecs_page_versions_and_checksums(tmp_path: Path, codec: str, version: str, checksums: bool) -> None:
    column = pa.array(holes([f"text {i % 50}" for i in range(ROWS)]))
    table = write(
        tmp_path / "a.parquet",
        column,
        compression=codec,
        data_page_version=version,
        write_page_index=True,
        write_page_checksum=checksums,
        data_page_size=256,
        dictionary_pagesize_limit=300,
    )
    found = read_all(tmp_path)
    assert found["x"] == table["x"].to_pylist()
    assert plain(found["y"]) == list(range(ROWS))


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        (pa.array(range(ROWS), pa.int32()), "DELTA_BINARY_PACKED"),
        (pa.array([f"aa{i}" for i in range(ROWS)]), "DELTA_BYTE_ARRAY"),
        (pa.array([f"aa{i}" for i in range(ROWS)]), "DELTA_LENGTH_BYTE_ARRAY"),
        (pa.array([i / 7 for i in range(ROWS)]), "BYTE_STREAM_SPLIT"),
        (pa.array([i % 3 == 0 for i in range(ROWS)]), "RLE"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_encodings(tmp_path: Path, column: Any, encoding: str) -> None:
    write(tmp_path / "a.parquet", column, use_dictionary=False, column_encoding={"x": encoding, "y": "PLAIN"})
    assert plain(read_all(tmp_path)["x"]) == column.to_pylist()


def test_int96_timestamps_and_nullable_elements_as_spark_writes_them(tmp_path: Path) -> None:
    folder = tmp_path / "table.parquet"
    folder.mkdir()
    column = pa.array(holes([dt.datetime(2001, 2, 3, 4, 5, i % 60) for i in range(ROWS)]))
    ids = pa.array(holes([[1, None, i] for i in range(ROWS)]), pa.list_(pa.field("element", pa.int32())))
    pq.write_table(
        pa.table({"x": column, "ids": ids}),
        folder / "part-00000-c1.snappy.parquet",
        use_deprecated_int96_timestamps=True,
        store_schema=False,
        use_compliant_nested_type=True,
    )
    for name in ("_SUCCESS", "_metadata", ".part-00000.crc", "._x.parquet", "readme.txt"):
        (folder / name).write_bytes(b"not Parquet")
    found = read_all(folder)
    expected = [None if one is None else np.datetime64(one, "ns") for one in column.to_pylist()]
    assert [None if np.isnat(one) else one for one in found["x"]] == expected
    assert plain(found["ids"]) == ids.to_pylist()


def test_files_as_hugging_face_datasets_writes_them(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("text", pa.string()),
            pa.field("input_ids", pa.list_(pa.int32())),
            pa.field("label", pa.int64()),
            pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ],
        metadata={"huggingface": '{"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}'},
    )
    rows = [
        {"text": f"t{i}", "input_ids": list(range(i % 9)), "label": i % 2, "image": {"bytes": b"%d" % i, "path": None}}
        for i in range(ROWS)
    ]
    for number, part in enumerate((rows[:100], rows[100:])):
        table = pa.Table.from_pylist(part, schema=schema)
        with pq.ParquetWriter(
            tmp_path / f"train-{number:05d}-of-00002.parquet",
            schema,
            use_content_defined_chunking=True,
            write_page_index=True,
        ) as writer:
            writer.write_table(table, row_group_size=GROUP)
    found = read_all(tmp_path)
    for name in schema.names:
        assert plain(found[name]) == [row[name] for row in rows], name


def test_files_that_hugging_face_datasets_wrote() -> None:
    """``benchmarks/make_parquet_golden.py`` wrote them."""
    rows = json.loads((GOLDEN / "expected.json").read_text())["rows"]
    found = read_all(GOLDEN)
    assert list(found) == list(rows[0])
    for name, column in found.items():
        assert plain(column) == [row[name] for row in rows], name
    assert isinstance(found["fixed"], np.ndarray)
    assert found["fixed"].dtype == np.uint16
    index = open_parquet(GOLDEN).index
    assert len(index) > 2
    assert token_column(index) == "input_ids"
    assert int(token_counts(index, "input_ids").sum()) == sum(len(row["input_ids"]) for row in rows)


def test_files_that_polars_writes(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "i": list(range(ROWS)),
            "t": holes([f"é{i}" for i in range(ROWS)]),
            "l": [[i] * (i % 4) for i in range(ROWS)],
            "c": pl.Series([f"c{i % 3}" for i in range(ROWS)], dtype=pl.Categorical),
            "a": pl.Series([[i, i + 1] for i in range(ROWS)], dtype=pl.Array(pl.UInt16, 2)),
            "s": [{"p": i, "q": str(i)} for i in range(ROWS)],
        }
    )
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=50)
    found = read_all(tmp_path)
    for name in frame.columns:
        assert plain(found[name]) == [one.to_list() if hasattr(one, "to_list") else one for one in frame[name]], name


def test_files_that_duckdb_writes(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.execute(
        f"""copy (select i, 'é' || i as t, case when i % 3 = 0 then null else i::usmallint end as n,
        list_transform(range(i % 4), lambda x: (x + i)::uinteger) as l, {{'p': i, 'q': [i]}} as s, i::decimal(9, 2) as d,
        i % 2 as part from range(5000) t(i)) to '{tmp_path}/out'
        (format parquet, partition_by (part), row_group_size 2048, compression zstd)"""
    )
    found = read_all(tmp_path / "out")
    order = np.argsort(np.asarray(found["i"]))
    assert [int(found["i"][k]) for k in order] == list(range(5000))
    assert [found["t"][k] for k in order] == [f"é{i}" for i in range(5000)]
    assert [found["n"][k] for k in order] == [None if i % 3 == 0 else i for i in range(5000)]
    assert [list(found["l"][k]) for k in order] == [[x + i for x in range(i % 4)] for i in range(5000)]
    assert [found["s"][k] for k in order] == [{"p": i, "q": [i]} for i in range(5000)]
    assert [found["part"][k] for k in order] == [i % 2 for i in range(5000)]


def test_names_with_dots_and_columns_within_columns_are_distinguished(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "": ["x", "y"]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = read_all(tmp_path)
    assert {name: plain(column) for name, column in found.items()} == table.to_pydict()
    assert list(read_all(tmp_path, columns=["a"])) == ["a"]


def test_samples_are_pythons_numbers_and_rows_of_arrays(tmp_path: Path) -> None:
    column = pa.array([[i, i] for i in range(ROWS)], pa.list_(pa.int32()))
    write(tmp_path / "a.parquet", column)
    pool = pool_of(tmp_path)
    samples = list(iterate_samples(pool, np.array([3, 0]), np.array([1, 2])).samples)
    assert [type(sample["y"]) for sample in samples] == [int, int]
    assert [sample["y"] for sample in samples] == [3 * GROUP + 1, 2]
    assert [sample["x"].tolist() for sample in samples] == [[193, 193], [2, 2]]


def test_arrays_are_the_callers_own_unless_views_are_requested(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.array([[i, i] for i in range(ROWS)], pa.list_(pa.int32())))
    place = open_parquet(tmp_path)
    rows = np.arange(5, 9)
    for views in (False, True):
        pool = ShardPool(place.index, place.cache, options=ReadOptions(views=views))
        found = pool.get(0).read(rows)["y"]
        assert isinstance(found, np.ndarray)
        assert found.tolist() == [5, 6, 7, 8]
        assert found.flags.writeable is not views
        if not views:
            found[:] = 0
            assert pool.get(0).read(rows)["y"].tolist() == [5, 6, 7, 8]  # type: ignore[union-attr]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_rows_of_any_row_groups_are_those_of_the_table(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("rows")
    lists = st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=4)
    values = data.draw(
        st.lists(st.tuples(st.none() | st.integers(0, 9), lists, st.none() | st.text(max_size=3)), min_size=1)
    )
    table = pa.table(
        {
            "i": pa.array([v[0] for v in values], pa.int16()),
            "l": pa.array([v[1] for v in values], pa.list_(pa.int8())),
            "t": pa.array([v[2] for v in values], pa.string()),
        }
    )
    group = data.draw(st.integers(1, 8))
    pq.write_table(
        table, folder / "a.parquet", row_group_size=group, data_page_version=data.draw(st.sampled_from(["1.0", "2.0"]))
    )
    order = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=30))
    pool = pool_of(folder)
    ids = np.array(order)
    found = read_samples(pool, ids // group, ids % group)
    expected = table.take(order).to_pydict()
    assert {name: plain(column) for name, column in found.items()} == expected


def test_a_damaged_page_names_file_row_group_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, pa.array([f"text {i}" for i in range(ROWS)]), compression="zstd", write_page_checksum=True)
    meta = pq.read_metadata(path)
    chunk = meta.row_group(2).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start + chunk.total_compressed_size - 5] ^= 0xFF
    path.write_bytes(data)
    pool = pool_of(path)
    assert read_samples(pool, np.array([1]), np.array([0]))["x"] == ["text 64"]
    with pytest.raises(CorruptDataError, match=r"a\.parquet: row group 2, column 'x' can not be decoded"):
        read_samples(pool, np.array([2]), np.array([0]))
    assert plain(pool.get(2).read(np.array([0]), ["y"])["y"]) == [2 * GROUP]


@pytest.mark.parametrize("cut", [1, 4, 20, 400])
def test_a_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.parquet"
    write(path, pa.array(range(ROWS)))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CorruptDataError, match=r"a\.parquet.*(truncated|can not be read).*on_bad_files"):
        open_parquet(path)


def test_a_footer_whose_chunks_leave_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, pa.array(range(ROWS)))
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    path.write_bytes(b"PAR1" + data[-8 - length :])
    with pytest.raises(CorruptDataError, match=r"a\.parquet: row group 0, column 'x': .* do not lie in the file"):
        open_parquet(path)


@pytest.mark.parametrize(
    ("rows", "told", "problem"),
    [
        ([GROUP, 0, GROUP], None, "row group 1 claims 0 rows, and 64 values in a column"),
        ([GROUP, GROUP - 1, GROUP], None, "row group 1, column 'x': it has 64 values for 63 rows"),
        ([GROUP, GROUP, GROUP], 2 * GROUP, "its footer claims 128 rows, and 192 in its row groups"),
    ],
)
def test_a_footer_that_contradicts_itself_about_rows_is_refused(
    rows: list[int], told: int | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    write(path, pa.array(range(3 * GROUP)), row_group_size=GROUP)
    (facts,) = {shard.detail.file for shard in open_parquet(path, columns=("x",)).index.shards}  # type: ignore[union-attr]
    parts = [ColumnPart(count, facts.chunks[place].tolist()) for place, count in enumerate(rows)]
    footer = column_footer(facts.schema.columns[0], parts, facts.schema.created_by)
    if told is not None:
        # The field after the schema, an i64; as long as it was, for the footer's length to stay right.
        here, there = (b"\x16" + compact.integer(count)[1] for count in (sum(rows), told))
        assert (len(here), footer.count(here)) == (len(there), 1)
        footer = footer.replace(here, there)
    data = path.read_bytes()
    path.write_bytes(data[: -8 - int.from_bytes(data[-8:-4], "little")] + footer)
    with pytest.raises(CorruptDataError, match=rf"a\.parquet: {problem}"):
        open_parquet(path, columns=("x",))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_footer_with_wrong_bytes_gives_an_error_of_ours_or_the_rows(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "a.parquet"
    write(path, pa.array([[i] for i in range(20)]), row_group_size=10)
    raw = bytearray(path.read_bytes())
    length = int.from_bytes(raw[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(len(raw) - 8 - length, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with contextlib.suppress(FormatError, ConfigError):
        read_all(path)


def test_an_encrypted_footer_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PARE" + b"x" * 50 + (20).to_bytes(4, "little") + b"PARE")
    with pytest.raises(FormatError, match="encrypted"):
        open_parquet(tmp_path)


def test_columns_of_one_name_are_an_error_only_if_they_are_read(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FormatError, match="two columns called 'a'"):
        open_parquet(tmp_path)
    assert plain(read_all(tmp_path, columns=["b"])["b"]) == [2]


def test_parquet_is_not_listed_in_an_index_file() -> None:
    with pytest.raises(IndexFileError, match='format="parquet"'):
        get_format("parquet").parse_shard({}, "index.json: shard 0")


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_counts_are_unknown_where_the_writer_left_statistics_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.array([[1]] * ROWS), write_statistics=False)
    assert set(token_counts(pool_of(tmp_path).index, "x")) == {-1}


def test_the_token_column_is_found_or_the_error_says_what_there_is(tmp_path: Path) -> None:
    ids = pa.array([[1, 2]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"text": ["a"], "token_ids": ids, "input_ids": ids}), tmp_path / "a.parquet")
    index = open_parquet(tmp_path).index
    assert token_column(index) == "input_ids"
    assert token_column(index, "token_ids") == "token_ids"
    with pytest.raises(ConfigError, match=r"a\.parquet: column 'text' holds string, .*tokenize it first"):
        token_column(index, "text")
    with pytest.raises(ConfigError, match=r"no column 'words'; it has text"):
        token_column(index, "words")
    with pytest.raises(ConfigError, match=r"no token column \(none is called input_ids"):
        token_column(open_parquet(tmp_path, columns=["text"]).index)


# -- memory ------------------------------------------------------------------------------------------------------------


class Block:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_decoded_columns_are_kept_within_the_limit() -> None:
    memory = DecodedMemory(limit=100)
    shelves = [Shelf() for _ in range(50)]
    for turn in range(200):
        memory.get(shelves[turn % 50], "x", lambda: Block(30))
        assert memory.used <= 100
    kept = sum(len(shelf.columns) for shelf in shelves)
    assert kept == 3
    big = Shelf()
    memory.get(big, "x", lambda: Block(1000))
    assert "x" in big.columns
    assert memory.used == 1000
    del big
    assert memory.used == 0


def test_one_row_group_is_kept_whatever_its_size(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.array([f"text {i}" * 50 for i in range(ROWS)]))
    place = open_parquet(tmp_path)
    shard = ShardPool(place.index, place.cache, options=ReadOptions(decoded_limit=100)).get(0)
    first = {name: shard.values(name) for name in ("x", "y")}  # type: ignore[attr-defined]
    assert all(shard.values(name) is first[name] for name in first)  # type: ignore[attr-defined]


def test_what_is_kept_is_not_decoded_again_and_goes_with_its_reader() -> None:
    memory = DecodedMemory(limit=1000)
    shelf = Shelf()
    first = memory.get(shelf, "x", lambda: Block(10))
    assert memory.get(shelf, "x", lambda: pytest.fail("decoded twice")) is first
    assert memory.used == 10
    del shelf
    assert memory.used == 0


def test_one_thread_decodes_for_all_and_an_error_is_everyones() -> None:
    import threading

    memory, shelf = DecodedMemory(limit=1000), Shelf()
    begun, go = threading.Event(), threading.Event()
    calls: list[int] = []

    def decode() -> Block:
        calls.append(1)
        begun.set()
        go.wait(PATIENCE)
        raise CorruptDataError("bad")

    failures: list[str] = []

    def ask() -> None:
        try:
            memory.get(shelf, "x", decode)
        except CorruptDataError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask)]
    threads[0].start()
    begun.wait(PATIENCE)
    threads += [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    while not all(thread.is_alive() for thread in threads):
        pass
    go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == ["bad"] * 4
    good = Block(5)
    assert memory.get(shelf, "x", lambda: good) is good
