"""Parquet datasets: found, indexed from footers alone, kept, fetched in part, and refused with a reason."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import multiprocessing
import os
import pickle
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from cases import OPERATORS
from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset
from stoker.cache.base import CacheSettings
from stoker.cache.range_fetch import plan_requests
from stoker.catalog.location import DatasetLocation
from stoker.errors import (
    ConfigError,
    CorruptDataError,
    FormatError,
    IndexFileError,
    ObjectNotFoundError,
    StorageTimeoutError,
)
from stoker.formats.base import FilePart
from stoker.formats.parquet.reader import ParquetFormat
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage import Store, open_store
from stoker.storage.local import LocalStore
from support import open_parquet

ROWS = 100
GROUP = 25

pytestmark = pytest.mark.usefixtures("own_cache")


def table_of(first: int, rows: int = ROWS) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"text {i}" for i in ids],
            "input_ids": pa.array([[i, i + 1] for i in ids], pa.list_(pa.uint32())),
        }
    )


def write(path: Path, first: int = 0, rows: int = ROWS, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(first, rows), path, **{"row_group_size": GROUP, **options})
    return path


def read_ids(place: DatasetLocation, column: str = "id") -> list[Any]:
    """A column of every row, in the index's order."""
    pool = ShardPool(place.index, place.cache)
    sizes = place.index.sizes.tolist()
    return [
        value for shard, size in enumerate(sizes) for value in pool.get(shard).read(np.arange(size), [column])[column]
    ]


