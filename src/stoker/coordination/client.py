"""``Coordination``: a worker's interface to its run: splits leased ahead, commits in the background, lost leases."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from stoker.arguments import checked
from stoker.coordination.agent import Agent
from stoker.coordination.checkpoint import take, uncommitted
from stoker.coordination.driver import Driver, until_answered
from stoker.coordination.engines.store import CoordinationStore, open_store
from stoker.coordination.errors import (
    CommitRefusedError,
    EngineError,
    LeaseLostError,
    RefusedRange,
    StalledError,
)
from stoker.coordination.holdings import Holding
from stoker.coordination.membership import Membership, ProtocolClock
from stoker.coordination.records import CoordinationSettings, Entry, Epoch, Lane, Process
from stoker.coordination.run import EpochProgress, RunRecords, WorkerHealth, check_worker, lane_starts
from stoker.errors import ConfigError


def here() -> Process:
    """This process, with a nonce of its own: made twice, it is two different ones."""
    return Process(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()) or 0, secrets.token_hex(8))


def is_gone(process: Process) -> bool:
    """Whether a process has certainly ended: only if it ran in this boot of this host, where process numbers mean the same.

    A process that is stopped, or hangs, is not gone.
    """
    boot = _boot()
    return bool(boot) and process.boot == boot and _started(process.pid) != process.started


def _boot() -> str:
    """This boot of this host and this name space of process numbers; empty where that can not be told."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot; ``None`` if there is none that still runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


_log = logging.getLogger(__name__)

# Seconds for which an engine that does not answer is asked again when it is opened.
_OPENING = 30.0


class LeasedSplit:
    """Positions ``[begin, end)`` of the epoch, for this worker alone while its lease holds.

    Attributes:
        begin: first position.
        end: one past the last.
        token: of the lease: of all that have these positions one after the other, each has a larger one.
    """

    __slots__ = ("_holding", "_owner", "begin", "end", "token")

    @checked
    def __init__(self, owner: Coordination, holding: Holding) -> None:
        self.begin = holding.split.begin
        self.end = holding.split.end
        self.token = holding.split.token
        self._owner = owner
        self._holding = holding

    def __len__(self) -> int:
        return self.end - self.begin

    def __repr__(self) -> str:
        return f"LeasedSplit({self.begin}, {self.end})"

    @property
    def committed(self) -> int:
        """One past the last position whose commit the engine has acknowledged; ``begin`` if none."""
        return self._holding.committed

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be lost. What is not committed then is others'."""
        return bool(self._holding.lost)

    def deliver(self, position: int) -> None:
        """Call this before the samples up to ``position`` (exclusive) are handed on.

        It waits while the lease is in doubt, because the engine has not answered for most of a lease's time.

        Raises:
            LeaseLostError: others have the split now: these samples must not be handed on.
            EngineError: the doubt lasts longer than ``patience``.
        """
        owner, holding = self._owner, self._holding
        if not holding.delivered <= position <= self.end:
            raise ConfigError(f"position {position} does not follow {holding.delivered} in {self!r}")
        agent, driver = owner._current(), owner._driver
        with driver.changed:
            driver.clock.now = time.monotonic()
            if agent.safe and not holding.lost:
                agent.held.deliver(holding, position)
                return
        driver.wait(lambda: agent.safe or bool(holding.lost), None, "word of a lease")
        self._raise_if_lost()
        with driver.changed:
            agent.held.deliver(holding, position)

    def commit(self, cursor: int | None = None) -> None:
        """Ask for all before ``cursor`` (default: the end) to be committed. Returns at once; :meth:`Coordination.flush`
        waits, and says what was refused.

        Only what was delivered may be committed.

        Raises:
            LeaseLostError: others have the split now.
        """
        owner, holding = self._owner, self._holding
        cursor = self.end if cursor is None else cursor
        if not self.begin <= cursor <= holding.delivered:
            raise ConfigError(
                f"only what was delivered can be committed: {cursor} of {self!r}, delivered up to {holding.delivered}"
            )
        self._raise_if_lost()
        with owner._driver.changed:
            owner._driver.clock.now = time.monotonic()
            owner._current().held.commit(holding, cursor)
            owner._driver.wake()

    def give_up(self, reason: str) -> None:
        """Say that the rest of the split can not be worked on.

        Others try; after ``CoordinationSettings.attempts`` it is set aside.
        """
        driver = self._owner._driver
        with driver.changed:
            self._owner._current().held.give_up(self._holding, reason)
            driver.wake()

    def _raise_if_lost(self) -> None:
        self._owner._driver.raise_if_failed()
        if self._holding.lost:
            raise LeaseLostError(
                f"the lease of {self!r} is lost: {self._holding.lost}; {self.committed} was its last commit"
            )


