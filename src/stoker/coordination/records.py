"""The records that an engine stores, and their bytes: small immutable values, each changed by compare-and-set alone.

The operations that a worker's protocol yields, reads, compare-and-sets and sleeps, are plain values, too.

An epoch's positions are divided into *lanes*, runs of positions that lie side by side. A lane is one record, and all that
can be said of its positions is in it: what nobody has leased yet, which splits are out to whom, what was given back. So
each change of a lease is one compare-and-set of one record, and no two records have to agree. With a lane for each worker,
workers meet at one record only when some have no more work and take it from others.

Who is alive is in one record for each worker, which only that worker writes: a counter that moves with each heartbeat
renews all its leases at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from types import UnionType
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from stoker.arguments import checked
from stoker.errors import StateError


@checked
class CoordinationSettings(NamedTuple):
    """Settings that all workers of a run must have in common. Times are in seconds.

    Attributes:
        lease: a worker whose counter an observer saw unchanged for this long, by the observer's clock, is lost.
        heartbeat: time between two renewals.
        split: a split is sized to take a worker about this long.
        smallest: least samples of a split, but for what is left at an end.
        largest: most samples of a split.
        attempts: a range whose workers were lost, or gave it up, so many times without a commit is set aside.
        stall: a worker that holds splits and renews, but commits nothing for so long, is lost; 0: never.
        slow: a worker with less than this part of the median throughput is Slow.
        threshold: ``None``: any worker may lease from any lane. Else lanes belong to ranks, and whole splits of one
            lane are open to other ranks while the coefficient of variation of expected finish times exceeds this.
        grid: samples of a whole split where lanes belong to ranks.
        multiple: splits begin and end at multiples of this from their lane's begin, as far as possible.
        record: whether the assignment is recorded.
    """

    lease: float = 30.0
    heartbeat: float = 5.0
    split: float = 10.0
    smallest: int = 1
    largest: int = 1 << 20
    attempts: int = 5
    stall: float = 0.0
    slow: float = 0.5
    threshold: float | None = None
    grid: int = 1024
    multiple: int = 1
    record: bool = True

    @property
    def valid(self) -> float:
        """Seconds after the sending of a renewal for which its worker may continue: an eighth less than observers wait, so
        that clocks whose rates differ by that much still agree."""
        return self.lease * 0.875


class Entry(NamedTuple):
    """A line of the assignment's log: a range that one worker committed.

    Attributes:
        begin: first position.
        end: one past the last.
        rank: who.
        incarnation: which of the processes that had this rank.
        turn: how many splits that process had leased before. Where it had several that lie one behind the other, in
            turn, they are one entry, with the last one's turn and token.
        token: of the lease.
    """

    begin: int
    end: int
    rank: int
    incarnation: int
    turn: int
    token: int


class SplitRecord(NamedTuple):
    """A range that is leased.

    Attributes:
        begin: first position, when it was leased.
        cursor: all before it is committed.
        token: larger than that of any earlier lease in the lane; a commit must carry it.
        attempts: how many leases of it were lost before without a commit.
    """

    begin: int
    end: int
    cursor: int
    rank: int
    incarnation: int
    turn: int
    token: int
    attempts: int


class ReturnedRange(NamedTuple):
    """A range that came back, with how many leases of it were lost without a commit, and why the last one was."""

    begin: int
    end: int
    attempts: int
    reason: str


class Lane(NamedTuple):
    """All about one run of positions.

    What is not unleased, out, given back or set aside is committed: there is no list of it.

    Attributes:
        front: ``[front, back)`` nobody has leased yet.
        token: of the last lease; its bits from 40 on are the epoch's incarnation.
        splits: leased ranges. One that is committed to its end, or was taken from an owner who had committed up to its end,
            stays until that owner's next step in the lane: so one that got no answer can see which commits were taken.
        free: ranges that came back, to be leased before others.
        aside: ranges that failed too often.
        again: samples that were certainly delivered by a lost worker without a commit, and so are delivered again.
        exposed: samples that may have been; at least ``again``.
        log: the last entries of the assignment; earlier ones lie in chunks.
    """

    number: int
    begin: int
    end: int
    front: int
    back: int
    token: int
    splits: tuple[SplitRecord, ...] = ()
    free: tuple[ReturnedRange, ...] = ()
    aside: tuple[ReturnedRange, ...] = ()
    again: int = 0
    exposed: int = 0
    log: tuple[Entry, ...] = ()
    chunks: int = 0


class LogChunk(NamedTuple):
    """Entries that no longer fit their lane's record."""

    entries: tuple[Entry, ...]


class Process(NamedTuple):
    """The process of a worker.

    Attributes:
        boot: the host's boot, and its name space of process numbers.
        started: when it started, in the kernel's ticks.
        nonce: unlike any other process's.
    """

    host: str
    boot: str
    pid: int
    started: int
    nonce: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Held(NamedTuple):
    """A split that a worker holds, as its record has it: its lane, token, and one past the last position it has delivered."""

    lane: int
    token: int
    delivered: int