class Requests:
    """What is read of stores of a kind from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Store] = Store) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        plain = kind.get_ranges

        def get_ranges(store: Store, key: str, starts: Any, ends: Any, *more: Any, **named: Any) -> Any:
            self.ranges += [(key, start, end) for start, end in zip(starts, ends, strict=True)]
            return plain(store, key, starts, ends, *more, **named)

        one = kind.download_range

        def download_range(store: Store, key: str, path: Path, start: int, end: int, **named: Any) -> None:
            self.ranges.append((key, start, end))
            one(store, key, path, start, end, **named)

        monkeypatch.setattr(kind, "get_ranges", get_ranges)
        monkeypatch.setattr(kind, "download_range", download_range)

    @property
    def bytes(self) -> int:
        return sum(end - start for _, start, end in self.ranges)


# -- which files -------------------------------------------------------------------------------------------------------


def test_a_directory_gives_all_files_below_it_by_name(tmp_path: Path) -> None:
    for name, first in (("b.parquet", 300), ("a/z.PARQUET", 0), ("a/b/c.parq", 100), ("a-1.pq", 200)):
        write(tmp_path / name, first)
    (tmp_path / "notes.txt").write_text("no")
    write(tmp_path / "_temporary" / "0" / "x.parquet")
    write(tmp_path / ".hidden.parquet")
    keys = ["a-1.pq", "a/b/c.parq", "a/z.PARQUET", "b.parquet"]
    place = open_parquet(tmp_path)
    assert [shard.raw[0].basename for shard in place.index.shards] == [key for key in keys for _ in range(4)]
    assert read_ids(place) == [first + i for first in (200, 100, 0, 300) for i in range(ROWS)]
    assert place.index.sizes.tolist() == [GROUP] * 16


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["r0"]),
        ("**/*.parquet", ["a/b/c2", "a/r1", "c/r3", "r0"]),
        ("a/**", ["a/b/c2", "a/r1"]),
        ("?/r[0-2].parquet", ["a/r1"]),
        ("?/r[!0-2].parquet", ["c/r3"]),
        ("[ac]/*", ["a/r1", "c/r3"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in ("r0", "a/r1", "a/b/c2", "c/r3"):
        write(tmp_path / f"{name}.parquet", rows=1)
    index = open_parquet(f"{tmp_path}/{pattern}").index
    names = [Path(index_root(tmp_path, pattern), shard.raw[0].basename) for shard in index.shards]
    assert [path.relative_to(tmp_path).as_posix() for path in names] == [f"{name}.parquet" for name in expected]


def index_root(tmp_path: Path, pattern: str) -> Path:
    plain = list(itertools.takewhile(lambda part: not set(part) & set("*?["), pattern.split("/")))
    return tmp_path.joinpath(*plain)


def test_a_list_keeps_its_order_and_may_span_directories(tmp_path: Path) -> None:
    one, two = write(tmp_path / "x" / "b.bin", 0), write(tmp_path / "y" / "a.parquet", 100)
    assert read_ids(open_parquet([two, str(one)])) == [*range(100, 200), *range(100)]
    with pytest.raises(ConfigError, match="twice"):
        open_parquet([one, one])
    with pytest.raises(ConfigError, match="empty"):
        open_parquet([])
    with pytest.raises(ObjectNotFoundError, match=r"nothing\.parquet"):
        open_parquet([tmp_path / "nothing.parquet"])
    with pytest.raises(ConfigError, match="one bucket"):
        open_parquet(["s3://a/x.parquet", "s3://b/y.parquet"])


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "blobs" / "0123", 0)
    folder = tmp_path / "snapshot" / "data"
    folder.mkdir(parents=True)
    (folder / "train.parquet").symlink_to(tmp_path / "blobs" / "0123")
    (folder / "again").symlink_to(tmp_path / "snapshot")
    (folder / "dead.parquet").symlink_to(tmp_path / "nowhere")
    assert read_ids(open_parquet(tmp_path / "snapshot")) == list(range(ROWS))


def test_where_there_are_no_parquet_files_the_error_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ObjectNotFoundError, match=r"no files of format 'parquet' there: it holds 1 file,"):
        open_parquet(tmp_path)
    with pytest.raises(ObjectNotFoundError, match="no such file or directory"):
        open_parquet(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="give remote="):
        open_parquet(None)


def test_hive_directories_are_columns(tmp_path: Path) -> None:
    write(tmp_path / "lang=en" / "year=2020" / "a.parquet", 0)
    write(tmp_path / "lang=a%2Fb" / "year=2021" / "a.parquet", 100)
    write(tmp_path / "lang=__HIVE_DEFAULT_PARTITION__" / "year=2021" / "a.parquet", 200)
    place = open_parquet(tmp_path)
    assert place.index.columns == ("id", "text", "input_ids", "lang", "year")
    by_id = dict(zip(read_ids(place), zip(read_ids(place, "lang"), read_ids(place, "year"), strict=True), strict=True))
    assert by_id == {i: [("en", 2020), ("a/b", 2021), (None, 2021)][i // 100] for i in range(300)}
    pool = ShardPool(place.index, place.cache)
    year = read_samples(pool, np.array([0, 5]), np.array([0, 0]), ["year"])["year"]
    assert isinstance(year, np.ndarray)
    assert year.dtype == np.int64
    assert open_parquet(tmp_path, hive=False).index.columns == ("id", "text", "input_ids")
    write(tmp_path / "other" / "a.parquet")
    with pytest.raises(IndexFileError, match="is partitioned by"):
        open_parquet(tmp_path)


def test_a_directory_hides_the_column_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path / "text=fixed" / "a.parquet")
    assert set(read_ids(open_parquet(tmp_path), "text")) == {"fixed"}
    assert read_ids(open_parquet(tmp_path, columns=["text"]), "text") == ["fixed"] * ROWS


# -- schemas -----------------------------------------------------------------------------------------------------------


def test_files_of_different_columns_are_refused_and_those_that_agree_can_be_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    pq.write_table(table_of(100).append_column("more", pa.array(range(ROWS))), tmp_path / "b.parquet")
    with pytest.raises(
        IndexFileError, match=r"a\.parquet and .*b\.parquet .* 'more' is missing in the first and int64"
    ):
        open_parquet(tmp_path)
    place = open_parquet(tmp_path, columns=["text", "id"])
    assert place.index.columns == ("id", "text")
    assert read_ids(place) == list(range(200))
    with pytest.raises(ConfigError, match=r"a\.parquet: no column 'more'; it has id, text, input_ids$"):
        open_parquet(tmp_path, columns=["more"])


def test_files_of_different_types_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    table = table_of(100)
    pq.write_table(table.set_column(0, "id", table["text"]), tmp_path / "b.parquet")
    with pytest.raises(IndexFileError, match=r"'id' is int64 in the first and string in the second"):
        open_parquet(tmp_path)
    assert len(open_parquet(tmp_path, columns=["text"]).index) == 5


def test_layouts_and_orders_of_columns_may_differ(tmp_path: Path) -> None:
    table = table_of(0)
    write(tmp_path / "a.parquet")
    kinds = {"id": pa.int64(), "text": pa.large_string(), "input_ids": pa.list_(pa.uint32(), 2)}
    other = pa.table({name: table[name].cast(kinds[name]) for name in ("input_ids", "text", "id")})
    other = other.set_column(1, "text", other["text"].dictionary_encode())
    pq.write_table(other, tmp_path / "b.parquet", row_group_size=GROUP)
    place = open_parquet(tmp_path)
    pool = ShardPool(place.index, place.cache)
    found = read_samples(pool, np.array([0, 4, 7]), np.array([3, 3, 24]))
    assert list(found) == ["id", "text", "input_ids"]
    assert np.asarray(found["input_ids"]).tolist() == [[3, 4], [3, 4], [99, 100]]
    assert list(found["text"]) == ["text 3", "text 3", "text 99"]


def test_empty_files_and_row_groups_have_no_shards(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet")
    pq.write_table(pa.table({"other": pa.nulls(0)}), tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "c.parquet", table_of(0).schema) as writer:
        for first, rows in ((100, 10), (0, 0), (110, 5)):
            writer.write_table(table_of(first, rows).cast(writer.schema))
    place = open_parquet(tmp_path)
    assert place.index.sizes.tolist() == [GROUP] * 4 + [10, 5]
    assert read_ids(place) == list(range(115))


def test_a_dataset_without_rows_is_empty(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows=0)
    index = open_parquet(tmp_path).index
    assert (len(index), index.samples, index.columns) == (0, 0, ())


def test_bad_files_are_an_error_or_counted_and_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"")
    (tmp_path / "c.parquet").write_bytes(b"id,text\n" * 10)
    whole = write(tmp_path / "d.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"[bcd]\.parquet: .*\"on_bad_files\": \"skip\""):
        open_parquet(tmp_path)
    with caplog.at_level(logging.WARNING):
        place = open_parquet(tmp_path, on_bad_files="skip")
    assert read_ids(place) == list(range(ROWS))
    skipped = place.index.extra["skipped_files"]
    assert [one["key"] for one in skipped] == ["b.parquet", "c.parquet", "d.parquet"]
    assert "empty (0 bytes)" in skipped[0]["problem"]
    assert "3 of 4 parquet files are left out" in caplog.text
    with pytest.raises(ConfigError, match="on_bad_files"):
        open_parquet(tmp_path, on_bad_files="ignore")


# -- predicates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "groups"),
    [
        ([("id", "==", 30)], [1]),
        ([("id", "=", 30)], [1]),
        ([("id", ">=", 50)], [2, 3]),
        ([("id", ">", 74)], [3]),
        ([("id", "<", 25)], [0]),
        ([("id", "<=", 25)], [0, 1]),
        ([("id", "in", [1, 99])], [0, 3]),
        ([("id", "not in", [1, 99])], [0, 1, 2, 3]),
        ([("id", "!=", 3)], [0, 1, 2, 3]),
        ([("id", ">", 20), ("id", "<", 30)], [0, 1]),
        ([[("id", "<", 5)], [("id", ">", 95)]], [0, 3]),
        ([("text", "==", "text 30")], [0, 1]),
        ([("constant", "!=", 7)], []),
        ([("constant", "not in", [7, 8])], []),
        ([("missing", "==", 7)], [2]),
        ([("missing", "!=", 7)], [2]),
        ([("missing", "not in", [7])], [2]),
        ([("missing", "==", None)], [0, 1, 3]),
        ([("missing", "!=", None)], [2]),
        ([("missing", "<", 0)], []),
        ([("id", ">", 1000)], []),
    ],
)
def test_row_groups_that_can_not_match_are_left_out(tmp_path: Path, filters: Any, groups: list[int]) -> None:
    table = table_of(0).append_column("constant", pa.array([7] * ROWS))
    table = table.append_column("missing", pa.array([i if 50 <= i < 75 and i % 2 else None for i in range(-0, ROWS)]))
    table = table.set_column(
        4, "missing", pa.array([(i if i % 3 else 7) if 50 <= i < 75 else None for i in range(ROWS)])
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=GROUP)
    place = open_parquet(tmp_path, filters=filters, columns=["id", "text"])
    assert read_ids(place) == [i for group in groups for i in range(GROUP * group, GROUP * (group + 1))]
    assert [shard.detail.number for shard in place.index.shards] == groups  # type: ignore[union-attr]


def test_filters_that_leave_no_row_group_leave_the_names_of_columns(tmp_path: Path) -> None:
    for table in (pa.table({"x": [1, 2]}), pa.table({"x": pa.array([], pa.int64())})):
        pq.write_table(table, tmp_path / "a.parquet")
        dataset = StreamingDataset(tmp_path, columns=["x"], format_options={"filters": [("x", "<", 0)]})
        assert (len(dataset), list(dataset)) == (0, [])


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_bounds_of_nanoseconds_are_the_microseconds_around(tmp_path: Path, zone: str | None) -> None:
    array = pa.array([1001, 2001], pa.timestamp("ns", zone))
    pq.write_table(pa.table({"x": array, "day": pa.array([1, 2], pa.time64("ns"))}), tmp_path / "a.parquet")

    def left(name: str, op: str, value: Any) -> int:
        return open_parquet(tmp_path, filters=[(name, op, value)]).index.samples

    times = [dt.datetime(1970, 1, 1, 0, 0, 0, micro, tzinfo=dt.UTC if zone else None) for micro in range(4)]
    assert [left("x", "<", time) for time in times] == [0, 0, 2, 2]
    assert [left("x", ">", time) for time in times] == [2, 2, 2, 0]
    assert left("day", "<", dt.time()) == 2


def _tenth(number: int) -> float:
    """A number that float32 rounds."""
    return number / 10


def _day(number: int) -> Any:
    return np.datetime64(number, "D").item()


@given(
    values=st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=30),
    group=st.integers(1, 6),
    op=st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]),
    value=st.integers(-4, 4),
    kind=st.sampled_from(["int64", "double", "float", "halffloat", "string", "date32[day]"]),
)
def test_no_row_that_matches_is_ever_left_out(
    tmp_path_factory: pytest.TempPathFactory, values: list[int | None], group: int, op: str, value: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("prune")
    makers: dict[str, Callable[[int], Any]] = {
        "int64": int,
        "double": _tenth,
        "float": _tenth,
        "halffloat": float,
        "string": str,
    }
    make = makers.get(kind, _day)
    made = [None if one is None else make(one) for one in values]
    table = pa.table({"x": pa.array(made, kind), "id": range(len(values))})
    pq.write_table(table, folder / "a.parquet", row_group_size=group)
    given_value = [make(value), make(value + 1)] if op.endswith("in") else make(value)
    ways: dict[str, Callable[[Any, Any], bool]] = {"in": lambda a, b: a in b, "not in": lambda a, b: a not in b}
    holds = {**OPERATORS, **ways}[op]
    expected = [number for number, one in enumerate(made) if one is not None and holds(one, given_value)]
    found = read_ids(open_parquet(folder, filters=[("x", op, given_value)]))
    assert set(expected) <= set(found)


def test_partitions_and_damaged_statistics_prune_nothing_wrong(tmp_path: Path) -> None:
    write(tmp_path / "lang=de" / "a.parquet", 0)
    write(tmp_path / "lang=en" / "a.parquet", 100, write_statistics=False)
    assert read_ids(open_parquet(tmp_path, filters=[("lang", "==", "en")])) == list(range(100, 200))
    assert read_ids(open_parquet(tmp_path, filters=[("id", "<", 10)])) == [*range(25), *range(100, 200)]


@pytest.mark.parametrize(
    ("filters", "match"),
    [
        ([("nothing", "==", 1)], "filters= names 'nothing'"),
        ([("input_ids", "==", 1)], "only plain columns have an order"),
        ([("id", "~", 1)], "operator '~' is unknown"),
        ([("id", "==", "x")], "which holds int, with 'x'"),
        ([("id", "in", "xy")], "needs a list or set"),
        ([("id", "=>", 5)], "operator '=>' is unknown; did you mean '>='"),
        ([("id", "<", None)], "null can not be compared with '<'; .* finds nulls"),
        ([("id", "in", [1, None])], "null can not be compared"),
        ([("id", "==", float("nan"))], "nothing equals NaN"),
        ([("id", "==")], r"must be a tuple of 3|should be a list of"),
        (["id"], r"must be a tuple|must be a list|should be a list of"),
    ],
)
def test_filters_that_make_no_sense_are_refused(tmp_path: Path, filters: Any, match: str) -> None:
    write(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=match):
        open_parquet(tmp_path, filters=filters)


# -- the side index ----------------------------------------------------------------------------------------------------


@pytest.fixture
def footers_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of files whose footers are read."""
    read: list[str] = []
    plain = ParquetFormat.inspect_header

    def inspect(reader: ParquetFormat, source: Any, settings: Any) -> Any:
        read.append(source.where.rpartition("/")[2])
        return plain(reader, source, settings)

    monkeypatch.setattr(ParquetFormat, "inspect_header", inspect)
    return read