class Coordination:
    """One worker's part in a run.

    Args:
        store: an engine, or its URL (:func:`~stoker.coordination.engines.store.open_store`).
        run: the run's id: workers with the same id at the same engine work together.
        rank: this worker's, in ``[0, world_size)``; no two live processes may have the same.
        world_size: most workers that take part. They may come late, leave, die and be replaced.
        positions: positions of an epoch; or, for lanes that belong to ranks (``settings.threshold``), how many each
            rank's part has: then part r is positions ``[sum(positions[:r]), sum(positions[:r + 1]))``.
        identity: names and JSON values that must be the same for all workers: fingerprint, seed, order settings.
        settings: times, sizes and thresholds; the same for all workers.
        ahead: splits leased beyond the one that is worked on.
        commit_every: seconds after which the part of a split that is done is committed.
        patience: seconds without an answer from the engine after which waiting calls raise EngineError.
        lanes: number of lanes; by default as many as workers, so that their writes seldom meet.
        takes_over: whether this worker, rather than any that has no more work, continues a lane whose worker (that with
            the lane's number as rank, where there are as many lanes as ranks) is lost: because it holds the lane's
            shards, say. Asked for lost workers' lanes, often.

    Raises:
        ConfigError: the arguments make no sense.
        EngineError: the engine can not be reached.

    A background thread does all that takes time. Use it as a context manager, or call :meth:`leave`.
    """

    def __init__(
        self,
        store: str | CoordinationStore,
        run: str,
        *,
        rank: int,
        world_size: int,
        positions: int | Sequence[int],
        identity: Mapping[str, Any] | None = None,
        settings: CoordinationSettings | None = None,
        ahead: int = 1,
        commit_every: float = 1.0,
        patience: float = 120.0,
        lanes: int | None = None,
        takes_over: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.settings = settings = settings or CoordinationSettings()
        check_worker(run, rank, world_size, settings)
        self._starts = lane_starts(positions, world_size, settings, lanes)
        # As it will be once it was written and read, so that it compares.
        self._identity = tuple(json.loads(json.dumps(dict(identity or {}))).items())
        self._world_size = world_size
        self._takes_over = takes_over
        self._ahead, self._commit_every, self._patience = ahead, commit_every, patience
        # A call is not broken off: it must be shorter than what the caller allows.
        limit = min(10.0, settings.lease / 4, patience / 2)
        self._owns_store = isinstance(store, str)
        if isinstance(store, str):
            store = until_answered(partial(open_store, store, timeout=limit), store, min(patience, _OPENING))
        self._store = store
        self._records = RunRecords(self._store, run)
        clock = ProtocolClock(time.monotonic())
        self._driver = Driver(self._store, clock, patience)
        self._member = Membership(self._records.keys, rank, here(), settings, clock, is_gone)
        self._agent: Agent | None = None

    # -- the run ---------------------------------------------------------------------------------------------------

    def begin_epoch(self, number: int) -> None:
        """Take part in an epoch. The first call takes the rank.

        Raises:
            RankTakenError: another live process has the rank.
            ConfigError: settings or identity are not those of the other workers; or the epoch before is not over.
            EngineError: the engine does not answer.
        """
        self._end_epoch()
        driver, records = self._driver, self._records
        before = driver.insist(lambda: records.epoch(number - 1)) if number > 0 else None
        if before is not None:
            left = sum(end - begin for begin, end in uncommitted(driver.insist(lambda: records.lanes(before))))
            if left:
                raise ConfigError(
                    f"epoch {number} can not begin: {left} samples of epoch {number - 1} of run {records.keys.run!r} are "
                    f"not committed yet"
                )
        epoch = driver.insist(lambda: records.open_epoch(self._wanted(number)))
        if self._member.incarnation == 0:
            driver.run(self._member.join, self._patience)
        driver.clock.now = time.monotonic()
        self._agent = Agent(
            epoch, self._member, ahead=self._ahead, commit_every=self._commit_every, takes_over=self._takes_over
        )
        driver.start(self._agent.run())

    def restore(self, checkpoint: dict[str, Any], *, rollback: bool = False, attempt: int = 0) -> None:
        """Bring the checkpoint's epoch back to where it was; call it before :meth:`begin_epoch`.

        All workers may call it; it is done once. Workers that are in the epoch lose their splits.

        Args:
            checkpoint: what :meth:`checkpoint` gave.
            rollback: undo commits that the engine has and the checkpoint lacks. They are delivered again.
            attempt: another number each time that a run goes back to the same checkpoint.

        Raises:
            StateError: it is of another epoch, dataset, order or world.
            StaleCheckpointError: the engine is further on, and ``rollback`` is not set.
        """
        wanted = self._wanted(int(checkpoint.get("epoch", 0)))
        records = self._records
        self._driver.insist(lambda: records.restore(wanted, checkpoint, rollback=rollback, attempt=attempt))

    def leave(self, timeout: float = 30.0) -> None:
        """Commit what was asked for, give back the rest, and let the rank go. May be called twice.

        Raises:
            EngineError: the engine did not answer in time; what this worker held is given to others after the lease.
        """
        try:
            if not self._driver.failed:
                self._end_epoch(timeout)
                if self._member.incarnation and not self._member.record.left:
                    self._driver.run(self._member.leave, timeout)
        finally:
            if self._owns_store and not self._driver.forked:
                self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.leave()
        except EngineError:
            if kind is None:
                raise
            _log.warning("left run %r without telling its engine", self._records.keys.run, exc_info=True)

    # -- work ------------------------------------------------------------------------------------------------------

    def next_split(self, timeout: float | None = None) -> LeasedSplit | None:
        """The next split to work on; ``None`` when all of the epoch is committed, by this or other workers.

        While others have all that is left, it waits: their work may become this worker's.

        Raises:
            StalledError: what is left was set aside; names it.
            WaitTimeoutError: nothing after ``timeout`` seconds.
            EngineError: the engine has not answered for ``patience`` seconds.
        """
        agent = self._current()
        holding: Holding | None = None

        def ready() -> bool:
            nonlocal holding
            holding = agent.take()
            return holding is not None or agent.over

        self._driver.wait(ready, timeout, "a split")
        if holding is not None:
            return LeasedSplit(self, holding)
        self._raise_if_stalled()
        return None

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was asked for is committed, or refused.

        Raises:
            CommitRefusedError: leases were lost before that, of what was asked for since the last call; names the positions,
                who has them, and which of them were delivered to this worker again since.
            WaitTimeoutError: not after ``timeout`` seconds.
            EngineError: the engine has not answered for ``patience`` seconds; names the positions of which it is not known
                whether they are committed. Call it again when the engine answers: what it has is read first.
        """
        agent = self._current()
        with self._driver.changed:
            agent.flush = True
            self._driver.wake()
        try:
            self._driver.wait(lambda: agent.held.settled, timeout, "commits")
        except EngineError as error:
            with self._driver.changed:
                doubtful = [f"[{one.committed}, {one.wanted})" for one in agent.held if one.due]
            if not doubtful:
                raise
            raise EngineError(
                f"{error}. Whether {', '.join(doubtful)} are committed is not known: commit again when the engine answers, "
                "which reads what it has, before you discard or repeat what was made of them",
                url=error.url,
            ) from error
        with self._driver.changed:
            refused = agent.held.refused.copy()
        if refused:
            refusal = CommitRefusedError(self.with_owners(refused))
            with self._driver.changed:  # only now: the engine has said whose they are
                del agent.held.refused[: len(refused)]
            raise refusal

    def with_owners(self, refused: Sequence[RefusedRange]) -> tuple[RefusedRange, ...]:
        """The refused ranges, with who has them now."""
        ask, epoch = self._records.owners, self.epoch
        return tuple(
            [one._replace(owners=self._driver.insist(partial(ask, epoch, one.begin, one.end))) for one in refused]
        )

    def wait_finished(self, timeout: float | None = None) -> None:
        """Wait until all workers together have committed the epoch; this worker must hold nothing.

        Raises:
            StalledError: what is left was set aside; names it.
            WaitTimeoutError: not after ``timeout`` seconds.
            EngineError: the engine has not answered for ``patience`` seconds.
        """
        agent = self._current()
        with self._driver.changed:
            agent.ahead = -1
            self._driver.wake()
        self._driver.wait(lambda: agent.over, timeout, "the end of the epoch")
        self._raise_if_stalled()

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        """The epoch that was begun."""
        return self._current().epoch

    @property
    def incarnation(self) -> int:
        """Number of processes that have had this rank, including this one; 0 before the first epoch."""
        return self._member.incarnation

    def health(self) -> list[WorkerHealth]:
        """All ranks, in order."""
        return self._driver.insist(lambda: self._records.health(self.epoch))

    def progress(self) -> EpochProgress:
        """The epoch's progress, of all workers together."""
        return self._driver.insist(lambda: self._records.progress(self.epoch))

    def checkpoint(self) -> dict[str, Any]:
        """The epoch's state as a JSON dict, for :meth:`restore`. It holds all commits acknowledged before the call."""
        epoch = self.epoch
        return self._driver.insist(lambda: take(epoch, self._records.lanes(epoch)))

    def assignment(self) -> list[Entry]:
        """The positions that each worker has committed, for :class:`~stoker.coordination.checkpoint.Replay`."""
        return self._driver.insist(lambda: self._records.assignment(self.epoch))

    def forget_epoch(self, number: int) -> int:
        """Remove the records of an epoch that is over; returns how many they were.

        Raises:
            StateError: it is not over.
        """
        epoch = self._driver.insist(lambda: self._records.epoch(number))
        return 0 if epoch is None else self._driver.insist(lambda: self._records.forget_epoch(epoch))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _wanted(self, number: int) -> Epoch:
        return Epoch(number, 1, self._world_size, self._starts, None, self._identity, self.settings)

    def _current(self) -> Agent:
        if self._agent is None:
            raise ConfigError("no epoch has begun: call begin_epoch first")
        return self._agent

    def _end_epoch(self, timeout: float | None = None) -> None:
        """Stop the background thread, when all it holds is committed or given back."""
        if self._agent is None:
            return
        with self._driver.changed:
            self._agent.stopping = True
            self._driver.wake()
        self._driver.stop(self._patience if timeout is None else timeout)
        if self._agent.held.refused:
            ranges = ", ".join([f"[{one.begin}, {one.end})" for one in self._agent.held.refused])
            _log.warning(
                "run %r, rank %d: the commits of positions %s of epoch %d were refused, as their leases were lost",
                self._records.keys.run,
                self._member.rank,
                ranges,
                self._agent.epoch.number,
            )
        self._agent = None

    def _raise_if_stalled(self) -> None:
        agent = self._current()
        lanes: list[Lane] = [entry.value for entry in agent.watch.lanes.values()]
        stalled = sorted([one for lane in lanes for one in lane.aside])
        if stalled:
            listed = "; ".join([f"[{p.begin}, {p.end}): {p.reason}" for p in stalled[:8]])
            more = f"; and {len(stalled) - 8} more" if len(stalled) > 8 else ""
            raise StalledError(
                f"epoch {agent.epoch.number} of run {self._records.keys.run!r} can not be finished: after "
                f"{self.settings.attempts} attempts each were set aside {listed}{more}"
            )
