"""The bottleneck of a traced run: what the consumer's waiting was for, and the setting that makes it less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.pipeline.stats.rank_times import (
    KINDS,
    LITTLE,
    BottleneckKind,
    RankTimes,
    StageTime,
    measure_run,
    stage_names,
)
from stoker.pipeline.stats.trace_files import SettingsByLoader, TracedProcess

_SKEW: Final = 2.0
"""A rank that waits this many times as long as the median of the others is slow."""

_BUSY: Final = 0.7
"""The part of the processors that those who make batches may have and still gain from being more."""

_DISTURBED: Final = 0.1
"""The part of its time for which a consumer had to wait for a processor that is worth saying."""


_OUTERMOST_FIRST: Final = (
    "StreamingDataLoader",
    "LMStream",
    "StreamingShardLoader",
    "StreamingParquetLoader",
    "StreamingDataset",
)


@dataclass(frozen=True, slots=True)
class LoaderSetting:
    """A setting of a loader, and its value.

    Attributes:
        loader: its public class.
        written: as its user writes it.
        value: as it is now; ``None``: not given.
    """

    loader: str
    written: str
    value: Any

    def __str__(self) -> str:
        return f"{self.written} of the {self.loader}"

    @property
    def now(self) -> str:
        """The setting and its value."""
        return f"{self} ({'not given' if self.value is None else f'now {self.value!r}'})"


class LoaderSettings:
    """The settings of all loaders that one rank has iterated over.

    ``noted``: of each of its processes, its consumer's first.
    """

    def __init__(self, noted: Iterable[SettingsByLoader] = ()) -> None:
        self._noted: dict[str, dict[str, Any]] = {}
        for one in noted:
            for loader, settings in one.items():
                self._noted[loader] = {**settings, **self._noted.get(loader, {})}

    @property
    def loaders(self) -> tuple[str, ...]:
        """The classes of the loaders."""
        return tuple(self._noted)

    def __iter__(self) -> Iterator[LoaderSetting]:
        """All, those of the loader first that the consumer iterates over."""
        for loader in _OUTERMOST_FIRST:
            for written, value in self._noted.get(loader, {}).items():
                yield LoaderSetting(loader, written, value)

    def find(self, name: str) -> LoaderSetting | None:
        """The setting of an argument, or of a method whose name ends in ``()``; ``None``: no loader has it."""
        wanted = name if name.endswith("()") else f"{name}="
        return next((one for one in self if one.written == wanted or one.written.endswith(f"({wanted})")), None)


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
                | {"waits": dict(zip(stage_names(), one.waits.tolist(), strict=True))}
                for one in self.ranks
            ],
        }


def find_bottleneck(processes: Sequence[TracedProcess], cores: int) -> Profile:
    """Find the bottleneck of a run.

    ConfigError if nothing was read in it. ``processes``: all of one rank, or of several, whose clocks may differ. ``cores``:
    processors that a rank may use.
    """
    stages, ranks = measure_run(processes)
    worst = max(ranks, key=lambda one: one.own_waited)
    others = [one.own_waited for one in ranks if one is not worst]
    slow = bool(others) and worst.share >= LITTLE and worst.own_waited > _SKEW * float(np.median(others))
    typical = sorted(ranks, key=lambda one: one.own_waited)[len(ranks) // 2]
    shown = worst if slow or len(ranks) == 1 else typical
    return Profile(
        shown.kind,
        worst.rank if slow else None,
        (_slow_rank(worst, float(np.median(others))) if slow else "")
        + describe_bottleneck(shown, cores, _settings(processes, shown.rank))
        + _disturbed(shown),
        tuple(stages),
        tuple(ranks),
    )


def _settings(processes: Sequence[TracedProcess], rank: int) -> LoaderSettings:
    """The settings of the loaders of a rank."""
    mine = [one for one in processes if one.rank == rank]
    return LoaderSettings(one.loaders for one in sorted(mine, key=lambda one: one.worker is not None))


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


def _more(rank: RankTimes, cores: int, settings: LoaderSettings) -> str:
    """The setting by which more is done at once; empty: no traced loader has one."""
    idle = _is_idle(rank, cores)
    if rank.makers >= cores and not idle:
        return f"give the rank more than its {cores} processors"
    workers, threads = settings.find("num_workers"), settings.find("read_threads")
    run_in, processes = settings.find("run_in"), settings.find("read_processes")
    if rank.workers:
        more = f"raise {workers or 'num_workers= of the DataLoader'} above {rank.workers}"
    elif threads is not None:
        more = f"raise {threads} above {rank.makers}"
        if not idle and workers is not None:
            more += f", or {workers} above {workers.value}"
        elif not idle and {*settings.loaders} == {"StreamingDataset"}:
            more += ", or num_workers= of a StreamingDataLoader above 0"
    elif processes is not None:
        more = f"raise {processes} above {rank.makers}"
    elif run_in is not None:
        more = f"set {run_in.now} to 'processes'"
    else:
        return ""
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


def describe_bottleneck(rank: RankTimes, cores: int, settings: LoaderSettings) -> str:
    """The bottleneck of a rank and the remedy, in a sentence or two.

    ``rank``: its times. ``cores``: processors that it may use. ``settings``: those of the loaders that it has iterated over;
    no others are named.
    """
    kind = rank.kind
    waits = f"it waits {_percent(rank.share)} of the time"
    if kind == "consumer":
        return (
            f"The consumer is the bottleneck: {waits} and takes the rest itself. Make the training step faster; the loader "
            "needs nothing, and may do with fewer workers and threads."
        )
    of_it = _percent(
        sum(rank.waits[stage] for stage, named in KINDS.items() if named == ("store" if kind == "buffer" else kind))
        / rank.waited
    )
    head = f" is the bottleneck: the consumer waits {_percent(rank.share)} of the time, {of_it} of that for "
    downloads = (
        f"{rank.downloads:.1f} of {rank.most_downloads:.0f} downloads run meanwhile, {1e3 * rank.fetch_seconds:.0f} ms "
        f"and {rank.fetch_rate / 1e6:.1f} MB/s each"
    )
    more = _more(rank, cores, settings)
    said: dict[BottleneckKind, str] = {
        "store": f"The store{head}shards ({downloads}). {_store_remedy(rank, settings)}",
        "buffer": f"The buffer{head}shards, while only {downloads}: too few are asked for ahead."
        f"{_buffer_remedy(settings)}",
        "decompression": f"Decompression{head}it. "
        + _either("write shards without compression, or by a faster codec such as lz4", more),
        "opening": f"Opening shards{head}it. Write fewer, larger shards, or keep them on a disk that answers sooner.",
        "decoding": f"Decoding{head}it. " + _either(_fewer_columns(settings), "store values that decode faster", more),
        "transform": f"The transform{head}it. {_transform_remedy(rank, cores, settings, more)}",
        "collating": f"Collating{head}it. " + _either("give samples arrays of one shape", _columns(settings), more),
        "hand-over": f"Passing batches on{head}what is around them in Python. "
        + _either(_columns(settings), _larger_batches(settings), "use fewer workers" if rank.workers else ""),
        "listing": f"Listing{head}it. List fewer files, or write shards with an index (stoker convert).",
    }
    return said[kind].rstrip()


def _either(*choices: str) -> str:
    """A sentence of the choices that are not empty; empty where all are."""
    found = [one for one in choices if one]
    if not found:
        return ""
    text = found[0] if len(found) == 1 else f"{', '.join(found[:-1])}, or {found[-1]}"
    return f"{text[0].upper()}{text[1:]}."


def _store_remedy(rank: RankTimes, settings: LoaderSettings) -> str:
    at_once, local, cache = (settings.find(name) for name in ("download_threads", "local", "cache"))
    keep = f", or keep it on a fast disk: {local.now}" if local else ""
    keep = keep or (f", or keep it on a disk between epochs: {cache.now}" if cache else "")
    if at_once is None:
        return f"Move the data nearer{keep}."
    return f"Raise {at_once} above {rank.most_downloads:.0f}; where that gains nothing, move the data nearer{keep}."


def _buffer_remedy(settings: LoaderSettings) -> str:
    ahead = settings.find("predownload") or settings.find("prefetch_buffer_size")
    limit = settings.find("cache_limit")
    raised = [] if ahead is None else [f"raise {ahead.now}{', or leave it out' if ahead.value is not None else ''}"]
    if limit is not None and limit.value is not None:
        raised.append(f"raise {limit.now}")
    return "" if not raised else f" {raised[0][0].upper()}{'; or '.join(raised)[1:]}."


def _fewer_columns(settings: LoaderSettings) -> str:
    columns = settings.find("columns")
    return "" if columns is None or "LMStream" in settings.loaders else f"read fewer columns: {columns.now}"


def _columns(settings: LoaderSettings) -> str:
    """The setting by which whole columns are read, and not samples; empty: none, or they are."""
    columnar, batches = settings.find("columnar"), settings.find("batches()")
    if columnar is not None:
        return f"set {columnar.now} to True, without a collate_fn"
    if "StreamingShardLoader" in settings.loaders or "StreamingDataLoader" in settings.loaders:
        return ""
    return "" if batches is None else f"iterate over {batches}, and not over samples"


def _larger_batches(settings: LoaderSettings) -> str:
    size = settings.find("batch_size") or settings.find("global_batch_size")
    return "" if size is None else f"raise {size.now}"


def _transform_remedy(rank: RankTimes, cores: int, settings: LoaderSettings, more: str) -> str:
    if settings.find("tokenizer") is not None:
        return _either("tokenize the text once, by stoker tokenize", more)
    found = _either("do once what is the same in each epoch, by stoker convert", "make it faster", more)
    run_in = settings.find("run_in")
    if rank.workers or _is_idle(rank, cores) or run_in is None or run_in.value != "threads":
        return found
    return f"{found} Pure Python gets more done in processes: set {run_in.now} to 'auto', which measures it."
