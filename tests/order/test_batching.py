"""Batching methods: what each promises of a batch, and that all samples come once whatever the worlds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order.global_batches import BatchPlan, DevicePlan, Remainder
from stoker.order.mixture.interleave import Interleave
from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture, Mixing
from stoker.order.mixture.stratified_batches import StratifiedPlan
from stoker.types import Ids
from support import batches_of_workers

COUNTS = st.lists(st.integers(0, 120), min_size=1, max_size=5).filter(any)
Method: TypeAlias = Callable[[int, int, int, int], list[list[int]]]
"""From start, batch size of a rank, rank and world size to the rank's batches, as codes."""


def batches_of(plan: BatchPlan, workers: int = 1, samples: int = 11) -> list[Ids]:
    return batches_of_workers(plan, workers, samples)


def method(name: str, counts: list[int], batch: int, nodes: int, remainder: Remainder = "uneven") -> Method:
    """A batching method, for a global batch (per_stream) or a rank's batch (device_per_stream) of a size."""
    end = sum(counts)
    begun = [3 * stream for stream in range(len(counts))]
    if name == "stratified":
        mixture = EpochMixture([0], [0], [Mixing(counts, begun)])
        return lambda start, size, rank, world: [
            codes.tolist()
            for codes in batches_of(
                StratifiedPlan(start, end, size, rank, world, nodes, remainder, strata=mixture, key=5)
            )
        ]
    unit = 1 if name == "random" else batch
    mixing = Mixing(counts, begun, nodes=nodes, unit=unit, window=8, key=5, shared=name == "per_stream")
    plan = DevicePlan if name == "device_per_stream" else BatchPlan
    return lambda start, size, rank, world: [
        mixing.codes(positions).tolist()
        for positions in batches_of(plan(start, end, size, rank, world, nodes, remainder))
    ]


def expected(counts: list[int]) -> list[int]:
    return [
        (stream << NUMBER_BITS) + 3 * stream + number for stream, count in enumerate(counts) for number in range(count)
    ]


@given(
    name=st.sampled_from(["random", "per_stream", "device_per_stream", "stratified"]),
    counts=COUNTS,
    size=st.integers(1, 6),
    history=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 8)), max_size=4),
    nodes=st.integers(1, 8),
)
def test_each_sample_comes_once_through_any_history_of_worlds(
    name: str, counts: list[int], size: int, history: list[tuple[int, int]], nodes: int
) -> None:
    run = method(name, counts, size * (6 if name == "per_stream" else 1), nodes)
    seen: list[int] = []
    position = 0
    for steps, world in [*history, (sum(counts), 3)]:
        for rank in range(world):
            seen += [code for batch in run(position, size, rank, world)[:steps] for code in batch]
        position = BatchPlan(position, sum(counts), size, 0, world, nodes).position_after(steps)
    assert sorted(seen) == expected(counts)


@given(
    name=st.sampled_from(["random", "per_stream", "stratified"]),
    counts=COUNTS,
    per_rank=st.integers(1, 5),
    world=st.integers(2, 6),
    nodes=st.integers(1, 8),
    done=st.integers(0, 9),
)
def test_every_world_sees_the_same_global_batches(
    name: str, counts: list[int], per_rank: int, world: int, nodes: int, done: int
) -> None:
    size = per_rank * world
    run = method(name, counts, size, nodes)
    start = min(done * size, sum(counts))
    alone = run(start, size, 0, 1)
    ranks = [run(start, per_rank, rank, world) for rank in range(world)]
    assert [[code for part in parts if part for code in part] for parts in zip_longest(*ranks)] == alone
    # A resume goes on with what would have come anyway.
    assert run(0, size, 0, 1)[done:] == alone


@given(counts=COUNTS, size=st.integers(1, 30), nodes=st.integers(1, 8), start=st.integers(0, 600))
def test_a_stratified_batch_has_each_stream_in_its_share_wherever_it_begins(
    counts: list[int], size: int, nodes: int, start: int
) -> None:
    total = sum(counts)
    start = min(start, total)
    tree = Interleave(np.array(counts))
    for number, batch in enumerate(method("stratified", counts, 0, nodes)(start, size, 0, 1)):
        first = start + number * size
        found = np.bincount(np.array(batch) >> NUMBER_BITS, minlength=len(counts))
        ends = tree.counts_before(np.array([first, first + len(batch)]))
        assert found.tolist() == (ends[1] - ends[0]).tolist()
        assert np.abs(found - len(batch) * np.array(counts) / total).max() < 3


