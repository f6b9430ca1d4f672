"""One worker's protocol, without clock, engine or threads: it leases, commits, renews, and takes over from lost workers.

:meth:`Agent.run` yields operations and is sent their answers; the consumer's side is plain calls between two steps. The
same code runs over real engines (:mod:`stoker.coordination.client`) and in simulations with loss, delay and
crashes. One operation is out at a time. A commit and the next lease are one compare-and-set.

If a write gets no answer, nobody knows whether it was done, or will yet be; and where writes are repeated, a no can be
the answer to the repetition. So nothing is concluded from either: the lane is read again, what is there is taken as it
is, and if nobody has written it since, it is written once more, which makes the earlier write impossible.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.coordination.errors import EngineRegressedError
from stoker.coordination.health import split_size
from stoker.coordination.holdings import Holding, Holdings
from stoker.coordination.membership import Membership
from stoker.coordination.records import (
    Create,
    Epoch,
    Get,
    Lane,
    Sleep,
    SplitRecord,
    Steps,
    Swap,
    Unanswered,
    Versioned,
    WorkerRecord,
)
from stoker.coordination.rules import cleared, commit, first_lane, give_back, leasable, lease, spilled
from stoker.coordination.watch import Watch
from stoker.integers import mix

# Several splits are leased at once where so many would still fit into what is left, and so many at most.
_PLENTY, _MOST_TOGETHER = 16, 4


class Agent:
    """One worker's part in one epoch.

    Attributes:
        held: the splits that the worker holds.
        over: whether the epoch is: all is committed, or what is left was set aside.
        stopping: set it to have all given back and :meth:`run` end.
        flush: set it to have all that was asked for committed at once.
        ahead: how many splits are leased beyond the one that is worked on, at least.
        commit_every: seconds after which what is done is committed. Shorter splits are leased several at a time.
    """

    def __init__(
        self,
        epoch: Epoch,
        member: Membership,
        *,
        ahead: int = 1,
        commit_every: float = 1.0,
        takes_over: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._keys, self._clock = member.keys, member.clock
        self.held = Holdings(self._clock)
        self.over = self.stopping = self.flush = False
        self.ahead = ahead
        self.commit_every = commit_every
        self.epoch = epoch
        self.watch = Watch(epoch, member)
        self.member = member
        self._takes_over = takes_over
        self._doubts: dict[int, int] = {}
        self._shared: set[int] = set()
        self._verify: set[int] = set()
        self._tokens: dict[int, int] = {}
        self._home_empty = False
        self._commit_at = self._glance_at = self._quiet_until = self._clock.now
        # Not all at once: the first to look publishes a summary, which the others need only read.
        offset = mix(member.rank, 0) % epoch.world_size
        self._look_at = self._clock.now + min(0.02 * offset, epoch.settings.lease)
        self._idle_looks = 0
        self._failures = 0

    # -- the consumer's side ---------------------------------------------------------------------------------------

    @property
    def safe(self) -> bool:
        """Whether nobody can have taken this worker's splits: else the consumer must wait."""
        return self._clock.now < self.member.valid_until and not self._verify

    def take(self) -> Holding | None:
        """The next split to work on, if one is ready."""
        return self.held.take() if self.safe else None

    # -- the protocol ----------------------------------------------------------------------------------------------

    def run(self) -> Steps:
        """Do the worker's part until told to stop. The worker must have joined."""
        while True:
            steps = self._next()
            if steps is None:
                return
            try:
                yield from steps
                self._failures = 0
            except Unanswered:
                # Whatever it was is due again. Renewals and reads tell when the engine is back.
                self._failures = min(self._failures + 1, 5)
                base = self.epoch.settings.heartbeat / 64
                self._quiet_until = self._clock.now + base * 2 ** (self._failures - 1)

    def _next(self) -> Steps | None:
        now = self._clock.now
        if now < self._quiet_until:
            return self._sleep(self._quiet_until)
        if now >= self.member.renew_at:
            return self._renew()
        if self._verify:
            return self._assure(min(self._verify))
        if self._doubts:
            return self._step(min(self._doubts))
        if self.stopping and not self.held:
            self.member.record = self._record()  # for who says that the worker leaves
            return None
        due = self._due(now)
        if due is not None:
            return self._step(due)
        if now >= self._glance_at:
            return self._glance()
        if self._wants() and not self.over and self.safe:
            number = self._choose()
            if number is not None:
                return self._step(number)
        if self.over and not self._has_said_all:
            return self._renew()  # the numbers of an epoch that is over are right at once
        looks = not self.over or self.watch.may_watch  # the watching worker also tells the health of the others
        if now >= self._look_at and looks:
            return self._look()
        until = min(self.member.renew_at, self._glance_at)
        if looks:
            until = min(until, self._look_at)
        if any(holding.due for holding in self.held):
            until = min(until, self._commit_at)
        return self._sleep(until)

    @property
    def _has_said_all(self) -> bool:
        said = self.member.record
        return (said.epoch, said.delivered, said.committed) == (
            self.epoch.number,
            self.held.delivered,
            self.held.committed,
        )

    def _sleep(self, until: float) -> Steps:
        yield Sleep(until)

    def _wants(self) -> bool:
        if self.stopping:
            return False
        return self.held.unfinished <= self.ahead

    def _due(self, now: float) -> int | None:
        """A lane in which something is to be committed or given back now."""
        late = now >= self._commit_at or self.flush or self.stopping
        # A split that is done is committed with the next lease: soon, but where several are leased ahead.
        done = late or self._wants()
        for holding in self.held:
            if holding.given_up or self.stopping:
                return holding.lane
            if holding.due and (late or (done and holding.wanted == holding.split.end)):
                return holding.lane
        if late:
            self._commit_at = now + self.commit_every
            self.flush = False
        return None

    def _choose(self) -> int | None:
        """A lane to lease from: one that this worker takes over, then its own, then any open one, with a chance in
        proportion to what is there."""
        for number in self.watch.orphans:
            if self._takes_over(number):
                return number
        home = self.member.rank % self.epoch.lanes
        if not self._home_empty:
            return home
        total = sum(self.watch.open.values())
        if not total:
            return None
        offset = mix(self.member.rank, self.held.leases) % total
        for number, count in self.watch.open.items():
            offset -= count
            if offset < 0:
                return number
        return None

    def _renew(self) -> Steps:
        safe_until = self.member.valid_until
        yield from self.member.renew(self._record())
        if self._clock.now >= safe_until:
            # Silent for so long that splits may have been taken: nothing continues before that is known.
            self._verify = self.held.lanes

    def _record(self) -> WorkerRecord:
        """The worker's record as it is now."""
        held = self.held
        return self.member.record._replace(
            rate=held.rate,
            delivered=held.delivered,
            committed=held.committed,
            again=held.again,
            held=held.described(),
            epoch=self.epoch.number,
        )

    def _glance(self) -> Steps:
        epoch = yield from self.watch.glance()
        now = self._clock.now
        settings = self.epoch.settings
        # A worker's splits are with others no later than a lease and two eighths after its last sign of life.
        self._glance_at = now + min(settings.heartbeat, settings.lease / 8)
        if epoch is None:
            raise EngineRegressedError(
                f"the engine no longer knows epoch {self.epoch.number}: it has lost its records: resume from a checkpoint"
            )
        if epoch.incarnation != self.epoch.incarnation:
            self._restart(epoch)

    def _restart(self, epoch: Epoch) -> None:
        """The epoch was restored from a checkpoint: nothing that was leased before holds."""
        self.held.lose_all("the epoch was restored from a checkpoint")
        self._doubts.clear()
        self._verify.clear()
        self._tokens.clear()
        self._home_empty = self.over = False
        self.epoch = epoch
        self.watch = Watch(epoch, self.member)
        self._look_at = self._clock.now

    @property
    def _look_every(self) -> float:
        settings = self.epoch.settings
        return min(settings.heartbeat / 2, settings.lease / 8)

    def _look(self) -> Steps:
        watch, settings = self.watch, self.epoch.settings
        publish = watch.may_watch
        if publish and not watch.watching:
            yield from watch.glance()  # perhaps another does by now
            publish = watch.may_watch
        idle = self._wants() and self._choose() is None
        if publish or idle:
            yield from watch.look(publish=publish)
            self.over = watch.over
            for number in self.held.lanes | set(self._doubts):
                self._take_over(number, watch.lanes[number])
            home = self.member.rank % self.epoch.lanes
            self._home_empty = leasable(watch.lanes[home].value) == 0
        now = self._clock.now
        if idle and not self.over:
            # Together the idle read at most some ten thousand lanes a second, however many they are.
            every = self.epoch.world_size * (self.epoch.lanes + 8) * 4e-5
            soon = settings.heartbeat / 256 * 2**self._idle_looks
            self._idle_looks = min(self._idle_looks + 1, 8)
            self._look_at = now + min(max(soon, every), self._look_every)
        else:
            self._look_at = now + self._look_every

    def _assure(self, number: int) -> Steps:
        """See what this worker still has in a lane, after it was silent; and write the lane, so that nobody who saw it silent
        can take anything from it later on."""
        entry = yield from self._read(number)
        if number in self.held.lanes:
            key = self._keys.lane(self.epoch, number)
            version = yield Swap(key, entry.value, entry.version)
            if version is None:
                return
            self.watch.lanes[number] = Versioned(entry.value, version)
        self._verify.discard(number)

    def _read(self, number: int) -> Steps:
        (found,) = yield Get((self._keys.lane(self.epoch, number),))
        entry = found or Versioned(first_lane(self.epoch, number), 0)
        self._take_over(number, entry)
        return entry

    def _take_over(self, number: int, entry: Versioned) -> None:
        """Take a lane as it was read for the truth."""
        lane: Lane = entry.value
        if lane.token < self._tokens.get(number, 0):
            raise EngineRegressedError(
                f"lane {number} of epoch {self.epoch.number} was at lease {self._tokens[number]} and is at "
                f"{lane.token}: the engine has lost writes that it had acknowledged: resume from a checkpoint"
            )
        self.watch.lanes[number] = entry
        self._tokens[number] = lane.token
        if self._doubts.get(number, entry.version) != entry.version:
            del self._doubts[number]  # another write has come since: the write in doubt can not be done any more
        if self.held.compare(lane, self.member.rank, self.member.incarnation):
            self._idle_looks = 0

    def _step(self, number: int) -> Steps:
        """Commit and give back what is due in a lane, and lease from it if that is wanted: one compare-and-set."""
        entry = known = self.watch.lanes.get(number)
        if entry is None or number in self._doubts or number in self._shared:
            entry = yield from self._read(number)
            if known is not None and known.version == entry.version:
                self._shared.discard(number)
        rank, incarnation = self.member.rank, self.member.incarnation
        lane: Lane = entry.value
        settings = self.epoch.settings
        after = cleared(lane, rank, incarnation)
        requested: list[tuple[Holding, int, bool]] = []
        for holding in self.held.in_lane(number):
            cursor, back = holding.wanted, bool(holding.given_up) or self.stopping
            if cursor <= holding.committed and not back:
                continue
            done = commit(after, rank, incarnation, holding.split.token, cursor, record=settings.record)
            if done is None:
                # Others have the split now, which a look has seen. Reading again says so to the consumer.
                self.watch.lanes.pop(number, None)
                return
            if back and cursor < holding.split.end:
                split = next(s for s in done.splits if s.token == holding.split.token)
                reason = holding.given_up or f"rank {rank} left"
                done = give_back(
                    done,
                    split,
                    reason,
                    lost=False,
                    delivered=holding.delivered,
                    attempts=settings.attempts,
                    blame=bool(holding.given_up),
                    record=settings.record,
                )
            after = done
            requested.append((holding, cursor, back))
        fresh: list[SplitRecord] = []
        if not self.over and self.safe and self._wants() and number == self._choose():
            after, fresh = self._lease(after)
            if not fresh:
                self._found_empty(number)
        if not fresh and not requested and number not in self._doubts:
            return
        yield from self._write(number, entry, after, requested, fresh)

    def _write(
        self,
        number: int,
        entry: Versioned,
        after: Lane,
        requested: list[tuple[Holding, int, bool]],
        fresh: list[SplitRecord],
    ) -> Steps:
        rest, chunk = spilled(after)
        if chunk is not None:
            epoch = self.epoch
            yield Create(self._keys.log(epoch.number, epoch.incarnation, number, after.chunks), chunk)
        key = self._keys.lane(self.epoch, number)
        try:
            version = yield Swap(key, rest, entry.version) if entry.version else Create(key, rest)
        except Unanswered:
            self._doubts[number] = entry.version
            self.watch.lanes.pop(number, None)
            raise
        if version is None:
            # Another wrote this lane: reading it first next time saves writes that fail. Or this was written and the answer
            # is that to its repetition: so it is in doubt as well.
            self._shared.add(number)
            self._doubts[number] = entry.version
            self.watch.lanes.pop(number, None)
            return
        self._doubts.pop(number, None)
        self.watch.lanes[number] = Versioned(rest, version)
        self._tokens[number] = rest.token
        for holding, cursor, back in requested:
            self.held.acknowledge(holding, cursor)
            if back:
                self.held.returned(holding)
        for split in fresh:
            self.held.add(number, split)
            self._idle_looks = 0

    def _lease(self, lane: Lane) -> tuple[Lane, list[SplitRecord]]:
        """The lane with one more split leased, or with several: where they are shorter than the time between commits and
        there is far more to do, as each write costs the engine a sync of its disk."""
        epoch, member, summary = self.epoch, self.member, self.watch.summary
        home = member.rank % epoch.lanes == lane.number
        if lane.number in self.watch.orphans:
            home = True  # it continues where the lane's own worker stopped
        sharers = max(1.0, epoch.world_size / epoch.lanes)
        if summary is not None and self.held.rate and summary.rate > 0:
            # How many workers as fast as this one all of them are worth.
            sharers = max(1.0, summary.rate / self.held.rate / epoch.lanes)
        splits: list[SplitRecord] = []
        many = 1
        while len(splits) < many:
            size = split_size(lane, rate=self.held.rate, share=1 / sharers, settings=epoch.settings, from_back=not home)
            leased = lease(
                lane, member.rank, member.incarnation, self.held.turns + len(splits), size, from_back=not home
            )
            if leased is None:
                break
            if home and not splits and leasable(lane) / sharers >= _PLENTY * size:
                many = min(_MOST_TOGETHER, 1 + int(self.held.rate * self.commit_every / size))
            lane, split = leased
            splits.append(split)
        return lane, splits

    def _found_empty(self, number: int) -> None:
        if number == self.member.rank % self.epoch.lanes:
            self._home_empty = True
        self.watch.open.pop(number, None)
        self.watch.orphans.discard(number)
        if not self.watch.open:
            self._look_at = min(self._look_at, self._clock.now + self.epoch.settings.heartbeat / 256)
