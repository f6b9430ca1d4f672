"""A simulated world for workers' protocols: an engine, a network that fails in every way, clocks that differ, crashes.

Everything is drawn from one seed, so a history that fails can be run again. Time is simulated: a history takes some
milliseconds. The checker knows nothing of the rules. It sees what consumers deliver and how the committed set that lane
records describe grows with each write, and holds that against what must be true.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Any

from stoker.coordination.agent import Agent
from stoker.coordination.errors import CommitRefusedError
from stoker.coordination.holdings import Holding
from stoker.coordination.membership import Membership, ProtocolClock
from stoker.coordination.records import (
    CoordinationSettings,
    Create,
    Epoch,
    Get,
    Keys,
    Lane,
    Process,
    Sleep,
    SplitRecord,
    Steps,
    Swap,
    Unanswered,
    Versioned,
    decode,
    encode,
)
from stoker.coordination.rules import finished, first_lane

__all__ = ["Faults", "History", "World", "run_history"]

TIMEOUT = 0.6


@dataclass(frozen=True)
class Faults:
    """What may go wrong, and how often, until ``until``; after that the world is kind."""

    until: float = 30.0
    delay: float = 0.01
    slow: float = 0.05
    request_lost: float = 0.03
    answer_lost: float = 0.03
    doubled: float = 0.03
    crash: float = 0.02
    pause: float = 0.02
    engine_down: float = 0.02
    skew: float = 0.05


@dataclass
class History:
    """What came of a history."""

    samples: int
    delivered: int = 0
    commits: int = 0
    operations: int = 0
    crashes: int = 0
    pauses: int = 0
    engine_crashes: int = 0
    seconds: float = 0.0
    again: int = 0
    exposed: int = 0


class _Process:
    """One process of a worker: its protocol, its consumer, its clock."""

    def __init__(self, world: World, rank: int, speed: float, number: int) -> None:
        random_ = world.random
        self.world = world
        self.rank = rank
        self.speed = speed
        self.alive = True
        self.paused_until = 0.0
        self.was_paused = False
        self.clock_rate = 1.0 + random_.uniform(-world.faults.skew, world.faults.skew)
        self.clock_offset = random_.uniform(0.0, 1000.0)
        self.clock = ProtocolClock(self.local(world.time))
        process = Process("host", "boot", number, 0, f"{rank}.{number}")
        self.member = Membership(world.keys, rank, process, world.epoch.settings, self.clock)
        self.agent: Agent | None = None
        self.steps: Steps = self._live()
        self.waiting = 0
        self.sleeping_until = 0.0
        self.working: Holding | None = None
        self.producing = False
        self.done = False
        self.results: dict[int, int] = {}  # what was made of each position, and kept: the token of its delivery
        self.flushes = random.Random(number)

    def local(self, time: float) -> float:
        return self.clock_offset + time * self.clock_rate

    def _live(self) -> Steps:
        while True:
            try:
                yield from self.member.join()
                break
            except Unanswered:
                continue
        self.agent = Agent(
            self.world.epoch,
            self.member,
            ahead=self.world.ahead,
            commit_every=0.3,
            takes_over=lambda number: self.world.heirs and (number + 1) % self.world.epoch.world_size == self.rank,
        )
        yield from self.agent.run()

    # -- the protocol's side

    def step(self, answer: Any = None, error: bool = False) -> None:
        self.clock.now = self.local(self.world.time)
        self.waiting += 1
        try:
            operation = self.steps.throw(Unanswered()) if error else self.steps.send(answer)
        except StopIteration:
            self.done = True
            self.alive = False
            return
        self.consume()
        if type(operation) is Sleep:
            self.sleeping_until = operation.until
            wake = max(self.world.time, (operation.until - self.clock_offset) / self.clock_rate)
            self.world.at(wake + 1e-6, "wake", (self, self.waiting))
        else:
            self.sleeping_until = -1.0
            self.world.send(self, operation)

    def wake(self) -> None:
        """The consumer wants something."""
        if self.sleeping_until >= 0:
            self.sleeping_until = -1.0
            self.world.at(self.world.time, "wake", (self, self.waiting))

    # -- the consumer's side

    def consume(self) -> None:
        agent = self.agent
        if agent is None or self.producing:
            return
        self.leave_lost()
        if self.working is None:
            self.working = agent.take()
        if self.working is not None:
            self.producing = True
            self.world.at(self.world.time + self.world.random.uniform(1, 3) / self.speed, "produce", self)

    def produce(self) -> None:
        agent, holding, world = self.agent, self.working, self.world
        self.producing = False
        self.clock.now = self.local(world.time)
        assert agent is not None
        if holding is None or holding.lost or not agent.safe:
            self.wake()
            self.consume_later()
            return
        split = holding.split
        start = holding.delivered
        stop = min(split.end, start + world.random.randint(1, 3))
        if not self.was_paused:
            # Who is not stopped knows in time that others may have its splits. (Who is stopped can not.)
            lane = world.lane(holding.lane)
            assert split.token in [s.token for s in lane.splits], f"{split} delivered without a lease"
        if self.flushes.random() < 0.1:
            self.flush()
        agent.held.deliver(holding, stop)
        self.results.update(dict.fromkeys(range(start, stop), split.token))
        world.checker.deliver((self.rank, self.member.incarnation, split.token, holding.lane), start, stop)
        if world.random.random() < world.poison and not world.calm:
            agent.held.give_up(holding, "bad sample")
            self.discard_unasked(holding)
            self.working = None
        elif stop == split.end or world.random.random() < 0.7:
            agent.held.commit(holding, stop)
            if stop == split.end:
                self.working = None
        self.wake()
        self.consume()

    def leave_lost(self) -> None:
        if self.working is not None and self.working.lost:
            self.discard_unasked(self.working)
            self.working = None

    def discard_unasked(self, holding: Holding) -> None:
        """Throw away what was made and not asked to be committed. Of the rest, a refusal says so."""
        for position in range(holding.wanted, holding.delivered):
            self.results.pop(position, None)

    def flush(self) -> None:
        """Throw away what was made of refused deliveries, as a consumer that keeps results by position does."""
        assert self.agent is not None
        held = self.agent.held
        refusal, held.refused = CommitRefusedError(tuple(held.refused)), []
        for one in refusal.refused:
            for position in range(one.begin, one.end):
                if refusal.covers(position):
                    assert self.results.pop(position) == one.token, f"{one} is not the delivery that was made last"

    def check_results(self) -> None:
        """What is kept is what this process has committed, but for what it has not heard of yet."""
        if self.agent is None:
            return
        self.leave_lost()
        self.flush()
        open_ = {p for holding in self.agent.held for p in range(holding.committed, holding.delivered)}
        committed = self.world.checker.committed
        mine = {p for p, owner in enumerate(committed) if owner == (self.rank, self.member.incarnation)}
        assert mine - open_ == self.results.keys() - open_, "results were lost, or kept that are others'"

    def consume_later(self) -> None:
        self.leave_lost()
        if not self.producing and self.working is not None:
            self.producing = True
            self.world.at(self.world.time + 0.05, "produce", self)


class _Checker:
    """What must hold, from outside: each position committed once, and only by whom delivered it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.committed: list[tuple[int, int] | None] = [None] * total
        self.count = 0
        self.delivered: dict[tuple[int, int, int, int], int] = {}
        self.times = [0] * total
        self.commits = 0

    def deliver(self, lease: tuple[int, int, int, int], start: int, stop: int) -> None:
        """A consumer has samples, under a lease: rank, incarnation, token, lane. Under one lease it has none twice."""
        assert start >= self.delivered.get(lease, start), f"{start} delivered twice under one lease"
        self.delivered[lease] = stop
        for position in range(start, stop):
            self.times[position] += 1

    def write(self, before: Lane, after: Lane) -> None:
        old = {split.token: split for split in before.splits}
        for split in after.splits:
            was = old.get(split.token)
            start = was.cursor if was is not None else split.begin
            if split.cursor == start:
                continue
            assert was is not None, "committed in the write that leased it"
            assert split.cursor > start, "a commit went backwards"
            self.commits += 1
            self._commit(after.number, split, start, split.cursor)
        for split in before.splits:
            if split.cursor == split.end:
                continue
            now = next((s for s in after.splits if s.token == split.token), None)
            if now is None:
                # Committed and given back in one write: what is in neither place now was committed.
                free = [(p.begin, p.end) for p in (*after.free, *after.aside)] + [(after.front, after.back)]
                free += [(s.cursor, s.end) for s in after.splits]
                stop = min([max(a, split.cursor) for a, b in free if a < split.end and b > split.cursor] or [split.end])
                if stop > split.cursor:
                    self.commits += 1
                    self._commit(after.number, split, split.cursor, stop)
        _check_lane(after, self.committed)

    def _commit(self, lane: int, split: SplitRecord, start: int, stop: int) -> None:
        lease = (split.rank, split.incarnation, split.token, lane)
        assert stop <= self.delivered.get(lease, 0), f"[{start}, {stop}) committed and never delivered"
        for position in range(start, stop):
            assert self.committed[position] is None, f"{position} committed twice"
            self.committed[position] = (split.rank, split.incarnation)
        self.count += stop - start


