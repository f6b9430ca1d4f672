"""Times of a traced run, by stage and by rank: how long its consumers waited, and for what.

The time in which a consumer waits is divided among the stages of those that work for it: its own thread, reading threads and
DataLoader workers, by the innermost span that each is in. Where these wait for a shard, the threads that fetch say whether it
is fetched or decompressed.

Whether a consumer waits, and which of several ranks is slow, is judged by times in which the consumer had a processor or
wanted none: other programs of a busy machine make each of its steps longer, and waiting seem less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.spans.recorder import APART, WHOLE, Stage
from stoker.errors import ConfigError
from stoker.pipeline.stats.trace_files import TracedProcess
from stoker.policy import LOOKAHEAD_FULL

Times = NDArray[np.float64]

BottleneckKind: TypeAlias = Literal[
    "consumer",
    "store",
    "buffer",
    "decompression",
    "opening",
    "decoding",
    "transform",
    "collating",
    "hand-over",
    "listing",
]
"""The part of a run that limits its speed. ``"hand-over"`` is the time outside all spans: batches pass between processes, or
Python code runs between two spans."""

LITTLE: Final = 0.1
"""A consumer that waits for less than this part of its time is the bottleneck itself."""

_FIRST: Final = 5
"""Of so many waits the first is left out: it is the start's. With workers, that for the first batch of each."""

_MAKES: Final = (Stage.OPEN, Stage.DECODE, Stage.TRANSFORM, Stage.COLLATE, Stage.SEND)
_FETCHES: Final = (Stage.FETCH, Stage.DECOMPRESS)
_OTHER: Final = 0

KINDS: Final[dict[int, BottleneckKind]] = {
    _OTHER: "hand-over",
    Stage.LIST: "listing",
    Stage.FETCH: "store",
    Stage.DECOMPRESS: "decompression",
    Stage.OPEN: "opening",
    Stage.DECODE: "decoding",
    Stage.TRANSFORM: "transform",
    Stage.COLLATE: "collating",
    Stage.SEND: "hand-over",
    Stage.WAIT: "hand-over",
}


# -- spans ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals that do not overlap, by begin; ns, shape ``(n,)``."""

    begins: Times
    ends: Times

    @classmethod
    def union(cls, begins: NDArray[Any], ends: NDArray[Any]) -> Intervals:
        """The times in any of some intervals, which may overlap."""
        if not len(begins):
            return cls(np.zeros(0), np.zeros(0))
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order].astype(float), np.maximum.accumulate(ends[order]).astype(float)
        first = np.concatenate(([True], begins[1:] > reached[:-1]))
        last = np.concatenate((first[1:], [True]))
        return cls(begins[first], reached[last])

    @property
    def total(self) -> float:
        """Their length together."""
        return float((self.ends - self.begins).sum())

    def within(self, begins: NDArray[Any], ends: NDArray[Any]) -> Times:
        """Lengths of the parts of some other intervals that lie in these."""
        if not len(self.begins) or not len(begins):
            return np.zeros(len(begins))
        edges = np.stack([self.begins, self.ends], axis=1).ravel()
        lengths = self.ends - self.begins
        passed = np.cumsum(np.stack([np.zeros(len(lengths)), lengths], axis=1).ravel())
        found: Times = np.interp(ends, edges, passed) - np.interp(begins, edges, passed)
        return found

    def clipped(self, begin: float, end: float) -> Intervals:
        """Their parts between two times."""
        begins, ends = np.clip(self.begins, begin, end), np.clip(self.ends, begin, end)
        kept = ends > begins
        return Intervals(begins[kept], ends[kept])


