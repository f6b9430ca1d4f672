"""Epochs as stretches of one line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order import EpochOrder, OrderSettings, ShardTable, ShuffleName

tables = st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any).map(lambda s: ShardTable(np.array(s)))


@given(
    table=tables,
    data=st.data(),
    shuffle=st.sampled_from(["none", "block", "shard", "global"]),
    seed=st.integers(-(2**70), 2**70),
)
@settings(deadline=None)
def test_an_epoch_goes_on_where_the_last_one_ended(
    table: ShardTable, data: st.DataObject, shuffle: ShuffleName, seed: int
) -> None:
    size = data.draw(st.integers(table.total // 8 + 1, 2 * table.total))
    chosen = OrderSettings.resolve(table, shuffle=shuffle, seed=seed, epoch_size=size)
    epochs = 3 * table.total // size + 1
    ids = np.concatenate([EpochOrder(table, chosen, epoch).ids(np.arange(size)) for epoch in range(epochs)])
    for start in range(0, 3 * table.total, table.total):
        assert np.array_equal(np.sort(ids[start : start + table.total]), np.arange(table.total))


def test_epochs_and_seeds_differ() -> None:
    table = ShardTable(np.full(40, 50))
    positions = np.arange(table.total)
    orders = {
        EpochOrder(table, OrderSettings.resolve(table, shuffle="block", seed=seed), epoch).ids(positions).tobytes()
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


def test_bad_settings_say_what_is_wrong() -> None:
    table = ShardTable(np.array([4, 4]))
    with pytest.raises(ConfigError, match="num_canonical_nodes must be at least 1, got 0"):
        OrderSettings.resolve(table, shuffle="block", seed=0, num_canonical_nodes=0)
    with pytest.raises(ConfigError, match="epoch_size must be at least 0, got -1"):
        OrderSettings.resolve(table, shuffle="block", seed=0, epoch_size=-1)
    with pytest.raises(ConfigError, match="has none"):
        EpochOrder(ShardTable(np.array([0])), OrderSettings("none", 0, 1, 1, 5), 0)
