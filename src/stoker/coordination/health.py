"""Judges from records which workers are alive, slow or lost, and whether work is spread unevenly; time is an argument.

No clock is shared. An observer notes, by its own clock, since when it has seen a counter unchanged; that for a lease's time
means that the worker which moves the counter is lost. (The rule is that of Amazon's DynamoDB lock client.) A look is dated by
when it was sent if it could end a wait, and by when its answer came if it could begin one: so delay never makes a silence
seem longer than it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stoker.coordination.records import CoordinationSettings, Lane, SplitRecord, WorkerRecord
from stoker.coordination.rules import leasable


class WorkerState(StrEnum):
    """The state of a worker, by its records alone; the value is the letter that stands for it in summaries.

    * ``ACTIVE``: it renews and has work.
    * ``IDLE``: it renews and has none.
    * ``SLOW``: it has work, and less than ``CoordinationSettings.slow`` (a half) of the live workers' median throughput.
    * ``FAILED``: it was not seen to renew for a lease, or to commit for ``CoordinationSettings.stall``, and is taken for
      lost.
    * ``UNKNOWN``: it has not joined, has left, or was not seen to renew for half a lease.
    """

    ACTIVE = "A"
    IDLE = "I"
    SLOW = "S"
    FAILED = "F"
    UNKNOWN = "U"


@dataclass(slots=True)
class _Seen:
    mark: tuple[int, int]
    since: float
    progress: tuple[int, int]
    progress_since: float
    quiet: float = 0.0
    idle: float = 0.0


class Observer:
    """The counters that one process has seen, and since when each is unchanged, by its own clock."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[object, _Seen] = {}

    def see(
        self,
        name: object,
        mark: tuple[int, int],
        sent: float,
        received: float,
        progress: tuple[int, int] = (0, 0),
    ) -> float:
        """Note a look at a counter.

        ``sent`` and ``received`` are this process's clock when it asked and when it had the answer; ``progress`` is the
        number of splits that the worker holds, and what moves with each commit.
        """
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = _Seen(mark, received, progress, received)
        if seen.mark != mark:
            seen.mark, seen.since = mark, received
        if seen.progress != progress:
            seen.progress, seen.progress_since = progress, received
        seen.quiet = max(0.0, sent - seen.since)
        seen.idle = max(0.0, sent - seen.progress_since) if progress[0] else 0.0
        return seen.quiet

    def quiet(self, name: object) -> float | None:
        """Seconds of silence at the last look; ``None`` if there was none."""
        seen = self._seen.get(name)
        return None if seen is None else seen.quiet

    def failed(self, name: object, settings: CoordinationSettings) -> bool:
        """Whether the worker is to be taken for lost."""
        seen = self._seen.get(name)
        if seen is None:
            return False
        return seen.quiet >= settings.lease or 0 < settings.stall <= seen.idle


def lost(split: SplitRecord, worker: WorkerRecord | None, failed: bool) -> bool:
    """Whether a split's owner will not continue it.

    The worker's record must have been read after the split.
    """
    if worker is None or worker.incarnation < split.incarnation:
        return False  # who leases has a record: the engine has lost it, which its owner will notice
    return worker.incarnation > split.incarnation or worker.left or failed


def judge(
    worker: WorkerRecord | None, quiet: float | None, failed: bool, median: float, settings: CoordinationSettings
) -> WorkerState:
    """A worker's state.

    ``quiet``: seconds for which its counter was seen unchanged, ``None`` if it was never seen; ``median``: the live
    workers' median throughput, 0 if unknown.
    """
    if worker is None or worker.left or quiet is None:
        return WorkerState.UNKNOWN
    if failed:
        return WorkerState.FAILED
    if quiet >= settings.lease / 2:
        return WorkerState.UNKNOWN
    if not worker.held:
        return WorkerState.IDLE
    if 0 < worker.rate < settings.slow * median:
        return WorkerState.SLOW
    return WorkerState.ACTIVE


def imbalance(times: Sequence[float]) -> float:
    """Coefficient of variation: the population's standard deviation by its mean; 0 where there is nothing to compare."""
    mean = sum(times) / len(times) if times else 0.0
    return statistics.pstdev(times) / mean if mean > 0 else 0.0


def open_lanes(
    lanes: Sequence[Lane], workers: Mapping[int, WorkerRecord], alive: frozenset[int], settings: CoordinationSettings
) -> tuple[float, dict[int, int]]:
    """Lanes from which any worker may lease, and how unevenly work is spread.

    Where lanes belong to ranks (``settings.threshold``), lane r is worker r's. It is open to others when worker r is not
    alive; and when the coefficient of variation of the live workers' expected finish times exceeds the threshold, and
    that of worker r is above the mean. A rate that is not known yet is taken for the median of the others.

    Returns the coefficient of variation (0 where lanes belong to nobody), and lane number to samples that can be leased.
    """
    free = {lane.number: count for lane in lanes if (count := leasable(lane))}
    if settings.threshold is None:
        return 0.0, free
    rates = [workers[rank].rate for rank in alive if workers[rank].rate > 0]
    usual = statistics.median(rates) if rates else 1.0
    held: dict[int, int] = {}
    for lane in lanes:
        for split in lane.splits:
            held[split.rank] = held.get(split.rank, 0) + split.end - split.cursor
    times = {rank: (free.get(rank, 0) + held.get(rank, 0)) / (workers[rank].rate or usual) for rank in alive}
    variation = imbalance(list(times.values()))
    mean = sum(times.values()) / len(times) if times else 0.0
    uneven = variation > settings.threshold
    return variation, {
        number: count for number, count in free.items() if number not in times or (uneven and times[number] > mean)
    }


def split_size(lane: Lane, *, rate: float, share: float, settings: CoordinationSettings, from_back: bool) -> int:
    """Samples that a worker should lease next from a lane; at least 1.

    Guided self-scheduling (C. D. Polychronopoulos, D. J. Kuck, 1987) for workers of unlike speeds: half of the worker's
    fair share of what can be leased, so that splits shrink towards the end and all end nearly together; but no more than
    the worker does in ``settings.split`` seconds, and no less than in a twentieth of that. Where lanes belong to ranks it
    is a whole split of their grid.

    ``rate`` is the worker's samples a second, 0 if not known yet; ``share`` its part of the throughput that works on this
    lane.
    """
    if settings.threshold is not None:
        grid = settings.grid
        if from_back:
            return (lane.back - lane.begin - 1) % grid + 1 if lane.back > lane.begin else grid
        return grid - (lane.front - lane.begin) % grid
    fair = leasable(lane) * share / (2 if rate else 8)
    wanted = rate * settings.split
    size = int(max(min(fair, wanted), wanted / 20)) if rate else int(fair)
    size = max(settings.smallest, min(settings.largest, size))
    step = settings.multiple
    if step == 1:
        return size
    size = max(step, size // step * step)
    if from_back:
        # Such that the split begins at a multiple.
        return size + (lane.back - lane.begin) % step
    return size - (lane.front - lane.begin) % step or step
