"""Statistics of any loader: one snapshot of all counts, cheap enough to be taken at any time, also as Prometheus' text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.shared.counters import BUCKETS, Count, Counts, bucket_start
from stoker.errors import ConfigError
from stoker.pipeline.execution.executor import Execution

if TYPE_CHECKING:
    from stoker.pipeline.tuning.tuner import TuningDecision

PERCENTILES: Final = (50, 90, 99)
_OF_BUFFER: Final = (Count.BUFFER_HITS, Count.BUFFER_MISSES, Count.BUFFER_WAIT)
_OF_SHARDS: Final = (Count.SHARDS_READY, Count.SHARDS_AWAITED, Count.WAIT_TIME)


class Metric(NamedTuple):
    """A field of the statistics, as it is exported.

    Attributes:
        counts: what it counts, where that is all there is to it.
        name: without prefix and without the endings that a system asks for; empty: the field's.
        unit: its unit by Prometheus' names; empty for a number of things.
        rises: whether it only ever rises.
    """

    about: str
    counts: Count | None
    name: str
    unit: str
    rises: bool

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus, without the ending of what rises."""
        return "_".join(filter(None, [METRIC_PREFIX + self.name, self.unit]))


def _metric(about: str, count: Count | None = None, *, name: str = "", unit: str = "", rises: bool = True) -> Any:
    """A field that is exported; see :class:`Metric`."""
    return field(metadata={"metric": Metric(about, count, name, unit, rises)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """Statistics of a loader: samples, bytes and times of reading them. ``stats()`` of every loader returns them.

    Times are in seconds. All is counted since the loader was made, over its DataLoader workers, too.

    A *read* is a step of reading: some batches, or some samples, that are located, read and decoded together. It takes no
    count of the decoding of samples that are made one by one as they are asked for.

    Attributes:
        samples_loaded: samples that were read, over all processes of this object (its DataLoader workers).
        local_samples: those of shards that were in the cache, or are read in place.
        remote_samples: those of shards that were not in the cache when their process first wanted them.
        prefetch_hits: shards that were open when a read began, or samples that were in the buffer when asked for.
        prefetch_misses: those that were not, so that somebody waited.
        mean_load_time: time of all reads by samples.
        load_percentiles: time of a read: percentile (50, 90, 99) to seconds, right within an eighth.
        reads: number of reads.
        bytes_read: bytes of shard files that were opened.
        bytes_fetched: bytes of shards that came from remote storage.
        cache_hits: shards that were in the cache when opened.
        cache_misses: shards that were not.
        retries: shards that were fetched again as they were corrupt.
        bad_samples: samples that were left out or replaced; see :class:`~stoker.reading.bad_samples.BadSamples`.
        filtered: samples that ``filter`` left out or replaced, as they are read.
        checkpoints: checkpoints written.
        worker_utilization: part of the time since the first read in which the consumer did not wait for samples.
        waited: time for which it waited.
        elapsed: time from the first read to the last.
        leases: splits that were leased.
        leases_lost: leases that were lost, as this worker was not seen for too long.
        delivered_again: samples that this worker delivered and that another delivers again, as their lease was lost.
        commits_refused: ranges of samples that this worker delivered and could not commit, as their lease was lost.
        replicated_shards: shards that were brought into the cache for other workers.
        replicated_bytes: their bytes.
        token_batches: batches for language models that were delivered.
        tokens: their slots that hold tokens, those of eos counted.
        token_slots: all their slots, those of padding counted.
        cut_documents: documents of which a layout cut something off.
        cut_tokens: tokens that were cut off.
        tuning: what tuners of its processes tried, kept and withdrew, the latest 32 of each; see
            :class:`~stoker.formats.base.ReadOptions`.
        execution: what runs the functions of samples in this process, and why; ``None``: it has not begun to iterate, or its
            DataLoader's workers do, or the thread of a StreamingShardLoader.
    """

    samples_loaded: int = _metric("Samples read.", Count.SAMPLES, name="samples")
    local_samples: int = _metric("Samples of shards that were in the cache.")
    remote_samples: int = _metric(
        "Samples of shards that were not in the cache when first wanted.", Count.REMOTE_SAMPLES
    )
    prefetch_hits: int = _metric("What was there when it was needed.")
    prefetch_misses: int = _metric("What was waited for.")
    mean_load_time: float = _metric("Mean time of reading a sample.", name="load_time", unit="seconds", rises=False)
    load_percentiles: dict[int, float]
    reads: int = _metric("Steps of reading.", Count.READS)
    bytes_read: int = _metric("Bytes of shard files opened.", Count.BYTES_OPENED, name="read", unit="bytes")
    bytes_fetched: int = _metric(
        "Bytes of shards from remote storage.", Count.BYTES_FETCHED, name="fetched", unit="bytes"
    )
    cache_hits: int = _metric("Shards that were in the cache when opened.", Count.CACHE_HITS)
    cache_misses: int = _metric("Shards that were not.", Count.CACHE_MISSES)
    retries: int = _metric("Shards fetched again because they were corrupt.", Count.RETRIES)
    bad_samples: int = _metric("Bad samples left out or replaced.", Count.BAD_SAMPLES)
    filtered: int = _metric("Samples that a filter left out or replaced.", Count.FILTERED)
    checkpoints: int = _metric("Checkpoints written.", Count.CHECKPOINTS)
    worker_utilization: float = _metric("Part of the time without waiting for samples.", unit="ratio", rises=False)
    waited: float = _metric("Time of waiting for samples.", unit="seconds")
    elapsed: float
    leases: int = _metric("Splits leased.", Count.LEASES)
    leases_lost: int = _metric("Leases lost.", Count.LEASES_LOST)
    delivered_again: int = _metric("Samples delivered whose lease was lost before their commit.", Count.DELIVERED_AGAIN)
    commits_refused: int = _metric("Ranges of samples whose commit was refused.", Count.COMMITS_REFUSED)
    replicated_shards: int = _metric("Shards cached for other workers.", Count.REPLICATED_SHARDS)
    replicated_bytes: int = _metric("Their bytes.", Count.REPLICATED_BYTES, name="replicated", unit="bytes")
    token_batches: int = _metric("Batches for language models delivered.", Count.BATCHES)
    tokens: int = _metric("Their slots that hold tokens.", Count.TOKENS)
    token_slots: int = _metric("All their slots.", Count.TOKEN_SLOTS)
    cut_documents: int = _metric("Documents of which a layout cut something off.", Count.CUT_DOCUMENTS)
    cut_tokens: int = _metric("Tokens that were cut off.", Count.CUT_TOKENS)
    tuning: tuple[TuningDecision, ...] = ()
    execution: Execution | None = None

    @property
    def padding_waste(self) -> float:
        """The fraction of the slots of batches for language models that is padding, 0 to 1."""
        return 1 - self.tokens / self.token_slots if self.token_slots else 0.0

    @classmethod
    def of(cls, counts: Counts, *, buffered: bool = False, execution: Execution | None = None) -> StreamStats:
        """A snapshot of ``counts``.

        Args:
            counts: where reading was counted.
            buffered: whether a buffer stands between reading and the consumer: then hits and misses, and the time that the
                consumer waited, are the buffer's.
            execution: what executes.
        """
        from stoker.pipeline.tuning.tuner import decisions  # who only reads statistics of others tunes nothing

        totals, histogram = counts.totals()

        def of(what: Count) -> int:
            return int(totals[what])

        samples = of(Count.SAMPLES)
        hits, misses, wait = _OF_BUFFER if buffered else _OF_SHARDS
        waited = of(wait) * 1e-9
        elapsed = (of(Count.LATEST) - of(Count.BEGUN)) * 1e-9
        counted: dict[str, Any] = {
            name: of(metric.counts) for name, metric in METRICS.items() if metric.counts is not None
        }
        return cls(
            local_samples=samples - of(Count.REMOTE_SAMPLES),
            prefetch_hits=of(hits),
            prefetch_misses=of(misses),
            mean_load_time=of(Count.READ_TIME) * 1e-9 / samples if samples else 0.0,
            load_percentiles={percent: percentile(histogram, percent / 100) for percent in PERCENTILES},
            worker_utilization=max(0.0, 1.0 - waited / elapsed) if elapsed > 0 else 0.0,
            waited=waited,
            elapsed=elapsed,
            tuning=decisions(counts),
            execution=execution,
            **counted,
        )

    def prometheus(self, **labels: str) -> str:
        """All numbers in Prometheus' text format; see :func:`prometheus_text`."""
        return prometheus_text(self, labels)


METRICS: Final[dict[str, Metric]] = {
    one.name: metric._replace(name=metric.name or one.name)
    for one in fields(StreamStats)
    if (metric := one.metadata.get("metric")) is not None
}
"""Fields of :class:`StreamStats` that are exported."""

METRIC_PREFIX: Final = "stoker_"
READ_TIME: Final = "read_seconds"
READ_TIME_ABOUT: Final = "Time of a step of reading, by quantile."


def prometheus_text(stats: StreamStats, labels: Mapping[str, str] | None = None) -> str:
    """All metrics in Prometheus' text exposition format 0.0.4.

    ConfigError if a label's name is none that Prometheus allows. ``stats``: a snapshot. ``labels``: put on every metric, such
    as the rank.
    """
    given = dict(labels or {})
    for name in given:
        if not name.isidentifier() or not name.isascii() or name.startswith("__") or name == "quantile":
            raise ConfigError(
                f"{name!r} is not a name for a label: letters, digits and underscores, and not 'quantile'"
            )
    lines: list[str] = []
    for attribute, metric in METRICS.items():
        name, kind = metric.prometheus_name, "gauge"
        if metric.rises:
            name, kind = f"{name}_total", "counter"
        lines += [
            f"# HELP {name} {metric.about}",
            f"# TYPE {name} {kind}",
            f"{name}{_labels(given)} {_number(getattr(stats, attribute))}",
        ]
    name = METRIC_PREFIX + READ_TIME
    lines += [f"# HELP {name} {READ_TIME_ABOUT}", f"# TYPE {name} summary"]
    for percent, seconds in stats.load_percentiles.items():
        lines.append(f"{name}{_labels({**given, 'quantile': str(percent / 100)})} {_number(seconds)}")
    lines.append(f"{name}_sum{_labels(given)} {_number(stats.mean_load_time * stats.samples_loaded)}")
    lines.append(f"{name}_count{_labels(given)} {stats.reads}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    written = []
    for name, value in labels.items():
        text = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        written.append(f'{name}="{text}"')
    return "{" + ",".join(written) + "}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def percentile(histogram: NDArray[np.int64], part: float) -> float:
    """Seconds that ``part`` of the reads did not exceed: interpolated in the bucket; 0 without reads."""
    reached = np.cumsum(histogram)
    total = int(reached[-1])
    if not total:
        return 0.0
    wanted = part * total
    bucket = min(int(np.searchsorted(reached, wanted)), BUCKETS - 1)
    before = int(reached[bucket - 1]) if bucket else 0
    inside = (wanted - before) / int(histogram[bucket])
    low, high = bucket_start(bucket), bucket_start(bucket + 1)
    return low + (high - low) * min(1.0, max(0.0, inside))