def test_a_start_without_the_store_continues_with_what_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{secrets.token_hex(8)}/data"
    open_store(url).put_file("a.parquet", write(tmp_path / "a.parquet"))
    first = read_ids(open_parquet(url, tmp_path / "cache"))

    def unreachable(store: Store, *_: Any) -> Any:
        raise StorageTimeoutError(f"{store.url}: no answer", url=store.url)

    monkeypatch.setattr(Store, "list", unreachable)
    assert read_ids(open_parquet(url, tmp_path / "cache")) == first
    with pytest.raises(StorageTimeoutError, match="no answer"):
        open_parquet(url, tmp_path / "cache", columns=["id"])  # of which nothing is known


def test_a_second_start_reads_no_footer_and_a_changed_file_is_read_again(
    tmp_path: Path, footers_read: list[str]
) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.parquet", 100 * number)
    first = open_parquet(tmp_path)
    assert sorted(footers_read) == [f"{number}.parquet" for number in range(5)]
    footers_read.clear()
    second = open_parquet(tmp_path)
    assert footers_read == []
    assert second.index.fingerprint == first.index.fingerprint
    assert second.index.shards[3].raw == first.index.shards[3].raw
    assert read_ids(second, "text") == read_ids(first, "text")
    write(tmp_path / "2.parquet", 1000)
    write(tmp_path / "5.parquet", 2000)
    (tmp_path / "0.parquet").unlink()
    third = open_parquet(tmp_path)
    assert sorted(footers_read) == ["2.parquet", "5.parquet"]
    assert read_ids(third) == [first + i for first in (100, 1000, 300, 400, 2000) for i in range(ROWS)]
    footers_read.clear()
    assert read_ids(open_parquet(tmp_path)) == read_ids(third)
    assert footers_read == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04nonsense", None])
