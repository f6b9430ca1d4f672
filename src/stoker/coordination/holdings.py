"""The splits that a worker holds: what of each was delivered, asked to be committed, and committed; and what was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from stoker.coordination.errors import RefusedRange
from stoker.coordination.membership import ProtocolClock
from stoker.coordination.records import Held, Lane, SplitRecord


class Holding:
    """A split that this worker holds.

    Attributes:
        delivered: one past the last position that was delivered.
        wanted: up to where the consumer has asked to commit.
        committed: up to where the engine has acknowledged.
        begun: when the consumer took it, by the worker's clock; -1 if it did not yet.
        lost: why it is no longer this worker's; empty as long as it is.
        given_up: why the consumer can not process it; empty if it can.
    """

    __slots__ = ("begun", "committed", "delivered", "given_up", "lane", "lost", "split", "wanted")

    def __init__(self, lane: int, split: SplitRecord) -> None:
        self.lane = lane
        self.split = split
        self.delivered = self.wanted = self.committed = split.cursor
        self.begun = -1.0
        self.lost = self.given_up = ""

    @property
    def due(self) -> bool:
        """Whether a commit was asked for that is not acknowledged."""
        return self.wanted > self.committed


class Holdings:
    """All splits of one worker in one epoch. Iterating gives those that it holds, taken by the consumer or not.

    Attributes:
        ready: splits that are leased and not yet taken by the consumer.
        committed: samples whose commit is acknowledged.
        again: samples delivered whose split was lost before they were committed.
        refused: what the consumer has asked to commit, and what others have.
        turns: one past the highest turn of a split that it had.
        rate: samples a second that the consumer processes; 0 if not known yet.
    """

    def __init__(self, clock: ProtocolClock) -> None:
        self.ready: deque[Holding] = deque()
        self.delivered = self.committed = self.again = self.leases = self.turns = 0
        self.refused: list[RefusedRange] = []
        self.rate = 0.0
        self._clock = clock
        self._held: dict[tuple[int, int], Holding] = {}

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def in_lane(self, number: int) -> list[Holding]:
        """Those of a lane."""
        return [holding for holding in self._held.values() if holding.lane == number]

    @property
    def lanes(self) -> set[int]:
        """Lanes in which it holds splits."""
        return {holding.lane for holding in self._held.values()}

    @property
    def settled(self) -> bool:
        """Whether all that was asked for is committed."""
        return not any(holding.due or holding.given_up for holding in self._held.values())

    @property
    def unfinished(self) -> int:
        """Splits whose end the consumer has not reached."""
        return sum([h.wanted < h.split.end and not h.given_up for h in self._held.values()])

    def described(self) -> tuple[Held, ...]:
        """For the worker's record: the splits that the consumer works on, then those that wait for it."""
        held = [Held(h.lane, h.split.token, h.delivered) for h in self._held.values() if h.begun >= 0]
        held += [Held(h.lane, h.split.token, h.split.begin) for h in self._held.values() if h.begun < 0]
        return tuple(held)

    # -- the consumer's side ---------------------------------------------------------------------------------------

    def take(self) -> Holding | None:
        """The next split to work on, if one is ready."""
        if not self.ready:
            return None
        holding = self.ready.popleft()
        holding.begun = self._clock.now
        return holding

    def deliver(self, holding: Holding, position: int) -> None:
        """Note that all before ``position`` were delivered; done before they are."""
        if self.refused:
            self.refused = [part for one in self.refused for part in one.parts(holding.delivered, position)]
        self.delivered += position - holding.delivered
        holding.delivered = position

    def commit(self, holding: Holding, cursor: int) -> None:
        """Ask for a commit of all before ``cursor``."""
        if cursor <= holding.wanted:
            return
        holding.wanted = cursor
        if cursor == holding.split.end and holding.begun >= 0:
            took = self._clock.now - holding.begun
            rate = (cursor - holding.split.begin) / took if took > 0 else self.rate
            self.rate = rate if self.rate == 0 else (self.rate + rate) / 2

    def give_up(self, holding: Holding, reason: str) -> None:
        """Give back what is not committed of a split, as it can not be worked on."""
        holding.given_up = reason or "given up"

    # -- the protocol's side -------------------------------------------------------------------------------------------

    def add(self, number: int, split: SplitRecord) -> None:
        """Note a split of a lane that was leased."""
        holding = Holding(number, split)
        self._held[number, split.token] = holding
        self.ready.append(holding)
        self.turns = max(self.turns, split.turn + 1)
        self.leases += 1

    def acknowledge(self, holding: Holding, cursor: int) -> None:
        """Note that the engine has a commit of all before ``cursor``."""
        if cursor > holding.committed:
            self.committed += cursor - holding.committed
            holding.committed = cursor
        if holding.committed == holding.split.end:
            self._held.pop((holding.lane, holding.split.token), None)

    def returned(self, holding: Holding) -> None:
        """Note that the rest of a split was given back."""
        self._held.pop((holding.lane, holding.split.token), None)
        if holding in self.ready:
            self.ready.remove(holding)
        if not holding.given_up:
            holding.lost = "given back, as the worker leaves"

    def compare(self, lane: Lane, rank: int, incarnation: int) -> int:
        """Take a lane as it was read for the truth; returns how many splits a write that got no answer has leased."""
        mine = {s.token: s for s in lane.splits if s.rank == rank and s.incarnation == incarnation}
        for holding in self.in_lane(lane.number):
            split = mine.pop(holding.split.token, None)
            if split is not None:
                self.acknowledge(holding, split.cursor)
                if split.end == holding.split.end:
                    continue
            del self._held[lane.number, holding.split.token]
            self._lose(holding, f"rank {rank} was not seen to renew for a lease, and others have the split now")
        unknown = [split for split in mine.values() if split.cursor < split.end]
        for split in unknown:
            self.add(lane.number, split)
        return len(unknown)

    def lose_all(self, reason: str) -> None:
        """Note that nothing that was leased holds any more."""
        for holding in self._held.values():
            self._lose(holding, reason)
        self._held.clear()
        self.ready.clear()
        self.committed = 0

    def _lose(self, holding: Holding, reason: str) -> None:
        holding.lost = holding.given_up or reason
        self.again += holding.delivered - holding.committed
        if holding.due:
            self.refused.append(RefusedRange(holding.committed, holding.wanted, token=holding.split.token))
        if holding in self.ready:
            self.ready.remove(holding)
