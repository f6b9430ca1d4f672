"""A report as one page of HTML that needs no other file: no script, no font, no network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.cli.terminal import count_text, seconds_text, time_unit
from stoker.display import byte_unit, bytes_text
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table, render
from stoker_bench.cli.render.picture import COLOURS, SHARED, map_url, node_colour, shard_map
from stoker_bench.cli.render.report_text import NODE_COLUMNS, NODE_LEGEND, findings, node_rows, settings_in_words
from stoker_bench.simulate import Report

_OPTION = re.compile("(--[a-z-]+)")
_MOMENTS = 240
_SPANS = 80
_BARS = 24


def page(report: Report, settings: Mapping[str, Any], warnings: Sequence[str]) -> str:
    """The page.

    Args:
        report: what was found.
        settings: what is in force, by name.
        warnings: sentences.
    """
    cluster = report.cluster
    heading = str(settings.get("dataset", "a dataset"))
    summary = (
        f"{count_text(report.sampling.samples)} samples on {_many(cluster.nodes, 'node')} of "
        f"{_many(cluster.ranks_per_node, 'rank')}, {count_text(report.sampling.steps)} steps. Simulated from the order, "
        "without reading data."
    )
    cards = [_map(report), _downloads(report), _cache(report), _shares(report), _waits(report)]
    return render(
        "simulate.html",
        title=f"stoker simulate: {heading}",
        heading=heading,
        summary=summary,
        headlines=_headlines(report),
        warnings=[_OPTION.split(warning) for warning in warnings],
        cards=[card for card in cards if card is not None],
        node_legend=NODE_LEGEND,
        nodes=Table(NODE_COLUMNS, node_rows(list(report.nodes))),
        findings=findings(report),
        settings=settings_in_words(report, settings),
    )


def _headlines(report: Report) -> list[tuple[str, str]]:
    least = report.least_bandwidth
    enough = "none" if least is None else "any" if least == 0 else f"{bytes_text(least)}/s"
    extra = report.sharing.extra_bytes / max(1, report.bytes)
    return [
        ("until the first batch", seconds_text(report.clock.first_batch)),
        ("waiting after that", f"{report.clock.waiting / report.clock.total:.1%}"),
        ("samples a second", count_text(report.samples_a_second)),
        ("a node must fetch, at least, so that nothing waits", enough),
        ("cache needed by a node", bytes_text(report.cache_needed)),
        ("fetched more than once", f"{extra:.1%}"),
    ]


def _map(report: Report) -> Card:
    nodes = report.cluster.nodes
    chart = Chart(
        "which node has which shard in use at which step",
        Axis("step", 0, report.sampling.steps, whole=True),
        Axis("shards, by node, then first use", 0, report.shards, whole=True),
        width=1110,
        height=460,
        down=True,
    )
    chart.image(map_url(shard_map(report)))
    named = [(node_colour(node), f"node {node}") for node in range(min(nodes, len(COLOURS)))]
    if nodes > len(COLOURS):
        named.append(("transparent", "colours begin again with the next nodes"))
    if report.sharing.shards:
        named.append((SHARED, "several nodes"))
    text = (
        "What is coloured in a column is what the nodes have in use at that step; long times without use are left out."
    )
    if not report.sampling.exact:
        text += f" Evaluated: {report.sampling}."
    return Card("Shards in use", text, [Figure(chart, named)])


def _downloads(report: Report) -> Card:
    moments = np.linspace(0, report.clock.total, _SPANS + 1)
    rates = report.rates(moments)
    most = float(rates.max())
    bandwidth = report.model.bandwidth
    top = most * 1.12 or 1.0
    if bandwidth is not None and bandwidth < 2 * most:
        top = max(top, bandwidth * 1.12)
    unit, name = byte_unit(top)
    axis = _time_axis(report)
    chart = Chart("bytes that each node fetches over time", axis, Axis(f"fetched ({name}/s)", 0, top, unit))
    names = _series(chart, (moments[1:] + moments[:-1]) / 2, rates)
    if bandwidth is not None and bandwidth <= top:
        chart.level(bandwidth, f"bandwidth {bytes_text(bandwidth)}/s")
    return Card("Downloads", "What comes through each node's link.", [Figure(chart, names)])


def _cache(report: Report) -> Card:
    moments = np.linspace(0, report.clock.total, _MOMENTS + 1)
    held = report.held(moments).astype(np.float64)
    limit = report.model.cache_limit
    top = max(float(held.max()), float(report.cache_needed)) * 1.12 or 1.0
    if limit is not None and limit < 2 * top:
        top = max(top, limit * 1.12)
    unit, name = byte_unit(top)
    axis = _time_axis(report)
    chart = Chart("size of each node's cache over time", axis, Axis(f"in the cache ({name})", 0, top, unit))
    names = _series(chart, moments, held)
    if limit is not None and limit <= top:
        chart.level(limit, f"limit {bytes_text(limit)}")
    text = f"At most {bytes_text(report.cache_needed)} on a node have been fetched and will still be used"
    text += ". Without a limit nothing is removed." if limit is None else "; the rest is there until room is needed."
    return Card("Cache", text, [Figure(chart, names)])


def _shares(report: Report) -> Card:
    samples = report.balance.samples
    low, high = int(samples.min()), int(samples.max())
    bins = min(_BARS, high - low + 1)
    edges = np.linspace(low - 0.5, high + 0.5, bins + 1)
    counts, _ = np.histogram(samples, edges)
    margin = max(1.0, (high - low) * 0.1)
    chart = Chart(
        "how many ranks get how many samples",
        Axis("samples of a rank", low - 0.5 - margin, high + 0.5 + margin, whole=True),
        Axis("ranks", 0, float(counts.max()) * 1.12, whole=True),
    )
    for k in range(bins):
        if counts[k]:
            first, last = int(np.ceil(edges[k])), int(np.floor(edges[k + 1]))
            each = count_text(first) if first >= last else f"{count_text(first)} to {count_text(last)}"
            chart.bar(float(edges[k]), float(edges[k + 1]), float(counts[k]), f"{int(counts[k])} ranks: {each} samples")
    text = (
        f"Every rank gets {count_text(low)}."
        if low == high
        else f"Between {count_text(low)} and {count_text(high)}, {_many(samples.size, 'rank')}."
    )
    return Card("Samples of a rank", text, [Figure(chart)])


def _waits(report: Report) -> Card | None:
    clock = report.clock
    stall = clock.stall.copy()
    stall[0] = 0.0
    if not stall.any():
        return None
    steps = report.sampling.steps
    bins = min(120, steps)
    at = clock.ticks.first[:-1] * bins // steps
    seconds = np.bincount(at, weights=stall, minlength=bins)
    top = float(seconds.max())
    unit, name = time_unit(top)
    chart = Chart(
        "seconds waited along the steps",
        Axis("step", 0, steps, whole=True),
        Axis(f"waited ({name})", 0, top * 1.12, unit),
    )
    for k in np.flatnonzero(seconds).tolist():
        first, last = -(-k * steps // bins), -(-(k + 1) * steps // bins) - 1
        name = f"steps {first} to {last}: {seconds_text(float(seconds[k]))}"
        chart.bar(k * steps / bins, (k + 1) * steps / bins, float(seconds[k]), name)
    text = f"{seconds_text(clock.waiting)} in all after the first batch; all ranks wait for the slowest."
    return Card("Waiting", text, [Figure(chart)])


def _time_axis(report: Report) -> Axis:
    unit, name = time_unit(report.clock.total)
    return Axis(f"time ({name})", 0, report.clock.total, unit)


def _series(chart: Chart, x: NDArray[np.float64], values: NDArray[np.float64]) -> list[tuple[str, str]]:
    """A line a node, or where there are many their range and mean; the legend."""
    nodes = values.shape[1]
    if nodes <= len(COLOURS):
        for node in range(nodes):
            chart.line(x, values[:, node], node_colour(node), f"node {node}")
        return [(node_colour(node), f"node {node}") for node in range(nodes)]
    chart.band(x, values.min(axis=1), values.max(axis=1), "from the least to the most of all nodes")
    chart.line(x, values.mean(axis=1), "var(--main)", "mean of all nodes")
    return [("var(--main)", f"mean of {nodes} nodes; shaded: from the least to the most")]


def _many(count: int, name: str) -> str:
    return f"{count_text(count)} {name}{'' if count == 1 else 's'}"
