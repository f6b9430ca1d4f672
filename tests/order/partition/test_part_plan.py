"""Epochs of parts: each sample once, whatever worlds follow each other, and each rank's own part at home."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.order.part_plan import PART_BITS, DealtPlan, PartPlan, Rounds, plan_parts
from support import batches_of_workers

sizes_of_parts = st.lists(st.integers(0, 30), min_size=1, max_size=9)
filled = st.lists(st.integers(1, 30), min_size=1, max_size=9)


def rounds_of(sizes: list[int]) -> Rounds:
    return Rounds(np.array(sizes, dtype=np.int64))


def places_of(sizes: list[int]) -> set[int]:
    """Every place of parts of these sizes."""
    return {part << PART_BITS | number for part, size in enumerate(sizes) for number in range(size)}


def batches_of(plan: PartPlan | DealtPlan, workers: int = 1, samples: int = 7, skip: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in batches_of_workers(plan, workers, samples, skip)]


# Rounds


@given(sizes=sizes_of_parts)
@settings(deadline=None)
def test_positions_go_round_by_round_through_all_parts(sizes: list[int]) -> None:
    rounds = rounds_of(sizes)
    places = rounds.to_part_positions(np.arange(sum(sizes)))
    by_size = sorted(range(len(sizes)), key=lambda part: -sizes[part])
    assert places.tolist() == [
        part << PART_BITS | number for number in range(max(sizes)) for part in by_size if sizes[part] > number
    ]
    assert (rounds.parts, rounds.total) == (len(sizes), sum(sizes))
    assert (rounds.smallest, rounds.largest) == (min(sizes), max(sizes))
    assert [rounds.size(part) for part in range(len(sizes))] == sizes


@given(sizes=sizes_of_parts)
@settings(deadline=None)
def test_a_round_begins_behind_all_samples_of_earlier_ones(sizes: list[int]) -> None:
    rounds = rounds_of(sizes)
    begins = [sum(min(number, size) for size in sizes) for number in range(max(sizes) + 3)]
    assert [rounds.position_of_round(number) for number in range(max(sizes) + 3)] == begins
    for position in range(sum(sizes) + 1):
        assert rounds.round_at(position) == (begins.index(position) if position in begins else None)


@given(total=st.integers(0, 200), parts=st.integers(1, 30))
@settings(deadline=None)
def test_equal_parts_need_no_list_of_their_sizes(total: int, parts: int) -> None:
    short, listed = (
        Rounds.even(total, parts),
        rounds_of([total // parts + (part < total % parts) for part in range(parts)]),
    )
    assert (short.total, short.parts, short.smallest, short.largest) == (
        listed.total,
        listed.parts,
        listed.smallest,
        listed.largest,
    )
    assert np.array_equal(short.to_part_positions(np.arange(total)), listed.to_part_positions(np.arange(total)))
    assert [short.size(part) for part in range(parts)] == [listed.size(part) for part in range(parts)]


def test_a_million_million_samples_of_16384_parts() -> None:
    for rounds in (Rounds.even(10**12 + 5, 16384), rounds_of([10**12 // 16384 + part for part in range(16384)])):
        positions = np.random.default_rng(0).integers(0, rounds.total, 1000)
        numbers = rounds.to_part_positions(positions) & ((1 << PART_BITS) - 1)
        assert all(rounds.round_at(rounds.position_of_round(number)) == number for number in numbers.tolist())
        assert all(
            rounds.position_of_round(number) <= position < rounds.position_of_round(number + 1)
            for position, number in zip(positions.tolist(), numbers.tolist(), strict=True)
        )
        middle = rounds.position_of_round(10**7)
        assert middle == 10**7 * 16384
        assert rounds.round_at(middle) == 10**7


# At home


@given(sizes=sizes_of_parts, batch=st.integers(1, 7), start=st.integers(0, 30), workers=st.integers(1, 4))
@settings(deadline=None)
def test_uneven_ranks_read_all_of_their_own_part_and_nothing_else(
    sizes: list[int], batch: int, start: int, workers: int
) -> None:
    start = min(start, max(sizes))
    for rank, size in enumerate(sizes):
        plan = PartPlan(rounds_of(sizes), batch, rank, start, "uneven")
        batches = batches_of(plan, workers)
        assert [place for part in batches for place in part] == [rank << PART_BITS | n for n in range(start, size)]
        assert all(len(part) == batch for part in batches[:-1])
        assert (len(plan), plan.samples, plan.padding) == (len(batches), max(0, size - start), 0)
        assert plan.full_batches == sum(len(part) == batch for part in batches)


@given(sizes=sizes_of_parts, batch=st.integers(1, 7), start=st.integers(0, 30))
@settings(deadline=None)
def test_dropping_gives_all_ranks_as_many_full_batches_as_the_smallest_part_has(
    sizes: list[int], batch: int, start: int
) -> None:
    start = min(start, max(sizes))
    for rank in range(len(sizes)):
        plan = PartPlan(rounds_of(sizes), batch, rank, start, "drop")
        batches = batches_of(plan)
        assert len(batches) == len(plan) == plan.full_batches == max(0, min(sizes) - start) // batch
        assert all(len(part) == batch for part in batches)
        assert [place & ~(-1 << PART_BITS) for part in batches for place in part] == list(
            range(start, start + len(batches) * batch)
        )
        assert plan.position_after(len(plan)) == plan.end


@given(sizes=filled, batch=st.integers(1, 7), start=st.integers(0, 30), workers=st.integers(1, 4))
@settings(deadline=None)
def test_padding_gives_all_ranks_the_same_steps_and_repeats_no_more_than_it_must(
    sizes: list[int], batch: int, start: int, workers: int
) -> None:
    start = min(start, max(sizes))
    plans = [PartPlan(rounds_of(sizes), batch, rank, start, "pad") for rank in range(len(sizes))]
    steps = -(-(max(sizes) - start) // batch)
    repeated = 0
    for rank, (plan, size) in enumerate(zip(plans, sizes, strict=True)):
        batches = batches_of(plan, workers)
        assert len(batches) == len(plan) == steps
        numbers = [place - (rank << PART_BITS) for part in batches for place in part]
        # The part goes on from its first sample when it has ended.
        assert numbers == [(start + n) % size for n in range(len(numbers))]
        own = max(0, size - start)
        assert len(numbers) >= own
        repeated += len(numbers) - own
        assert len(numbers) == own or len(batches[-1]) == 1
        assert plan.samples == len(numbers)
    assert {plan.padding for plan in plans} == {repeated}


@given(
    sizes=filled,
    batch=st.integers(1, 7),
    steps=st.integers(0, 12),
    remainder=st.sampled_from(["pad", "drop", "uneven"]),
)
@settings(deadline=None)
def test_a_resume_at_home_continues_with_the_same_batches(
    sizes: list[int], batch: int, steps: int, remainder: Remainder
) -> None:
    rounds, world = rounds_of(sizes), len(sizes)
    for rank in range(world):
        begun = plan_parts(rounds, 0, batch, rank, world, remainder)
        position = begun.position_after(steps)
        rest = plan_parts(rounds, position, batch, rank, world, remainder)
        assert isinstance(rest, PartPlan)
        wanted = batches_of(begun)[steps:]
        if position == rounds.total:
            assert wanted == [] or remainder == "uneven"
        assert batches_of(rest) == wanted
        # So does a loader that left out what was delivered.
        if workers_can_skip := steps:
            assert batches_of(begun, skip=workers_can_skip) == wanted


# In other worlds


def test_the_home_world_keeps_its_parts_at_a_round_and_any_other_is_dealt_the_rest() -> None:
    rounds = Rounds.even(103, 4)
    assert plan_parts(rounds, 40, 5, 1, 4) == PartPlan(rounds, 5, 1, 10)
    assert isinstance(plan_parts(rounds, 41, 5, 1, 4), DealtPlan)
    assert isinstance(plan_parts(rounds, 40, 5, 1, 3), DealtPlan)
    assert isinstance(plan_parts(rounds, 0, 5, 1, 8), DealtPlan)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    histories=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(1, 8)), st.integers(1, 4), st.integers(0, 6)), max_size=8
    ),
    workers=st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
def test_whatever_worlds_follow_each_other_each_sample_comes_once(
    sizes: list[int], histories: list[tuple[int | None, int, int]], workers: int
) -> None:
    rounds, home = rounds_of(sizes), len(sizes)
    seen: list[int] = []
    position = 0
    for world_or_home, batch, steps in histories:
        world = home if world_or_home is None else world_or_home
        plans = [plan_parts(rounds, position, batch, rank, world, "uneven") for rank in range(world)]
        for plan in plans:
            seen += [place for part in batches_of(plan, workers)[:steps] for place in part]
        assert len({plan.position_after(steps) for plan in plans}) == 1
        position = plans[0].position_after(steps)
        assert len(seen) == position
    last = [plan_parts(rounds, position, 3, rank, 5, "uneven") for rank in range(5)]
    seen += [place for plan in last for part in batches_of(plan) for place in part]
    assert len(seen) == sum(sizes)
    assert set(seen) == places_of(sizes)


@given(
    sizes=filled,
    world=st.integers(1, 8),
    batch=st.integers(1, 5),
    position=st.integers(0, 60),
    remainder=st.sampled_from(["pad", "drop", "uneven"]),
)
@settings(deadline=None)
def test_dealt_batches_are_like_those_of_any_epoch(
    sizes: list[int], world: int, batch: int, position: int, remainder: Remainder
) -> None:
    rounds = rounds_of(sizes)
    position = min(position, rounds.total)
    plans = [
        plan
        for rank in range(world)
        if isinstance(plan := plan_parts(rounds, position, batch, rank, world, remainder), DealtPlan)
    ]
    seen = [place for plan in plans for part in batches_of(plan) for place in part]
    left = set(rounds.to_part_positions(np.arange(position, rounds.total)).tolist())
    for plan in plans:
        assert len(batches_of(plan)) == len(plan)
        assert plan.samples == sum(map(len, batches_of(plan)))
        assert (plan.batch_size, plan.world_size, plan.end) == (batch, world, rounds.total)
        assert plan.full_batches == (rounds.total - position) // (batch * world)
        assert plan.tail == (rounds.total - position) % (batch * world)
        if remainder != "drop":
            assert set(seen) == left
            assert len(seen) == len(left) + plan.padding
        else:
            assert len(set(seen)) == len(seen) == len(left) - plan.tail
    assert [plan.rank for plan in plans] in ([], list(range(world)))


def test_a_rank_is_dealt_few_parts_where_parts_are_equal() -> None:
    rounds = Rounds.even(64 * 100, 64)
    for rank in range(8):
        plan = plan_parts(rounds, 0, 32, rank, 8, "uneven")
        parts = {place >> PART_BITS for part in batches_of(plan) for place in part}
        assert parts == set(range(rank * 8, rank * 8 + 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, 0, "pad"), "batch_size must be at least 1"),
        ((2, 3, 0, "pad"), "rank 3 is not in a world of 3"),
        ((2, -1, 0, "pad"), "rank -1 is not in a world of 3"),
        ((2, 1, 0, "pad"), "rank 1 has a part without samples, which can not be padded"),
    ],
)
def test_a_plan_that_makes_no_sense_says_so(arguments: tuple[int, int, int, Remainder], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PartPlan(rounds_of([5, 0, 3]), *arguments)
