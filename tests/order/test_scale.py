"""Worlds of 16,384 ranks: every rank's part is right, and costs a rank no more than in a small world."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stoker.order import BatchPlan, ShardTable
from stoker.order.number_sets import Numbered
from stoker.order.part_plan import Rounds, plan_parts
from stoker.order.partition import Partition
from stoker.order.partition_strategies import Contiguous, Division, HashBased, RangeBased, RoundRobin, Stratified
from stoker.order.selection import Everything, Selection
from stoker.types import Ids

RANKS = 16_384
TABLE = ShardTable(np.random.default_rng(0).integers(0, 4000, 48))
LABELS = np.random.default_rng(1).integers(0, 1 << 20, TABLE.total)
RANGES = RangeBased([(start, min(start + 4, TABLE.total)) for start in range(0, TABLE.total, 4)])

STRATEGIES: list[Partition] = [
    RoundRobin(),
    Contiguous(),
    HashBased(RANKS * 2, 7),
    HashBased(RANKS * 2, 7, key="user"),
    RANGES,
    Stratified("class"),
]


def parts_of(partition: Partition, whole: Selection, ranks: int) -> Iterator[Selection]:
    """The parts of all ranks. Where labels decide, one time through them does for all."""
    if partition.column is None:
        return (partition.part(TABLE, whole, rank, ranks) for rank in range(ranks))
    labels = LABELS if partition.column == "user" else LABELS % 1000
    division = Division(TABLE, whole, ranks, TABLE.total, labels)
    owners = np.concatenate([piece for _, piece in partition.owners(division)])  # type: ignore[attr-defined]
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=ranks))
    return (Numbered(whole, numbers) for numbers in np.split(order, ends[:-1]))


def ids_of(selection: Selection) -> Ids:
    held = np.flatnonzero(selection.sizes)
    sizes = selection.sizes[held]
    shards = np.repeat(held, sizes)
    numbers = np.arange(shards.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids: Ids = TABLE.starts[shards] + selection.rows(shards, numbers)
    return ids


@pytest.mark.parametrize("partition", STRATEGIES, ids=lambda partition: f"{partition.name}-{partition.column}")
def test_the_parts_of_16384_ranks_are_disjoint_and_complete(partition: Partition) -> None:
    assert TABLE.total > 5 * RANKS
    whole = Everything(TABLE)
    labels = {"user": LABELS, "class": LABELS % 1000, None: None}[partition.column]
    try:
        sizes = partition.sizes(TABLE, whole, RANKS, labels)
    except ValueError as error:
        assert partition.column == "user"  # some of so many ranks may get no user
        assert "ranks have none" in str(error)  # noqa: PT017
        sizes = None
    parts = [ids_of(part) for part in parts_of(partition, whole, RANKS)]
    if sizes is not None:
        assert sizes.tolist() == [part.size for part in parts]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(TABLE.total))


@pytest.mark.parametrize("ranks", [RANKS, 4 * RANKS])
def test_global_batches_of_16384_ranks_are_disjoint_and_complete(ranks: int) -> None:
    positions = []
    for rank in range(ranks):
        plan = BatchPlan(0, TABLE.total, 2, rank, ranks, 8, "uneven")
        positions += [batch for chunk in plan.chunks(64) for batch in chunk]
    assert np.array_equal(np.sort(np.concatenate(positions)), np.arange(TABLE.total))


@pytest.mark.parametrize("ranks", [RANKS, RANKS - 1])
def test_the_plans_of_16384_parts_are_disjoint_and_complete_at_home_and_away(ranks: int) -> None:
    rounds = Rounds(RANGES.sizes(TABLE, Everything(TABLE), RANKS))
    places = [
        batch
        for rank in range(ranks)
        for chunk in plan_parts(rounds, 0, 2, rank, ranks, "uneven").chunks(64)
        for batch in chunk
    ]
    assert np.array_equal(np.sort(np.concatenate(places)), np.sort(rounds.to_part_positions(np.arange(TABLE.total))))


LARGE = ShardTable(np.random.default_rng(2).integers(900_000, 1_100_000, 1000))


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes that ``work`` held at once: the least of three, as threads that earlier tests left also allocate."""
    work()  # caches
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize(
    "partition", [RoundRobin(), Contiguous(), HashBased(RANKS, 7)], ids=lambda partition: partition.name
)
def test_a_rank_of_many_holds_no_more_than_a_rank_of_few(partition: Partition) -> None:
    def begin(ranks: int) -> None:
        part = partition.part(LARGE, Everything(LARGE), ranks - 1, ranks)
        plan = plan_parts(Rounds.even(LARGE.total, ranks), 0, 64, ranks - 1, ranks, "drop")
        starts = ShardTable(part.sizes)
        for _, places in zip(range(8), plan.chunks(1024), strict=False):
            shards, numbers = starts.locate(np.concatenate(places) & ((1 << 42) - 1))
            part.rows(shards, numbers)

    few, many = peak_of(lambda: begin(16)), peak_of(lambda: begin(RANKS))
    assert many < 1.1 * few + 4096
    # Nothing there is a list of the ranks, let alone of the samples.
    assert many < 32 * (len(LARGE) + 1024) * 8


def test_a_rank_of_a_world_that_takes_over_holds_no_more_than_in_a_small_one() -> None:
    def begin(home: int, ranks: int) -> None:
        plan = plan_parts(Rounds.even(LARGE.total, home), 1000 * home, 64, ranks - 1, ranks, "drop")
        for _, places in zip(range(8), plan.chunks(1024), strict=False):
            assert places[0].size == 64

    few = peak_of(lambda: begin(16, 8))
    for home, ranks in ((RANKS, 8), (16, RANKS), (RANKS, RANKS // 2)):
        assert peak_of(lambda home=home, ranks=ranks: begin(home, ranks)) < 1.5 * few + 65536  # type: ignore[misc]
