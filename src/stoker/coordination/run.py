"""A run's records in an engine, as whole values: what is read and written outside of a worker's protocol; and the checks of a
worker's arguments before."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.arguments import at_least, must_be
from stoker.coordination.checkpoint import differences, restored
from stoker.coordination.engines.store import CoordinationStore
from stoker.coordination.errors import EngineError, Owner
from stoker.coordination.health import WorkerState
from stoker.coordination.records import (
    CoordinationSettings,
    Create,
    Entry,
    Epoch,
    Get,
    Keys,
    Lane,
    LogChunk,
    Operation,
    Summary,
    Swap,
    Versioned,
    WorkerRecord,
    decode,
    encode,
)
from stoker.coordination.rules import entries_of, finished, first_lane, remaining, set_aside, stalled
from stoker.errors import ConfigError, StateError
from stoker.storage.versions import rewritten_streams, with_versions_of

_TOGETHER = 256
_MOST_LANES: Final = 1024


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """One worker, as the run's records have it.

    Attributes:
        rank: its rank.
        state: as the watching worker has judged it last.
        process: where it runs; ``None`` if it never joined.
        rate: samples a second while it had work; 0 if not known yet.
        delivered: samples delivered in this epoch by its present process.
        committed: samples committed in this epoch by its present process.
        again: samples it had delivered of splits that it then found lost.
        splits: splits it holds.
    """

    rank: int
    state: WorkerState
    process: str | None
    rate: float
    delivered: int
    committed: int
    again: int
    splits: int


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """The progress of an epoch.

    Attributes:
        total: positions of the epoch.
        committed: positions that are committed.
        out: positions that are leased and not committed.
        aside: positions that failed too often.
        again: samples that were certainly delivered more than once.
        exposed: samples that may have been: at least ``again``.
        variation: coefficient of variation of expected finish times, as seen last; -1 if never.
        finished: whether all is committed.
        stalled: what was set aside, as ``(begin, end, reason)``, if nothing else is left; else empty.
    """

    total: int
    committed: int
    out: int
    aside: int
    again: int
    exposed: int
    variation: float
    finished: bool
    stalled: tuple[tuple[int, int, str], ...]


def perform(store: CoordinationStore, operation: Operation) -> Any:
    """Carry out an operation of a protocol, but for sleeping."""
    if isinstance(operation, Get):
        found = store.get(operation.keys)
        return [None if entry is None else Versioned(decode(entry.value), entry.version) for entry in found]
    if isinstance(operation, Create):
        return store.create(operation.key, encode(operation.value))
    if isinstance(operation, Swap):
        return store.swap(operation.key, encode(operation.value), operation.version)
    raise TypeError(f"not an operation on records: {operation!r}")


class RunRecords:
    """The records of one run."""

    def __init__(self, store: CoordinationStore, run: str) -> None:
        self.store = store
        self.keys = Keys(run)

    def open_epoch(self, wanted: Epoch) -> Epoch:
        """The record of an epoch; it is made if there is none."""
        key = self.keys.epoch(wanted.number)
        found = self._get(key)
        if found is None and self.store.create(key, encode(wanted)) is None:
            found = self._get(key)
        if found is None:
            return wanted
        epoch: Epoch = found.value
        ours = _agreed(wanted)
        theirs = with_versions_of(_agreed(epoch), ours)
        if theirs != ours:
            anew = rewritten_streams(theirs.get("streams"), ours.get("streams"))
            said = "; ".join(
                [
                    *(f"the files of stream {name!r} were rewritten since the run began" for _, name in anew),
                    differences(theirs, ours, "the run", "this worker"),
                ]
            )
            raise ConfigError(
                f"this worker and its peers in run {self.keys.run!r} at {self.store.url} contradict each other: {said}: give "
                f"all workers the same, or this run an id of its own"
            )
        return epoch

    def epoch(self, number: int) -> Epoch | None:
        """The record of an epoch, if there is one."""
        found = self._get(self.keys.epoch(number))
        return None if found is None else found.value

    def lanes(self, epoch: Epoch) -> list[Lane]:
        """All lanes of an epoch. Each is of one moment; the moments differ."""
        found = self._values([self.keys.lane(epoch, number) for number in range(epoch.lanes)])
        return [first_lane(epoch, number) if lane is None else lane for number, lane in enumerate(found)]

    def progress(self, epoch: Epoch) -> EpochProgress:
        """The progress of an epoch."""
        lanes, summary = self.lanes(epoch), self._get(self.keys.summary(epoch))
        left, aside = sum(map(remaining, lanes)), sum(map(set_aside, lanes))
        over = all(finished(lane) or stalled(lane) for lane in lanes)
        return EpochProgress(
            total=epoch.starts[-1],
            committed=epoch.starts[-1] - left,
            out=sum([split.end - split.cursor for lane in lanes for split in lane.splits]),
            aside=aside,
            again=sum([lane.again for lane in lanes]),
            exposed=sum([lane.exposed for lane in lanes]),
            variation=-1.0 if summary is None else summary.value.variation,
            finished=left == 0,
            stalled=tuple(sorted([(*returned[:2], returned.reason) for lane in lanes for returned in lane.aside]))
            if over
            else (),
        )

    def health(self, epoch: Epoch) -> list[WorkerHealth]:
        """All ranks of an epoch's world."""
        workers: list[WorkerRecord | None] = self._values([self.keys.worker(rank) for rank in range(epoch.world_size)])
        seen = self._get(self.keys.summary(epoch))
        summary: Summary | None = None if seen is None else seen.value
        committed: Counter[tuple[int, int]] = Counter()
        for entry in self.assignment(epoch) if epoch.settings.record else ():
            committed[entry.rank, entry.incarnation] += entry.end - entry.begin
        health = []
        for rank, known in enumerate(workers):
            if known is None:
                health.append(WorkerHealth(rank, WorkerState.UNKNOWN, None, 0.0, 0, 0, 0, 0))
                continue
            other = known.epoch != epoch.number
            worker = known._replace(delivered=0, committed=0, again=0, held=()) if other else known
            # Lanes know at once what workers tell with their next renewal.
            done = max(worker.committed, committed[rank, worker.incarnation])
            state = WorkerState.UNKNOWN if summary is None or worker.left else WorkerState(summary.states[rank])
            numbers = (max(worker.delivered, done), done, worker.again, len(worker.held))
            health.append(WorkerHealth(rank, state, str(worker.process), worker.rate, *numbers))
        return health

    def restore(self, wanted: Epoch, checkpoint: dict[str, Any], *, rollback: bool, attempt: int) -> None:
        """Bring an epoch to where a checkpoint is."""
        key = self.keys.epoch(wanted.number)
        while True:
            found = self._get(key)
            lanes = [] if found is None else self.lanes(found.value)
            known = None if found is None else found.value
            record = restored(wanted, checkpoint, known, lanes, rollback=rollback, attempt=attempt)
            if record is None:
                return
            value = encode(record)
            done = self.store.create(key, value) if found is None else self.store.swap(key, value, found.version)
            if done is not None:
                return

    def assignment(self, epoch: Epoch) -> list[Entry]:
        """The committed ranges with their workers so far, those of incarnations that the epoch was restored from included."""
        if not epoch.settings.record:
            raise ConfigError(f"run {self.keys.run!r} records no assignment: set CoordinationSettings(record=True)")
        found: list[Entry] = []
        for earlier in epoch.history:
            old = epoch._replace(incarnation=earlier.incarnation)
            for lane, count in zip(self.lanes(old), earlier.counts, strict=True):
                found += [*self._chunks(old, lane), *lane.log][:count]
            found += earlier.partial
        lanes = self.lanes(epoch)
        return sorted([*found, *entries_of(lanes, [self._chunks(epoch, lane) for lane in lanes])])

    def owners(self, epoch: Epoch, begin: int, end: int) -> tuple[Owner, ...]:
        """The owners of the positions ``[begin, end)``, in order; of committed ones only if the assignment is recorded."""
        committed = self.assignment(epoch) if epoch.settings.record else []
        owners = [Owner(entry.begin, entry.end, entry.rank, committed=True) for entry in committed]
        for lane in self.lanes(epoch):
            owners += [Owner(split.cursor, split.end, split.rank, committed=False) for split in lane.splits]
            left = [(lane.front, lane.back), *[returned[:2] for returned in (*lane.free, *lane.aside)]]
            owners += [Owner(first, last, None, committed=False) for first, last in left]
        cut = [one._replace(begin=max(one.begin, begin), end=min(one.end, end)) for one in owners]
        return tuple(sorted([one for one in cut if one.begin < one.end], key=lambda one: one.begin))

    def forget_epoch(self, epoch: Epoch) -> int:
        """Remove the records of an epoch that is over; returns how many they were."""
        if not self.progress(epoch).finished:
            raise StateError(f"epoch {epoch.number} of run {self.keys.run!r} is not over: its records are needed")
        count = 0
        tag = f"{epoch.number:08d}"
        for prefix in (f"lane/{tag}.", f"log/{tag}.", f"summary/{tag}.", f"epoch/{tag}"):
            while page := self.store.scan(f"{self.keys.run}/{prefix}"):
                for key, entry in page:
                    count += self.store.delete(key, entry.version)
        return count

    def _chunks(self, epoch: Epoch, lane: Lane) -> list[Entry]:
        keys = [self.keys.log(epoch.number, epoch.incarnation, lane.number, chunk) for chunk in range(lane.chunks)]
        chunks: list[LogChunk | None] = self._values(keys)
        if None in chunks:
            raise EngineError(f"a part of the assignment's log of lane {lane.number} is gone from {self.store.url}")
        return [entry for chunk in chunks if chunk is not None for entry in chunk.entries]

    def _values(self, keys: Sequence[str]) -> list[Any]:
        """The records of keys, in their order; ``None`` for those that are not there."""
        found: list[Versioned | None] = []
        for first in range(0, len(keys), _TOGETHER):
            found += perform(self.store, Get(tuple(keys[first : first + _TOGETHER])))
        return [None if one is None else one.value for one in found]

    def _get(self, key: str) -> Versioned | None:
        found: Versioned | None = perform(self.store, Get((key,)))[0]
        return found


