"""The recorded assignment of an epoch: the worker that committed each position, what it is of, and a replay of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.coordination.history.checkpoint import differences
from stoker.coordination.history.records import Entry, from_rows, to_rows
from stoker.errors import ConfigError, StateError
from stoker.storage.recorded_versions import with_versions_of

_VERSION: Final = 1


class Replay:
    """The same assignment again: each rank gets the ranges that it committed, in the order in which it did.

    Args:
        entries: of a whole epoch.
        total: positions of the epoch.
        world_size: ranks of the run that replays.

    Raises:
        StateError: the entries do not cover the epoch, each position once.
        ConfigError: an entry's rank is not in this world.
    """

    def __init__(self, entries: Iterable[Entry], total: int, world_size: int) -> None:
        ordered = sorted(entries)
        position = 0
        for entry in ordered:
            if entry.begin != position or entry.end <= entry.begin:
                raise StateError(
                    f"the recorded assignment has a gap or an overlap at position {min(position, entry.begin)}: it is not "
                    f"that of a whole epoch"
                )
            position = entry.end
        if position != total:
            raise StateError(
                f"the recorded assignment ends at {position}, the epoch at {total}: it is not that of a whole epoch"
            )
        highest = max([entry.rank for entry in ordered], default=-1)
        if highest >= world_size:
            raise ConfigError(
                f"the recorded assignment has rank {highest}, this world has {world_size} ranks: replay it in a world of at "
                f"least {highest + 1}"
            )
        self._splits: list[list[tuple[int, int]]] = [[] for _ in range(world_size)]
        for entry in sorted(ordered, key=lambda e: (e.rank, e.incarnation, e.turn)):
            self._splits[entry.rank].append((entry.begin, entry.end))

    def splits(self, rank: int) -> list[tuple[int, int]]:
        """The ranges of a rank, in its order."""
        return self._splits[rank]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A recorded assignment of an epoch, and what it is of.

    Attributes:
        identity: names and JSON values of what the positions follow from: data set, order and settings.
    """

    epoch: int
    world_size: int
    identity: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def as_dict(self) -> dict[str, Any]:
        """The assignment as JSON can have it."""
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "world_size": self.world_size,
            "identity": dict(self.identity),
            "entries": to_rows(self.entries),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Assignment:
        """The assignment that :meth:`as_dict` gave."""
        try:
            version, epoch, world_size = (values[name] for name in ("version", "epoch", "world_size"))
            identity, rows = values["identity"], values["entries"]
            good = version == _VERSION and all(type(number) is int and number >= 0 for number in (epoch, world_size))
        except (KeyError, TypeError, IndexError):
            good, identity, rows, epoch, world_size = False, None, (), 0, 0
        if not good or not isinstance(identity, Mapping):
            raise StateError("not a recorded assignment: give what loader.assignment() returned, whole")
        return cls(epoch, world_size, dict(identity), tuple(from_rows(rows)))

    def check(self, identity: Mapping[str, Any]) -> None:
        """Check that an order is the one that was recorded."""
        ours, theirs = _comparable(identity), _comparable(with_versions_of(self.identity, identity))
        if ours != theirs:
            said = differences(theirs, ours, "the recorded assignment", "this loader")
            raise StateError(f"the recorded assignment is of another data set, order or settings: {said}")


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """As it is once it was written and read; without the name of a single stream, which is that of its directory."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(identity)))
    streams = plain.get("streams")
    if isinstance(streams, dict) and len(streams) == 1:
        plain["streams"] = list(streams.values())
    return plain
