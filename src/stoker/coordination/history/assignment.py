"""The recorded assignment: the worker that committed each position, and a replay of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.coordination.history.records import Entry, Lane
from stoker.errors import ConfigError, StateError

__all__ = ["Replay", "entries_of", "from_rows", "partial", "to_rows"]


def entries_of(lanes: Sequence[Lane], chunks: Sequence[Sequence[Entry]]) -> list[Entry]:
    """All entries of one incarnation of an epoch so far, what is committed of splits that are out included.

    Args:
        lanes: all its lanes.
        chunks: for each lane the entries of its chunks, in order.
    """
    found: list[Entry] = []
    for lane, earlier in zip(lanes, chunks, strict=True):
        found += [*earlier, *lane.log, *partial(lane)]
    return found


def partial(lane: Lane) -> list[Entry]:
    """The committed parts of a lane's splits that are leased."""
    return [
        Entry(s.begin, s.cursor, s.rank, s.incarnation, s.turn, s.token)
        for s in lane.splits
        if s.begin < s.cursor < s.end
    ]


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


def to_rows(entries: Iterable[Entry]) -> list[list[int]]:
    """Entries as JSON can have them."""
    return [list(entry) for entry in entries]


def from_rows(rows: Iterable[Sequence[int]]) -> list[Entry]:
    """The entries that :func:`to_rows` made.

    Raises:
        StateError: they are none.
    """
    try:
        return [Entry(*[int(number) for number in row]) for row in rows]
    except (TypeError, ValueError) as error:
        raise StateError(f"not a recorded assignment: {error}") from error
