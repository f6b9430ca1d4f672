"""Codes to shards and rows."""

from __future__ import annotations

import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.order.global_batches import BatchPlan
from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture, Mixing
from stoker.order.mixture.stream_locator import MixedOrder, StreamLocator
from stoker.order.sample_order import Order
from stoker.order.selection import Everything, Sampled
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import SHUFFLES, ShuffledStream, ShuffleSettings
from stoker.types import Ids


class Rows:
    """A line of shards of ten rows, in order, that says which line it is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def locate(self, numbers: Ids, /) -> tuple[Ids, Ids]:
        return numbers // 10 + 1000 * self.number, numbers % 10


class Counted:
    """Makes lines and remembers which."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, number: int) -> Order:
        self.made.append(number)
        return Rows(number)


@given(
    lines=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5, unique=True),
    picks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**12)), max_size=50),
    streams=st.integers(1, 7),
)
def test_each_code_is_located_by_its_line(lines: list[int], picks: list[tuple[int, int]], streams: int) -> None:
    wanted = [(lines[pick % len(lines)], number) for pick, number in picks]
    offsets = [100 * stream for stream in range(streams)]
    codes = np.array([line << NUMBER_BITS | number for line, number in wanted], dtype=np.int64)
    shards, rows = StreamLocator(Rows, offsets).locate(codes)
    assert shards.tolist() == [number // 10 + 1000 * line + offsets[line % streams] for line, number in wanted]
    assert rows.tolist() == [number % 10 for _, number in wanted]


@pytest.mark.parametrize("count", [3, 300, 70_000])
def test_any_number_of_streams_is_distinguished(count: int) -> None:
    lines = np.random.default_rng(0).permutation(count)[:300]
    shards, _ = StreamLocator(Rows, [0]).locate((lines << NUMBER_BITS) | 25)
    assert np.array_equal(shards, 1000 * lines + 2)


def test_streams_are_made_when_read_and_the_last_used_are_kept() -> None:
    make = Counted()
    lines = StreamLocator(make, [0], keep=2)

    def read(*numbers: int) -> None:
        lines.locate(np.array([number << NUMBER_BITS for number in numbers], dtype=np.int64))

    assert make.made == []
    read(1, 2, 1)
    assert make.made == [1, 2]
    read(1)
    read(3)  # drops 2, which was used longest ago
    read(1)
    assert make.made == [1, 2, 3]
    read(2)
    assert make.made == [1, 2, 3, 2]


def test_all_streams_of_a_data_set_are_kept() -> None:
    make = Counted()
    lines = StreamLocator(make, [0] * 100)
    for _ in range(2):
        lines.locate(np.arange(100, dtype=np.int64) << NUMBER_BITS)
    assert len(make.made) == 100


def test_a_mixed_order_locates_positions() -> None:
    mixture = EpochMixture([0], [0], [Mixing([20, 10], nodes=2, window=8, key=1)])
    order = MixedOrder(StreamLocator(Rows, [0, 2]), mixture)
    shards, rows = order.locate(np.arange(30))
    assert np.bincount(shards, minlength=1003).nonzero()[0].tolist() == [0, 1, 1002]
    assert len(set(zip(shards.tolist(), rows.tolist(), strict=True))) == 30
    empty = order.locate(np.zeros(0, dtype=np.int64))
    assert [part.tolist() for part in empty] == [[], []]


def test_no_sample_comes_twice_before_all_of_its_stream_came_once() -> None:
    tables = [ShardTable(np.array([7, 0, 5, 9])), ShardTable(np.array([11, 4]))]
    lines = StreamLocator(lambda number: ShuffledStream(tables[number], ShuffleSettings("block", 2, 8), number), [0, 4])
    counts, seen = [30, 10], np.zeros((6, 11), dtype=np.int64)
    for epoch in range(7):
        mixing = Mixing(counts, [epoch * count for count in counts], nodes=2, window=16, key=epoch)
        shards, rows = MixedOrder(lines, EpochMixture([0], [0], [mixing])).locate(np.arange(40))
        np.add.at(seen, (shards, rows), 1)
        for first, last, table, count in ((0, 4, tables[0], counts[0]), (4, 6, tables[1], counts[1])):
            times = np.concatenate([seen[first + i, :size] for i, size in enumerate(table.sizes[: last - first])])
            assert times.sum() == (epoch + 1) * count
            assert times.max() - times.min() <= 1


@given(data=st.data(), shuffle=st.sampled_from(sorted(SHUFFLES)))
def test_samples_of_many_streams_are_located_together_as_each_stream_locates_its_own(
    data: st.DataObject, shuffle: str
) -> None:
    # Drawn of few, so that there are streams of the same sizes, with the same settings and with others.
    alike = st.tuples(st.integers(1, 40), st.integers(1, 9)).map(lambda one: [one[0]] * one[1])
    sizes = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any) | alike
    few = data.draw(st.lists(sizes, min_size=1, max_size=4))
    tables = [ShardTable(np.array(one)) for one in data.draw(st.lists(st.sampled_from(few), min_size=2, max_size=8))]
    chosen = st.builds(ShuffleSettings, st.just(shuffle), st.integers(1, 3), st.integers(1, 300))
    some_settings = data.draw(st.lists(chosen, min_size=1, max_size=3))
    settings = [data.draw(st.sampled_from(some_settings)) for _ in tables]

    def make(number: int) -> ShuffledStream:
        table = tables[number]
        chosen = Sampled(Everything(table), max(1, table.total // 2), 1, number) if number == some else None
        return ShuffledStream(table, settings[number], number * 77, chosen)

    some = data.draw(st.integers(0, len(tables)))  # the last number is of no stream: all are whole
    offsets = [100 * number for number in range(len(tables))]
    locator = StreamLocator(make, offsets, keep=data.draw(st.integers(1, 6)))
    for _ in range(data.draw(st.integers(1, 3))):
        pick = st.tuples(st.integers(0, len(tables) - 1), st.integers(0, 900) | st.integers(0, 1 << 41))
        picks = data.draw(st.lists(pick, min_size=1, max_size=200))
        shards, rows = locator.locate(np.array([one << NUMBER_BITS | number for one, number in picks]))
        for (one, number), shard, row in zip(picks, shards.tolist(), rows.tolist(), strict=True):
            found, its = make(one).locate(np.array([number]))
            assert (shard, row) == (int(found[0]) + offsets[one], int(its[0]))


def test_passes_that_were_read_long_ago_are_not_kept() -> None:
    table = ShardTable(np.array([3, 2]))
    locator = StreamLocator(lambda number: ShuffledStream(table, ShuffleSettings("block", 1, 2), number), [0, 2], 2)
    tracemalloc.start()
    sizes = []
    for first in range(0, 10_000, 100):
        locator.locate(np.concatenate([np.arange(first, first + 100) | number << NUMBER_BITS for number in (0, 1)]))
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes[50:]) < 1.5 * max(sizes[:50])


def test_a_node_reads_the_shards_of_its_canonical_nodes_of_every_stream() -> None:
    # 4 nodes of a rank, 4 canonical nodes, each with 8 whole shards of both streams.
    table = ShardTable(np.full(32, 64))
    lines = StreamLocator(lambda number: ShuffledStream(table, ShuffleSettings("block", 4, 128), number), [0, 32])
    order = MixedOrder(lines, EpochMixture([0], [0], [Mixing([2048, 2048], nodes=4, window=64, key=3)]))
    for rank in range(4):
        positions = np.concatenate([batch for chunk in BatchPlan(0, 4096, 8, rank, 4, 4).chunks(64) for batch in chunk])
        shards, _ = order.locate(positions)
        assert np.unique(shards).size == 16


def test_threads_locate_samples_of_more_streams_than_are_kept() -> None:
    """As those do that look for samples in the places of others, while the order goes on."""
    locator = StreamLocator(Rows, [0], keep=2)
    before, failed = sys.getswitchinterval(), list[Exception]()

    def locate(first: int) -> None:
        try:
            for number in range(first, first + 3000):
                shards, rows = locator.locate(np.array([number % 5 << NUMBER_BITS | 25], np.int64))
                assert (int(shards[0]), int(rows[0])) == (1000 * (number % 5) + 2, 5)
        except Exception as error:
            failed.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=locate, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []
