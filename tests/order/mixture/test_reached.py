"""How far a run has got in a stream: none of its samples is lost, and none comes twice, however it is interrupted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import StateError
from stoker.order.mixture.mixing import NUMBER_BITS
from stoker.order.mixture.reached import Reached, Renumbering


@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 30))), max_size=6))
def test_each_number_comes_once(changes: list[tuple[int, set[int]]]) -> None:
    """Before each change a run has had some samples in a row as it counts them, and then some of the next ones."""
    reached, had = Reached(), []
    for more, ahead in changes:
        first = reached.count + more
        taken = np.array(sorted(first + number for number in ahead), dtype=np.int64)
        had += reached.numbers(np.concatenate([np.arange(reached.count, first), taken])).tolist()
        reached = reached.after(first, taken)
        assert reached.count == len(had) == len(set(had))
        told = json.loads(json.dumps(reached.as_dict()))
        again = Reached.read(reached.count, told.get("passed"))
        assert np.array_equal(again.passed, reached.passed)
        codes = 1 << NUMBER_BITS | np.arange(reached.count, reached.count + 50)
        assert np.array_equal(Renumbering([Reached(), reached])(codes) & 0xFFFF, reached.numbers(codes & 0xFFFF))
    rest = reached.numbers(np.arange(reached.count, reached.count + 100)).tolist()
    assert sorted(had + rest) == list(range(len(had) + 100))
    assert rest == sorted(rest)


CUT = Reached(9, np.array([3, 7])).as_dict()["passed"][1][:-2]


@pytest.mark.parametrize("value", [[0, "x"], [5, "c$@"], 7, [1], [-1, ""], [0, CUT]])
def test_damage_is_said(value: object) -> None:
    with pytest.raises(StateError, match="passed over is damaged"):
        Reached.read(3, value)
