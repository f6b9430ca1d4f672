"""Lists of integers decoded from pages: whatever writers make, values and lengths are those that pyarrow reads."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.parquet.facts import token_counts
from stoker.formats.parquet.pages import OtherPagesError
from stoker.formats.parquet.reader import ParquetReader
from stoker.formats.parquet.rle_bitpacked import exceptions, unpack
from stoker.reading.shard_pool import ShardPool
from stoker.tokens.sources.parquet import decode_chunks
from support import open_parquet

pytestmark = pytest.mark.usefixtures("own_cache")

KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def readers(path: Path) -> list[ParquetReader]:
    place = open_parquet(path, columns=("x",))
    pool = ShardPool(place.index, place.cache)
    found = [pool.get(number) for number in range(len(place.index))]
    assert all(isinstance(one, ParquetReader) for one in found)
    return found  # type: ignore[return-value]


def lists_of(reader: ParquetReader) -> list[list[int]]:
    """All lists, by the decoder alone, without pyarrow's help."""
    rows: list[list[int]] = []
    for values, offsets in reader.lists("x"):
        copied = values.tolist()
        rows += [copied[a:b] for a, b in pairwise(offsets.tolist())]
    return rows


def check(path: Path) -> None:
    """All row groups, against pyarrow."""
    file = pq.ParquetFile(path)
    counts = token_counts(open_parquet(path, columns=("x",)).index, "x")
    for group, reader in enumerate(readers(path)):
        expected = [row or [] for row in file.read_row_group(group).column("x").to_pylist()]
        assert lists_of(reader) == expected
        assert counts[group] == sum(map(len, expected))


# -- runs --------------------------------------------------------------------------------------------------------------


