"""A report as one page of HTML that needs nothing beside itself: no script, no font, no network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.cli.amounts import byte_unit, bytes_text, count_text, seconds_text, time_unit
from stoker.cli.charts import Axis, Chart
from stoker.cli.numbers import NODE_COLUMNS, NODE_LEGEND, findings, node_rows, settings_in_words
from stoker.cli.picture import COLOURS, SHARED, map_url, node_colour, shard_map
from stoker.simulate import Report

__all__ = ["page"]

_MOMENTS = 240
_SPANS = 80
_BARS = 24

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1c2128; --soft: #5d6670; --rule: #dfe3e8;
  --main: #3b82c4; --warn: #fff4dd; --warn-ink: #6b4a00; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --card: #1d2127; --ink: #e7eaee; --soft: #9aa4af;
  --rule: #333a43; --main: #5a9fdd; --warn: #3a2f14; --warn-ink: #f3d58c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 4px 0 12px; color: var(--soft); }
code { white-space: nowrap; font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); }
.warning { background: var(--warn); color: var(--warn-ink); border-radius: 10px; padding: 10px 16px; margin: 8px 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 14px; margin: 14px 0; }
.wide { grid-column: 1 / -1; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
svg .label { fill: var(--ink); } svg .name { fill: var(--ink); }
.axis { fill: none; stroke: var(--soft); } .tick { stroke: var(--soft); } .grid { stroke: var(--rule); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .band { fill: var(--main); opacity: .22; }
.bar { fill: var(--main); } .level { stroke: var(--ink); stroke-dasharray: 5 4; } .cells { image-rendering: pixelated; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; color: var(--soft); margin-top: 6px; font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 5px; }
.scroll { overflow-x: auto; max-height: 520px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .pairs td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.pairs td:first-child { color: var(--soft); white-space: nowrap; width: 1%; }
"""


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
    charts = [_map(report), _downloads(report), _cache(report), _shares(report), _waits(report)]
    nodes = _rows(NODE_COLUMNS, node_rows(list(report.nodes)))
    body = (
        f"<h1>{escape(heading)}</h1><p>{escape(summary)}</p>"
        f'<div class="tiles">{"".join(_tile(name, value) for name, value in _headlines(report))}</div>'
        f"{''.join(f'<div class=warning>{_options(warning)}</div>' for warning in warnings)}"
        f'<div class="charts">{"".join(charts)}</div>'
        f'<section><h2>Nodes</h2><p>{escape(NODE_LEGEND)}</p><div class="scroll">{nodes}</div></section>'
        f'<div class="charts"><section><h2>Result</h2>{_pairs(findings(report))}</section>'
        f"<section><h2>Settings</h2>{_pairs(settings_in_words(report, settings))}</section></div>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>stoker order: {escape(heading)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
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


def _map(report: Report) -> str:
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
    return _section("Shards in use", text, chart.svg() + _legend(named), wide=True)


def _downloads(report: Report) -> str:
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
    legend = _series(chart, (moments[1:] + moments[:-1]) / 2, rates)
    if bandwidth is not None and bandwidth <= top:
        chart.level(bandwidth, f"bandwidth {bytes_text(bandwidth)}/s")
    return _section("Downloads", "What comes through each node's link.", chart.svg() + legend)


def _cache(report: Report) -> str:
    moments = np.linspace(0, report.clock.total, _MOMENTS + 1)
    held = report.held(moments).astype(np.float64)
    limit = report.model.cache_limit
    top = max(float(held.max()), float(report.cache_needed)) * 1.12 or 1.0
    if limit is not None and limit < 2 * top:
        top = max(top, limit * 1.12)
    unit, name = byte_unit(top)
    axis = _time_axis(report)
    chart = Chart("size of each node's cache over time", axis, Axis(f"in the cache ({name})", 0, top, unit))
    legend = _series(chart, moments, held)
    if limit is not None and limit <= top:
        chart.level(limit, f"limit {bytes_text(limit)}")
    text = f"At most {bytes_text(report.cache_needed)} on a node have been fetched and will still be used"
    text += ". Without a limit nothing is removed." if limit is None else "; the rest is there until room is needed."
    return _section("Cache", text, chart.svg() + legend)


def _shares(report: Report) -> str:
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
    return _section("Samples of a rank", text, chart.svg())


def _waits(report: Report) -> str:
    clock = report.clock
    stall = clock.stall.copy()
    stall[0] = 0.0
    if not stall.any():
        return ""
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
    return _section("Waiting", text, chart.svg())


def _time_axis(report: Report) -> Axis:
    unit, name = time_unit(report.clock.total)
    return Axis(f"time ({name})", 0, report.clock.total, unit)


def _series(chart: Chart, x: NDArray[np.float64], values: NDArray[np.float64]) -> str:
    """A line a node, or where there are many their range and mean; the legend."""
    nodes = values.shape[1]
    if nodes <= len(COLOURS):
        for node in range(nodes):
            chart.line(x, values[:, node], node_colour(node), f"node {node}")
        return _legend([(node_colour(node), f"node {node}") for node in range(nodes)])
    chart.band(x, values.min(axis=1), values.max(axis=1), "from the least to the most of all nodes")
    chart.line(x, values.mean(axis=1), "var(--main)", "mean of all nodes")
    return _legend([("var(--main)", f"mean of {nodes} nodes; shaded: from the least to the most")])


def _section(title: str, text: str, content: str, *, wide: bool = False) -> str:
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2><p>{escape(text)}</p>{content}</section>"


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    spans = (f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for colour, name in entries)
    return f'<div class="legend">{"".join(spans)}</div>'


def _tile(name: str, value: str) -> str:
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'


def _options(text: str) -> str:
    """Text whose command-line options are set apart and not broken."""
    return re.sub(r"--[a-z-]+", r"<code>\g<0></code>", escape(text))


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in pairs)
    return f'<table class="pairs">{rows}</table>'


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _many(count: int, name: str) -> str:
    return f"{count_text(count)} {name}{'' if count == 1 else 's'}"
