"""Requests of a rank's epoch, from the counters at its begin and end: for the rank's record, whose histograms add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.request_observer import ServedBy
from stoker_bench.measure.request_counts import BYTES, COUNT, FETCHED, LATENCIES, LATENCY, SIZE, SIZES, TIME

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
NOT_TOLD: Final = "local"
"""Name of requests for local files of which nobody can tell whether the device or the page cache served them."""
SOURCES: Final = (*(one.name.lower() for one in ServedBy), NOT_TOLD)
"""Names of where requests are served, as in results."""
Histogram = Mapping[str, int]
"""Counts by the number of a bucket, as text for JSON."""


class Moment(NamedTuple):
    """The counters at a time.

    Attributes:
        at: of ``time.monotonic``.
        table: of :meth:`~stoker_bench.measure.request_counts.RequestCounts.table`.
    """

    at: float
    table: NDArray[np.int64]


def request_record(began: Moment, reading: Moment, ended: Moment, *, told: bool) -> dict[str, dict[str, Any]]:
    """Requests by where they were served; of a source that served none there is no entry.

    Args:
        told: whether the kernel counts what it fetches for the files' file system, and nothing else. Where it does not,
            requests for local files are :data:`NOT_TOLD` apart.
        began: the epoch.
        reading: when the loader was open, and its processes had started; rates are over the time from then on where that is
            more than over the whole epoch.
        ended: the last step.
    """
    found = {}
    rows, late_rows = ended.table - began.table, ended.table - reading.table
    served: list[tuple[str, list[int]]] = [(source.name.lower(), [source]) for source in ServedBy]
    if not told:
        local = [ServedBy.DEVICE, ServedBy.PAGE_CACHE]
        served = [*((name, of) for name, of in served if of[0] not in local), (NOT_TOLD, [*local])]
    for name, of in served:
        row, late = rows[of].sum(axis=0), late_rows[of].sum(axis=0)
        if not row[COUNT]:
            continue
        # Both rates are of the same time: of the whole epoch, or of the time in which the loader read.
        spans = [(row, ended.at - began.at), (late, ended.at - reading.at)]
        rates = [(counts[BYTES] / max(seconds, 1e-9), counts[COUNT] / max(seconds, 1e-9)) for counts, seconds in spans]
        bytes_per_second, per_second = max(rates)
        found[name] = {
            "count": int(row[COUNT]),
            "bytes": int(row[BYTES]),
            "fetched_bytes": int(row[FETCHED]),
            "seconds": float(row[TIME]) * 1e-9,
            "per_second": float(per_second),
            "bytes_per_second": float(bytes_per_second),
            "latencies": _sparse(row[LATENCY : LATENCY + LATENCIES.count]),
            "sizes": _sparse(row[SIZE : SIZE + SIZES.count]),
        }
    return found


def latency_summary(histogram: Histogram, seconds: float) -> dict[str, float] | None:
    """Mean, percentiles and the largest, in seconds; ``None`` without requests.

    Percentiles are in the middle of their bucket, the largest at the end of its: right to 1.6 % and 3.1 %.

    Args:
        histogram: by bucket of :data:`~stoker_bench.measure.request_counts.LATENCIES`.
        seconds: the sum of all.

    Example:
        >>> latency_summary({"100": 3}, 7.5e-6)["p50"]
        2.304e-06
    """
    buckets = np.array(sorted(map(int, histogram)), np.int64)
    counts = np.array([histogram[str(bucket)] for bucket in buckets.tolist()], np.int64)
    if not counts.sum():
        return None
    starts, reached = LATENCIES.starts() * 1e-9, np.cumsum(counts)
    low, high = starts[buckets], starts[buckets + 1]
    at = {percent: int(np.searchsorted(reached, percent / 100 * reached[-1])) for percent in PERCENTILES}
    middles = {f"p{percent:g}": float(low[k] + high[k]) / 2 for percent, k in at.items()}
    return {"mean": seconds / int(reached[-1]), **middles, "max": float(high[-1])}


def added(histograms: list[Histogram]) -> dict[str, int]:
    """The sum of some histograms."""
    total: dict[str, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def _sparse(counts: NDArray[np.int64]) -> dict[str, int]:
    return {str(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}
