"""Checkpoints of an epoch, and the way back to one; and its recorded assignment: who committed what, and a replay of it.

All are pure functions; a checkpoint is a dict of JSON's types.

It holds the ranges that are *not* committed: what is out, given back and unleased, merged. So it grows with what is in
flight, and not with the samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.coordination.errors import StaleCheckpointError
from stoker.coordination.records import Entry, Epoch, History, Lane, from_rows, to_rows
from stoker.coordination.rules import log_entries, partial
from stoker.errors import ConfigError, StateError
from stoker.storage.versions import with_versions_of

_VERSION = 1


def uncommitted(lanes: Sequence[Lane]) -> list[tuple[int, int]]:
    """Ranges that are not committed, sorted, disjoint, none next to another."""
    ranges: list[tuple[int, int]] = []
    for lane in lanes:
        ranges += [(lane.front, lane.back)] if lane.front < lane.back else []
        ranges += [(one.begin, one.end) for one in (*lane.free, *lane.aside)]
        ranges += [(split.cursor, split.end) for split in lane.splits if split.cursor < split.end]
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def take(epoch: Epoch, lanes: Sequence[Lane]) -> dict[str, Any]:
    """A checkpoint of an epoch, from all its lanes. Each lane is of one moment; the moments may differ."""
    return {
        "version": _VERSION,
        "epoch": epoch.number,
        "incarnation": epoch.incarnation,
        "world_size": epoch.world_size,
        "starts": list(epoch.starts),
        "identity": dict(epoch.identity),
        "left": [list(part) for part in uncommitted(lanes)],
        "again": sum([lane.again for lane in lanes]),
        "exposed": sum([lane.exposed for lane in lanes]),
        "counts": [max(0, log_entries(lane) - 1) for lane in lanes],
        "partial": to_rows([entry for lane in lanes for entry in (*lane.log[-1:], *partial(lane))]),
        "history": [[h.incarnation, list(h.counts), to_rows(h.partial)] for h in epoch.history],
    }


def restored(
    wanted: Epoch,
    checkpoint: Mapping[str, Any],
    found: Epoch | None,
    lanes: Sequence[Lane],
    *,
    rollback: bool,
    attempt: int,
) -> Epoch | None:
    """The epoch's record after going back to a checkpoint.

    ``None`` if the engine is already where the checkpoint is. ``rollback`` says that commits which the engine has and the
    checkpoint lacks are to be undone; ``attempt`` tells apart several times that a run goes back to the same checkpoint.
    """
    try:
        if checkpoint["version"] != _VERSION:
            raise StateError(f"the checkpoint has format {checkpoint['version']}, this stoker reads format {_VERSION}")
        theirs = {"epoch": checkpoint["epoch"], "starts": tuple(checkpoint["starts"]), **checkpoint["identity"]}
        left = tuple([(int(begin), int(end)) for begin, end in checkpoint["left"]])
        history = tuple([History(k, tuple(counts), tuple(from_rows(es))) for k, counts, es in checkpoint["history"]])
        here = History(checkpoint["incarnation"], tuple(checkpoint["counts"]), tuple(from_rows(checkpoint["partial"])))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"not a checkpoint of a coordinated epoch: {error!r}") from error
    ours = {"epoch": wanted.number, "starts": wanted.starts, **dict(wanted.identity)}
    theirs = with_versions_of(theirs, ours)
    if theirs != ours:
        raise StateError(
            f"the checkpoint is not of this epoch: {differences(theirs, ours, 'the checkpoint', 'this run')}"
        )
    if any(not 0 <= a < b <= wanted.starts[-1] for a, b in left):
        raise StateError(f"the checkpoint has ranges outside of the epoch's {wanted.starts[-1]} positions")
    digest = hashlib.sha256(json.dumps(dict(checkpoint), sort_keys=True).encode()).hexdigest()[:16]
    name = f"{digest}:{attempt}"
    if found is not None and found.restored == name:
        return None
    incarnation = here.incarnation
    if found is not None:
        engine_left = uncommitted(lanes)
        if found.incarnation == incarnation and engine_left == list(left):
            return None
        more = _length(left) - _length(_common(list(left), engine_left))
        if (more or found.incarnation > incarnation) and not rollback:
            raise StaleCheckpointError(
                f"the checkpoint of epoch {wanted.number} is stale: it is of incarnation {incarnation} with "
                f"{wanted.starts[-1] - _length(left)} samples committed; the engine is at incarnation {found.incarnation} "
                f"with {wanted.starts[-1] - _length(engine_left)}, {more} of which the checkpoint lacks: continue without "
                f"restoring, or pass rollback=True to have them delivered again"
            )
        incarnation = max(incarnation, found.incarnation)
    return wanted._replace(incarnation=incarnation + 1, left=left, history=(*history, here), restored=name)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], them: str, us: str) -> str:
    """The fields that differ, with the values of both sides, as a sentence."""
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    return "; ".join(
        [f"{name} is {_short(theirs.get(name))} in {them} and {_short(ours.get(name))} in {us}" for name in names]
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _length(ranges: Sequence[tuple[int, int]]) -> int:
    return sum([end - begin for begin, end in ranges])


def _common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The intersection of two sorted lists of disjoint ranges."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            found.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


_ASSIGNMENT: Final = 1


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

    ``identity``: names and JSON values of what the positions follow from: data set, order and settings.
    """

    epoch: int
    world_size: int
    identity: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def as_dict(self) -> dict[str, Any]:
        """The assignment as JSON can have it."""
        return {
            "version": _ASSIGNMENT,
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
            good = version == _ASSIGNMENT and all(type(number) is int and number >= 0 for number in (epoch, world_size))
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
