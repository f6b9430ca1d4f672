"""The rules of lanes: pure functions from one lane record to the next.

They know neither clock nor engine. What makes them safe together is that each result replaces the record it was made
from by compare-and-set, or is thrown away. From these alone it follows that every position is committed exactly once:

* a position is in exactly one of these: unleased, in one split, in one piece given back, set aside, or committed;
* only :func:`commit` commits, only for the split's owner and token, and only forwards;
* after :func:`give_back` a token commits nothing more, and tokens only grow, so a commit that shows it is refused for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.coordination.records import Entry, Epoch, Lane, LogChunk, ReturnedRange, SplitRecord
from stoker.errors import ConfigError

TOKEN_BITS = 40
"""Tokens of an epoch's incarnation i begin at ``i << 40``, so no token of an earlier one is as large."""

_LOG_TAIL = 40
_LOG_CHUNK = 32


def first_lane(epoch: Epoch, number: int) -> Lane:
    """A lane as its epoch begins: all of it unleased, or what a checkpoint had left of it."""
    begin, end = epoch.starts[number : number + 2]
    token = epoch.incarnation << TOKEN_BITS
    if epoch.left is None:
        return Lane(number, begin, end, begin, end, token)
    ranges = [(max(a, begin), min(b, end)) for a, b in epoch.left if a < end and b > begin]
    if not ranges:
        return Lane(number, begin, end, end, end, token)
    longest = max(ranges, key=lambda part: part[1] - part[0])
    returned = tuple([ReturnedRange(a, b, 0, "") for a, b in ranges if (a, b) != longest])
    return Lane(number, begin, end, *longest, token, free=returned)


def lease(
    lane: Lane, rank: int, incarnation: int, turn: int, size: int, *, from_back: bool = False
) -> tuple[Lane, SplitRecord] | None:
    """Lease the next split to a worker.

    Returned ranges go first. A range on which leases were lost twice waits until no other is there, and is then leased in
    ever smaller parts. Ranges that repeatedly kill workers are so split that few samples are set aside.

    ``turn`` is how many splits the worker had before. ``from_back`` takes from the back of what is unleased: for workers
    whose lane this is not, so that those whose lane it is read on in order.
    """
    token = lane.token + 1

    def leased(begin: int, end: int, attempts: int = 0, **rest: Any) -> tuple[Lane, SplitRecord]:
        split = SplitRecord(begin, end, begin, rank, incarnation, turn, token, attempts)
        return lane._replace(token=token, splits=(*lane.splits, split), **rest), split

    if lane.free:
        which = min(range(len(lane.free)), key=lambda k: (lane.free[k].attempts, lane.free[k].begin))
        returned = lane.free[which]
        if returned.attempts < 2 or lane.front == lane.back:
            length = returned.end - returned.begin
            most = length if returned.attempts < 2 else max(1, length >> (returned.attempts - 1))
            end = returned.begin + min(size, most)
            rest = () if end == returned.end else (returned._replace(begin=end),)
            free = lane.free[:which] + rest + lane.free[which + 1 :]
            return leased(returned.begin, end, returned.attempts, free=free)
    if lane.front == lane.back:
        return None
    if from_back:
        begin = max(lane.front, lane.back - size)
        return leased(begin, lane.back, back=begin)
    end = min(lane.back, lane.front + size)
    return leased(lane.front, end, front=end)


def commit(lane: Lane, rank: int, incarnation: int, token: int, cursor: int, *, record: bool = True) -> Lane | None:
    """Commit a split up to a position.

    Committing again, or less than before, changes nothing.

    ``None`` if the token is no longer in the lane for this worker, or was taken from it: the commit is refused.
    """
    index = next((k for k, split in enumerate(lane.splits) if split.token == token), None)
    if index is None:
        return None
    split = lane.splits[index]
    if split.rank != rank or split.incarnation != incarnation:
        return None
    if cursor <= split.cursor:
        return lane
    if split.cursor == split.end:
        return None
    if cursor > split.end:
        raise ConfigError(f"position {cursor} is not of the split [{split.begin}, {split.end})")
    moved = split._replace(cursor=cursor)
    splits = (*lane.splits[:index], moved, *lane.splits[index + 1 :])
    if cursor == split.end and record:
        return lane._replace(splits=splits, log=_noted(lane.log, moved))
    return lane._replace(splits=splits)


