"""A worker's protocol, step by step: what it concludes when answers are lost, late, or say that its splits are gone."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordination.agent import Agent
from stoker.coordination.errors import EngineRegressedError, RankTakenError
from stoker.coordination.holdings import Holding
from stoker.coordination.membership import Membership, ProtocolClock
from stoker.coordination.records import (
    CoordinationSettings,
    Create,
    Epoch,
    Get,
    Keys,
    Lane,
    Operation,
    Process,
    Sleep,
    Steps,
    Swap,
    Unanswered,
    Versioned,
    WorkerRecord,
)
from stoker.coordination.rules import first_lane, give_back

SETTINGS = CoordinationSettings(lease=8.0, heartbeat=2.0, split=1.0, largest=10)


class Engine:
    """Records in a dict, and one worker's protocol, which goes on as far as the test says."""

    def __init__(self, total: int = 100) -> None:
        self.keys = Keys("run")
        self.epoch = Epoch(0, 1, 2, (0, total), None, (), SETTINGS)
        self.records: dict[str, tuple[Any, int]] = {self.keys.epoch(0): (self.epoch, 1)}
        self.version = 1
        self.clock = ProtocolClock(100.0)
        self.member = Membership(self.keys, 0, Process("h", "b", 1, 1, "first"), SETTINGS, self.clock)
        self.play(self.member.join())
        self.agent = Agent(self.epoch, self.member, ahead=0)
        self.steps = self.agent.run()
        self.pending: Operation = self.steps.send(None)

    @property
    def lane_key(self) -> str:
        return self.keys.lane(self.epoch, 0)

    @property
    def lane(self) -> Lane:
        entry = self.records.get(self.lane_key)
        return first_lane(self.epoch, 0) if entry is None else entry[0]

    def play(self, steps: Steps) -> None:
        """To its end, all answered."""
        answer = None
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration:
                return
            if isinstance(operation, Sleep):
                self.clock.now = max(self.clock.now, operation.until)
                answer = None
            else:
                answer = self.apply(operation)

    def apply(self, operation: Operation) -> Any:
        if isinstance(operation, Get):
            found = [self.records.get(key) for key in operation.keys]
            return [None if entry is None else Versioned(*entry) for entry in found]
        assert isinstance(operation, Create | Swap)
        old = self.records.get(operation.key)
        if (old is not None) if isinstance(operation, Create) else (old is None or old[1] != operation.version):
            return None
        return self.put(operation.key, operation.value)

    def put(self, key: str, record: Any) -> int:
        self.version += 1
        self.records[key] = (record, self.version)
        return self.version

    def step(self, *, answered: bool = True, done: bool = True) -> None:
        """Carry out the pending operation (or not), and tell the protocol (or not)."""
        if isinstance(self.pending, Sleep):
            self.clock.now = max(self.clock.now, self.pending.until)
            self.pending = self.steps.send(None)
            return
        answer = self.apply(self.pending) if done else None
        self.pending = self.steps.send(answer) if answered else self.steps.throw(Unanswered())

    def until(self, wanted: Any, limit: int = 200) -> None:
        for _ in range(limit):
            if wanted():
                return
            self.step()
        raise AssertionError("it never came to that")

    def until_write_of_lane(self) -> None:
        self.until(lambda: isinstance(self.pending, Create | Swap) and self.pending.key == self.lane_key)

    def take(self) -> Holding:
        self.until(lambda: self.agent.held.ready)
        holding = self.agent.take()
        assert holding is not None
        return holding

    def finish(self, holding: Holding) -> None:
        self.agent.held.deliver(holding, holding.split.end)
        self.agent.held.commit(holding, holding.split.end)


def test_a_commit_whose_answer_was_lost_is_known_to_be_done() -> None:
    engine = Engine()
    holding = engine.take()
    engine.finish(holding)
    engine.until_write_of_lane()
    engine.step(answered=False)
    engine.until(lambda: engine.agent.held.settled)
    assert not holding.lost
    assert engine.agent.held.again == 0
    # The lease that went with it is taken up.
    following = engine.take()
    assert following.split.begin == holding.split.end


def test_a_write_that_comes_after_it_was_given_up_can_do_no_harm() -> None:
    """The engine gets the lease's first write only after the worker has asked again: one of them counts."""
    engine = Engine()
    engine.until_write_of_lane()
    late = engine.pending
    engine.step(done=False, answered=False)
    engine.until_write_of_lane()  # again
    engine.apply(late)
    first = engine.lane
    assert len(first.splits) == 1
    holding = engine.take()
    assert holding.split.token == first.splits[0].token
    assert [split.token for split in engine.lane.splits] == [holding.split.token]