def _check_lane(lane: Lane, committed: list[tuple[int, int] | None]) -> None:
    """A lane's positions are in one place each."""
    places = [(lane.front, lane.back)] if lane.front < lane.back else []
    places += [(p.begin, p.end) for p in (*lane.free, *lane.aside)]
    places += [(s.cursor, s.end) for s in lane.splits if s.cursor < s.end]
    places.sort()
    position = lane.begin
    for begin, end in places:
        assert position <= begin < end <= lane.end, f"{lane}"
        position = end


class World:
    """Workers, an engine and a network between them."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        workers: int,
        samples: int,
        lanes: int,
        settings: CoordinationSettings,
        encoded: bool = False,
        poison: float = 0.0,
        restarts: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.time = 0.0
        self.ahead = self.random.randint(0, 2)
        self.poison = poison
        self.restarts = restarts
        self.heirs = self.random.random() < 0.5
        self.keys = Keys("run")
        starts = tuple([samples * k // lanes for k in range(lanes + 1)])
        self.epoch = Epoch(0, 1, workers, starts, None, (), settings)
        self.checker = _Checker(samples)
        self.history = History(samples)
        self._encoded = encoded
        self._store: dict[str, tuple[Any, int]] = {self.keys.epoch(0): (self._in(self.epoch), 1)}
        self._version = 1
        self._queue: list[tuple[float, int, str, Any]] = []
        self._number = 0
        self._down_until = -1.0
        self.processes: list[_Process] = []
        self._lane_keys = {self.keys.lane(self.epoch, k): k for k in range(lanes)}
        self._finished = {key for key, k in self._lane_keys.items() if starts[k] == starts[k + 1]}
        for rank in range(workers):
            speed = self.random.choice((10.0, 20.0, 40.0))
            self.at(self.random.uniform(0, 1), "start", (rank, speed))

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.time >= self.faults.until

    def lane(self, number: int) -> Lane:
        """A lane as the engine has it."""
        lane: Lane = self._out(self._store[self.keys.lane(self.epoch, number)][0])
        return lane

    def at(self, time: float, kind: str, what: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, kind, what))

    def run(self, limit: float) -> History:
        if self.faults.crash or self.faults.pause or self.faults.engine_down:
            self.at(0.5, "fate", None)
        total = self.checker.total
        happen = {name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")}
        while self.checker.count < total or self._lane_keys.keys() - self._finished:
            assert self._queue, "nobody does anything any more"
            self.time, _, kind, what = heapq.heappop(self._queue)
            assert self.time < limit, f"not finished after {limit} s: {self.checker.count} of {total} committed"
            happen[kind](what)
        for process in self.processes:
            if process.alive:
                process.check_results()
        history = self.history
        history.delivered = sum(self.checker.times)
        history.commits = self.checker.commits
        history.seconds = self.time
        lanes = [self._out(self._store[key][0]) for key in self._lane_keys if key in self._store]
        history.again = sum(lane.again for lane in lanes)
        history.exposed = sum(lane.exposed for lane in lanes)
        assert all(finished(lane) for lane in lanes)
        twice = history.delivered - total
        assert history.again <= twice <= history.exposed, (history.again, twice, history.exposed)
        return history

    # -- what happens

    def _on_start(self, what: tuple[int, float]) -> None:
        process = _Process(self, *what, number=len(self.processes))
        self.processes.append(process)
        process.step()

    def _on_wake(self, what: tuple[_Process, int]) -> None:
        process, waiting = what
        if process.alive and process.waiting == waiting and not self._deferred(process, "wake", what):
            process.sleeping_until = -1.0
            process.step()

    def _on_produce(self, process: _Process) -> None:
        if process.alive and not self._deferred(process, "produce", process):
            process.produce()

    def _deferred(self, process: _Process, kind: str, what: Any) -> bool:
        """What would happen to a process that is stopped happens when it goes on."""
        if self.time >= process.paused_until:
            return False
        self.at(process.paused_until, kind, what)
        return True

    def _on_answer(self, what: tuple[_Process, int, Any, bool]) -> None:
        process, waiting, answer, error = what
        if process.alive and process.waiting == waiting and not self._deferred(process, "answer", what):
            process.step(answer, error)

    def _on_fate(self, _: None) -> None:
        if self.calm:
            return
        faults, random_ = self.faults, self.random
        self.at(self.time + 0.5, "fate", None)
        if random_.random() < faults.engine_down:
            self._down_until = self.time + random_.uniform(0.1, 6.0)
            self.history.engine_crashes += 1
        living = [process for process in self.processes if process.alive]
        for process in living:
            chance = random_.random()
            if chance < faults.crash and len(living) > 1:
                living.remove(process)
                process.alive = False
                self.history.crashes += 1
                if self.restarts:
                    self.at(self.time + random_.uniform(0.1, 8.0), "start", (process.rank, process.speed))
                return
            if chance < faults.crash + faults.pause:
                process.was_paused = True
                process.paused_until = self.time + random_.uniform(0.5, 12.0)
                self.history.pauses += 1

    # -- the network and the engine

    def send(self, process: _Process, operation: Any) -> None:
        faults, random_, waiting = self.faults, self.random, process.waiting
        self.history.operations += 1
        if self.calm:
            self.at(self.time + 0.001, "engine", (process, waiting, operation, True))
            return
        self.at(self.time + TIMEOUT, "answer", (process, waiting, None, True))
        if random_.random() < faults.request_lost:
            return
        copies = 2 if random_.random() < faults.doubled else 1
        for _ in range(copies):
            delay = random_.expovariate(1 / faults.delay)
            if random_.random() < faults.slow:
                delay += random_.uniform(0.0, 4.0)
            answered = random_.random() >= faults.answer_lost
            self.at(self.time + delay, "engine", (process, waiting, operation, answered))

    def _on_engine(self, what: tuple[_Process, int, Any, bool]) -> None:
        process, waiting, operation, answered = what
        if self.time < self._down_until:
            if self.calm:
                self.at(self._down_until, "engine", what)
            return
        answer = self._apply(operation)
        if answered:
            delay = 0.001 if self.calm else self.random.expovariate(1 / self.faults.delay)
            self.at(self.time + delay, "answer", (process, waiting, answer, False))

    def _apply(self, operation: Any) -> Any:
        store = self._store
        if type(operation) is Get:
            found = [store.get(key) for key in operation.keys]
            return [None if entry is None else Versioned(self._out(entry[0]), entry[1]) for entry in found]
        key, old = operation.key, store.get(operation.key)
        if type(operation) is Create:
            if old is not None:
                return None
        elif type(operation) is Swap:
            if old is None or old[1] != operation.version:
                return None
        else:
            raise AssertionError(operation)
        number = self._lane_keys.get(key)
        if number is not None:
            before = first_lane(self.epoch, number) if old is None else self._out(old[0])
            self.checker.write(before, operation.value)
            if finished(operation.value):
                self._finished.add(key)
        self._version += 1
        store[key] = (self._in(operation.value), self._version)
        return self._version

    def _in(self, record: Any) -> Any:
        return encode(record) if self._encoded else record

    def _out(self, stored: Any) -> Any:
        return decode(stored) if self._encoded else stored


def run_history(seed: int, *, encoded: bool = False) -> History:
    """One history, all of it drawn from its seed."""
    draw = random.Random(seed * 2 + 1)
    workers = draw.randint(1, 6)
    samples = draw.randint(1, 900)
    owned = draw.random() < 0.3
    settings = CoordinationSettings(
        lease=3.0,
        heartbeat=draw.choice((0.5, 1.0, 2.0)),
        split=draw.choice((0.2, 0.5, 1.0)),
        smallest=draw.choice((1, 1, 4)),
        largest=draw.choice((8, 32)),
        attempts=1 << 30,
        threshold=draw.choice((0.0, 0.2, 0.5)) if owned else None,
        grid=draw.choice((4, 16)),
        multiple=draw.choice((1, 1, 4)),
    )
    kind = draw.random()
    if kind < 0.1:
        faults = Faults(0.0, 0.001, 0, 0, 0, 0, 0, 0, 0, draw.uniform(0, 0.06))
    else:
        bad = draw.choice((0.3, 1.0, 3.0))
        faults = Faults(
            until=draw.uniform(5, 40),
            delay=draw.choice((0.001, 0.01, 0.1)),
            slow=0.02 * bad,
            request_lost=0.02 * bad,
            answer_lost=0.02 * bad,
            doubled=0.02 * bad,
            crash=draw.choice((0, 0.01, 0.03)),
            pause=draw.choice((0, 0.01, 0.03)),
            engine_down=draw.choice((0, 0.01, 0.05)),
            skew=draw.uniform(0, 0.06),
        )
    world = World(
        seed,
        faults,
        workers=workers,
        samples=samples,
        lanes=workers if owned else draw.choice((1, 2, workers)),
        settings=settings,
        encoded=encoded,
        poison=draw.choice((0, 0, 0.01)),
        restarts=draw.random() < 0.8,
    )
    return world.run(limit=600.0)
