"""The bottleneck of a traced run: what the consumer's waiting was for, and the setting that makes it less.

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
from stoker.pipeline.stats.span_times import Activity, Intervals, Times
from stoker.pipeline.stats.trace_files import TracedProcess

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
"""What there may be too little of. ``"hand-over"``: passing batches between processes, and Python between spans."""

_LITTLE: Final = 0.1
"""A consumer that waits for less than this part of its time is the bottleneck itself."""

_FULL: Final = 0.5
"""The lookahead is too short where it is full in this part of the waiting, and no more than this part of downloads run."""

_SKEW: Final = 2.0
"""A rank that waits this many times as long as the median of the others is slow."""

_FIRST: Final = 5
"""Of so many waits the first is left out: it is the start's. With workers, that for the first batch of each."""

_BUSY: Final = 0.7
"""The part of the processors that those who make batches may have and still gain from being more."""

_DISTURBED: Final = 0.1
"""The part of its time for which a consumer had to wait for a processor that is worth saying."""

_MAKES: Final = (Stage.OPEN, Stage.DECODE, Stage.TRANSFORM, Stage.COLLATE, Stage.SEND)
_FETCHES: Final = (Stage.FETCH, Stage.DECOMPRESS)
_OTHER: Final = 0

_KINDS: Final[dict[int, BottleneckKind]] = {
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
        rank: its number.
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
        if self.share < _LITTLE:
            return "consumer"
        said = self.waits.copy()
        if said[_OTHER] < said.sum() / 2:  # what no span says is small pieces of many things
            said[_OTHER] = 0.0
        kind = _KINDS[int(np.argmax(said))]
        if kind == "store" and self.full >= _FULL and self.downloads <= _FULL * self.most_downloads:
            return "buffer"
        return kind


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of a traced run, and its bottleneck.

    Attributes:
        kind: what there is too little of; of a slow rank: on it.
        rank: the rank that is slower than the others; ``None``: none is.
        sentence: the bottleneck and the remedy.
        stages: times by stage, the longest waiting first.
        ranks: each rank.
    """

    kind: BottleneckKind
    rank: int | None
    sentence: str
    stages: tuple[StageTime, ...]
    ranks: tuple[RankTimes, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it, JSON-serialisable."""
        return {
            "kind": self.kind,
            "rank": self.rank,
            "sentence": self.sentence,
            "stages": [{name: getattr(one, name) for name in StageTime.__slots__} for one in self.stages],
            "ranks": [
                {name: getattr(one, name) for name in RankTimes.__slots__ if name != "waits"}
                | {"waits": dict(zip(_stage_names(), one.waits.tolist(), strict=True))}
                for one in self.ranks
            ],
        }


def find_bottleneck(processes: Sequence[TracedProcess], cores: int) -> Profile:
    """Find the bottleneck of a run.

    Args:
        processes: all of one rank, or of several, whose clocks may differ.
        cores: processors that a rank may use.

    Raises:
        ConfigError: nothing was read in it.
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
        for number, name in enumerate(_stage_names())
        if spans[number] or waits[number]
    ]
    stages.sort(key=lambda one: (-one.waited, -one.seconds))
    worst = max(ranks, key=lambda one: one.own_waited)
    others = [one.own_waited for one in ranks if one is not worst]
    slow = bool(others) and worst.share >= _LITTLE and worst.own_waited > _SKEW * float(np.median(others))
    shown = worst if slow or len(ranks) == 1 else _typical(ranks)
    return Profile(
        shown.kind,
        worst.rank if slow else None,
        (_slow_rank(worst, float(np.median(others))) if slow else "") + _sentence(shown, cores) + _disturbed(shown),
        tuple(stages),
        tuple(ranks),
    )


def _stage_names() -> list[str]:
    return ["other", *(stage.name.lower() for stage in Stage)]


def _typical(ranks: Sequence[RankTimes]) -> RankTimes:
    """The rank whose waiting is the median."""
    return sorted(ranks, key=lambda one: one.own_waited)[len(ranks) // 2]


# -- times of a rank -----------------------------------------------------------------------------------------------------


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

    Args:
        by_stage: times.
        stage: whose time is divided.
        among: times of the others. What they waited for themselves is nobody's.
        least: what is missing to so much is nobody's, too.
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


# -- sentences -----------------------------------------------------------------------------------------------------------


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _slow_rank(worst: RankTimes, others: float) -> str:
    return (
        f"Rank {worst.rank} is slower than the others, which wait for it: its consumer waits {worst.own_waited:.1f} s, that "
        f"of the others {others:.1f} s (median). Look at the machine, disk and network of rank {worst.rank}. There: "
    )


def _is_idle(rank: RankTimes, cores: int) -> bool:
    """Whether those who make batches wait for something else than processors, so that more of them get more done.

    Threads that compute take turns with Python's lock; those that wait, for a store or a service, do not.
    """
    return rank.computing is not None and rank.computing < _BUSY * (cores if rank.workers else 1)


def _more(rank: RankTimes, cores: int) -> str:
    """The setting by which more is done at once."""
    idle = _is_idle(rank, cores)
    if rank.makers >= cores and not idle:
        return f"give the rank more than its {cores} processors"
    if rank.workers:
        more = f"raise num_workers above {rank.workers}"
    else:
        more = f"raise ReadOptions(read_threads=) above {rank.makers}"
        if not idle:
            more += ", or num_workers= of a StreamingDataLoader above 0"
    if idle:
        more += (
            f", beyond the number of processors: it waits for something else, and takes {rank.computing:.1f} of them"
        )
    return more


def _disturbed(rank: RankTimes) -> str:
    if rank.displaced < _DISTURBED * rank.elapsed:
        return ""
    part = _percent(rank.displaced / rank.elapsed)
    return f" For {part} of its time the consumer could run, and other programs or threads had the processors."


def _sentence(rank: RankTimes, cores: int) -> str:
    kind = rank.kind
    waits = f"it waits {_percent(rank.share)} of the time"
    if kind == "consumer":
        return (
            f"The consumer is the bottleneck: {waits} and takes the rest itself. Make the training step faster; the loader "
            "needs nothing, and may do with fewer workers and threads."
        )
    of_it = _percent(
        sum(rank.waits[stage] for stage, named in _KINDS.items() if named == ("store" if kind == "buffer" else kind))
        / rank.waited
    )
    head = f" is the bottleneck: the consumer waits {_percent(rank.share)} of the time, {of_it} of that for "
    downloads = (
        f"{rank.downloads:.1f} of {rank.most_downloads:.0f} downloads run meanwhile, {1e3 * rank.fetch_seconds:.0f} ms "
        f"and {rank.fetch_rate / 1e6:.1f} MB/s each"
    )
    more, idle = _more(rank, cores), _is_idle(rank, cores)
    said: dict[BottleneckKind, str] = {
        "store": f"The store{head}shards ({downloads}). Raise ReadOptions(download_threads=) above "
        f"{rank.most_downloads:.0f}; where that gains nothing, move the data nearer, or keep it: local= on a fast disk.",
        "buffer": f"The buffer{head}shards, while only {downloads}: too few are asked for ahead. Raise predownload= (or "
        "leave it out), and cache_limit= where there is one.",
        "decompression": f"Decompression{head}it. Write shards without compression, or by a faster codec such as lz4; "
        f"or {more}.",
        "opening": f"Opening shards{head}it. Write fewer, larger shards, or keep them on a disk that answers sooner.",
        "decoding": f"Decoding{head}it. Read fewer columns (columns=), store values that decode faster, or {more}.",
        "transform": f"The transform{head}it. Do once what is the same in each epoch, by stoker convert, make it faster, "
        f"or {more}."
        + (
            ""
            if rank.workers or idle
            else " Pure Python gets more done in processes: ReadOptions(run_in='auto') measures it."
        ),
        "collating": f"Collating{head}it. Give samples arrays of one shape, use columnar=True, or {more}.",
        "hand-over": f"Passing batches on{head}what is around them in Python. Use columnar=True or batches(), a larger "
        "batch_size, or fewer workers.",
        "listing": f"Listing{head}it. Write an index (stoker index), or list fewer files.",
    }
    return said[kind]
