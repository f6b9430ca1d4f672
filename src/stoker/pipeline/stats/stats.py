"""Statistics of any loader: one snapshot of all counts, cheap enough to be taken at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.shared_counters import BUCKETS, Count, Counts, bucket_start

__all__ = ["PERCENTILES", "StreamStats"]

PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Statistics of a loader: what was loaded, and what it took. ``stats()`` of every loader gives one.

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
        checkpoints: checkpoints written.
        worker_utilization: part of the time since the first read in which whoever takes the samples did not wait for them.
        waited: time for which it waited.
        elapsed: time from the first read to the last.
        leases: splits that were leased.
        leases_lost: leases that were lost, as this worker was not seen for too long.
        delivered_again: samples that this worker delivered and that another delivers again, as their lease was lost.
        commits_refused: ranges of samples that this worker delivered and could not commit, as their lease was lost.
        replicated_shards: shards that were brought into the cache for others' sake.
        replicated_bytes: their bytes.
        token_batches: batches for language models that were delivered.
        tokens: their places that hold tokens, those of eos counted.
        token_places: all their places.
        cut_documents: documents of which a layout cut something off.
        cut_tokens: tokens that were cut off.
    """

    samples_loaded: int
    local_samples: int
    remote_samples: int
    prefetch_hits: int
    prefetch_misses: int
    mean_load_time: float
    load_percentiles: dict[int, float]
    reads: int
    bytes_read: int
    bytes_fetched: int
    cache_hits: int
    cache_misses: int
    retries: int
    checkpoints: int
    worker_utilization: float
    waited: float
    elapsed: float
    leases: int = 0
    leases_lost: int = 0
    delivered_again: int = 0
    commits_refused: int = 0
    replicated_shards: int = 0
    replicated_bytes: int = 0
    token_batches: int = 0
    tokens: int = 0
    token_places: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0

    @property
    def padding_waste(self) -> float:
        """The part of all places of batches for language models that is padding, 0 to 1."""
        return 1 - self.tokens / self.token_places if self.token_places else 0.0

    @classmethod
    def of(cls, counts: Counts, *, buffered: bool = False) -> StreamStats:
        """A snapshot of ``counts``.

        Args:
            counts: where reading was counted.
            buffered: whether a buffer stands between reading and the consumer: then hits and misses, and the time that the
                consumer waited, are the buffer's.
        """
        totals, histogram = counts.totals()

        def of(what: Count) -> int:
            return int(totals[what])

        samples, remote = of(Count.SAMPLES), of(Count.REMOTE_SAMPLES)
        hits, misses = (
            (Count.BUFFER_HITS, Count.BUFFER_MISSES) if buffered else (Count.SHARDS_READY, Count.SHARDS_AWAITED)
        )
        waited = of(Count.BUFFER_WAIT if buffered else Count.WAIT_TIME) * 1e-9
        elapsed = (of(Count.LATEST) - of(Count.BEGUN)) * 1e-9
        return cls(
            samples_loaded=samples,
            local_samples=samples - remote,
            remote_samples=remote,
            prefetch_hits=of(hits),
            prefetch_misses=of(misses),
            mean_load_time=of(Count.READ_TIME) * 1e-9 / samples if samples else 0.0,
            load_percentiles={percent: percentile(histogram, percent / 100) for percent in PERCENTILES},
            reads=of(Count.READS),
            bytes_read=of(Count.BYTES_OPENED),
            bytes_fetched=of(Count.BYTES_FETCHED),
            cache_hits=of(Count.CACHE_HITS),
            cache_misses=of(Count.CACHE_MISSES),
            retries=of(Count.RETRIES),
            checkpoints=of(Count.CHECKPOINTS),
            worker_utilization=max(0.0, 1.0 - waited / elapsed) if elapsed > 0 else 0.0,
            waited=waited,
            elapsed=elapsed,
            leases=of(Count.LEASES),
            leases_lost=of(Count.LEASES_LOST),
            delivered_again=of(Count.DELIVERED_AGAIN),
            commits_refused=of(Count.COMMITS_REFUSED),
            replicated_shards=of(Count.REPLICATED_SHARDS),
            replicated_bytes=of(Count.REPLICATED_BYTES),
            token_batches=of(Count.BATCHES),
            tokens=of(Count.TOKENS),
            token_places=of(Count.TOKEN_PLACES),
            cut_documents=of(Count.CUT_DOCUMENTS),
            cut_tokens=of(Count.CUT_TOKENS),
        )

    def prometheus(self, **labels: str) -> str:
        """All numbers in Prometheus' text format; see :mod:`stoker.pipeline.stats.metrics`."""
        from stoker.pipeline.stats.metrics import prometheus_text

        return prometheus_text(self, labels)


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