def _agreed(epoch: Epoch) -> dict[str, Any]:
    return {
        "world_size": epoch.world_size,
        "positions": epoch.starts[-1],
        "parts": [end - begin for begin, end in itertools.pairwise(epoch.starts)],
        **dict(epoch.identity),
        **{f"settings.{name}": value for name, value in epoch.settings._asdict().items()},
    }


def check_worker(run: str, rank: int, world_size: int, settings: CoordinationSettings) -> None:
    """See that a worker's arguments make sense, before it takes part in a run."""
    must_be("not empty and without a slash", bool(run) and "/" not in run, run=run)
    at_least(1, world_size=world_size)
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank {rank} is unknown in run {run!r}: its world has {world_size} workers, 0 to {world_size - 1}"
        )
    if settings.heartbeat <= 0 or settings.lease < 1.5 * settings.heartbeat:
        raise ConfigError(
            f"a lease ({settings.lease:g} s) must be at least one and a half heartbeats ({settings.heartbeat:g} s), or "
            f"one lost message would end it"
        )
    least = {
        "smallest": 1,
        "largest": settings.smallest,
        "attempts": 1,
        "grid": 1,
        "multiple": 1,
        "stall": 0,
        "slow": 0,
    }
    for name, low in least.items():
        at_least(low, **{f"settings.{name}": getattr(settings, name)})
    if settings.split <= 0 or (settings.threshold is not None and settings.threshold < 0):
        raise ConfigError("settings.split must be positive, and settings.threshold not negative")


def lane_starts(
    positions: int | Sequence[int], world_size: int, settings: CoordinationSettings, lanes: int | None
) -> tuple[int, ...]:
    """First position of each lane of an epoch, and the total at the end."""
    if settings.threshold is not None:
        if isinstance(positions, int) or len(positions) != world_size:
            given = positions if isinstance(positions, int) else f"{len(positions)} parts"
            raise ConfigError(
                f"with a threshold each of {world_size} ranks needs a part of its own: positions has {given}"
            )
        starts = [0]
        for size in positions:
            starts.append(starts[-1] + int(size))
    else:
        if not isinstance(positions, int):
            raise ConfigError("parts of ranks need settings.threshold")
        count = lanes if lanes is not None else min(world_size, _MOST_LANES)
        count = max(1, min(count, positions))
        starts = [positions * k // count for k in range(count + 1)]
    if any(after < before for before, after in itertools.pairwise(starts)):
        raise ConfigError(f"positions must not be negative, got {positions}")
    return tuple(starts)
