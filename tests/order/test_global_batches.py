"""Who takes which positions: the same global batches for every world, each position once."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order import BatchPlan
from support import batches_of_workers


def batches_of(plan: BatchPlan, workers: int = 1, samples: int = 7) -> list[list[int]]:
    return [batch.tolist() for batch in batches_of_workers(plan, workers, samples)]


@given(
    end=st.integers(0, 400),
    start=st.integers(0, 400),
    per_rank=st.integers(1, 6),
    world=st.integers(1, 9),
    nodes=st.integers(1, 12),
    workers=st.integers(1, 4),
)
def test_every_world_sees_the_same_global_batches(
    end: int, start: int, per_rank: int, world: int, nodes: int, workers: int
) -> None:
    start = min(start, end)
    size = per_rank * world
    alone = batches_of(BatchPlan(start, end, size, 0, 1, nodes, "uneven"))
    assert [sorted(batch) for batch in alone] == [
        list(range(first, min(first + size, end))) for first in range(start, end, size)
    ]
    ranks = [
        batches_of(BatchPlan(start, end, per_rank, rank, world, nodes, "uneven"), workers) for rank in range(world)
    ]
    together = [[p for part in parts if part for p in part] for parts in zip_longest(*ranks)]
    assert together == alone
    for rank, batches in enumerate(ranks):
        plan = BatchPlan(start, end, per_rank, rank, world, nodes, "uneven")
        assert len(plan) == len(batches)
        assert plan.samples == sum(map(len, batches))


@given(end=st.integers(1, 200), per_rank=st.integers(1, 5), world=st.integers(1, 9), nodes=st.integers(1, 5))
def test_padding_gives_all_ranks_the_same_steps_and_repeats_no_more_than_it_must(
    end: int, per_rank: int, world: int, nodes: int
) -> None:
    plans = [BatchPlan(0, end, per_rank, rank, world, nodes, "pad") for rank in range(world)]
    ranks = [batches_of(plan) for plan in plans]
    assert len({len(batches) for batches in ranks}) == 1
    positions = [p for batches in ranks for batch in batches for p in batch]
    assert set(positions) == set(range(end))
    assert len(positions) - end == plans[0].padding
    tail = end % (per_rank * world)
    assert plans[0].padding == (world - tail if 0 < tail < world else 0)


@given(end=st.integers(0, 200), per_rank=st.integers(1, 5), world=st.integers(1, 9))
def test_dropping_leaves_only_full_batches(end: int, per_rank: int, world: int) -> None:
    for rank in range(world):
        batches = batches_of(BatchPlan(0, end, per_rank, rank, world, 3, "drop"))
        assert len(batches) == end // (per_rank * world)
        assert all(len(batch) == per_rank for batch in batches)


@given(
    histories=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=6),
    end=st.integers(1, 500),
    nodes=st.integers(1, 9),
)
def test_changing_the_world_in_mid_epoch_neither_loses_nor_repeats(
    histories: list[tuple[int, int, int]], end: int, nodes: int
) -> None:
    seen: list[int] = []
    position = 0
    for world, per_rank, steps in [*histories, (3, 2, end)]:
        plans = [BatchPlan(position, end, per_rank, rank, world, nodes, "uneven") for rank in range(world)]
        for plan in plans:
            seen += [p for batch in batches_of(plan)[:steps] for p in batch]
        position = plans[0].position_after(steps)
    assert sorted(seen) == list(range(end))


def test_the_ranks_of_a_node_take_the_samples_of_its_canonical_nodes() -> None:
    # 4 nodes of 2 ranks, 8 canonical nodes: rank r takes canonical node r, and node n takes 2n and 2n + 1.
    for rank in range(8):
        plan = BatchPlan(0, 8 * 4 * 10, 4, rank, 8, 8)
        assert {p % 8 for batch in batches_of(plan) for p in batch} == {rank}


def test_the_cost_of_a_rank_does_not_depend_on_the_world() -> None:
    world = 16_384
    plan = BatchPlan(10**11, 10**12, 4, 16_000, world, 64)
    positions = plan.positions(0, 3)
    assert positions.shape == (3, 4)
    for number, row in enumerate(positions):
        first = 10**11 + number * 4 * world
        assert (row >= first).all()
        assert (row < first + 4 * world).all()


def test_all_ranks_of_a_large_world_are_disjoint_and_complete() -> None:
    world, start = 16_384, 12_345
    parts = [BatchPlan(start, start + 2 * world + 77, 1, rank, world, 64, "uneven") for rank in range(world)]
    first = np.concatenate([part.positions(1, 2).ravel() for part in parts])
    tail = np.concatenate([part.tail_positions() for part in parts])
    assert np.array_equal(np.sort(first), start + world + np.arange(world))
    assert np.array_equal(np.sort(tail), start + 2 * world + np.arange(77))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10, 0, 0, 1), "batch_size must be at least 1, got 0"),
        ((0, 10, 1, 2, 2), "rank 2 is not in a world of 2"),
        ((11, 10, 1, 0, 1), "position 11 is not in an epoch of 10"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[int, int, int, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchPlan(*arguments)