class WorkerRecord(NamedTuple):
    """A worker, as it describes itself.

    Attributes:
        incarnation: how many processes had this rank, this one included.
        counter: moves with each heartbeat.
        left: whether it has gone in good order.
        rate: samples a second while it had work; 0 before it has finished a split.
        again: delivered samples whose lease it found lost.
        epoch: that the numbers are of; -1 before the first.
    """

    rank: int
    incarnation: int
    counter: int
    process: Process
    left: bool = False
    rate: float = 0.0
    delivered: int = 0
    committed: int = 0
    again: int = 0
    held: tuple[Held, ...] = ()
    epoch: int = -1


class History(NamedTuple):
    """The entries of an incarnation's log that hold, where a run was restored from a checkpoint.

    ``counts``: for each lane, how many of its entries were complete at the checkpoint. ``partial``: each lane's last entry as
    it was then, and what was committed of splits that were out.
    """

    incarnation: int
    counts: tuple[int, ...]
    partial: tuple[Entry, ...]


class Epoch(NamedTuple):
    """An epoch: its lanes, and the settings that all its workers must have in common.

    Attributes:
        incarnation: 1, and one more each time it is restored from a checkpoint.
        world_size: ranks are below it.
        starts: first position of each lane, and the total at the end.
        left: the ranges that a checkpoint had not committed; ``None`` where there was none: all.
        identity: names and values (of the dataset, the seed, the order) that must be the same for all workers.
        restored: names the restore that made this incarnation, so that it is made once although all workers ask for it.
    """

    number: int
    incarnation: int
    world_size: int
    starts: tuple[int, ...]
    left: tuple[tuple[int, int], ...] | None
    identity: tuple[tuple[str, Any], ...]
    settings: CoordinationSettings
    history: tuple[History, ...] = ()
    restored: str = ""

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self.starts) - 1


class Summary(NamedTuple):
    """The last view of the worker that watches the others.

    Attributes:
        rank: of the watching worker.
        counter: moves each time; a worker that sees it unchanged for a lease may take over watching.
        rate: of all live workers together, samples a second.
        median: of the live workers' throughput.
        variation: coefficient of variation of expected finish times; -1 where not all rates are known.
        states: a letter for each rank: Active, Idle, Slow, Failed, Unknown.
        open: lanes from which any worker may lease, and how many samples can be leased there.
        orphans: lanes in which something came back, or whose worker (that with the lane's number as rank) is lost.
    """

    rank: int
    incarnation: int
    counter: int
    left: int
    rate: float
    median: float
    variation: float
    states: str
    open: tuple[tuple[int, int], ...]
    orphans: tuple[int, ...] = ()


Record: TypeAlias = Epoch | Lane | LogChunk | Summary | WorkerRecord


_VERSION: Final = 2


def encode(record: Record) -> bytes:
    """A record as bytes: a JSON list of its format's version, its kind and its fields in order."""
    return json.dumps([_VERSION, _KINDS[type(record)], record], separators=(",", ":")).encode()


def decode(value: bytes) -> Any:
    """The record that :func:`encode` made.

    StateError if it is none, or was written by a version of stoker with other records.
    """
    try:
        version, kind, fields = json.loads(value)
        if version != _VERSION:
            raise StateError(
                f"the engine holds a record of format {version}, this stoker reads format {_VERSION}: all workers of a "
                f"run need the same version of stoker"
            )
        return _DECODERS[kind](fields)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"not a record of a stoker run: {value[:80]!r}: give the run an engine, or a run id, of its own"
        ) from error


def _decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Makes tuples and records of the lists that JSON has for them, by a type; ``None`` where values stay as they are."""
    if get_origin(kind) is UnionType:
        decode_some = _decoder(next(one for one in get_args(kind) if one is not type(None)))
        return None if decode_some is None else lambda value: None if value is None else decode_some(value)
    if get_origin(kind) is tuple:
        item, *rest = get_args(kind)
        decode_item = _decoder(item) if rest == [...] else None
        return tuple if decode_item is None else lambda values: tuple([decode_item(value) for value in values])
    if not (isinstance(kind, type) and issubclass(kind, tuple)):
        return None
    decoders = [(place, _decoder(one)) for place, one in enumerate(get_type_hints(kind).values())]
    inner = [(place, decode_field) for place, decode_field in decoders if decode_field is not None]

    def record(values: list[Any]) -> Any:
        for place, decode_field in inner:
            values[place] = decode_field(values[place])
        return kind(*values)

    return record


# As engines hold them: they stay, whatever the classes are called.
_KINDS: Final[dict[type, str]] = {
    Epoch: "Epoch",
    Lane: "Lane",
    LogChunk: "LogChunk",
    Summary: "Summary",
    WorkerRecord: "Worker",
}
_DECODERS: Final = {name: decoder for kind, name in _KINDS.items() if (decoder := _decoder(kind)) is not None}


def to_rows(entries: Iterable[Entry]) -> list[list[int]]:
    """Entries as JSON can have them."""
    return [list(entry) for entry in entries]


def from_rows(rows: Iterable[Sequence[int]]) -> list[Entry]:
    """The entries that :func:`to_rows` made."""
    try:
        return [Entry(*[int(number) for number in row]) for row in rows]
    except (TypeError, ValueError) as error:
        raise StateError(f"not a recorded assignment: {error}") from error


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


class Unanswered(Exception):  # noqa: N818 - the protocol handles it as one of the answers
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