def test_a_damaged_side_index_is_rebuilt(tmp_path: Path, footers_read: list[str], damage: bytes | None) -> None:
    write(tmp_path / "a.parquet")
    place = open_parquet(tmp_path)
    (side,) = (place.keep[0] / ".stoker").glob("parquet.*.facts")
    data = side.read_bytes()
    side.write_bytes(data[: len(data) // 2] if damage is None else damage)
    assert read_ids(open_parquet(tmp_path)) == list(range(ROWS))
    assert footers_read == ["a.parquet"] * 2
    assert side.read_bytes() == data


def test_a_side_index_of_an_earlier_version_is_ignored_and_rebuilt(
    tmp_path: Path, footers_read: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.parquet")
    place = open_parquet(tmp_path)
    (side,) = (place.keep[0] / ".stoker").glob("parquet.*.facts")
    data = side.read_bytes()
    side.write_bytes(data[:7] + b"\0" + data[8:])
    with caplog.at_level(logging.INFO):
        assert read_ids(open_parquet(tmp_path)) == list(range(ROWS))
    assert "another version of stoker" in caplog.text
    assert footers_read == ["a.parquet"] * 2
    assert side.read_bytes() == data


def test_the_data_is_not_written_to_where_it_is_given_as_the_remote(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.parquet")
    place = open_parquet(tmp_path / "d")
    assert os.listdir(tmp_path / "d") == ["a.parquet"]
    assert place.cache.store is None
    write(tmp_path / "e" / "a.parquet")
    assert read_ids(open_parquet(None, tmp_path / "e")) == read_ids(place)
    assert sorted(os.listdir(tmp_path / "e")) == [".stoker", "a.parquet"]


def test_where_nothing_can_be_kept_it_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "file" / "below"))
    assert read_ids(open_parquet(tmp_path)) == list(range(ROWS))


# -- in place ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["rows", "touch", "gone"])
def test_a_file_that_is_replaced_after_indexing_is_noticed(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "a.parquet")
    place = open_parquet(tmp_path)
    if change == "rows":
        write(path, 5, rows=77)
    elif change == "touch":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    kind = ObjectNotFoundError if change == "gone" else CorruptDataError
    with pytest.raises(kind, match=r"a\.parquet (was replaced after it was indexed|is missing)"):
        read_ids(place)


def test_row_groups_in_place_are_mapped_one_by_one(tmp_path: Path) -> None:
    rows, group = 40_000, 10_000
    write(tmp_path / "a.parquet", rows=rows, row_group_size=group, use_dictionary=False, compression="none")
    place = open_parquet(tmp_path, columns=["text"])
    files = place.cache.open(place.index.shards[2])
    assert files is not None
    chunk = pq.read_metadata(tmp_path / "a.parquet").row_group(2).column(1)
    assert chunk.total_compressed_size <= len(files[0]) <= chunk.total_compressed_size + 2 * 4096
    assert place.index.total_bytes == sum(
        pq.read_metadata(tmp_path / "a.parquet").row_group(k).column(1).total_compressed_size for k in range(4)
    )
    assert read_ids(place, "text") == [f"text {i}" for i in range(rows)]


def _ids_in_child(place: DatasetLocation, results: Any) -> None:
    results.put(read_ids(place))


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_opened_dataset_works_in_other_processes(tmp_path: Path, method: str) -> None:
    write(tmp_path / "d" / "a.parquet")
    place = open_parquet(tmp_path / "d", tmp_path / "cache")
    assert read_ids(place) == list(range(ROWS))
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=_ids_in_child, args=(place, results))
    process.start()
    assert results.get(timeout=PATIENCE) == list(range(ROWS))
    process.join(PATIENCE)
    assert pickle.loads(pickle.dumps(place.index)).fingerprint == place.index.fingerprint


def test_the_fingerprint_is_of_the_data_not_of_its_url_or_the_columns_read(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.parquet")
    data = (tmp_path / "a" / "x.parquet").read_bytes()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.parquet").write_bytes(data)
    print_of = open_parquet(tmp_path / "a").index.fingerprint
    assert open_parquet(tmp_path / "b", tmp_path / "c", columns=["id"]).index.fingerprint == print_of
    assert open_parquet(tmp_path / "a", filters=[("id", "<", 3)]).index.fingerprint != print_of
    write(tmp_path / "b" / "x.parquet", 1)
    assert open_parquet(tmp_path / "b", filters=[("id", ">", 3)]).index.fingerprint != print_of


# -- through a cache ---------------------------------------------------------------------------------------------------


def test_only_the_columns_requested_come_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d" / "a.parquet", rows=20_000, row_group_size=5000, use_dictionary=False, compression="none")
    meta = pq.read_metadata(tmp_path / "d" / "a.parquet")
    needed = sum(meta.row_group(k).column(0).total_compressed_size for k in range(4))
    place = open_parquet(tmp_path / "d", tmp_path / "cache", columns=["id"])
    requests = Requests(monkeypatch, LocalStore)
    assert read_ids(place) == list(range(20_000))
    assert needed <= requests.bytes <= 1.05 * needed
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.chunks")) == needed + len(b"PAR1")
    requests.ranges.clear()
    again = open_parquet(tmp_path / "d", tmp_path / "cache", columns=["id"])
    assert read_ids(again) == list(range(20_000))
    assert requests.ranges == []
    more = open_parquet(tmp_path / "d", tmp_path / "cache", columns=["id", "input_ids"])
    assert read_ids(more, "input_ids")[7].tolist() == [7, 8]


def test_small_row_groups_share_a_file_of_the_cache_and_large_ones_do_not(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.parquet")
    place = open_parquet(tmp_path / "d", tmp_path / "cache")
    assert len({shard.raw[0].basename for shard in place.index.shards}) == 1
    assert place.index.file_sizes() == {place.index.shards[0].raw[0].basename: place.index.shards[0].raw[0].bytes}
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.integers(0, 1 << 62, 9 << 20)})
    (tmp_path / "e").mkdir()
    pq.write_table(
        table, tmp_path / "e" / "b.parquet", row_group_size=3 << 20, use_dictionary=False, compression="none"
    )
    large = open_parquet(tmp_path / "e", tmp_path / "cache2")
    assert len({shard.raw[0].basename for shard in large.index.shards}) == 3
    pool = ShardPool(large.index, large.cache)
    assert np.array_equal(pool.get(1).read(np.arange(3 << 20))["x"], table["x"].to_numpy()[3 << 20 : 6 << 20])


def test_a_limited_cache_keeps_to_its_limit(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / "d" / f"{number}.parquet", 100 * number)
    open_limit = max(open_parquet(tmp_path / "d", tmp_path / "c0").index.file_sizes().values())
    place = open_parquet(tmp_path / "d", tmp_path / "cache", settings=CacheSettings(limit=2 * open_limit))
    pool = ShardPool(place.index, place.cache, threads=1)
    ids: list[int] = []
    for shard in range(len(place.index)):
        ids += pool.get(shard).read(np.arange(GROUP), ["id"])["id"].tolist()  # type: ignore[union-attr]
        pool.done_with(shard)
        assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.chunks")) <= 2 * open_limit
    assert ids == list(range(600))


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_file_of_the_cache_is_fetched_again(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "d" / "a.parquet", compression="zstd", write_page_checksum=True)
    place = open_parquet(tmp_path / "d", tmp_path / "cache")
    assert read_ids(place) == list(range(ROWS))
    (path,) = (tmp_path / "cache").rglob("*.chunks")
    data = path.read_bytes()
    path.write_bytes(data[:-9] if damage == "cut" else b"")
    assert read_ids(open_parquet(tmp_path / "d", tmp_path / "cache")) == list(range(ROWS))
    assert path.read_bytes() == data


def test_a_source_that_is_replaced_before_it_is_fetched_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "d" / "a.parquet")
    place = open_parquet(tmp_path / "d", tmp_path / "cache")
    write(path, 7, rows=20)
    with pytest.raises(CorruptDataError, match=r"a\.parquet was replaced after it was indexed"):
        read_ids(place)
    assert read_ids(open_parquet(tmp_path / "d", tmp_path / "cache")) == list(range(7, 27))