def encode(runs: list[tuple[bool, list[int]]], width: int) -> tuple[bytes, list[int]]:
    """A stream of runs, bit by bit as the format says, and its values."""
    out, values = bytearray(), []
    for packed, members in runs:
        if packed:
            full = members + [0] * (-len(members) % 8)
            head = len(full) // 8 << 1 | 1
            number = sum(value << place * width for place, value in enumerate(full))
            body = number.to_bytes(len(full) * width // 8, "little")
            values += full
        else:
            head = len(members) << 1
            body = members[0].to_bytes(-(-width // 8), "little")
            values += [members[0]] * len(members)
        while head > 127:
            out.append(head & 127 | 128)
            head >>= 7
        out += bytes([head]) + body
    return bytes(out), values


def _repeated(run: tuple[int, int]) -> tuple[bool, list[int]]:
    return False, [run[0]] * run[1]


def _random(seed: int, count: int, width: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(0, 1 << width, count)]


@st.composite
def streams(draw: st.DrawFn, most: int) -> tuple[int, bytes, list[int]]:
    width = draw(st.integers(1, most))
    value = st.integers(0, (1 << width) - 1)
    packed: st.SearchStrategy[tuple[bool, list[int]]]
    packed = st.tuples(st.just(True), st.lists(value, min_size=1, max_size=40))
    plain = st.tuples(value, st.integers(1, 300)).map(_repeated)
    long = st.tuples(value, st.sampled_from([8191, 8192])).map(_repeated)
    seeds = st.tuples(st.integers(0, 9), st.sampled_from([264, 504, 2000]))
    large = seeds.map(lambda chosen: (True, _random(*chosen, width)))
    one = draw(st.lists(packed | plain | large | long, min_size=1, max_size=12))
    repeated = draw(st.integers(1, 40))
    runs = [run for run in one for _ in range(repeated if 200 < len(run[1]) < 8000 else 1)]
    if draw(st.booleans()):
        # Rows of one length have levels of one pattern, which goes on for a page, or breaks off.
        pattern = draw(st.lists(packed | plain, min_size=1, max_size=9))
        runs = draw(st.sampled_from([[], runs[:3]])) + pattern * draw(st.integers(6, 80)) + runs
    data, values = encode(runs, width)
    return width, data, values


@given(streams(24), st.data())
@settings(max_examples=60, deadline=None)
def test_streams_of_runs_unpack_to_their_values(stream: tuple[int, bytes, list[int]], data: st.DataObject) -> None:
    width, raw, values = stream
    count = data.draw(st.integers(max(0, len(values) - 7), len(values)) | st.integers(1, len(values)))
    assert unpack(memoryview(raw), count, width).tolist() == values[:count]


@given(streams(8), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_not_usual_is_found_in_streams(stream: tuple[int, bytes, list[int]], data: st.DataObject) -> None:
    width, raw, values = stream
    count = data.draw(st.integers(1, len(values)))
    usual = data.draw(st.sampled_from(values))
    places, found = exceptions(memoryview(raw), count, width, usual)
    expected = [(place, value) for place, value in enumerate(values[:count]) if value != usual]
    assert list(zip(places.tolist(), found.tolist(), strict=True)) == expected


@pytest.mark.parametrize("long", [1 << 13, 1 << 20, 1 << 27])
@pytest.mark.parametrize("before", [3, 100, 400_000])
def test_long_runs_between_very_many_short_ones(before: int, long: int) -> None:
    # The zero and seven ones, packed, then 500 ones: what documents of 508 tokens have as levels.
    one, _ = encode([(True, [0] + [1] * 7), (False, [1] * 500)], 1)
    between, length = bytearray(), long << 1
    while length > 127:
        between.append(length & 127 | 128)
        length >>= 7
    raw = one * before + bytes(between) + bytes([length, 1]) + one * 100
    places, values = exceptions(memoryview(raw), 508 * (before + 100) + long, 1, 1)
    begins = np.arange(before + 100) * 508
    begins[before:] += long
    assert (places == begins).all()
    assert not values.any()


@given(streams(24), st.data())
@settings(max_examples=60, deadline=None)
def test_a_stream_that_is_cut_off_is_noticed(stream: tuple[int, bytes, list[int]], data: st.DataObject) -> None:
    width, raw, values = stream
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(OtherPagesError):
        unpack(memoryview(cut), len(values), width)


@given(st.binary(max_size=60), st.integers(1, 24), st.integers(1, 500))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_values_or_an_error(raw: bytes, width: int, count: int) -> None:
    with contextlib.suppress(OtherPagesError):
        assert unpack(memoryview(raw), count, width).size == count


# -- writers -----------------------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=70, deadline=None)
def test_lists_of_any_writers_settings_are_pyarrows(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    info = np.iinfo(kind)
    low, high = data.draw(st.sampled_from([(0, 1), (0, 100), (0, 40_000), (info.min, info.max)]))
    low, high = max(low, info.min), min(high, info.max)
    lengths = data.draw(st.lists(st.integers(0, 12) | st.integers(0, 700), min_size=1, max_size=60))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    rows: list[Any] = [rng.integers(low, high, n, dtype=kind, endpoint=True) for n in lengths]
    if data.draw(st.booleans()):  # runs of one value, as padding makes them
        rows = [np.concatenate([row, np.full(len(row), row[0])]) if len(row) else row for row in rows]
    nullable = data.draw(st.booleans())
    if nullable:
        rows = [None if data.draw(st.integers(0, 6)) == 0 else row for row in rows]
    element = pa.field("element", getattr(pa, kind)(), nullable=data.draw(st.booleans()))
    outer = data.draw(st.sampled_from([pa.list_, pa.large_list]))
    column = pa.array(rows, outer(element))
    path = tmp_path_factory.mktemp("any") / "any.parquet"
    pq.write_table(
        pa.table([column], pa.schema([pa.field("x", column.type, nullable=nullable)])),
        path,
        row_group_size=data.draw(st.sampled_from([7, 60])),
        compression=data.draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
        use_dictionary=data.draw(st.booleans()),
        dictionary_pagesize_limit=data.draw(st.sampled_from([200, 1 << 20])),
        data_page_size=data.draw(st.sampled_from([64, 1000, 1 << 20])),
        write_batch_size=data.draw(st.sampled_from([16, 1024])),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        write_page_checksum=data.draw(st.booleans()),
        write_page_index=data.draw(st.booleans()),
        version=data.draw(st.sampled_from(["1.0", "2.6"])),
    )
    check(path)


def test_lists_of_one_size_with_null_ones(tmp_path: Path) -> None:
    rows = [None if n % 7 == 0 else [n, n + 1, n + 2] for n in range(500)]
    column = pa.array(rows, pa.list_(pa.uint32(), 3))
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", data_page_size=100)
    (reader,) = readers(tmp_path / "x.parquet")
    assert lists_of(reader) == [row or [] for row in rows]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("vocabulary", [200, 257, 30_000, 70_000, 300_000])
def test_dictionaries_of_all_sizes(tmp_path: Path, vocabulary: int, version: str) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, vocabulary, int(n)) for n in rng.integers(0, 4000, 300)]
    pq.write_table(
        pa.table({"x": pa.array(rows, pa.list_(pa.uint32()))}),
        tmp_path / "x.parquet",
        dictionary_pagesize_limit=1 << 22,
        data_page_size=1 << 16,
        data_page_version=version,
    )
    check(tmp_path / "x.parquet")


@pytest.mark.parametrize("writer", ["polars", "duckdb"])
def test_lists_that_other_writers_wrote(tmp_path: Path, writer: str) -> None:
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 5000, int(n)).tolist() for n in rng.integers(0, 300, 3000)]
    rows[5], rows[77] = [], None
    path = tmp_path / "x.parquet"
    if writer == "polars":
        import polars as pl

        pl.DataFrame({"x": rows}, schema={"x": pl.List(pl.UInt32)}).write_parquet(path, row_group_size=1000)
    else:
        import duckdb

        tokens = pa.table({"x": pa.array(rows, pa.list_(pa.int32()))})  # noqa: F841 - duckdb finds it by its name
        duckdb.sql(f"copy (select * from tokens) to '{path}' (format parquet, row_group_size 2048)")
    check(path)


def test_what_is_encoded_otherwise_is_left_to_pyarrow(tmp_path: Path) -> None:
    rows = [list(range(n, 2 * n)) for n in range(400)]
    for encoding in ("DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"):
        path = tmp_path / f"{encoding}.parquet"
        table = pa.table({"x": pa.array(rows, pa.list_(pa.int32()))})
        pq.write_table(table, path, use_dictionary=False, column_encoding={"x.list.element": encoding})
        (reader,) = readers(path)
        with pytest.raises(OtherPagesError):
            lists_of(reader)
        chunks = list(decode_chunks(reader, "x", "here"))
        assert [chunk[n].tolist() for chunk in chunks for n in range(len(chunk))] == rows


def test_pyarrow_continues_where_pages_become_others(tmp_path: Path) -> None:
    # A chunk whose first pages are of a dictionary, and whose last one holds a token that is null.
    rows: list[Any] = [[n % 50, 3, 4] for n in range(5000)]
    rows[4990] = [1, None, 2]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "x.parquet", data_page_size=500, write_batch_size=64)
    (reader,) = readers(tmp_path / "x.parquet")
    found: list[int] = []
    with pytest.raises(OtherPagesError):
        found.extend(offsets.size - 1 for _, offsets in reader.lists("x"))
    assert 0 < sum(found) < 5000
    seen: list[tuple[int, list[int]]] = []

    def read() -> None:
        for chunk in decode_chunks(reader, "x", "here"):
            seen.extend((int(number), chunk[at].tolist()) for at, number in enumerate(chunk.rows))

    with pytest.raises(FormatError, match="row 4990: token 1 is null"):
        read()
    assert seen == list(enumerate(rows))[: len(seen)]
    assert len(seen) >= sum(found)


