"""The rules of a lane: whatever happens in whatever order, each position is committed once, by whoever holds it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stoker.coordination.checkpoint import Replay, take, uncommitted
from stoker.coordination.records import (
    _DECODERS,
    _KINDS,
    CoordinationSettings,
    Entry,
    Epoch,
    Lane,
    LogChunk,
    SplitRecord,
    decode,
    encode,
)
from stoker.coordination.rules import (
    cleared,
    commit,
    entries_of,
    finished,
    first_lane,
    give_back,
    leasable,
    lease,
    remaining,
    set_aside,
    spilled,
    stalled,
)
from stoker.errors import ConfigError, StateError

WORKERS = [(0, 1), (0, 2), (1, 1), (2, 7)]
some_worker = st.sampled_from(WORKERS)


class LaneMachine(RuleBasedStateMachine):
    """A lane, and a set of positions that knows what was committed because every accepted commit says so."""

    lane: Lane

    @initialize(
        total=st.integers(0, 60),
        left=st.none() | st.lists(st.integers(0, 60), max_size=8, unique=True),
        attempts=st.integers(1, 4),
    )
    def begin(self, total: int, left: list[int] | None, attempts: int) -> None:
        bounds = sorted(p for p in left if p <= total) if left is not None else None
        ranges = None if bounds is None else tuple(zip(bounds[::2], bounds[1::2], strict=False))
        self.epoch = Epoch(3, 2, 3, (0, total), ranges, (), CoordinationSettings())
        self.lane = first_lane(self.epoch, 0)
        self.attempts = attempts
        self.committed = set(range(total))
        for begin, end in [(0, total)] if ranges is None else ranges:
            self.committed -= set(range(begin, end))
        self.begun_with = set(self.committed)
        self.seen: list[SplitRecord] = []
        self.owner_of: dict[int, tuple[int, int]] = {}
        self.chunks: list[Entry] = []
        self.turns = 0

    @rule(worker=some_worker, size=st.integers(1, 20), back=st.booleans())
    def lease(self, worker: tuple[int, int], size: int, back: bool) -> None:
        there = leasable(self.lane)
        found = lease(self.lane, *worker, self.turns, size, from_back=back)
        assert (found is None) == (there == 0)
        if found is not None:
            lane, split = found
            assert split.token > self.lane.token >= self.epoch.incarnation << 40
            assert 0 < split.end - split.begin <= size
            assert not self.committed & set(range(split.begin, split.end))
            self.lane, self.turns = lane, self.turns + 1
            self.seen.append(split)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """By any lease there ever was: only those that hold are taken."""
        if not self.seen:
            return
        split = data.draw(st.sampled_from(self.seen))
        cursor = data.draw(st.integers(split.begin, split.end))
        now = next((s for s in self.lane.splits if s.token == split.token), None)
        after = commit(self.lane, split.rank, split.incarnation, split.token, cursor)
        assert (after is None) == (now is None or cursor > now.end)
        if after is not None and now is not None:
            for position in range(now.cursor, cursor):
                assert position not in self.committed
                self.committed.add(position)
                self.owner_of[position] = (split.rank, split.incarnation)
            self.lane = after

    @rule(data=st.data(), worker=some_worker)
    def commit_for_another(self, data: st.DataObject, worker: tuple[int, int]) -> None:
        others = [split for split in self.lane.splits if (split.rank, split.incarnation) != worker]
        if others:
            split = data.draw(st.sampled_from(others))
            assert commit(self.lane, *worker, split.token, split.end) is None

    @rule(data=st.data(), lost=st.booleans(), blame=st.booleans())
    def give_back(self, data: st.DataObject, lost: bool, blame: bool) -> None:
        if not self.lane.splits:
            return
        split = data.draw(st.sampled_from(self.lane.splits))
        delivered = data.draw(st.integers(split.cursor, split.end))
        before = (self.lane.again, self.lane.exposed)
        self.lane = give_back(
            self.lane, split, "why", lost=lost, delivered=delivered, attempts=self.attempts, blame=blame
        )
        kept = [one.cursor for one in self.lane.splits if one.token == split.token]
        assert kept == ([split.cursor] if split.begin < split.cursor < split.end else [])
        assert self.lane.again - before[0] == delivered - split.cursor
        assert self.lane.exposed - before[1] == (split.end if lost else delivered) - split.cursor

    @rule(worker=some_worker)
    def clear(self, worker: tuple[int, int]) -> None:
        self.lane = cleared(self.lane, *worker)

    @rule()
    def spill(self) -> None:
        rest, chunk = spilled(self.lane)
        if chunk is not None:
            self.chunks += chunk.entries
        self.lane = rest

    @invariant()
    def every_position_is_in_one_place(self) -> None:
        lane = self.lane
        places = [(lane.front, lane.back), *((p.begin, p.end) for p in (*lane.free, *lane.aside))]
        places += [(s.cursor, s.end) for s in lane.splits]
        positions = [p for begin, end in places for p in range(begin, end)]
        assert len(positions) == len(set(positions))
        assert set(range(lane.begin, lane.end)) - set(positions) == self.committed
        left = [p for begin, end in uncommitted([lane]) for p in range(begin, end)]
        assert left == sorted(positions)
        assert remaining(lane) == len(positions)
        assert finished(lane) == (not positions)
        assert stalled(lane) == (bool(positions) and len(positions) == set_aside(lane))
        assert all(one.attempts >= self.attempts for one in lane.aside)
        assert all(one.attempts < self.attempts for one in lane.free)

    @invariant()
    def the_log_says_who_committed_what(self) -> None:
        said = {
            p: (e.rank, e.incarnation) for e in entries_of([self.lane], [self.chunks]) for p in range(e.begin, e.end)
        }
        assert said == self.owner_of

    @invariant()
    def a_record_is_what_was_written(self) -> None:
        assert decode(encode(self.lane)) == self.lane

    def teardown(self) -> None:
        if not hasattr(self, "lane"):
            return
        # A checkpoint taken now and restored has the same left, under tokens that are larger than any before.
        left = tuple((a, b) for a, b in take(self.epoch, [self.lane])["left"])
        again = first_lane(self.epoch._replace(incarnation=3, left=left), 0)
        assert uncommitted([again]) == uncommitted([self.lane])
        assert again.token > self.lane.token


TestLane = LaneMachine.TestCase
TestLane.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def _lane(total: int = 100) -> Lane:
    return first_lane(Epoch(0, 1, 1, (0, total), None, (), CoordinationSettings()), 0)


def test_what_came_back_goes_first_and_what_kills_its_readers_is_cornered() -> None:
    lane, aside = _lane(64), 0
    for turn in range(200):
        found = lease(lane, 0, turn + 1, 0, 64)
        if found is None:
            break
        lane, split = found
        if split.begin <= 37 < split.end:  # whoever reads sample 37 dies, having committed nothing
            lane = give_back(lane, split, "died", lost=True, delivered=0, attempts=8)
        else:
            done = commit(lane, 0, turn + 1, split.token, split.end)
            assert done is not None
            lane = done
    aside = set_aside(lane)
    assert stalled(lane)
    assert aside == 1
    assert lane.aside[0].begin == 37
    assert lane.aside[0].reason == "died"


def test_a_commit_beyond_the_split_is_an_error() -> None:
    found = lease(_lane(), 0, 1, 0, 10)
    assert found is not None
    with pytest.raises(ConfigError, match=r"position 11 is not of the split \[0, 10\)"):
        commit(found[0], 0, 1, found[1].token, 11)


def test_a_commit_to_the_end_stays_visible_until_its_owner_comes_again() -> None:
    found = lease(_lane(), 0, 1, 0, 10)
    assert found is not None
    lane, split = found
    done = commit(lane, 0, 1, split.token, 10)
    assert done is not None
    assert done.splits[0].cursor == 10
    assert cleared(done, 1, 1) == done
    assert cleared(done, 0, 1).splits == ()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 3))
def test_a_replay_gives_each_rank_its_ranges_in_its_order(lengths: list[int], ranks: int) -> None:
    entries, position = [], 0
    for turn, length in enumerate(lengths):
        entries.append(Entry(position, position + length, turn % ranks, 1, len(lengths) - turn, turn))
        position += length
    replay = Replay(entries, position, ranks)
    assert sorted(part for rank in range(ranks) for part in replay.splits(rank)) == [(e.begin, e.end) for e in entries]
    for rank in range(ranks):
        assert replay.splits(rank) == sorted(replay.splits(rank), reverse=True)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([(0, 5, 0, 1, 0, 1), (6, 10, 0, 1, 1, 2)], "at position 5"),
        ([(0, 5, 0, 1, 0, 1), (4, 10, 0, 1, 1, 2)], "at position 4"),
        ([(0, 5, 0, 1, 0, 1)], "ends at 5, the epoch at 10"),
    ],
)
def test_a_replay_needs_a_whole_epoch(entries: list[Any], said: str) -> None:
    with pytest.raises(StateError, match=said):
        Replay([Entry(*entry) for entry in entries], 10, 1)


def test_a_replay_in_too_small_a_world_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has rank 1, this world has 1 ranks"):
        Replay([Entry(0, 10, 1, 1, 0, 1)], 10, 1)


def test_what_is_no_record_is_refused() -> None:
    for value in (b"", b"{}", b'[2,"Lane",[1]]', b'[2,"Unknown",[]]', b"\xff"):
        with pytest.raises(StateError, match="not a record"):
            decode(value)
    with pytest.raises(StateError, match="format 1"):
        decode(b'[1,"Lane",[]]')


def test_records_have_the_names_that_engines_hold() -> None:
    """Records of a run that earlier code began are read."""
    assert [*_KINDS.values()] == ["Epoch", "Lane", "LogChunk", "Summary", "Worker"]
    assert {*_KINDS.values()} == {*_DECODERS}
    assert encode(LogChunk(())) == b'[2,"LogChunk",[[]]]'