def test_files_of_the_cache_that_belong_to_replaced_files_are_removed(tmp_path: Path) -> None:
    path = write(tmp_path / "d" / "a.parquet")
    read_ids(open_parquet(tmp_path / "d", tmp_path / "cache"))
    (old,) = (tmp_path / "cache").rglob("*.chunks")
    write(path, 5)
    assert read_ids(open_parquet(tmp_path / "d", tmp_path / "cache")) == list(range(5, 105))
    assert not old.exists()


def test_a_hash_of_the_whole_can_not_be_requested(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="validate_hash"):
        open_parquet(tmp_path, settings=CacheSettings(validate_hash="sha1"))


@given(
    data=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 3000)), min_size=1, max_size=40),
    scale=st.sampled_from([1, 100, 5000]),
)
def test_requests_bring_every_range_and_little_else(data: list[tuple[int, int]], scale: int) -> None:
    starts, ends, at = [], [], 4
    for gap, size in data:
        starts.append(at + gap * scale)
        ends.append(starts[-1] + size * scale)
        at = ends[-1]
    part = FilePart("x", at, "", tuple(starts), tuple(ends), in_place=False)
    requests = list(plan_requests(part))
    needed = sum(ends) - sum(starts)
    assert sum(end - start for start, end, _ in requests) <= 1.04 * needed
    assert all(end - start <= 8 << 20 for start, end, _ in requests)
    wanted = [one for _, _, inside in requests for one in inside]
    covered = [byte for start, end in wanted for byte in (start, end)]
    assert covered == sorted(covered)
    assert sum(end - start for start, end in wanted) == needed
    assert all(start <= first and last <= end for start, end, inside in requests for first, last in inside)
    assert {start for start, _ in wanted} >= set(starts)


