"""Errors of coordinated work. Their bases are stoker's, so ``except StokerError`` catches them all."""

from __future__ import annotations

import time
from typing import NamedTuple

from stoker.errors import ConfigError, StateError, StokerError, StorageTimeoutError


class EngineError(StorageTimeoutError):
    """The engine that holds the run's records gave no answer within the time limit. What was asked may or may not
    have been done."""


def no_answer(url: str, begun: float, reason: object, remedy: str) -> EngineError:
    """The error for a call that was begun at ``begun``, by the monotonic clock, and has ended without an answer."""
    waited = time.monotonic() - begun
    return EngineError(f"the engine {url} gave no answer in {waited:.1f} s ({reason}): {remedy}", url=url)


def engine_timeout_error(url: str, begun: float, patience: float, last: EngineError | None) -> EngineError:
    """The error for an engine that was asked again and again since ``begun``, for as long as the caller allowed."""
    waited = time.monotonic() - begun
    said = "" if last is None else f"; last error: {last}"
    error = EngineError(
        f"the engine {url} has not answered for {waited:.1f} s, more than patience={patience:g} allows{said}", url=url
    )
    error.__cause__ = last
    return error


class EngineRegressedError(StateError):
    """The engine has forgotten writes that it had acknowledged: resume from a checkpoint."""


class LeaseLostError(StokerError):
    """A split is no longer this worker's: nothing more of it may be delivered or committed by this worker."""


class Owner(NamedTuple):
    """The owner of a range of an epoch's positions.

    Attributes:
        begin: first position.
        end: one past the last.
        rank: whose they are; ``None`` where nobody has them yet, or where it is not recorded.
        committed: whether they are committed, and not only leased.
    """

    begin: int
    end: int
    rank: int | None
    committed: bool

    def __str__(self) -> str:
        where = f"[{self.begin}, {self.end})"
        if self.rank is None:
            return f"{where} is {'committed' if self.committed else 'not leased yet'}"
        return f"rank {self.rank} has {'committed' if self.committed else 'leased'} {where}"


class RefusedRange(NamedTuple):
    """Positions that a worker has delivered, and whose commit was refused.

    Attributes:
        begin: first position.
        end: one past the last.
        owners: the owners of its parts at the time of asking.
        token: :attr:`LeasedSplit.token` of the lease under which they were delivered.
        again: whether this worker has had them delivered again since, under a later lease.
    """

    begin: int
    end: int
    owners: tuple[Owner, ...] = ()
    token: int = 0
    again: bool = False

    def __str__(self) -> str:
        again = "delivered to this worker again since; " if self.again else ""
        return f"[{self.begin}, {self.end}) ({again}{'; '.join(map(str, self.owners)) or 'others have them'})"

    def parts(self, begin: int, end: int) -> list[RefusedRange]:
        """Its parts, where the positions ``[begin, end)`` are delivered again."""
        low, high = max(self.begin, begin), min(self.end, end)
        if self.again or low >= high:
            return [self]
        parts = (
            self._replace(end=low),
            self._replace(begin=low, end=high, again=True),
            self._replace(begin=high),
        )
        return [part for part in parts if part.begin < part.end]


class EngineReplacedError(EngineRegressedError):
    """The engine's records are not those that it was opened with: its file was deleted or replaced, or its server emptied.

    Workers that continue with the old records and those that come with the new ones would do the same work twice.
    """


class CommitRefusedError(LeaseLostError):
    """Some of what was to be committed was not: its lease was lost, and others have it or will. Discard what was made of it.

    All else that was to be committed is committed. What is refused is a delivery: the same positions may have come to this
    worker again, under a later lease, which is another delivery.

    Attributes:
        refused: what was refused, by position and lease.
    """

    def __init__(self, refused: tuple[RefusedRange, ...]) -> None:
        super().__init__(
            f"commits were refused, as their leases were lost: {'; '.join(map(str, refused))}. Discard what was made of "
            "these samples: others make it"
        )
        self.refused = refused

    def __reduce__(self) -> tuple[type[CommitRefusedError], tuple[tuple[RefusedRange, ...]]]:
        return CommitRefusedError, (self.refused,)

    def covers(self, position: int) -> bool:
        """Whether the last delivery of a position to this worker was refused: what was made of it is to be discarded."""
        return any(one.begin <= position < one.end and not one.again for one in self.refused)


class RankTakenError(ConfigError):
    """Another live process has this rank."""


class StaleCheckpointError(StateError):
    """The engine knows of commits that the checkpoint does not have."""


class StalledError(StokerError):
    """All that is left of the epoch are splits that failed too often and were set aside."""


class WaitTimeoutError(StokerError, TimeoutError):
    """The event that a call waits for did not happen within the caller's time limit."""