@dataclass(frozen=True, slots=True)
class Activity:
    """The innermost span's stage of one thread at each moment: pieces that do not overlap."""

    begins: Times
    ends: Times
    stages: NDArray[np.uint8]

    @classmethod
    def of(cls, spans: NDArray[Any]) -> Activity:
        """The activity of the spans of a thread, by begin and, of those alike, the longer first."""
        pieces: list[tuple[int, int, int]] = []
        around: list[tuple[int, int]] = []  # ends and stages of the spans that we are in
        now = 0
        for begin, end, stage in zip(
            spans["begin"].tolist(), spans["end"].tolist(), spans["stage"].tolist(), strict=True
        ):
            while around and around[-1][0] <= begin:
                past, inner = around.pop()
                if past > now:
                    pieces.append((now, past, inner))
                    now = past
            if around and begin > now:
                pieces.append((now, begin, around[-1][1]))
            now = max(now, begin)
            around.append((end, stage))
        while around:
            past, inner = around.pop()
            if past > now:
                pieces.append((now, past, inner))
                now = past
        table = np.array(pieces, np.int64).reshape(-1, 3)
        return cls(table[:, 0].astype(float), table[:, 1].astype(float), table[:, 2].astype(np.uint8))

    def of_stage(self, stage: Stage) -> Intervals:
        """The times in which it was in a stage."""
        here = self.stages == stage
        return Intervals(self.begins[here], self.ends[here])

    def during(self, when: Intervals) -> Times:
        """Nanoseconds in each stage during some intervals; shape ``(len(Stage) + 1,)``."""
        return np.bincount(self.stages, when.within(self.begins, self.ends), len(Stage) + 1).astype(float)