@given(place=st.floats(0, 1), value=st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_a_wrong_byte_is_an_error_of_ours_or_other_values(
    place: float, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "x.parquet"
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 600, int(n)) for n in rng.integers(0, 30, 200)]
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.uint32()))}), path, data_page_size=500, compression="none")
    whole = bytearray(path.read_bytes())
    end = pq.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size
    whole[4 + int(place * (end - 1))] = value
    path.write_bytes(whole)
    (reader,) = readers(path)
    with contextlib.suppress(OtherPagesError):
        assert sum(values.size for values, _ in reader.lists("x")) <= 200 * 30
    with contextlib.suppress(CorruptDataError, FormatError):
        assert sum(len(chunk) for chunk in decode_chunks(reader, "x", "here")) == 200


def test_wrong_checksums_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rows = [[n, n + 1] for n in range(3000)]
    pq.write_table(
        pa.table({"x": pa.array(rows, pa.list_(pa.int32()))}), path, write_page_checksum=True, compression="none"
    )
    whole = bytearray(path.read_bytes())
    whole[pq.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size - 20] ^= 1
    path.write_bytes(whole)
    (reader,) = readers(path)
    with pytest.raises(OtherPagesError, match="checksum"):
        lists_of(reader)
    with pytest.raises(CorruptDataError):
        list(decode_chunks(reader, "x", "here"))


def test_a_page_is_decompressed_into_no_more_than_its_chunk_has(tmp_path: Path) -> None:
    rows = [[n % 9] * 40 for n in range(4000)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.int32()))}), path, data_page_size=4000)
    (reader,) = readers(path)
    largest = max(values.nbytes for values, _ in reader.lists("x"))
    assert largest < 200_000
