"""The plan of synchronous training: each position has one owner, whatever joins, leaves and roll-backs there were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.coordination.plan_log import Generation, PlanLog, apportion
from stoker.errors import ConfigError, StateError

weights = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any)


@given(st.integers(0, 10**13), weights)
def test_shares_add_up_and_are_within_one_of_proportion(count: int, given_: list[int]) -> None:
    shares = apportion(count, given_)
    assert sum(shares) == count
    for share, weight in zip(shares, given_, strict=True):
        assert abs(share * sum(given_) - count * weight) < sum(given_)
        assert weight or not share


def test_ties_go_to_the_first() -> None:
    assert apportion(5, [1, 1, 1]) == [2, 2, 1]
    assert apportion(1, [1, 1, 1]) == [1, 0, 0]
    assert apportion(10, [3, 1]) == [8, 2]  # 7.5 and 2.5: equal remainders


def equal(end: int, step: int, world_size: int) -> PlanLog:
    """All ranks with equal weights, from the beginning."""
    return PlanLog(end, step, (Generation(0, tuple(range(world_size)), (1,) * world_size),))


generation = st.dictionaries(st.integers(0, 9), st.integers(1, 5), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(
    end=st.integers(0, 400),
    step=st.integers(1, 40),
    events=st.lists(
        st.tuples(st.sampled_from(["grant", "append", "crash"]), st.integers(0, 60), generation), max_size=25
    ),
)
def test_every_position_comes_once_through_joins_leaves_and_roll_backs(
    end: int, step: int, events: list[tuple[str, int, dict[int, int]]]
) -> None:
    """Ranks take what they own, as far as is granted. A roll-back takes back what came after the checkpoint."""
    plan = equal(end, step, 3)
    taken: dict[int, int] = {}
    position = 0
    saved = (json.dumps(plan.as_dict()), 0)

    def advance() -> None:
        nonlocal position
        while position < plan.horizon:
            begin, stop = plan.step_at(position)
            stop = min(stop, plan.horizon)
            for rank in range(10):
                first, last = plan.part(rank, begin)
                for p in range(max(first, position), min(last, stop)):
                    assert p not in taken
                    taken[p] = rank
            position = stop

    for kind, number, members in events:
        if kind == "grant":
            plan = plan.grant(plan.horizon + number)
            advance()
            saved = (json.dumps(plan.as_dict()), position) if number % 3 == 0 else saved
        elif kind == "append":
            start = plan.horizon + number
            if start > plan.generations[-1].start or start == plan.generations[-1].start == 0:
                ranks = tuple(sorted(members))
                plan = plan.append(Generation(start, ranks, tuple(members[rank] for rank in ranks)))
        else:
            text, position = saved
            plan = PlanLog.from_dict(json.loads(text), position)
            taken = {p: rank for p, rank in taken.items() if p < position}
    plan = plan.grant(end)
    advance()
    assert sorted(taken) == list(range(end))


def test_what_was_granted_is_never_given_to_another() -> None:
    plan = equal(1000, 10, 2).grant(500)
    with pytest.raises(ConfigError, match="begin at 499: positions up to 500 are granted"):
        plan.append(Generation(499, (0,), (1,)))
    after = plan.append(Generation(500, (0, 1, 2), (1, 1, 2)))
    assert [after.part(rank, 495) for rank in range(3)] == [(490, 495), (495, 500), (490, 490)]
    assert [after.part(rank, 500) for rank in range(3)] == [(500, 503), (503, 505), (505, 510)]
    with pytest.raises(ConfigError, match="one begins at 500 already"):
        after.append(Generation(500, (0,), (1,)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Generation(0, (), ()),
        lambda: Generation(0, (1, 1), (1, 1)),
        lambda: Generation(0, (2, 1), (1, 1)),
        lambda: Generation(0, (0, 1), (1,)),
        lambda: Generation(0, (0,), (0,)),
        lambda: Generation(-1, (0,), (1,)),
        lambda: PlanLog(10, 0, (Generation(0, (0,), (1,)),)),
        lambda: PlanLog(10, 1, ()),
        lambda: PlanLog(10, 1, (Generation(5, (0,), (1,)),)),
        lambda: equal(10, 1, 1).step_at(10),
        lambda: apportion(3, [0, 0]),
    ],
)
def test_plans_that_make_no_sense_are_errors(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(StateError, match="not a plan"):
        PlanLog.from_dict({"end": 3})