# -- stages and ranks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageTime:
    """Time that a stage took.

    Attributes:
        stage: its name, in lower case; ``"other"``: no span says.
        seconds: of all threads of all processes together, without what spans inside took.
        spans: how often.
        waited: seconds for which consumers waited for it.
    """

    stage: str
    seconds: float
    spans: int
    waited: float


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of one rank's consumer, after its first batch.

    Attributes:
        first: seconds until the first batch was there.
        elapsed: seconds since then.
        waited: those of them in which its consumer waited.
        waits: waiting by stage, in seconds; the first is of no stage. Shape ``(len(Stage) + 1,)``.
        full: part of the waiting in which settings allowed no more to be asked for ahead, 0 to 1.
        downloads: mean of downloads that ran while it waited and more was to be fetched.
        most_downloads: of those that might.
        fetch_seconds: mean time of a download; 0: there was none.
        fetch_rate: bytes a second of one.
        makers: threads and workers that make its batches.
        workers: those of them that are DataLoader workers.
        computing: mean of processors that these had while it waited, or would have had on a machine that does nothing else;
            ``None``: not known.
        displaced: seconds for which the consumer could run, and others had the processors.
        displaced_waiting: those of them in which it waited.
    """

    rank: int
    first: float
    elapsed: float
    waited: float
    waits: Times
    full: float
    downloads: float
    most_downloads: float
    fetch_seconds: float
    fetch_rate: float
    makers: int
    workers: int
    computing: float | None = None
    displaced: float = 0.0
    displaced_waiting: float = 0.0

    @property
    def own_waited(self) -> float:
        """Seconds for which the consumer waited, without those for which it could run and others had the processors."""
        return self.waited - self.displaced_waiting

    @property
    def share(self) -> float:
        """The part of the time in which the consumer waited, 0 to 1, on a machine that does nothing else."""
        own = self.elapsed - self.displaced
        return self.own_waited / own if own > 0 else 0.0

    @property
    def kind(self) -> BottleneckKind:
        """The name of what this rank has too little of."""
        if self.share < LITTLE:
            return "consumer"
        said = self.waits.copy()
        if said[_OTHER] < said.sum() / 2:  # what no span says is small pieces of many things
            said[_OTHER] = 0.0
        kind = KINDS[int(np.argmax(said))]
        if kind == "store" and self.full >= LOOKAHEAD_FULL and self.downloads <= LOOKAHEAD_FULL * self.most_downloads:
            return "buffer"
        return kind


def measure_run(processes: Sequence[TracedProcess]) -> tuple[list[StageTime], list[RankTimes]]:
    """Times of a run by stage, the longest waiting first, and by rank.

    ConfigError if nothing was read in it. ``processes``: all of one rank, or of several, whose clocks may differ.
    """
    ranks, totals, spans = [], np.zeros(len(Stage) + 1), np.zeros(len(Stage) + 1, np.int64)
    for rank in sorted({process.rank for process in processes}):
        threads = [thread for process in processes if process.rank == rank for thread in _threads(process)]
        for thread in threads:
            activity = thread.activity
            totals += np.bincount(activity.stages, activity.ends - activity.begins, len(Stage) + 1)
            spans += np.bincount(thread.spans["stage"], minlength=len(Stage) + 1)
        times = _rank_times(rank, threads, _full([one for one in processes if one.rank == rank]))
        if times is not None:
            ranks.append(times)
    if not ranks:
        raise ConfigError("the trace has no span of a consumer that waits: iterate over a loader while it runs")
    waits = np.sum([one.waits for one in ranks], axis=0)
    stages = [
        StageTime(name, float(totals[number]) / 1e9, int(spans[number]), float(waits[number]))
        for number, name in enumerate(stage_names())
        if spans[number] or waits[number]
    ]
    stages.sort(key=lambda one: (-one.waited, -one.seconds))
    return stages, ranks


def stage_names() -> list[str]:
    """Names of what times by stage are of: the first is of no stage."""
    return ["other", *(stage.name.lower() for stage in Stage)]


@dataclass(frozen=True, slots=True, eq=False)
class _Thread:
    process: TracedProcess
    spans: NDArray[Any]
    activity: Activity
    processor: NDArray[Any]

    def computed(self, when: Intervals) -> float | None:
        """Nanoseconds during some intervals for which it had a processor or could have had one; ``None``: not known."""
        if not len(self.processor):
            return None
        return float((_parts(self.processor, when) * self.processor["amount"]).sum()) + self.displaced(when)

    def displaced(self, when: Intervals) -> float:
        """Nanoseconds during some intervals for which it could run, and others had the processors."""
        lengths = self.processor["end"] - self.processor["begin"]
        return float((_parts(self.processor, when) * lengths * (self.processor["at_once"] / WHOLE)).sum())

    def has(self, *stages: Stage) -> bool:
        return bool(np.isin(self.spans["stage"], stages).any())

    @property
    def waits(self) -> NDArray[Any]:
        found: NDArray[Any] = self.spans[self.spans["stage"] == Stage.WAIT]
        return found


def _threads(process: TracedProcess) -> list[_Thread]:
    """The threads of a process that have spans."""
    found = []
    nested = process.spans[~np.isin(process.spans["stage"], APART)]
    processor = process.spans[process.spans["stage"] == Stage.PROCESSOR]
    for number in np.unique(nested["thread"]).tolist():
        spans = nested[nested["thread"] == number]
        found.append(_Thread(process, spans, Activity.of(spans), processor[processor["thread"] == number]))
    return found


def _parts(spans: NDArray[Any], when: Intervals) -> NDArray[np.float64]:
    """The part of each span that lies in some intervals, 0 to 1."""
    inside: NDArray[np.float64] = when.within(spans["begin"], spans["end"])
    inside /= np.maximum(spans["end"] - spans["begin"], 1)
    return inside


def _full(processes: Sequence[TracedProcess]) -> Intervals:
    """The times in which the lookahead was full in any of some processes."""
    spans = np.concatenate([one.spans for one in processes])
    spans = spans[spans["stage"] == Stage.LOOKAHEAD]
    return Intervals.union(spans["begin"], spans["end"])


def _rank_times(rank: int, threads: Sequence[_Thread], full: Intervals) -> RankTimes | None:
    """Times of a rank; ``None``: nothing was asked for."""
    asked = [one for one in threads if one.process.worker is None and len(one.waits)]
    if not asked:
        return None
    consumer = max(asked, key=lambda one: int((one.waits["end"] - one.waits["begin"]).sum()))
    waits = consumer.waits
    makers = [one for one in threads if one is not consumer and one.has(*_MAKES)]
    workers = len({one.process.pid for one in makers if one.process.worker is not None})
    first = min(max(1, workers), len(waits) // _FIRST)
    start = float(waits["end"][first - 1] if first else waits["begin"][0])
    # What the consumer does after it got the last item is not known.
    last = float(consumer.activity.ends[-1])
    everything = Intervals(np.array([start]), np.array([last]))
    activity = consumer.activity
    by_stage = activity.during(everything)
    waiting = Intervals.union(activity.begins, activity.ends).clipped(start, last)
    blank = activity.of_stage(Stage.WAIT).clipped(start, last)
    # Nobody's is what no span says, but not that others had the processors.
    least = blank.total - consumer.displaced(blank) - sum(one.displaced(blank) for one in makers) / max(1, len(makers))
    _divide(by_stage, Stage.WAIT, _sum([one.activity.during(blank) for one in makers]), least)
    fetching = [one for one in threads if one is not consumer and one not in makers and one.has(*_FETCHES)]
    fetched = _sum([one.activity.during(waiting) for one in fetching])
    fetched[[stage for stage in range(len(fetched)) if stage not in _FETCHES]] = 0
    _divide(by_stage, Stage.OPEN, fetched, 0.0)
    downloads, most = _downloads(threads, waiting)
    fetches = np.concatenate([one.spans[one.spans["stage"] == Stage.FETCH] for one in threads])
    took = float((fetches["end"] - fetches["begin"]).sum()) / 1e9
    computed = [found for one in makers or [consumer] if (found := one.computed(waiting)) is not None]
    return RankTimes(
        rank=rank,
        first=float(waits["end"][0] - waits["begin"][0]) / 1e9,
        elapsed=(last - start) / 1e9,
        waited=waiting.total / 1e9,
        waits=by_stage / 1e9,
        full=float(full.within(waiting.begins, waiting.ends).sum()) / max(1.0, waiting.total),
        downloads=downloads,
        most_downloads=most,
        fetch_seconds=took / len(fetches) if len(fetches) else 0.0,
        fetch_rate=float(fetches["amount"].sum()) / took if took else 0.0,
        makers=max(1, len(makers)),
        workers=workers,
        computing=sum(computed) / waiting.total if computed and waiting.total else None,
        displaced=consumer.displaced(everything) / 1e9,
        displaced_waiting=consumer.displaced(waiting) / 1e9,
    )


def _divide(by_stage: Times, stage: Stage, among: Times, least: float) -> None:
    """Divide a stage's time among others as these took theirs, in place.

    ``by_stage``: times. ``stage``: whose time is divided. ``among``: times of the others. What they waited for themselves is
    nobody's. ``least``: what is missing to so much is nobody's, too.
    """
    among = among.copy()
    among[_OTHER] += among[Stage.WAIT]
    among[Stage.WAIT] = 0.0
    among[_OTHER] += max(0.0, least - among.sum())
    total = float(among.sum())
    if total > 0:
        amount, by_stage[stage] = float(by_stage[stage]), 0.0
        by_stage += amount * among / total


def _sum(times: Sequence[Times]) -> Times:
    found: Times = np.sum([np.zeros(len(Stage) + 1), *times], axis=0)
    return found


def _downloads(threads: Sequence[_Thread], waiting: Intervals) -> tuple[float, float]:
    """Downloads that ran at once while the consumer waited, until the last one began, and those that might."""
    fetches = [(one, one.spans[one.spans["stage"] == Stage.FETCH]) for one in threads]
    fetches = [(one, spans) for one, spans in fetches if len(spans)]
    if not fetches:
        return 0.0, 0.0
    when = waiting.clipped(-np.inf, max(float(spans["begin"][-1]) for _, spans in fetches))
    if not when.total:
        return 0.0, 0.0
    running = most = 0.0
    for pid in {one.process.pid for one, _ in fetches}:  # each has its own limit, which may change as it goes
        here = np.concatenate([spans for one, spans in fetches if one.process.pid == pid])
        meanwhile = when.within(here["begin"], here["end"])
        running += float(meanwhile.sum()) / when.total
        most += float(np.average(here["at_once"], weights=meanwhile) if meanwhile.any() else here["at_once"].mean())
    return running, most
