"""Looking after the others: a worker reads all lanes and who holds splits, and takes splits from those that are lost.

Any worker may do so at any time, and several at once: each change is a compare-and-set of one lane. So there is no
coordinator whose loss could stop a run. To save reads, one worker at a time *watches*: it looks often, at all
workers, and publishes a summary. If the summary stands still for a lease, another takes that over. Workers that find
nothing to do look for themselves.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from stoker.coordination.health import Observer, WorkerState, judge, lost, open_lanes
from stoker.coordination.membership import Membership
from stoker.coordination.records import (
    Create,
    Epoch,
    Get,
    Lane,
    Steps,
    Summary,
    Swap,
    Unanswered,
    Versioned,
    WorkerRecord,
)
from stoker.coordination.rules import finished, first_lane, give_back, leasable, remaining, stalled
from stoker.integers import mix

_TOGETHER = 256
_OPEN_LISTED = 64
_APART = 0.004


class Watch:
    """One worker's view of an epoch.

    Attributes:
        open: lanes from which any worker may lease, as last seen: number to samples.
        orphans: lanes in which something came back, or whose worker is lost, as last seen.
        lanes: lanes as last read, with their versions; version 0 where there is no record yet.
        over: whether nothing is left to do: all is committed, or what is left was set aside.
    """

    def __init__(self, epoch: Epoch, member: Membership) -> None:
        self.summary: Summary | None = None
        self.watching = False
        self.open: dict[int, int] = {}
        self.orphans: set[int] = set()
        self.lanes: dict[int, Versioned] = {}
        self.over = False
        self._epoch = epoch
        self._member = member
        self._keys, self._clock, self._gone = member.keys, member.clock, member.gone
        self._observer = Observer()
        self._version = 0
        self._watcher_gone = False
        self._done: set[int] = set()

    @property
    def may_watch(self) -> bool:
        """Whether this worker should watch: it does, or nobody does, or not any more."""
        if self.watching or self.summary is None or self._watcher_gone:
            return True
        quiet = self._observer.quiet("summary")
        # Not all at once: a few milliseconds for each worker lie between the first and the last to notice.
        turn = mix(self._member.rank, self.summary.counter) % self._epoch.world_size
        return quiet is not None and quiet >= self._epoch.settings.lease + turn * _APART

    def glance(self) -> Steps:
        """Read the epoch's record and the summary; returns the former."""
        keys = [self._keys.epoch(self._epoch.number), self._keys.summary(self._epoch)]
        watcher = self.summary.rank if self.summary is not None and not self.watching else None
        if watcher is not None:
            keys.append(self._keys.worker(watcher))
        sent = self._clock.now
        found = yield Get(tuple(keys))
        if found[1] is not None:
            self._read_summary(found[1], sent)
            if not self.watching:
                self.open = dict(found[1].value.open)
                self.orphans = set(found[1].value.orphans)
        if watcher is not None and found[2] is not None:
            # Should the watcher be lost, it is known at once when its summary stands still.
            self._see(found[2].value, sent)
            self._watcher_gone = self._gone(found[2].value.process)
        return None if found[0] is None else found[0].value

    def look(self, *, publish: bool) -> Steps:
        """Read the lanes and workers, take splits from lost workers, and see what is open and whether all is over.

        To ``publish`` is to read all workers, and to publish a summary.
        """
        epoch = self._epoch
        # Lanes before workers. So a worker that was silent, and has written its lanes since it is back, has changed what is
        # written here on the grounds of its silence; then that fails, however late it comes.
        yield from self._read_lanes()
        owners = {split.rank for _, lane in self._unfinished() for split in lane.splits}
        workers = yield from self._read_workers(range(epoch.world_size) if publish else sorted(owners))
        for number, lane in self._unfinished():
            yield from self._take_back(number, lane, workers)
        lanes = [lane for _, lane in self._unfinished()]
        self._done.update([lane.number for lane in lanes if finished(lane)])
        self.over = all(finished(lane) or stalled(lane) for lane in lanes)
        alive = frozenset([rank for rank, worker in workers.items() if not worker.left and not self._failed(worker)])
        if publish or epoch.settings.threshold is None:
            variation, self.open = open_lanes(lanes, workers, alive, epoch.settings)
            if publish:
                gone = {rank for rank in workers if rank not in alive} if epoch.lanes == epoch.world_size else set()
                self.orphans = {lane.number for lane in lanes if lane.free or (lane.number in gone and leasable(lane))}
                yield from self._publish(lanes, workers, alive, variation)
        elif self.summary is not None:
            still = {lane.number for lane in lanes if lane.front < lane.back or lane.free}
            self.open = {number: count for number, count in self.summary.open if number in still}

    def _unfinished(self) -> list[tuple[int, Lane]]:
        return [
            (number, self.lanes[number].value)
            for number in range(self._epoch.lanes)
            if number not in self._done and number in self.lanes
        ]

    def _read_lanes(self) -> Steps:
        numbers = [number for number in range(self._epoch.lanes) if number not in self._done]
        for first in range(0, len(numbers), _TOGETHER):
            part = numbers[first : first + _TOGETHER]
            found = yield Get(tuple([self._keys.lane(self._epoch, number) for number in part]))
            for number, lane in zip(part, found, strict=True):
                self.lanes[number] = lane or Versioned(first_lane(self._epoch, number), 0)

    def _read_workers(self, ranks: Iterable[int]) -> Steps:
        workers: dict[int, WorkerRecord] = {}
        listed = list(ranks)
        for first in range(0, len(listed), _TOGETHER):
            part = listed[first : first + _TOGETHER]
            sent = self._clock.now
            found = yield Get(tuple([self._keys.worker(rank) for rank in part]))
            for rank, worker in zip(part, found, strict=True):
                if worker is not None:
                    workers[rank] = worker.value
                    self._see(worker.value, sent)
        return workers

    def _see(self, worker: WorkerRecord, sent: float) -> None:
        mark = (worker.incarnation, worker.counter)
        self._observer.see(worker.rank, mark, sent, self._clock.now, (len(worker.held), worker.committed))

    def _failed(self, worker: WorkerRecord) -> bool:
        return self._observer.failed(worker.rank, self._epoch.settings) or self._gone(worker.process)

    def _take_back(self, number: int, lane: Lane, workers: dict[int, WorkerRecord]) -> Steps:
        settings = self._epoch.settings
        mine = (self._member.rank, self._member.incarnation)
        after = lane
        for split in lane.splits:
            worker = workers.get(split.rank)
            if worker is None or (split.rank, split.incarnation) == mine:
                continue
            # What is committed to its end is for its owner to see, as long as there may be one.
            gone = self._gone(worker.process) if split.cursor == split.end else self._failed(worker)
            if not lost(split, worker, gone):
                continue
            held = worker.held if worker.incarnation == split.incarnation else ()
            delivered = max([h.delivered for h in held if h.token == split.token and h.lane == number], default=0)
            after = give_back(
                after,
                split,
                f"rank {split.rank} was lost while it had it",
                lost=True,
                delivered=delivered,
                attempts=settings.attempts,
                record=settings.record,
            )
        if after is lane:
            return
        # A lane that has a split has a record.
        version = yield Swap(self._keys.lane(self._epoch, number), after, self.lanes[number].version)
        if version is None:
            # Somebody else was faster, perhaps the owner. The next look tells; this view is out of date.
            del self.lanes[number]
            (found,) = yield Get((self._keys.lane(self._epoch, number),))
            self.lanes[number] = found or Versioned(first_lane(self._epoch, number), 0)
        else:
            self.lanes[number] = Versioned(after, version)

    def _publish(
        self, lanes: list[Lane], workers: dict[int, WorkerRecord], alive: frozenset[int], variation: float
    ) -> Steps:
        settings, old = self._epoch.settings, self.summary
        rates = [workers[rank].rate for rank in alive if workers[rank].rate > 0]
        median = statistics.median(rates) if rates else 0.0
        states = [WorkerState.UNKNOWN] * self._epoch.world_size
        for rank, worker in workers.items():
            states[rank] = judge(worker, self._observer.quiet(rank), self._failed(worker), median, settings)
        busiest = sorted(self.open.items(), key=lambda item: -item[1])[:_OPEN_LISTED]
        summary = Summary(
            self._member.rank,
            self._member.incarnation,
            1 if old is None else old.counter + 1,
            sum([remaining(lane) for lane in lanes]),
            sum(rates),
            median,
            variation,
            "".join([state.value for state in states]),
            tuple(busiest),
            tuple(sorted(self.orphans)[:_OPEN_LISTED]),
        )
        key = self._keys.summary(self._epoch)
        self.watching = False
        try:
            version = yield Create(key, summary) if old is None else Swap(key, summary, self._version)
        except Unanswered:
            version = None
        if version is not None:
            self.summary, self._version, self.watching = summary, version, True
            self._watcher_gone = False
            return
        sent = self._clock.now
        (found,) = yield Get((key,))
        if found is not None:
            self._read_summary(found, sent)
            # Ours after all, if an answer was lost.
            self.watching = found.value[:3] == summary[:3]

    def _read_summary(self, found: Versioned, sent: float) -> None:
        summary: Summary = found.value
        mine = (summary.rank, summary.incarnation) == (self._member.rank, self._member.incarnation)
        if not mine:
            self.watching = False
        self.summary, self._version = summary, found.version
        # Counters continue when another worker takes over, so they alone tell whether somebody watches.
        self._observer.see("summary", (0, summary.counter), sent, self._clock.now)