def test_only_the_filler_of_a_stratified_batch_is_read_by_neighbouring_nodes() -> None:
    # 8 nodes, one canonical node each: 32 samples a batch and node.
    counts, nodes, size = [11_000, 5_000, 3_000, 1_000], 8, 32
    run = method("stratified", counts, 0, nodes)
    wrong = np.zeros(4, dtype=np.int64)
    for rank in range(nodes):
        codes = np.concatenate([np.array(batch) for batch in run(0, size, rank, nodes) if len(batch) == size])
        numbers = codes & ((1 << NUMBER_BITS) - 1)
        wrong += np.bincount((codes >> NUMBER_BITS)[numbers % nodes != rank], minlength=4)
    # A node has 32 * 0.25 = 8 of stream 1 in a batch, which is just enough for 4 streams' rounding at both ends.
    assert wrong[[0, 2, 3]].tolist() == [0, 0, 0]
    assert 0 < wrong[1] < 0.2 * counts[1]


def test_the_ranks_of_a_node_have_all_streams_in_a_stratified_batch_if_shuffled() -> None:
    mixture = EpochMixture([0], [0], [Mixing([8000, 8000])])

    def streams(shuffled: bool) -> list[set[int]]:
        plans = [
            StratifiedPlan(0, 16_000, 32, rank, 4, 1, strata=mixture, shuffled=shuffled, key=2) for rank in range(4)
        ]
        return [set((batches_of(plan)[3] >> NUMBER_BITS).tolist()) for plan in plans]

    assert streams(shuffled=True) == [{0, 1}] * 4
    assert {0} in streams(shuffled=False)


def test_a_stratified_epoch_of_several_phases_changes_its_shares_with_them() -> None:
    first, second = Mixing([900, 100]), Mixing([500, 500], [900, 100])
    mixture = EpochMixture([0, 1000], [0, 0], [first, second])
    batches = [
        np.bincount(codes >> NUMBER_BITS, minlength=2).tolist()
        for codes in batches_of(StratifiedPlan(0, 2000, 50, 0, 1, 4, strata=mixture))
    ]
    assert batches == [[45, 5]] * 20 + [[25, 25]] * 20