def test_a_late_write_is_made_impossible_before_the_worker_continues() -> None:
    """A worker that no longer wants what it asked for still makes sure that it is not done behind its back."""
    engine = Engine()
    engine.until_write_of_lane()
    late = engine.pending
    engine.agent.stopping = True
    engine.step(done=False, answered=False)
    with pytest.raises(StopIteration):
        engine.until(lambda: False)
    assert engine.apply(late) is None
    assert engine.lane.splits == ()


def test_a_worker_that_was_silent_for_too_long_waits_until_it_knows_what_it_still_has() -> None:
    engine = Engine()
    holding = engine.take()
    engine.agent.held.deliver(holding, 4)
    engine.clock.now += SETTINGS.lease
    assert not engine.agent.safe
    # Meanwhile another gave the split away.
    lane = engine.lane
    engine.put(engine.lane_key, give_back(lane, lane.splits[0], "lost", lost=True, delivered=4, attempts=5))
    engine.until(lambda: engine.agent.safe)
    assert "not seen to renew" in holding.lost
    assert engine.agent.held.again == 4
    assert engine.lane.again == 4


def test_a_worker_that_was_silent_and_has_lost_nothing_continues() -> None:
    engine = Engine()
    holding = engine.take()
    engine.clock.now += SETTINGS.lease
    assert engine.agent.take() is None
    engine.until(lambda: engine.agent.safe)
    assert not holding.lost
    engine.finish(holding)
    engine.until(lambda: engine.agent.held.settled)
    assert engine.lane.log[0][:2] == (0, holding.split.end)


def test_a_worker_that_leaves_gives_back_what_it_has_and_nobody_is_blamed() -> None:
    engine = Engine()
    holding = engine.take()
    engine.agent.held.deliver(holding, 6)
    engine.agent.held.commit(holding, 4)
    engine.agent.stopping = True
    with pytest.raises(StopIteration):
        engine.until(lambda: False)
    lane = engine.lane
    assert [split.end - split.cursor for split in lane.splits] == [0]
    assert (lane.front, lane.back, lane.free) == (4, 100, ())
    assert (lane.again, lane.exposed) == (2, 2)
    engine.play(engine.member.leave())
    worker: WorkerRecord = engine.records[engine.keys.worker(0)][0]
    assert worker.left


def test_an_engine_that_forgot_what_it_acknowledged_is_noticed() -> None:
    engine = Engine()
    before = dict(engine.records)
    holding = engine.take()
    engine.finish(holding)
    engine.until(lambda: engine.agent.held.settled)
    engine.put(engine.lane_key, first_lane(engine.epoch, 0))
    with pytest.raises(EngineRegressedError, match="has lost writes that it had acknowledged"):
        engine.until(lambda: False)
    engine = Engine()
    engine.records = {key: entry for key, entry in before.items() if "/worker/" not in key}
    with pytest.raises(EngineRegressedError, match="no longer knows rank 0"):
        engine.until(lambda: False)


def test_a_rank_of_a_live_process_is_not_taken_and_of_a_silent_one_is() -> None:
    engine = Engine()
    second = Membership(engine.keys, 0, Process("h2", "b", 2, 1, "second"), SETTINGS, engine.clock)
    steps = second.join()
    operation: Operation = steps.send(None)

    def side_by_side(operation: Operation) -> None:
        for _ in range(1000):
            engine.until(lambda: engine.member.renew_at > engine.clock.now)
            if isinstance(operation, Sleep):
                engine.clock.now = max(engine.clock.now, operation.until)
                operation = steps.send(None)
            else:
                operation = steps.send(engine.apply(operation))

    with pytest.raises(RankTakenError, match="process 1 on h has it and is alive, and process 2 on h2 wants it"):
        side_by_side(operation)
    begun = engine.clock.now
    third = Membership(engine.keys, 0, Process("h3", "b", 3, 1, "third"), SETTINGS, engine.clock)
    engine.play(third.join())
    assert third.incarnation == 2
    assert SETTINGS.lease <= engine.clock.now - begun <= SETTINGS.lease * 1.5
    # The first comes back: it learns that it has been replaced.
    with pytest.raises(RankTakenError, match="taken over by process 3 on h3"):
        engine.until(lambda: False)


def test_who_is_known_to_be_gone_or_has_left_need_not_be_waited_for() -> None:
    engine = Engine()
    begun = engine.clock.now
    after = Membership(engine.keys, 0, Process("h", "b", 2, 1, "after"), SETTINGS, engine.clock, lambda _: True)
    engine.play(after.join())
    engine.play(after.leave())
    last = Membership(engine.keys, 0, Process("h9", "b", 9, 1, "last"), SETTINGS, engine.clock)
    engine.play(last.join())
    assert last.incarnation == 3
    assert engine.clock.now == begun
