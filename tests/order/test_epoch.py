"""The order of an epoch: complete, without repeats, the same at any scale and from any position."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order import EpochOrder, OrderSettings, ShardTable
from stoker.order.epoch import ShuffleName

tables = st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any).map(lambda s: ShardTable(np.array(s)))


def settings_of(table: ShardTable, data: st.DataObject, shuffle: ShuffleName = "block") -> OrderSettings:
    return OrderSettings.resolve(
        table,
        shuffle=shuffle,
        seed=data.draw(st.integers(-(2**70), 2**70)),
        num_canonical_nodes=data.draw(st.none() | st.integers(1, 9)),
        block_size=data.draw(st.none() | st.integers(1, 100)),
        epoch_size=data.draw(st.none() | st.integers(1, 3 * table.total)),
    )


@given(table=tables, data=st.data(), shuffle=st.sampled_from(["none", "block"]))
def test_each_pass_has_every_sample_once(table: ShardTable, data: st.DataObject, shuffle: ShuffleName) -> None:
    settings = settings_of(table, data, shuffle)
    ids = EpochOrder(table, settings, epoch=data.draw(st.integers(0, 5))).ids(np.arange(settings.epoch_size))
    for start in range(0, settings.epoch_size, table.total):
        part = ids[start : start + table.total]
        if len(part) == table.total:
            assert np.array_equal(np.sort(part), np.arange(table.total))
        else:
            assert len(set(part.tolist())) == len(part)


@given(table=tables, data=st.data())
def test_a_position_does_not_depend_on_what_was_asked_before(table: ShardTable, data: st.DataObject) -> None:
    settings = settings_of(table, data)
    whole = EpochOrder(table, settings, 3).ids(np.arange(settings.epoch_size))
    asked = np.array(data.draw(st.lists(st.integers(0, settings.epoch_size - 1), min_size=1, max_size=50)))
    assert np.array_equal(EpochOrder(table, settings, 3).ids(asked), whole[asked])


@given(table=tables)
def test_without_shuffling_samples_come_in_id_order(table: ShardTable) -> None:
    settings = OrderSettings.resolve(table, shuffle="none", seed=1)
    assert np.array_equal(EpochOrder(table, settings, 0).ids(np.arange(table.total)), np.arange(table.total))


def test_epochs_and_seeds_differ() -> None:
    table = ShardTable(np.full(40, 50))
    positions = np.arange(table.total)
    orders = {
        EpochOrder(table, OrderSettings.resolve(table, shuffle="block", seed=seed), epoch).ids(positions).tobytes()
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


def test_values_are_fixed_for_ever() -> None:
    # A change here would reorder every run that is under way: it needs a new state version.
    table = ShardTable(np.array([5, 0, 7, 3, 9]))
    settings = OrderSettings.resolve(table, shuffle="block", seed=11, num_canonical_nodes=2, block_size=4)
    assert EpochOrder(table, settings, 1).ids(np.arange(24)).tolist() == EXPECTED


def test_a_shard_is_read_by_one_canonical_node_or_by_two_at_a_border() -> None:
    table = ShardTable(np.full(64, 100))
    settings = OrderSettings.resolve(table, shuffle="block", seed=5, num_canonical_nodes=8)
    positions = np.arange(table.total)
    shards, _ = EpochOrder(table, settings, 0).locate(positions)
    readers = [len(np.unique(positions[shards == shard] % 8)) for shard in range(64)]
    assert max(readers) <= 2
    assert sum(count == 2 for count in readers) <= 7


def test_few_shards_are_in_use_at_once() -> None:
    table = ShardTable(np.full(256, 128))
    settings = OrderSettings.resolve(table, shuffle="block", seed=5)
    shards, _ = EpochOrder(table, settings, 0).locate(np.arange(table.total))
    first = np.full(256, table.total)
    np.minimum.at(first, shards, np.arange(table.total))
    last = np.zeros(256, dtype=np.int64)
    np.maximum.at(last, shards, np.arange(table.total))
    change = np.zeros(table.total + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    in_use = change.cumsum()
    nodes, per_block = settings.num_canonical_nodes, settings.block_size // 128
    assert in_use.max() <= nodes * (per_block + 2)
    # Downloads are spread: no stretch of a twentieth of the epoch begins more than its share of shards twice over.
    begun = np.histogram(first, bins=20)[0]
    assert begun[1:].max() <= 2.5 * 256 / 20


def test_bad_settings_say_what_is_wrong() -> None:
    table = ShardTable(np.array([4, 4]))
    with pytest.raises(ConfigError, match=r"'py9'.*known: none, block"):
        OrderSettings.resolve(table, shuffle="py9", seed=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_canonical_nodes must be at least 1, got 0"):
        OrderSettings.resolve(table, shuffle="block", seed=0, num_canonical_nodes=0)
    with pytest.raises(ConfigError, match="has none"):
        EpochOrder(ShardTable(np.array([0])), OrderSettings("none", 0, 1, 1, 5), 0)


SCALE = """
import resource, sys, time
import numpy as np
from stoker.order import EpochOrder, OrderSettings, ShardTable
shards, total = int(sys.argv[1]), int(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = ShardTable(np.full(shards, total // shards))
settings = OrderSettings.resolve(table, shuffle="block", seed=1)
ids = EpochOrder(table, settings, 0).ids(np.arange(total // 2, total // 2 + 4096))
assert len(set(ids.tolist())) == 4096 and 0 <= ids.min() and ids.max() < total
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("shards", "total", "most_mib"), [(10**5, 10**9, 64), (10**6, 10**12, 256)])
def test_memory_does_not_grow_with_samples(shards: int, total: int, most_mib: int) -> None:
    out = subprocess.run(
        [sys.executable, "-c", SCALE, str(shards), str(total)], capture_output=True, text=True, check=True
    )
    assert int(out.stdout) / 1024 <= most_mib


EXPECTED = [13, 20, 12, 22, 1, 21, 2, 19, 14, 5, 0, 23, 16, 6, 15, 7, 3, 10, 4, 8, 18, 11, 17, 9]
