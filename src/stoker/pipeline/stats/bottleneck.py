"""The bottleneck of a traced run: what the consumer's waiting was for, and the setting that makes it less."""

from __future__ import annotations

from collections.abc import Sequence
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
from stoker.pipeline.stats.trace_files import TracedProcess

_SKEW: Final = 2.0
"""A rank that waits this many times as long as the median of the others is slow."""

_BUSY: Final = 0.7
"""The part of the processors that those who make batches may have and still gain from being more."""

_DISTURBED: Final = 0.1
"""The part of its time for which a consumer had to wait for a processor that is worth saying."""


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

    Args:
        processes: all of one rank, or of several, whose clocks may differ.
        cores: processors that a rank may use.

    Raises:
        ConfigError: nothing was read in it.
    """
    stages, ranks = measure_run(processes)
    worst = max(ranks, key=lambda one: one.own_waited)
    others = [one.own_waited for one in ranks if one is not worst]
    slow = bool(others) and worst.share >= LITTLE and worst.own_waited > _SKEW * float(np.median(others))
    shown = worst if slow or len(ranks) == 1 else _typical(ranks)
    return Profile(
        shown.kind,
        worst.rank if slow else None,
        (_slow_rank(worst, float(np.median(others))) if slow else "") + _sentence(shown, cores) + _disturbed(shown),
        tuple(stages),
        tuple(ranks),
    )


def _typical(ranks: Sequence[RankTimes]) -> RankTimes:
    """The rank whose waiting is the median."""
    return sorted(ranks, key=lambda one: one.own_waited)[len(ranks) // 2]


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
        sum(rank.waits[stage] for stage, named in KINDS.items() if named == ("store" if kind == "buffer" else kind))
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
