"""The order of a stream: each pass complete, without repeats, the same at any scale and from any number."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order import ShardTable
from stoker.order.shuffle import shuffle as shuffle_module
from stoker.order.shuffle.passes import _next_borders, cut_blocks
from stoker.order.shuffle.shard_table import IntervalLookup
from stoker.order.shuffle.shuffle import SHUFFLES, ShuffledStream, ShuffleSettings
from stoker.types import Ids

# Even shards, and such as differ by far: both ways of finding a shard are taken.
tables = (
    (
        st.lists(st.integers(0, 60), min_size=1, max_size=30)
        | st.lists(st.sampled_from([0, 1, 2, 400]), min_size=1, max_size=60)
    )
    .filter(any)
    .map(lambda sizes: ShardTable(np.array(sizes)))
)


class EveryOther:
    """Rows 1, 3, 5, ... of each shard."""

    def __init__(self, table: ShardTable) -> None:
        self.sizes = table.sizes // 2

    def rows(self, shards: Ids, numbers: Ids) -> Ids:
        assert (numbers < self.sizes[shards]).all()
        return 2 * numbers + 1

    def numbers(self, shards: Ids, rows: Ids) -> Ids:
        return np.where(rows % 2 == 1, rows // 2, -1)


def settings_of(table: ShardTable, data: st.DataObject, shuffle: str) -> ShuffleSettings:
    return ShuffleSettings.resolve(
        table.sizes,
        shuffle=shuffle,
        num_canonical_nodes=data.draw(st.none() | st.integers(1, 9)),
        block_size=data.draw(st.none() | st.integers(1, 200)),
    )


def ids_of(line: ShuffledStream, table: ShardTable, numbers: Ids) -> Ids:
    shards, rows = line.locate(numbers)
    assert (rows >= 0).all()
    assert (rows < table.sizes[shards]).all()
    return table.starts[shards] + rows


def whole_pass(table: ShardTable, settings: ShuffleSettings, key: int, number: int = 0) -> Ids:
    numbers = np.arange(number * table.total, (number + 1) * table.total)
    return ids_of(ShuffledStream(table, settings, key), table, numbers)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@given(table=tables, data=st.data(), key=st.integers(-(2**70), 2**70))
@settings(deadline=None)
def test_each_pass_has_every_sample_once(shuffle: str, table: ShardTable, data: st.DataObject, key: int) -> None:
    settings = settings_of(table, data, shuffle)
    ids = ids_of(ShuffledStream(table, settings, key), table, np.arange(3 * table.total))
    for start in range(0, ids.size, table.total):
        assert np.array_equal(np.sort(ids[start : start + table.total]), np.arange(table.total))


@pytest.mark.parametrize("shuffle", SHUFFLES)
@given(table=tables, data=st.data())
@settings(deadline=None)
def test_a_number_does_not_depend_on_what_is_asked_with_it(
    shuffle: str, table: ShardTable, data: st.DataObject
) -> None:
    settings = settings_of(table, data, shuffle)
    whole = ids_of(ShuffledStream(table, settings, 3), table, np.arange(5 * table.total))
    asked = np.array(data.draw(st.lists(st.integers(0, 5 * table.total - 1), min_size=1, max_size=50)))
    line = ShuffledStream(table, settings, 3)
    assert np.array_equal(ids_of(line, table, asked), whole[asked])
    assert [int(ids_of(line, table, asked[i : i + 1])[0]) for i in range(asked.size)] == whole[asked].tolist()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_many_numbers_at_once_are_as_one_by_one(shuffle: str) -> None:
    # More than are done at a time inside, with a pass that ends among them.
    table = ShardTable(np.random.default_rng(0).integers(1, 400, 150))
    settings = ShuffleSettings.resolve(table.sizes, shuffle=shuffle)
    numbers = np.arange(table.total // 2, 2 * table.total)
    together = ids_of(ShuffledStream(table, settings, 9), table, numbers)
    apart = [ids_of(ShuffledStream(table, settings, 9), table, part) for part in np.array_split(numbers, 37)]
    assert np.array_equal(together, np.concatenate(apart))


@pytest.mark.parametrize("shuffle", SHUFFLES)
@given(table=tables, data=st.data())
@settings(deadline=None)
def test_a_selection_is_gone_through_as_if_there_were_no_other_rows(
    shuffle: str, table: ShardTable, data: st.DataObject
) -> None:
    chosen = EveryOther(table)
    virtual = ShardTable(chosen.sizes)
    settings = settings_of(virtual, data, shuffle)
    line = ShuffledStream(table, settings, 5, chosen)
    assert line.total == virtual.total
    if not line.total:
        with pytest.raises(ConfigError, match="no sample is chosen"):
            line.locate(np.array([0]))
        return
    numbers = np.arange(2 * line.total)
    shards, rows = line.locate(numbers)
    expected_shards, expected_numbers = ShuffledStream(virtual, settings, 5).locate(numbers)
    assert np.array_equal(shards, expected_shards)
    assert np.array_equal(rows, 2 * expected_numbers + 1)


@given(table=tables, passes=st.integers(1, 3))
@settings(deadline=None)
def test_without_shuffling_samples_come_in_id_order(table: ShardTable, passes: int) -> None:
    settings = ShuffleSettings.resolve(table.sizes, shuffle="none")
    ids = ids_of(ShuffledStream(table, settings, 1), table, np.arange(passes * table.total))
    assert np.array_equal(ids, np.tile(np.arange(table.total), passes))


def test_without_shuffling_canonical_nodes_read_spans_side_by_side() -> None:
    table = ShardTable(np.array([4, 4, 2]))
    ids = whole_pass(table, ShuffleSettings("none", 3, 1), 0)
    assert ids.tolist() == [0, 4, 7, 1, 5, 8, 2, 6, 9, 3]


@given(table=tables, key=st.integers(0, 1000))
@settings(deadline=None)
def test_shard_shuffle_reads_each_shard_from_its_first_row_to_its_last(table: ShardTable, key: int) -> None:
    shards, rows = ShuffledStream(table, ShuffleSettings("shard", 1, 1), key).locate(np.arange(table.total))
    # Shards one after the other: each change of shard begins a new one, at its first row.
    begins = np.flatnonzero(np.diff(shards, prepend=-1))
    assert len(set(shards[begins].tolist())) == begins.size
    assert np.array_equal(rows, np.arange(table.total) - np.repeat(begins, table.sizes[shards[begins]]))


@pytest.mark.parametrize("shuffle", ["shard", "block", "global"])
def test_passes_and_keys_differ(shuffle: str) -> None:
    table = ShardTable(np.full(40, 50))
    settings = ShuffleSettings.resolve(table.sizes, shuffle=shuffle)
    orders = {whole_pass(table, settings, key, number).tobytes() for key in range(4) for number in range(4)}
    assert len(orders) == 16


def test_values_are_fixed_for_ever() -> None:
    # A change here would reorder every run that is under way: it needs a new state version.
    table = ShardTable(np.array([5, 0, 7, 3, 9]))
    for shuffle, expected in EXPECTED.items():
        assert whole_pass(table, ShuffleSettings(shuffle, 2, 4), 11, 1).tolist() == expected
    large = ShardTable(np.arange(10**6, 2 * 10**6, 10**3))
    numbers = np.array([0, 1, 10**9, 10**12, 2**61])
    for shuffle, expected in EXPECTED_LARGE.items():
        line = ShuffledStream(large, ShuffleSettings.resolve(large.sizes, shuffle=shuffle), 11)
        assert ids_of(line, large, numbers).tolist() == expected


@pytest.mark.parametrize("shuffle", ["none", "shard", "block"])
def test_a_shard_is_read_by_one_canonical_node_or_by_two_at_a_border(shuffle: str) -> None:
    table = ShardTable(np.full(64, 100))
    numbers = np.arange(table.total)
    shards, _ = ShuffledStream(
        table, ShuffleSettings.resolve(table.sizes, shuffle=shuffle, num_canonical_nodes=8), 5
    ).locate(numbers)
    readers = [len(np.unique(numbers[shards == shard] % 8)) for shard in range(64)]
    assert max(readers) <= 2
    assert sum(count == 2 for count in readers) <= 7


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    nodes=st.integers(1, 9),
    size=st.integers(1, 300),
)
@settings(deadline=None)
def test_blocks_end_with_shards_where_they_can(sizes: list[int], nodes: int, size: int) -> None:
    borders = np.concatenate([[0], np.cumsum(sizes)])
    total = int(borders[-1])
    spans = np.array([total * node // nodes for node in range(nodes + 1)])
    cuts = cut_blocks(borders, spans, size)
    assert cuts[0] == 0
    assert cuts[-1] == total
    lengths = np.diff(cuts)
    assert (lengths > 0).all()
    # No block is in two spans, and none is much larger than was asked for.
    assert np.isin(spans, cuts).all()
    assert lengths.max() <= 1.75 * size + 1
    # Only where the cuts at borders would leave too much between them, there are others.
    size = min(size, int(np.diff(spans).max()))
    proper = np.intersect1d(cuts, np.union1d(borders, spans))
    for cut in set(cuts.tolist()) - set(proper.tolist()):
        after = int(np.searchsorted(proper, cut))
        assert 2 * (proper[after] - proper[after - 1]) >= 3 * (size - size // 8) - 3


def test_blocks_have_the_shards_that_come_nearest_to_their_size() -> None:
    borders = np.cumsum([0, 10, 10, 10, 4, 4, 30, 10, 10, 100, 10])
    # 20 of two shards; 18 of three; 30; 20; 100 is cut in five; 10 is left.
    assert cut_blocks(borders, np.array([0, 198]), 20).tolist() == [0, 20, 38, 68, 88, 108, 128, 148, 168, 188, 198]
    # The first of two spans begins with half a block.
    both = cut_blocks(borders, np.array([0, 99, 198]), 20)
    assert both.tolist() == [0, 10, 30, 38, 68, 88, 99, 121, 143, 165, 188, 198]


@pytest.mark.parametrize("others", [0, 1, 5])
def test_blocks_of_shards_of_one_size_go_equally_far_up_to_shards_of_other_sizes(others: int) -> None:
    borders = np.cumsum([0, *[7] * 1000, *[10] * others])
    cuts = cut_blocks(borders, np.array([0, borders[-1]]), 20)
    alike = cuts[cuts <= 7000 - 21]
    assert alike.tolist() == list(range(0, int(alike[-1]) + 1, 21))
    assert np.isin(cuts, borders).all()
    assert np.diff(cuts)[:-1].max() <= 30
    assert cuts[-1] == borders[-1]


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40)
    | st.tuples(st.integers(1, 30), st.integers(1, 40)).map(lambda one: [one[0]] * one[1]),
    size=st.integers(1, 1500),
)
def test_a_block_ends_at_the_border_that_is_nearest(lengths: list[int], size: int) -> None:
    starts = np.cumsum([0, *lengths])
    size = min(size, int(starts[-1]))
    numbers, step, alike = _next_borders(starts, size)
    last = len(lengths)
    for border in range(last):
        # Of two that are equally near, the second.
        nearest = min(range(last + 1), key=lambda at: (abs(starts[at] - starts[border] - size), -at))
        found = min(border + step, last) if border < alike else numbers[border]
        assert found == max(nearest, border + 1)


def one_other(length: int, count: int, at: int, other: int) -> list[int]:
    """Lengths of which one may be another."""
    return [other if number == at else length for number in range(count)]


@given(
    lengths=(
        st.lists(st.integers(1, 50) | st.sampled_from([1, 5000]), min_size=1, max_size=300)
        | st.builds(one_other, st.integers(1, 9), st.integers(1, 40), st.integers(0, 40), st.integers(1, 12))
    ).map(np.array),
    data=st.data(),
)
@settings(deadline=None)
def test_runs_are_found_however_long_they_are(lengths: Ids, data: st.DataObject) -> None:
    runs = IntervalLookup(lengths)
    total = int(lengths.sum())
    places = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=50)))
    places = np.concatenate([places, runs.starts[:-1], runs.starts[1:] - 1])
    assert np.array_equal(runs.find(places), np.searchsorted(runs.starts, places, side="right") - 1)


def test_a_stream_without_samples_has_none_to_give() -> None:
    with pytest.raises(ConfigError, match="shards are empty"):
        ShuffledStream(ShardTable(np.array([0])), ShuffleSettings("none", 1, 1), 0).locate(np.array([0]))


SCALE = """
import resource, sys
import numpy as np
from stoker.order import ShardTable
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleSettings
shards, total, shuffle = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = ShardTable(np.full(shards, total // shards))
line = ShuffledStream(table, ShuffleSettings.resolve(table.sizes, shuffle=shuffle), 1)
places = set()
for start in (0, total // 2, 7 * total):
    found, rows = line.locate(np.arange(start, start + 4096))
    ids = set((table.starts[found] + rows).tolist())
    assert len(ids) == 4096 and 0 <= min(ids) and max(ids) < total
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.processes
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("shards", "total", "most_mib"), [(10**5, 10**9, 64), (10**6, 10**12, 300)])
def test_memory_does_not_grow_with_samples(shuffle: str, shards: int, total: int, most_mib: int) -> None:
    out = subprocess.run(
        [sys.executable, "-c", SCALE, str(shards), str(total), shuffle], capture_output=True, text=True, check=True
    )
    assert int(out.stdout) / 1024 <= most_mib


EXPECTED: dict[str, list[int]] = {
    "none": [0, 12, 1, 13, 2, 14, 3, 15, 4, 16, 5, 17, 6, 18, 7, 19, 8, 20, 9, 21, 10, 22, 11, 23],
    "block": [13, 23, 12, 22, 14, 19, 3, 21, 4, 20, 2, 6, 0, 5, 1, 7, 16, 10, 17, 8, 18, 11, 15, 9],
    "shard": [12, 19, 13, 20, 14, 21, 0, 22, 1, 23, 2, 5, 3, 6, 4, 7, 15, 8, 16, 9, 17, 10, 18, 11],
    "global": [8, 11, 4, 2, 0, 1, 12, 13, 9, 18, 17, 15, 23, 22, 16, 14, 10, 19, 21, 7, 6, 5, 3, 20],
}
EXPECTED_LARGE: dict[str, list[int]] = {
    "none": [0, 1, 1000000000, 1333000000, 340193952],
    "block": [650377109, 45915304, 34719638, 834636268, 46781254],
    "shard": [648870000, 317403500, 1198082000, 1201678000, 425207244],
    "global": [65728210, 914648942, 379356371, 471563637, 998211041],
}


@pytest.mark.parametrize("shuffle", ["none", "shard", "block", "global"])
@pytest.mark.parametrize("each", [1, 7])
def test_shards_of_one_size_are_ordered_as_others_are(shuffle: str, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked up once for all passes is what is looked up for each."""
    table = ShardTable(np.full(300, each))
    given = ShuffleSettings.resolve(table.sizes, shuffle=shuffle)
    numbers = np.arange(3 * table.total)
    found = ShuffledStream(table, given, 5).locate(numbers)
    apart = ShuffledStream(table, given, 5)
    monkeypatch.setattr(apart, "_alike", False)
    monkeypatch.setattr(IntervalLookup, "find", by_bisection)
    for one, two in zip(found, apart.locate(numbers), strict=True):
        assert one.tolist() == two.tolist()


def by_bisection(self: IntervalLookup, offsets: Ids) -> Ids:
    return np.searchsorted(self.starts[1:], offsets, side="right")


def test_one_pass_of_a_large_stream_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ShardTable(np.full(40, 3))
    numbers = np.arange(4 * table.total)
    given = ShuffleSettings.resolve(table.sizes, shuffle="block")
    expected = ShuffledStream(table, given, 5).locate(numbers)
    monkeypatch.setattr(shuffle_module, "_MOST_KEPT", 39)
    large = ShuffledStream(table, given, 5)
    found = large.locate(numbers)
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
    assert large._pass.cache_info().currsize == 1