# -- object stores -----------------------------------------------------------------------------------------------------


def upload(bucket: Bucket, folder: Path, prefix: str = "data") -> str:
    url = f"{bucket.url}/{prefix}"
    store = open_store(url, bucket.storage_options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put_file(path.relative_to(folder).as_posix(), path)
    return url


@pytest.mark.s3
def test_from_s3_one_request_a_footer_and_the_chunks_needed(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        write(
            tmp_path / "d" / f"{number}.parquet",
            20_000 * number,
            rows=20_000,
            row_group_size=5000,
            use_dictionary=False,
            compression="none",
        )
    url = upload(bucket, tmp_path / "d")
    requests = Requests(monkeypatch)
    place = open_parquet(url, tmp_path / "cache", columns=["input_ids"], storage_options=bucket.storage_options)
    assert len(requests.ranges) == 4
    assert requests.bytes <= 4 * (64 << 10)
    requests.ranges.clear()
    found = read_ids(place, "input_ids")
    assert [one.tolist() for one in found[::777]] == [[i, i + 1] for i in range(0, 80_000, 777)]
    metas = [pq.read_metadata(tmp_path / "d" / f"{number}.parquet") for number in range(4)]
    needed = sum(meta.row_group(k).column(2).total_compressed_size for meta in metas for k in range(4))
    assert needed <= requests.bytes <= 1.05 * needed
    requests.ranges.clear()
    again = open_parquet(url, tmp_path / "cache", columns=["input_ids"], storage_options=bucket.storage_options)
    read_ids(again, "input_ids")
    assert requests.ranges == []


@pytest.mark.s3
def test_a_footer_larger_than_the_first_request_takes_a_second(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d" / "a.parquet", rows=3000, row_group_size=5)
    url = upload(bucket, tmp_path / "d")
    requests = Requests(monkeypatch)
    place = open_parquet(url, storage_options=bucket.storage_options)
    assert [key for key, _, _ in requests.ranges] == ["a.parquet"] * 2
    length = int.from_bytes((tmp_path / "d" / "a.parquet").read_bytes()[-8:-4], "little")
    assert requests.bytes == length + 8
    assert read_ids(place) == list(range(3000))


@pytest.mark.s3
def test_urls_of_files_patterns_and_directories_named_like_files(tmp_path: Path, bucket: Bucket) -> None:
    write(tmp_path / "d" / "out.parquet" / "part-0.parquet", 0)
    write(tmp_path / "d" / "out.parquet" / "part-1.parquet", 100)
    (tmp_path / "d" / "out.parquet" / "_SUCCESS").write_bytes(b"")
    url = upload(bucket, tmp_path / "d")
    options: dict[str, Any] = {"storage_options": bucket.storage_options}
    assert read_ids(open_parquet(f"{url}/out.parquet", **options)) == list(range(200))
    assert read_ids(open_parquet(f"{url}/out.parquet/part-1.parquet", **options)) == list(range(100, 200))
    assert read_ids(open_parquet(f"{url}/**/part-[0].parquet", **options)) == list(range(100))
    both = [f"{url}/out.parquet/part-{k}.parquet" for k in (1, 0)]
    assert read_ids(open_parquet(both, **options)) == [*range(100, 200), *range(100)]
    with pytest.raises(ObjectNotFoundError, match="nothing is there: there are no files"):
        open_parquet(f"{url}/nothing", **options)
    with pytest.raises(ObjectNotFoundError):
        open_parquet(f"{url}/nothing.parquet", **options)


@pytest.mark.s3
def test_an_object_of_the_same_size_that_is_replaced_is_noticed(tmp_path: Path, bucket: Bucket) -> None:
    plain: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    write(tmp_path / "d" / "a.parquet", 100, **plain)
    size = (tmp_path / "d" / "a.parquet").stat().st_size
    url = upload(bucket, tmp_path / "d")
    options: dict[str, Any] = {"storage_options": bucket.storage_options}
    place = open_parquet(url, tmp_path / "cache", **options)
    write(tmp_path / "d" / "a.parquet", 200, **plain)
    assert (tmp_path / "d" / "a.parquet").stat().st_size == size
    upload(bucket, tmp_path / "d")
    with pytest.raises(CorruptDataError, match=r"a\.parquet was replaced after it was indexed: its ETag"):
        read_ids(place)
    assert read_ids(open_parquet(url, tmp_path / "cache", **options)) == list(range(200, 300))


@pytest.mark.s3
def test_an_object_that_shrinks_or_goes_after_indexing_is_noticed(tmp_path: Path, bucket: Bucket) -> None:
    write(tmp_path / "d" / "a.parquet", rows=5000)
    url = upload(bucket, tmp_path / "d")
    place = open_parquet(url, tmp_path / "cache", storage_options=bucket.storage_options)
    write(tmp_path / "d" / "a.parquet", rows=10)
    upload(bucket, tmp_path / "d")
    with pytest.raises(CorruptDataError, match=r"a\.parquet was replaced after it was indexed"):
        read_ids(place)
    open_store(url, bucket.storage_options).delete("a.parquet")
    with pytest.raises(ObjectNotFoundError, match=r"a\.parquet"):
        read_ids(place)