def cleared(lane: Lane, rank: int, incarnation: int) -> Lane:
    """The lane without the splits that this worker has committed to their ends, and now knows of."""
    kept = [s for s in lane.splits if s.rank != rank or s.incarnation != incarnation or s.cursor < s.end]
    return lane if len(kept) == len(lane.splits) else lane._replace(splits=tuple(kept))


def give_back(
    lane: Lane,
    split: SplitRecord,
    reason: str,
    *,
    lost: bool,
    delivered: int,
    attempts: int,
    blame: bool = True,
    record: bool = True,
) -> Lane:
    """Take a split from its worker; what it had not committed can be leased again, under a new token.

    What it had committed stays, as a split that ends there: so a worker that got no answer sees which of its commits were
    taken. Giving that back forgets it.

    ``reason``: kept for the message that names what was set aside. ``lost``: whether nobody knows how far the worker has
    delivered: it may be all. ``delivered``: one past the last position that it is known to have delivered. ``attempts``: how
    many such leases without a commit the range is given in all. ``blame``: whether this lease counts as one. A worker that
    leaves in good order is no reason to think ill of it.
    """
    splits = tuple([other for other in lane.splits if other.token != split.token])
    if split.cursor == split.end:
        return lane._replace(splits=splits)
    moved = split.cursor > split.begin
    if moved:
        splits = (*splits, split._replace(end=split.cursor))
    failures = (0 if moved else split.attempts) + (1 if blame else 0)
    returned = ReturnedRange(split.cursor, split.end, failures, reason[:200])
    known = max(0, min(delivered, split.end) - split.cursor)
    lane = lane._replace(
        splits=splits,
        log=_noted(lane.log, split) if moved and record else lane.log,
        again=lane.again + known,
        exposed=lane.exposed + (split.end - split.cursor if lost else known),
    )
    if failures >= attempts:
        return lane._replace(aside=(*lane.aside, returned))
    if failures == 0:
        if returned.end == lane.front:
            return lane._replace(front=returned.begin)
        if returned.begin == lane.back:
            return lane._replace(back=returned.end)
    return lane._replace(free=(*lane.free, returned))


def spilled(lane: Lane) -> tuple[Lane, LogChunk | None]:
    """The lane without its oldest entries, if it has many, and those: they belong in chunk ``lane.chunks``.

    All but the last of a lane's entries stay as they are, so all who spill the same chunk write the same.
    """
    if len(lane.log) < _LOG_TAIL:
        return lane, None
    rest = lane._replace(log=lane.log[_LOG_CHUNK:], chunks=lane.chunks + 1)
    return rest, LogChunk(lane.log[:_LOG_CHUNK])


def leasable(lane: Lane) -> int:
    """Samples that can be leased now."""
    return lane.back - lane.front + sum([returned.end - returned.begin for returned in lane.free])


def set_aside(lane: Lane) -> int:
    """Samples that failed too often."""
    return sum([returned.end - returned.begin for returned in lane.aside])


def remaining(lane: Lane) -> int:
    """Samples that are not committed."""
    return leasable(lane) + set_aside(lane) + sum([split.end - split.cursor for split in lane.splits])


def finished(lane: Lane) -> bool:
    """Whether all of the lane is committed."""
    return not lane.aside and _none_left(lane)


def stalled(lane: Lane) -> bool:
    """Whether all that is left of the lane is set aside."""
    return bool(lane.aside) and _none_left(lane)


def _none_left(lane: Lane) -> bool:
    if lane.front < lane.back or lane.free:
        return False
    return all(split.cursor == split.end for split in lane.splits)


def log_entries(lane: Lane) -> int:
    """Entries that the lane's log has, those in chunks included."""
    return lane.chunks * _LOG_CHUNK + len(lane.log)


def _noted(log: tuple[Entry, ...], split: SplitRecord) -> tuple[Entry, ...]:
    """The log with what was committed of a split. A worker that reads on where its last split ended lengthens an entry."""
    entry = Entry(split.begin, split.cursor, split.rank, split.incarnation, split.turn, split.token)
    if log:
        last = log[-1]
        if last.end == entry.begin and (*last[2:4], last.turn + 1) == entry[2:5]:
            return (*log[:-1], entry._replace(begin=last.begin))
    return (*log, entry)


def entries_of(lanes: Sequence[Lane], chunks: Sequence[Sequence[Entry]]) -> list[Entry]:
    """All entries of one incarnation of an epoch so far, what is committed of splits that are out included."""
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
