"""The measures of a shuffle are what they say, and by them block is no worse than py1e where it needs as much cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.order import ShardTable
from stoker.order.mosaicml.shuffles import shuffle_ids
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleSettings
from stoker.types import Ids
from stoker_bench.simulate.shuffle_quality import (
    batch_mixing,
    cache_need,
    download_peak,
    measure,
    neighbour_distance,
    position_correlation,
    separation,
    window_correlation,
)

sequences = st.lists(st.integers(0, 12), min_size=1, max_size=60).map(np.array)


@given(shards=sequences)
def test_cache_need_is_what_counting_step_by_step_gives(shards: Ids) -> None:
    weights = np.arange(13) * 10 + 1
    most, heaviest = 0, 0
    for position in range(shards.size):
        held = set(shards[: position + 1].tolist()) & set(shards[position:].tolist())
        most = max(most, len(held))
        heaviest = max(heaviest, sum(weights[shard] for shard in held))
    found = cache_need(shards, weights)
    assert (found.shards, found.weight) == (most, heaviest)


def test_in_id_order_nothing_is_mixed() -> None:
    table = ShardTable(np.full(10, 100))
    found = measure(np.arange(1000), table, 50)
    assert found.position_correlation == pytest.approx(1)
    assert found.window_correlation == pytest.approx(1)
    assert found.neighbour_distance == pytest.approx(3 / 1000)
    assert found.separation == pytest.approx(3 / 1000)
    assert found.batch_mixing < 0.11
    assert (found.cache.shards, found.cache.weight) == (1, 100)


def test_backwards_is_as_bad() -> None:
    ids = np.arange(1000)[::-1]
    assert position_correlation(ids) == pytest.approx(1)
    assert window_correlation(ids, 10) == pytest.approx(1)


def test_a_random_order_is_the_measure_of_all() -> None:
    table = ShardTable(np.full(50, 400))
    ids = np.random.default_rng(0).permutation(table.total)
    found = measure(ids, table, 128)
    assert found.position_correlation < 4 / table.total**0.5
    assert found.window_correlation == pytest.approx((2 / np.pi / 128) ** 0.5, rel=0.15)
    for value in (found.neighbour_distance, found.neighbour_median, found.node_distance, found.separation):
        assert value == pytest.approx(1, rel=0.03)
    assert found.batch_mixing == pytest.approx(1, rel=0.02)
    assert found.cache.shards == 50


def test_downloads_that_come_all_at_once_are_a_peak() -> None:
    even = np.repeat(np.arange(100), 10)
    assert download_peak(even, 10) == pytest.approx(1)
    # The second half begins with all its shards.
    burst = np.concatenate([np.repeat(np.arange(50), 10), np.tile(np.arange(50, 100), 10)])
    assert download_peak(burst, 50) > 5


def test_degenerate_sequences_are_measured_too() -> None:
    none = np.zeros(0, dtype=np.int64)
    table = ShardTable(np.array([1]))
    assert position_correlation(none) == window_correlation(none, 4) == download_peak(none, 4) == 0
    assert neighbour_distance(none, 1) == (0, 0)
    assert cache_need(none, table.sizes).shards == 0
    assert measure(np.array([0]), table, 1).batch_mixing == pytest.approx(1)
    assert separation(np.array([0]), table) == 0
    assert batch_mixing(none, table, 4) == 0


def native(table: ShardTable, shuffle: str, nodes: int, size: int, key: int) -> Ids:
    shards, rows = ShuffledStream(table, ShuffleSettings(shuffle, nodes, size), key).locate(np.arange(table.total))
    return table.starts[shards] + rows


def py1e(table: ShardTable, nodes: int, size: int, seed: int) -> Ids:
    """As delivered: canonical nodes side by side."""
    return shuffle_ids("py1e", table.sizes, nodes, seed, 0, size).reshape(nodes, -1).T.ravel()


SEEDS = range(1, 7)


@pytest.mark.parametrize("shards_per_block", [2, 4, 8, 16])
def test_block_mixes_no_worse_than_py1e_with_the_same_cache(shards_per_block: int) -> None:
    nodes, size = 4, 64
    sizes = np.random.default_rng(shards_per_block).integers(size * 9 // 10, size * 11 // 10 + 1, 512)
    sizes[0] += -sizes.sum() % nodes
    table = ShardTable(sizes)
    block_size = size * shards_per_block
    theirs = [measure(py1e(table, nodes, block_size, seed), table, 256, nodes) for seed in SEEDS]
    room = float(np.mean([found.cache.shards for found in theirs]))
    # The largest block that needs no more.
    while True:
        ours = [measure(native(table, "block", nodes, block_size, key), table, 256, nodes) for key in SEEDS]
        if np.mean([found.cache.shards for found in ours]) <= room:
            break
        block_size -= size // 16
    assert block_size > 0.8 * size * shards_per_block

    def mean(name: str) -> tuple[float, float]:
        return tuple(float(np.mean([getattr(found, name) for found in side])) for side in (ours, theirs))  # type: ignore[return-value]

    # Correlation and distance of neighbours hang on the order of the shards, which is random in both: they agree within
    # the noise of that. It is 0.8 / sqrt(512) = 0.035 for the one, over the root of six seeds.
    our, their = mean("position_correlation")
    assert our <= their + 0.035
    our, their = mean("neighbour_distance")
    assert our >= their - 0.03
    our, their = mean("node_distance")
    assert our >= 0.97 * their
    # How far neighbours in storage are apart is what a block is for.
    our, their = mean("separation")
    assert our >= their


def test_global_is_as_good_as_a_random_permutation() -> None:
    table = ShardTable(np.full(64, 250))
    found = measure(native(table, "global", 1, 1, 3), table, 256)
    assert found.position_correlation < 4 / table.total**0.5
    for value in (found.neighbour_distance, found.neighbour_median, found.separation, found.batch_mixing):
        assert value == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("per_block", [1, 2, 5])
def test_few_shards_are_in_use_at_once(per_block: int) -> None:
    rng = np.random.default_rng(per_block)
    table = ShardTable(rng.integers(100, 156, 256))
    settings = ShuffleSettings.resolve(table.sizes, shuffle="block", block_size=128 * per_block)
    shards, _ = ShuffledStream(table, settings, 5).locate(np.arange(table.total))
    # As many as a block has: one more where shards are smaller. And those at borders between spans, all the time.
    nodes = settings.num_canonical_nodes
    assert cache_need(shards, table.sizes).shards <= nodes * (per_block + 1) + nodes - 1
    # Downloads are spread: no stretch of a twentieth of the epoch begins far more than its share of shards.
    assert download_peak(shards, table.total // 20) <= 2.5
