"""Entries of a state that are not what they should be are refused by their names, whatever they are."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from stoker.errors import StateError
from stoker.order.native import NativeOrder
from stoker.order.sample_order import DataRank, EpochPosition
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.state.state import check_same_steps, make_state, read_changed, read_state, same_so_far

RANK: Final = DataRank(0, 2, 2, 4)
PARTIAL: Final = {"samples": 1, "batch_size": 4, "world_size": 2, "ranks_per_node": 2}
ORIGIN: Final = {"epoch": 0, "consumed": {"a": 3}, "samples": 3}
WRONG: Final[dict[str, list[Any]]] = {
    "epoch": [-1, 1.0, True, None, "0", 1 << 62],
    "position": [-1, [], "x"],
    "order": [None, 3, []],
    "streams": [None, 3, [], {"a": 3}, {"a": {"content": []}}],
    "partial": [3, [], {}, {**PARTIAL, "samples": -1}, {**PARTIAL, "batch_size": 0}, {**PARTIAL, "world_size": 0}],
    "consumed": [None, [], {"a": -1}, {"a": 1.5}],
    "chain": ["filter(f)", [3], {}],
    "others": [[], {"b": 3}, {"b": [3]}, {"b": [{"content": 3}]}],
    "worker": [3, [], {}, {"number": 0, "count": 2, "batches": -1}],
    "origin": [3, [1], {**ORIGIN, "away": [{"name": "b", "consumed": 1, "content": 3}]}],
}
DAMAGED: Final[list[Any]] = [
    "x",
    {"epoch": 0},
    {**ORIGIN, "epoch": None},
    {**ORIGIN, "consumed": [3]},
    {**ORIGIN, "twins": {"a": -1}},
    {**ORIGIN, "rest": 3},
    {**ORIGIN, "away": [{"name": 3, "consumed": 1}]},
    {**ORIGIN, "away": [{"name": "b"}]},
    {**ORIGIN, "away": [{"name": "b", "consumed": 1, "appended": [{}]}]},
    {**ORIGIN, "appended": {"a": [3]}},
    {**ORIGIN, "passed": {"b": [0, ""]}},
    {**ORIGIN, "passed": {"a": [0, "not packed"]}},
]


def order_of(*names: str) -> NativeOrder:
    """Streams of fourteen samples each."""
    return NativeOrder(
        [StreamSource.whole(name, ShardTable(np.array([5, 9]))) for name in names], NativeSettings(shuffle="global")
    )


ORDER: Final = order_of("a", "b")
STATE: Final = make_state(ORDER, EpochPosition(1, 8), RANK)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_entry_is_named(name: str, value: Any) -> None:
    state = {**STATE, name: value}
    for read in (
        lambda: read_state(state, ORDER, RANK),
        lambda: read_changed(state, ORDER),
        lambda: same_so_far(state, ORDER),
        lambda: check_same_steps(state, [], {}, inside=True),
    ):
        with pytest.raises(StateError, match=f"this state's '{name}' should "):
            read()


@pytest.mark.parametrize("origin", DAMAGED)
def test_a_damaged_origin_is_refused(origin: Any) -> None:
    state = {**STATE, "origin": origin}
    said = r"how much of each stream was consumed|passed over is damaged"
    with pytest.raises(StateError, match=said):
        read_state(state, ORDER, RANK)
    with pytest.raises(StateError, match=said):
        read_changed(state, ORDER)


def test_an_entry_that_is_missing_is_named() -> None:
    for name in ("epoch", "position", "order", "streams"):
        state = {key: value for key, value in STATE.items() if key != name}
        with pytest.raises(StateError, match=f"incomplete: it lacks '{name}'. Give what"):
            read_state(state, ORDER, RANK)


def test_what_one_stream_is_called_does_not_matter() -> None:
    state = make_state(order_of("a"), EpochPosition(1, 8), RANK)
    assert read_state(state, order_of("z"), RANK)[0] == EpochPosition(1, 8)
    changed = {**state, "streams": {"a": {**state["streams"]["a"], "fingerprint": "other"}}}
    with pytest.raises(StateError, match=r"the stream belongs to another dataset \(fingerprint other"):
        read_state(changed, order_of("z"), RANK)
    with pytest.raises(StateError, match=r"stream 'a' belongs to another dataset \(fingerprint other"):
        read_state(changed, order_of("a"), RANK)
