"""Requests for stored bytes, of the ranks' records: merged by where they were served, with percentiles over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.display import counted
from stoker_bench.measure.request_counts import LATENCIES, SIZES
from stoker_bench.measure.requests import SOURCES, added, latency_summary

Requests = Mapping[str, Mapping[str, Any]]
"""Of :func:`~stoker_bench.measure.requests.request_record`: by where they were served."""


def merged_requests(parts: Sequence[Requests], *, at_once: bool) -> dict[str, dict[str, Any]]:
    """Requests of several ranks, or of several epochs.

    Histograms add up, so percentiles are those of all requests, and not means of percentiles.

    Args:
        parts: at least one.
        at_once: whether the parts ran at the same time, so that their rates add up; else rates are means over the parts.

    Returns:
        By where they were served, in a fixed order; without what served none.
    """
    found = {}
    for source in SOURCES:
        mine = [part[source] for part in parts if source in part]
        if mine:
            sums = {name: sum(one[name] for one in mine) for name in ("count", "bytes", "fetched_bytes", "seconds")}
            rates = {name: sum(one[name] for one in mine) for name in ("per_second", "bytes_per_second")}
            found[source] = {
                **sums,
                **(rates if at_once else {name: rate / len(parts) for name, rate in rates.items()}),
                **{name: added([one[name] for one in mine]) for name in ("latencies", "sizes")},
            }
    return found


def told_requests(found: Requests, *, histograms: bool = False) -> dict[str, dict[str, Any]]:
    """Requests as they are in ``results.json``: percentiles, and with ``histograms`` also the buckets of latencies."""
    told = {}
    for source, one in found.items():
        sizes = one["sizes"]
        told[source] = {
            **{name: one[name] for name in ("count", "bytes", "fetched_bytes", "per_second", "bytes_per_second")},
            "latency": latency_summary(one["latencies"], one["seconds"]),
            "mean_bytes": one["bytes"] / one["count"],
            "sizes": {str(SIZES.start(int(bucket))): sizes[bucket] for bucket in sorted(sizes, key=int)},
        }
        if histograms:
            buckets = sorted(map(int, one["latencies"]))
            told[source]["latency_histogram"] = {
                "from": [LATENCIES.start(bucket) * 1e-9 for bucket in buckets],
                "to": [LATENCIES.start(bucket + 1) * 1e-9 for bucket in buckets],
                "count": [one["latencies"][str(bucket)] for bucket in buckets],
            }
    return told


def counted_requests(entries: Sequence[Mapping[str, Any]]) -> Requests | None:
    """Of all ranks in an epoch or a checkpoint; ``None`` where a rank's are not known, or none was counted."""
    found = [entry.get("requests") for entry in entries]
    known = [one for one in found if one is not None]
    return merged_requests(known, at_once=True) or None if known and len(known) == len(found) else None


def repeated_requests(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Requests that failed and were made again, of all ranks or epochs, by endpoint; those of no named one under ``""``."""
    found: dict[str, int] = {}
    for entry in entries:
        for endpoint, count in (entry.get("repeated_requests") or {}).items():  # a rank may end before it knows
            found[endpoint] = found.get(endpoint, 0) + count
    return found


def request_findings(result: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Yields remarks on requests that were repeated: rule, whether it is broken, reason."""
    several = len(result["plan"]["workload"]["storage"]["endpoints"]) > 1
    for endpoint, count in repeated_requests(result["epochs"]).items():
        where = f" to {endpoint}" if endpoint else ""
        made = f"{counted(count, 'request')}{where} failed, and {'was' if count == 1 else 'were'} made again"
        if endpoint and several:
            made += " at another endpoint: is the server down? MB/s are those of the others"
        yield "repeated requests", False, f"{made}; the time that it took counts"


def over_epochs(records: Sequence[Mapping[str, Any]], kind: str) -> dict[str, dict[str, Any]] | None:
    """All requests of the epochs of one kind, with histograms; ``None`` where none was counted.

    Args:
        records: of the ranks.
        kind: ``train`` or ``valid``.
    """
    epochs: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for record in records:
        for entry in record["epochs"]:
            if entry["kind"] == kind and "metrics" in entry:
                epochs.setdefault((entry["repeat"], entry["epoch"]), []).append(entry)
    found = [one for entries in epochs.values() if (one := counted_requests(entries)) is not None]
    return told_requests(merged_requests(found, at_once=False), histograms=True) if found else None


def over_writes(parts: Sequence[Requests]) -> dict[str, dict[str, Any]] | None:
    """All requests of ranks that wrote at the same time, with histograms; ``None`` where none was made."""
    return told_requests(merged_requests(parts, at_once=True), histograms=True) or None


def over_checkpoints(records: Sequence[Mapping[str, Any]], kind: str) -> dict[str, dict[str, Any]] | None:
    """As :func:`over_epochs`, of the checkpoints that were saved or loaded.

    Args:
        records: of the ranks.
        kind: ``save`` or ``load``.
    """
    most = max((len(record["checkpoints"]) for record in records), default=0)
    events = [
        [record["checkpoints"][at] for record in records if at < len(record["checkpoints"])] for at in range(most)
    ]
    timed = [[one for one in event if one.get("seconds") is not None] for event in events if event[0]["kind"] == kind]
    found = [one for entries in timed if (one := counted_requests(entries)) is not None]
    return told_requests(merged_requests(found, at_once=False), histograms=True) if found else None