@given(counts=COUNTS, size=st.integers(1, 6), world=st.integers(1, 6), nodes=st.integers(1, 4), done=st.integers(0, 3))
def test_the_batches_of_a_device_are_of_one_stream_until_the_leftovers(
    counts: list[int], size: int, world: int, nodes: int, done: int
) -> None:
    assume(sum(map(bool, counts)) > 1)
    main = sum(count // (size * nodes) * size * nodes for count in counts)
    start = min(done * size * world, main)
    run = method("device_per_stream", counts, size, nodes)
    for rank in range(world):
        for number, batch in enumerate(run(start, size, rank, world)):
            if start + (number + 1) * size * world <= main:
                assert len({code >> NUMBER_BITS for code in batch}) == 1


@given(counts=COUNTS, turns=st.integers(1, 3), world=st.integers(1, 4), nodes=st.integers(1, 4))
def test_a_global_batch_of_per_stream_is_of_one_stream_until_the_leftovers(
    counts: list[int], turns: int, world: int, nodes: int
) -> None:
    assume(sum(map(bool, counts)) > 1)
    size = turns * nodes
    run = method("per_stream", counts, size * world, nodes)
    batches = sum(count // (size * world) for count in counts)
    ranks = [run(0, size, rank, world) for rank in range(world)]
    for number in range(batches):
        assert len({code >> NUMBER_BITS for rank in ranks for code in rank[number]}) == 1


@pytest.mark.parametrize("name", ["random", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("world", [8, 16])
def test_shards_stay_with_the_node_that_has_their_canonical_node(name: str, world: int) -> None:
    # 8 canonical nodes, one or two ranks each; counts that leave nothing over.
    size, nodes = 4, 8
    counts = [size * world * units for units in (7, 3, 5)]
    run = method(name, counts, size * world if name == "per_stream" else size, nodes)
    for rank in range(world):
        numbers = np.concatenate(run(0, size, rank, world)) & ((1 << NUMBER_BITS) - 1)
        assert set((numbers % nodes).tolist()) == {rank * nodes // world}


@pytest.mark.parametrize("name", ["device_per_stream", "stratified"])
@pytest.mark.parametrize(("remainder", "lengths"), [("pad", {8}), ("drop", {7}), ("uneven", {7, 8})])
def test_what_does_not_fill_a_batch_is_dealt_as_in_any_plan(name: str, remainder: Remainder, lengths: set[int]) -> None:
    counts = [50, 35]  # 7 global batches of 12, and a tail of 1
    run = method(name, counts, 4, 1, remainder)
    ranks = [run(0, 4, rank, 3) for rank in range(3)]
    assert {len(batches) for batches in ranks} == lengths
    codes = [code for batches in ranks for batch in batches for code in batch]
    assert len(set(codes)) == (84 if remainder == "drop" else 85)
    assert len(codes) == {"pad": 87, "drop": 84, "uneven": 85}[remainder]


@pytest.mark.parametrize("workers", [1, 3])
def test_loader_workers_share_a_stratified_plan(workers: int) -> None:
    mixture = EpochMixture([0], [0], [Mixing([70, 41])])
    plan = StratifiedPlan(3, 111, 4, 1, 3, 2, "uneven", strata=mixture, key=1)
    batches = batches_of(plan, workers)
    assert len(batches) == len(plan)
    assert sum(map(len, batches)) == plan.samples
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in batches_of(plan)]


def test_the_cost_of_a_rank_does_not_depend_on_the_world() -> None:
    world = 16_384
    counts = [7 * 10**11, 2 * 10**11, 10**11]
    mixture = EpochMixture([0], [0], [Mixing(counts)])
    start = 64 * 10**9
    rows = []
    for rank in (0, 5000, world - 1):
        plan = StratifiedPlan(start, 10**12, 64, rank, world, 64, strata=mixture)
        rows.append(plan.positions(0, 2).reshape(-1))
        assert DevicePlan(start, 10**12, 64, rank, world, 64).positions(0, 2).shape == (2, 64)
    codes = np.concatenate(rows)
    assert np.unique(codes).size == codes.size
    reached = mixture.reached(np.array([start, start + 2 * 64 * world]))
    numbers, streams = codes & ((1 << NUMBER_BITS) - 1), codes >> NUMBER_BITS
    assert (numbers >= reached[0][streams]).all()
    assert (numbers < reached[1][streams]).all()


def test_a_device_plan_continues_only_at_whole_batches() -> None:
    assert len(DevicePlan(10, 10, 4, 0, 1)) == 0
    with pytest.raises(ConfigError, match="position 6 is inside a batch of 4 samples of one stream"):
        DevicePlan(6, 100, 4, 0, 2)


def test_a_pinned_stratified_batch_does_not_change() -> None:
    mixture = EpochMixture([0], [0], [Mixing([12, 6, 2])])
    plan = StratifiedPlan(0, 20, 10, 0, 1, 2, strata=mixture, shuffled=False)
    codes = plan.positions(0, 1)[0]
    assert (codes >> NUMBER_BITS).tolist() == [0, 1, 1, 2, 0, 0, 0, 1, 0, 0]
    assert (codes & 0xFF).tolist() == [0, 0, 2, 0, 2, 4, 1, 1, 3, 5]


@pytest.mark.parametrize(("nodes", "length"), [(16, 24), (9, 7), (40, 41), (5, 3)])
def test_batches_of_fewer_samples_than_nodes_are_complete_too(nodes: int, length: int) -> None:
    counts = [length * 3, length * 2 + 1, length]
    mixture = EpochMixture([0], [0], [Mixing(counts, nodes=nodes)])
    for shuffled in (True, False):
        codes = [
            code
            for rank in range(3)
            for chunk in StratifiedPlan(
                0, sum(counts), -(-length // 3), rank, 3, nodes, "uneven", strata=mixture, shuffled=shuffled
            ).chunks(10**6)
            for batch in chunk
            for code in batch.tolist()
        ]
        wanted = {(stream << NUMBER_BITS) | number for stream, count in enumerate(counts) for number in range(count)}
        assert len(codes) == len(set(codes)) == sum(counts)
        assert set(codes) == wanted
