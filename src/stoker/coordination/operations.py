"""The operations that a worker's protocol yields, as plain values: reads, compare-and-sets, and sleeps."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from stoker.coordination.history.records import Epoch, Record

Version: TypeAlias = int
"""Unlike the version of any other write of any record, ever."""


class Versioned(NamedTuple):
    """A record and the version of the write that made it."""

    value: Any
    version: Version


class Get(NamedTuple):
    """Read records. Answer: ``list[Versioned | None]``, in the keys' order; not one moment's, each is read by itself."""

    keys: tuple[str, ...]


class Create(NamedTuple):
    """Write a record if there is none. Answer: its version, or ``None`` if there was one."""

    key: str
    value: Record


class Swap(NamedTuple):
    """Write a record if it still has a version. Answer: its new version, or ``None`` if it has another, or is gone."""

    key: str
    value: Record
    version: Version


class Sleep(NamedTuple):
    """Continue at this time by the worker's clock, or when its consumer wants something. Answer: ``None``."""

    until: float


Operation: TypeAlias = Get | Create | Swap | Sleep

Steps: TypeAlias = Generator[Operation, Any, Any]
"""A protocol: yields operations, is sent their answers, or has :class:`Unanswered` thrown in."""


class Unanswered(Exception):  # noqa: N818 - it is no error of the program, but an answer
    """No answer came in time. A write may have been done, may be done later, or never."""


class Keys:
    """Names of a run's records."""

    __slots__ = ("run",)

    def __init__(self, run: str) -> None:
        self.run = run

    def epoch(self, number: int) -> str:
        """The record of an epoch."""
        return f"{self.run}/epoch/{number:08d}"

    def worker(self, rank: int) -> str:
        """The record of a worker, for all epochs."""
        return f"{self.run}/worker/{rank:06d}"

    def lane(self, epoch: Epoch, number: int) -> str:
        """The record of a lane of an epoch, in its present incarnation."""
        return f"{self.run}/lane/{epoch.number:08d}.{epoch.incarnation}/{number:06d}"

    def log(self, epoch: int, incarnation: int, lane: int, chunk: int) -> str:
        """A chunk of a lane's log."""
        return f"{self.run}/log/{epoch:08d}.{incarnation}/{lane:06d}/{chunk:08d}"

    def summary(self, epoch: Epoch) -> str:
        """The summary that the watching worker publishes."""
        return f"{self.run}/summary/{epoch.number:08d}.{epoch.incarnation}"
