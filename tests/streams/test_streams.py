"""Several streams in one dataset: names, caches, limits, and one pool for the shards of all."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import MDSWriter
from stoker.cache.disk.quota import divide_limit
from stoker.catalog import location
from stoker.errors import ConfigError, DatasetChangedError, FormatError, ObjectNotFoundError
from stoker.index import version
from stoker.order.subsets import HashSplit
from stoker.reading.samples import iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.streams import streams as streams_module
from stoker.streams.streams import Stream, StreamDefaults, Streams, open_streams, stream_names
from stoker.writers import CSVWriter, JSONWriter

COLUMNS = {"id": "int", "text": "str"}


def write(out: Path, first: int, count: int, writer: Any = MDSWriter, **options: Any) -> Path:
    """Samples ``first .. first + count`` in shards of about 20."""
    with writer(columns=options.pop("columns", COLUMNS), out=str(out), size_limit=800, **options) as file:
        for number in range(first, first + count):
            file.write({"id": number, "text": f"text {number}", "more": number})
    return out


@pytest.fixture
def three(tmp_path: Path) -> list[Stream]:
    """300 samples in MDS, JSON lines and CSV; the ids go on from one to the next."""
    return [
        Stream(remote=write(tmp_path / "a", 0, 100), local=tmp_path / "cache_a"),
        Stream(remote=write(tmp_path / "b", 100, 100, JSONWriter, compression="zstd"), local=tmp_path / "cache_b"),
        Stream(local=write(tmp_path / "c", 200, 100, CSVWriter)),
    ]


def read_all(streams: Streams, pool: ShardPool | None = None) -> list[int]:
    """Every sample once, in a random order that jumps between streams; checks each, returns ids in sample order."""
    own = pool or streams.pool()
    index = streams.index
    shards = np.repeat(np.arange(len(index)), index.sizes)
    rows = np.concatenate([np.arange(size) for size in index.sizes])
    order = np.random.default_rng(0).permutation(len(rows))
    found = np.full(len(rows), -1)
    for start in range(0, len(rows), 50):
        here = order[start : start + 50]
        batch = read_samples(own, shards[here], rows[here], ["id", "text"])
        found[here] = batch["id"]
        assert batch["text"] == [f"text {number}" for number in batch["id"]]
    own.close()
    return [int(number) for number in found]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_streams_of_different_formats_are_read_as_one(three: list[Stream]) -> None:
    streams = open_streams(three)
    assert streams.names == ("a", "b", "c")
    assert streams.index.samples == 300
    assert streams.index.columns == ("id", "text")
    assert not streams.near
    assert read_all(streams) == list(range(300))
    parts = [len(location.index) for location in streams.locations]
    assert np.diff(streams.shard_offsets).tolist() == parts
    assert streams.sample_offsets.tolist() == [0, 100, 200, 300]
    assert streams.index.total_bytes == sum(location.index.total_bytes for location in streams.locations)


def test_samples_one_by_one_come_from_the_right_stream(three: list[Stream]) -> None:
    pool = open_streams(three).pool()
    firsts = open_streams(three).shard_offsets[:3]
    shards, rows = np.tile(firsts[::-1], 2), np.array([0, 0, 0, 1, 1, 1])
    run = iterate_samples(pool, shards, rows)
    assert [sample["id"] for sample in run.samples] == [200, 100, 0, 201, 101, 1]
    pool.close()


def test_an_empty_stream_takes_no_shards(tmp_path: Path) -> None:
    streams = open_streams(
        [
            Stream(local=write(tmp_path / "none", 0, 0)),
            Stream(local=write(tmp_path / "some", 0, 50)),
            Stream(local=write(tmp_path / "nil", 0, 0)),
        ]
    )
    assert streams.sample_offsets.tolist() == [0, 0, 50, 50]
    assert read_all(streams) == list(range(50))


def test_one_stream_is_what_a_dataset_without_streams_is(three: list[Stream]) -> None:
    streams = open_streams(three[:1])
    assert streams.index is streams.locations[0].index
    assert streams.names == ("a",)


def test_the_fingerprint_tells_streams_and_their_order_apart(three: list[Stream]) -> None:
    prints = {open_streams(which).index.fingerprint for which in (three, three[:2], three[::-1], three[:1])}
    assert len(prints) == 4
    assert open_streams(three).index.fingerprint in prints


def test_streams_and_their_pool_survive_pickling(three: list[Stream]) -> None:
    streams = open_streams(three)
    pool = streams.pool()
    pool.get(0)
    copy, pool_copy = pickle.loads(pickle.dumps((streams, pool)))
    assert copy.names == streams.names
    assert read_all(copy, pool_copy) == list(range(300))
    pool.close()


def _child(streams: Streams, pool: ShardPool, results: Any) -> None:
    results.put(read_all(streams, pool))


@pytest.mark.processes
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_process_reads_all_streams(three: list[Stream], method: str) -> None:
    streams = open_streams(three)
    pool = streams.pool()
    if method == "fork":
        pool.get(0)
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=_child, args=(streams, pool, results))
    child.start()
    assert results.get(timeout=PATIENCE) == list(range(300))
    child.join()
    pool.close()


def test_columns_that_differ_are_an_error_of_reading_and_the_common_ones_are_read(tmp_path: Path) -> None:
    streams = open_streams(
        [
            Stream(local=write(tmp_path / "a", 0, 40)),
            Stream(local=write(tmp_path / "b", 40, 40, columns={**COLUMNS, "more": "int"})),
        ]
    )
    assert streams.index.columns == ("id", "text")
    assert read_all(streams) == list(range(80))
    shards = streams.shard_offsets[:2]
    with pytest.raises(FormatError, match=r"different columns .*columns="):
        read_samples(streams.pool(), shards, np.zeros(2, np.int64))


# -- places ------------------------------------------------------------------------------------------------------------


def test_two_datasets_in_one_cache_directory_lie_side_by_side(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 0, 20), write(tmp_path / "b", 20, 20)
    link = tmp_path / "link"
    (tmp_path / "cache").mkdir()
    link.symlink_to(tmp_path / "cache")
    streams = open_streams([Stream(a, tmp_path / "cache"), Stream(b, link)])
    assert read_all(streams) == list(range(40))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_dataset_is_no_cache_of_another(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 0, 20), write(tmp_path / "b", 20, 20)
    with pytest.raises(ConfigError, match=rf"{a} can not be the cache of {b}.*Choose an empty directory"):
        open_streams([Stream(local=a), Stream(b, a)])
    assert read_all(open_streams([Stream(local=a)])) == list(range(20))


def test_splits_of_one_directory_do_not_collide(tmp_path: Path) -> None:
    write(tmp_path / "data" / "one", 0, 30)
    write(tmp_path / "data" / "two", 30, 30)
    streams = open_streams([Stream(tmp_path / "data", tmp_path / "cache", split) for split in ("one", "two")])
    assert streams.names == ("one", "two")
    assert read_all(streams) == list(range(60))


def test_the_same_dataset_twice_is_opened_once(tmp_path: Path) -> None:
    data = write(tmp_path / "a", 0, 50)
    streams = open_streams(
        [
            Stream(data, tmp_path / "cache", subset=HashSplit(0, 0.5)),
            Stream(f"file://{data}", tmp_path / "cache", subset=HashSplit(0.5, 1)),
            Stream(data, tmp_path / "cache"),
        ]
    )
    assert streams.locations[0] is streams.locations[2]
    assert streams.names == ("a", "a#2", "a#3")
    assert read_all(streams) == [*range(50), *range(50), *range(50)]


def test_streams_wait_once_for_the_clock_and_later_changes_are_seen(
    three: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Times of files tick: each stream that waited for a tick of its own took milliseconds.
    asked: list[int] = []
    take = version.opening_time

    def opening_time(url: str) -> int:
        asked.append(take(url))
        return asked[-1]

    for module in (streams_module, location):
        monkeypatch.setattr(module, "opening_time", opening_time)
    opened = open_streams(three)
    assert len(asked) == 1
    path = opened.locations[2].cache.root / opened.locations[2].index.shards[0].raw[0].basename
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DatasetChangedError):
        opened.pool().get(int(opened.shard_offsets[2]))


def test_a_stream_without_index_is_the_error_of_opening(tmp_path: Path) -> None:
    data = write(tmp_path / "a", 0, 20)
    with pytest.raises(ObjectNotFoundError, match="nothing"):
        open_streams([Stream(data), Stream(tmp_path / "nothing"), Stream(data)])


def test_a_streams_own_settings_go_before_the_datasets(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 0, 20), write(tmp_path / "b", 20, 20)
    streams = open_streams(
        [
            Stream(a, tmp_path / "ca", keep_zip=False, validate_hash=False, download_timeout=7),
            Stream(b, tmp_path / "cb"),
        ],
        StreamDefaults(keep_zip=True, validate_hash="sha1", download_timeout=9),
    )
    own, base = (location.cache.settings for location in streams.locations)
    assert (own.keep_zip, own.validate_hash, own.stall_timeout) == (False, False, 7)
    assert (base.keep_zip, base.validate_hash, base.stall_timeout) == (True, "sha1", 9)


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_are_the_shortest_ends_of_paths_that_differ() -> None:
    def names(*streams: Stream) -> tuple[str, ...]:
        return stream_names(streams)

    assert names(Stream("s3://b/web"), Stream("s3://b/books/")) == ("web", "books")
    assert names(Stream("s3://b/web", split="train"), Stream("s3://b/books", split="train")) == (
        "web/train",
        "books/train",
    )
    assert names(Stream("s3://b/x/web"), Stream("gs://c/x/web"), Stream("s3://b/y")) == ("b/x/web", "c/x/web", "y")
    assert names(Stream("s3://b/x"), Stream("s3://b/x"), Stream("s3://b/x")) == ("x", "x#2", "x#3")
    assert names(Stream("s3://b/x"), Stream("s3://b/y", name="x")) == ("b/x", "x")
    assert names(Stream(local="/data/web")) == ("web",)
    assert names(Stream("file:///data/web", "/cache")) == ("web",)


@given(
    st.lists(
        st.tuples(st.sampled_from(["s3://b/x", "s3://b/x/y", "gs://b/x"]), st.sampled_from([None, "train", "x"])),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([None, "x", "train", "x#2"]),
)
def test_names_are_always_different(locations: list[tuple[str, str | None]], name: str | None) -> None:
    streams = [Stream(remote, split=split) for remote, split in locations]
    if name is not None:
        streams.append(Stream("s3://b/z", name=name))
    names = stream_names(streams)
    assert len(set(names)) == len(streams)
    if name is not None:
        assert names[-1] == name


def test_two_streams_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 streams are called 'web'"):
        open_streams([Stream("memory://a", name="web"), Stream("memory://b", name="web")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give remote="),
        (
            {"local": "x", "proportion": 0.5, "repeat": 2},
            "one of proportion, repeat and choose, not proportion and repeat",
        ),
        ({"local": "x", "name": "web", "repeat": -1}, "stream 'web': repeat must not be negative"),
        ({"local": "x", "proportion": float("nan")}, "proportion must be a number or None, got nan"),
        ({"local": "x", "choose": 1.5}, "choose must be an integer or None, got 1.5"),
        ({"local": "x", "download_timeout": 0}, "download_timeout is seconds above 0"),
        ({"local": "x", "name": ""}, "name must not be empty"),
        ({"local": "x", "subset": [0.5]}, "must be a HashSplit, a KeepIds, a SkipIds or a Condition"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Stream(**arguments)


def test_what_is_no_list_of_streams_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        open_streams([])
    with pytest.raises(ConfigError, match="holds a str"):
        open_streams(["s3://bucket"])  # type: ignore[list-item]


def test_credentials_do_not_show() -> None:
    stream = Stream("s3://b/x", storage_options={"secret_access_key": "hush"})
    assert "hush" not in repr(stream)


# -- the limit ---------------------------------------------------------------------------------------------------------


def held(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("shard.*") if ".stoker" not in path.parts)


def test_the_limit_holds_for_all_caches_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    large, small = write(tmp_path / "large", 0, 400), write(tmp_path / "small", 400, 60)
    near = write(tmp_path / "near", 460, 40)
    given = [
        Stream(large, tmp_path / "cl"),
        Stream(small, tmp_path / "cs"),
        Stream(large, tmp_path / "cl"),
        Stream(local=near),
    ]
    limit = 8000
    streams = open_streams(given, StreamDefaults(cache_limit=limit))
    assert streams.limit == limit
    limits = [location.cache.settings.limit for location in streams.locations]
    assert limits[0] == limits[2]
    assert limits[3] is None
    assert limits[0] is not None
    assert limits[1] is not None
    assert limits[0] + limits[1] <= limit
    assert streams.locations[1].index.total_bytes == limits[1] < limits[0] < streams.locations[0].index.total_bytes
    shards, index = np.random.default_rng(1).integers(0, len(streams.index), 300), streams.index
    pool = streams.pool()
    for shard in shards.tolist():
        pool.get(shard).read(np.arange(index.sizes[shard]), ["id"])
        pool.done_with(shard)
        assert held(tmp_path / "cl") <= limits[0]
        assert held(tmp_path / "cs") <= limits[1]
    pool.close()
    assert held(tmp_path / "cs") == limits[1]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_limit_that_can_not_hold_two_shards_of_each_is_refused(tmp_path: Path) -> None:
    given = [Stream(write(tmp_path / name, 0, 100), tmp_path / f"c{name}") for name in "ab"]
    with pytest.raises(ConfigError, match=r"cache_limit=2000 can not hold two shards of each of 2 caches"):
        open_streams(given, StreamDefaults(cache_limit=2000))


def test_a_limit_without_any_remote_is_refused(tmp_path: Path) -> None:
    given = [Stream(local=write(tmp_path / name, 0, 20)) for name in "ab"]
    with pytest.raises(ConfigError, match="are read where they lie: leave it out"):
        open_streams(given, StreamDefaults(cache_limit=1 << 20))


@given(
    st.lists(st.lists(st.integers(0, 100), max_size=6), min_size=1, max_size=6),
    st.integers(0, 2000),
)
def test_shares_are_fair_and_within_the_limit(sizes: list[list[int]], limit: int) -> None:
    shards = [np.array(each, dtype=np.int64) for each in sizes]
    totals = [sum(each) for each in sizes]
    least = [min(sum(each), 2 * max(each, default=0)) for each in sizes]
    if sum(least) > limit:
        with pytest.raises(ConfigError):
            divide_limit(limit, shards, ["x"] * len(sizes))
        return
    shares = divide_limit(limit, shards, ["x"] * len(sizes))
    assert sum(shares) <= limit
    assert all(share >= low for share, low in zip(shares, least, strict=True))
    if limit >= sum(totals):
        assert all(share >= total for share, total in zip(shares, totals, strict=True))
    else:
        # What is wanting bytes has no less than another has that could do with less; only rounding is left over.
        assert limit - sum(shares) < len(shares)
        for share, total in zip(shares, totals, strict=True):
            for other, low in zip(shares, least, strict=True):
                if share < total and other > low:
                    assert share >= other


def test_what_is_read_is_reported(three: list[Stream], tmp_path: Path) -> None:
    where = open_streams(three).where
    assert where == f"{tmp_path}/a, {tmp_path}/b, {tmp_path}/c"
    assert os.path.isdir(tmp_path / "cache_b")
