"""A simulation's report in words, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stoker.cli.terminal import count_text, seconds_text
from stoker.display import bytes_text
from stoker_bench.simulate import NodeReport, Report

NODE_COLUMNS = ("node", "samples", "shards", "fetched", "shared", "cache", "evicted", "again")
"""Headings of :func:`node_rows`."""

NODE_LEGEND = (
    "fetched: bytes through its link; shared: shards that another node fetches too; cache: bytes that it must hold to fetch "
    "each shard once; evicted: files removed for the cache limit; again: bytes fetched again after that"
)
"""Explains the headings."""

_WORDS = {
    "num_canonical_nodes": "canonical nodes",
    "ranks_per_node": "ranks a node",
    "workers": "workers a rank",
    "batch_size": "batch of a rank",
    "predownload": "samples ahead",
}


def settings_in_words(report: Report, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of every setting in force."""
    model = report.model
    limit = "none" if model.cache_limit is None else bytes_text(model.cache_limit)
    said = [
        (_WORDS.get(name, name.replace("_", " ")), str(value) if name == "seed" else _value(value))
        for name, value in settings.items()
    ]
    return [
        *said,
        ("bandwidth of a node", "unbounded" if model.bandwidth is None else f"{bytes_text(model.bandwidth)}/s"),
        ("latency", seconds_text(model.latency)),
        ("time of a step", seconds_text(model.step_time)),
        ("cache limit of a node", limit),
    ]


def findings(report: Report) -> list[tuple[str, str]]:
    """The findings, name and value, in the order of interest."""
    clock, quality, sharing = report.clock, report.quality, report.sharing
    samples, steps = report.balance.samples, report.balance.steps
    least = report.least_bandwidth
    enough = "none is enough" if least is None else "any" if least == 0 else f"{bytes_text(least)}/s a node"
    first = report.first_batches
    return [
        (
            "first batch on all ranks after",
            f"{seconds_text(clock.first_batch)}; on the first after {seconds_text(first.min())}",
        ),
        ("waiting after that", f"{seconds_text(clock.waiting)} of {seconds_text(clock.total)}{_where(report)}"),
        ("throughput", f"{count_text(report.samples_a_second)} samples/s"),
        ("bandwidth with which nothing waits", enough),
        (
            "fetched by all nodes",
            f"{bytes_text(sum(node.bytes for node in report.nodes))}; the shards have {bytes_text(report.bytes)}",
        ),
        (
            "shards of several nodes",
            f"{count_text(sharing.shards)} of {count_text(report.shards)}; {bytes_text(sharing.extra_bytes)} more than once",
        ),
        ("cache needed by a node", bytes_text(report.cache_needed)),
        ("samples of a rank", _range(samples)),
        ("steps of a rank", _range(steps)),
        ("samples that come twice", count_text(report.balance.padding)),
        ("correlation of position and id", f"{quality.position_correlation:.3f} (0: random, 1: id order)"),
        ("distance of neighbours", f"{quality.neighbour_distance:.3f} of a random order's"),
        (
            "shards in a global batch",
            f"{count_text(quality.shards_a_batch)}; a random order has {count_text(quality.shards_if_random)}",
        ),
        ("evaluated", f"{report.sampling}; the last three on {count_text(quality.samples)} samples"),
    ]


def node_rows(nodes: list[NodeReport]) -> list[tuple[str, ...]]:
    """A row a node, as :data:`NODE_COLUMNS` has it."""
    return [
        (
            str(node.node),
            count_text(node.samples),
            count_text(node.cache.shards.size),
            bytes_text(node.bytes),
            count_text(node.shared),
            bytes_text(node.cache.needed),
            count_text(node.cache.evictions),
            bytes_text(node.refetched),
        )
        for node in nodes
    ]


def _where(report: Report) -> str:
    waits = report.waits(1)
    if not waits:
        return ""
    longest = waits[0]
    first, last = int(longest["first"]), int(longest["last"])
    at = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"; the longest, {seconds_text(longest['seconds'])}, before {at}"


def _range(values: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    low, high = int(values.min()), int(values.max())
    return count_text(low) if low == high else f"{count_text(low)} to {count_text(high)}"


def _value(value: Any) -> str:
    return count_text(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
