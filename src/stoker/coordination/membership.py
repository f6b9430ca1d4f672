"""A worker's record: how a process takes a rank, renews its leases, and goes. A protocol without clock or engine."""

from __future__ import annotations

from collections.abc import Callable

from stoker.coordination.errors import EngineRegressedError, RankTakenError
from stoker.coordination.health import Observer
from stoker.coordination.records import (
    CoordinationSettings,
    Create,
    Get,
    Keys,
    Process,
    Sleep,
    Steps,
    Swap,
    WorkerRecord,
)
from stoker.integers import mix


class ProtocolClock:
    """The time of a protocol: its driver sets ``now`` before each step, from a monotonic clock."""

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now


class Membership:
    """One process's hold on a rank.

    Attributes:
        gone: whether another process has certainly ended.
        record: what was last said, or tried to be.
        valid_until: until then no observer can take this worker for lost, by this worker's clock.
    """

    def __init__(
        self,
        keys: Keys,
        rank: int,
        process: Process,
        settings: CoordinationSettings,
        clock: ProtocolClock,
        gone: Callable[[Process], bool] = lambda _: False,
    ) -> None:
        self.record = WorkerRecord(rank, 0, 0, process)
        self.renew_at = self.valid_until = clock.now
        self.keys, self.clock, self.gone = keys, clock, gone
        self._key = keys.worker(rank)
        self._settings = settings
        self._version = 0

    @property
    def rank(self) -> int:
        """The rank."""
        return self.record.rank

    @property
    def incarnation(self) -> int:
        """Number of processes that have had the rank, including this one; 0 before it has joined."""
        return self.record.incarnation

    def join(self) -> Steps:
        """Take the rank. If another process has it, watch that one until it has moved twice or been silent for a lease.

        May be called again where it was :class:`Unanswered`.
        """
        clock, settings = self.clock, self._settings
        rank, process = self.record.rank, self.record.process
        observer, last, moves = Observer(), None, 0
        while True:
            sent = clock.now
            (found,) = yield Get((self._key,))
            if found is None:
                taken, attempt = WorkerRecord(rank, 1, 1, process), None
            else:
                other: WorkerRecord = found.value
                if other.process.nonce == process.nonce:
                    # A write of ours that got no answer. Nobody knows how old it is: renew before anything else.
                    self.record, self._version = other, found.version
                    self.renew_at = self.valid_until = clock.now
                    return
                mark = (other.incarnation, other.counter)
                moves += last is not None and mark != last
                last = mark
                # A write that was under way when its process died can move the counter once.
                if moves > 1:
                    raise RankTakenError(
                        f"rank {rank} is taken: {other.process} has it and is alive, and {process} wants it too: give each "
                        f"process a rank of its own, or end the other"
                    )
                quiet = observer.see(rank, mark, sent, clock.now)
                if not (other.left or quiet >= settings.lease or self.gone(other.process)):
                    yield Sleep(clock.now + settings.lease / 8)
                    continue
                taken, attempt = WorkerRecord(rank, other.incarnation + 1, 1, process), found.version
            sent = clock.now
            version = yield Create(self._key, taken) if attempt is None else Swap(self._key, taken, attempt)
            if version is not None:
                self.record, self._version = taken, version
                self._renewed(sent)
                return

    def renew(self, record: WorkerRecord) -> Steps:
        """Move the counter, and say what the record says.

        May be called again where it was :class:`Unanswered`.
        """
        clock = self.clock
        sent = clock.now
        self.record = record._replace(counter=self.record.counter + 1)
        # Soon again, if this fails.
        self.renew_at = sent + self._settings.heartbeat / 4
        version = yield Swap(self._key, self.record, self._version)
        if version is None:
            (found,) = yield Get((self._key,))
            if found is None:
                raise EngineRegressedError(
                    f"the engine no longer knows rank {self.rank}, which had joined: it has lost its records: resume from a "
                    f"checkpoint"
                )
            other: WorkerRecord = found.value
            if other.process.nonce != self.record.process.nonce:
                raise RankTakenError(
                    f"rank {self.rank} was taken over by {other.process}, as {self.record.process} was not seen for "
                    f"{self._settings.lease:g} s: end one of them"
                )
            # An earlier renewal without an answer was done after all.
            self._version = found.version
            sent = clock.now
            self.record = self.record._replace(counter=self.record.counter + 1)
            version = yield Swap(self._key, self.record, self._version)
            if version is None:
                self.renew_at = clock.now
                return
        self._version = version
        self._renewed(sent)

    def leave(self) -> Steps:
        """Say that the process is gone; it must hold nothing. The next process with the rank need not wait."""
        yield from self.renew(self.record._replace(left=True, held=()))

    def _renewed(self, sent: float) -> None:
        self.valid_until = sent + self._settings.valid
        # Workers that began together drift apart.
        jitter = 0.8 + 0.2 * (mix(self.rank, self.record.counter) % 1024) / 1024
        self.renew_at = sent + self._settings.heartbeat * jitter
