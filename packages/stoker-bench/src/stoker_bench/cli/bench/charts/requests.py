"""Charts of requests to storage: their rate over time, how long they took, and how large they were."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.display import bytes_text
from stoker_bench.cli.bench.charts.common import MOST_BARS, SecondsAxis, above, named_axis, run_colour
from stoker_bench.cli.bench.datum import datum
from stoker_bench.cli.bench.tables.requests_table import SERVED_BY, not_measured
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table
from stoker_bench.cli.render.picture import COLOURS
from stoker_bench.cli.render.rates import bytes_rate_text, time_text
from stoker_bench.results.report_files import RunFiles

SERVED_COLOURS: Final = dict(zip(SERVED_BY, (COLOURS[0], COLOURS[4], COLOURS[3], COLOURS[2], COLOURS[7]), strict=True))
"""Of where requests are served."""
_MOST_BINS: Final = 600
"""Of a line over the whole width of a chart."""
_SHADES: Final = ("", "a0", "78", "58", "40")
"""Opacities, of one run's colour."""
BLOCK_COLOUR: Final = COLOURS[5]
_PERCENTILES: Final = (
    *(("p50", COLOURS[2]), ("p90", COLOURS[0]), ("p95", COLOURS[4])),
    *(("p99", COLOURS[1]), ("p99.9", COLOURS[6]), ("max", COLOURS[3])),
)
_WORDS: Final = {"max": "longest"}
_STAGES: Final = (
    ("generate", "generated, "),
    ("train", ""),
    ("evaluate", "evaluation, "),
    ("save", "saved, "),
    ("load", "loaded, "),
)


class _Served(NamedTuple):
    """Requests that one source served in a stage of a run.

    Attributes:
        name: for people.
        k: number of the run.
        run: the run.
        path: where they are in ``results.json``.
        found: the measured requests.
        colour: of the source.
    """

    name: str
    k: int
    run: RunFiles
    path: str
    found: Mapping[str, Any]
    colour: str


def request_latency(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Percentiles of all requests, source by source."""
    found = list(_served(runs))[:MOST_BARS]
    unknown = [(run, told) for run in runs if (told := not_measured(run.result)) is not None]
    missing = "".join(f" Of {run.name}, training: {told}." for run, told in unknown)
    if not found:
        return Card("Requests: latency", missing.strip()) if unknown else None
    values = [one.found["latency"][name] for one in found for name, _ in _PERCENTILES]
    low = math.floor(math.log10(max(1e-9, min(values))) - 0.1)  # so that the lowest bar is seen
    high = math.floor(math.log10(max(1e-9, *values))) + 1
    chart = Chart(
        "latency of requests to storage: percentiles",
        named_axis("", [one.name for one in found]),
        SecondsAxis("latency", 10.0**low, 10.0**high),
        width=1110,
    )
    rows = []
    for at, one in enumerate(found):
        width = 0.8 / len(_PERCENTILES)
        for side, (name, colour) in enumerate(_PERCENTILES):
            value, left = one.found["latency"][name], at + 0.6 + width * side
            said = f"{one.name}, {_word(name)}: {time_text(value)}"
            chart.bar(left, left + width, value, said, begin=chart.y.low, colour=colour)
        rows.append(
            (
                one.name,
                datum(one.k, one.run, f"{one.path}.count", "{:,}".format),
                datum(one.k, one.run, f"{one.path}.per_second", "{:,.1f}".format),
                datum(one.k, one.run, f"{one.path}.bytes_per_second", bytes_rate_text),
                datum(one.k, one.run, f"{one.path}.mean_bytes", bytes_text),
                _latency(one, "mean"),
                *(_latency(one, name) for name, _ in _PERCENTILES),
            )
        )
    headings = ("", "requests", "per s", "bytes/s", "mean size", "mean", *(_word(name) for name, _ in _PERCENTILES))
    text = (
        "Of all requests of all ranks and epochs, by what served them, on a logarithmic scale. "
        "A request that was read ahead counts from when a thread wants its bytes."
    )
    figure = Figure(chart, [(colour, _word(name)) for name, colour in _PERCENTILES])
    return Card("Requests: latency", text + missing + left_out, [figure], Table(headings, rows))


def request_distribution(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """The share of requests that took at most so long."""
    found = list(_served(runs))[:MOST_BARS]
    edges = [edge for one in found for edge in (one.found["latency_histogram"]["to"]) if edge > 0]
    if not edges:
        return None
    low, high = math.floor(math.log10(min(edges))), math.ceil(math.log10(max(edges)))
    chart = Chart(
        "part of the requests that took at most so long",
        SecondsAxis("latency", 10.0**low, 2 * 10.0 ** max(high, low + 1)),
        Axis("part of the requests (%)", 0, 1.0, 0.01),
    )
    colours = _colours(found, len(runs))
    for one, colour in zip(found, colours, strict=True):
        histogram = one.found["latency_histogram"]
        reached = np.cumsum(np.array(histogram["count"], np.float64))
        to = np.array([chart.x.low, *histogram["to"]], np.float64)
        share = np.concatenate([[0.0], reached / reached[-1]])
        chart.line(np.repeat(to, 2)[1:], np.repeat(share, 2)[:-1], colour, one.name)
    text = "Further to the left is faster. A step in a line is a group of requests of one kind."
    figure = Figure(chart, [(colour, one.name) for one, colour in zip(found, colours, strict=True)])
    return Card("Requests: distribution of latency", text + left_out, [figure])


def request_sizes(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Requests by size: a group of bars for each power of two."""
    found = list(_served(runs))[:MOST_BARS]
    sizes = sorted({int(size) for one in found for size in one.found["sizes"]})
    if not sizes:
        return None
    powers = [0, *(1 << power for power in range(9, 49))]
    shown = [power for power in powers if sizes[0] <= power <= sizes[-1]]
    shares = [[one.found["sizes"].get(str(power), 0) / max(1, one.found["count"]) for power in shown] for one in found]
    chart = Chart(
        "requests by size",
        named_axis("size of a request, from", [_power(power) for power in shown]),
        Axis("part of the requests (%)", 0, above(max(max(part) for part in shares)), 0.01),
    )
    colours = _colours(found, len(runs))
    width = 0.8 / len(found)
    for side, (one, part) in enumerate(zip(found, shares, strict=True)):
        for at, (power, value) in enumerate(zip(shown, part, strict=True)):
            if value > 0:
                left = at + 0.6 + width * side
                said = f"{one.name}, from {_power(power)}: {value:.2%}"
                chart.bar(left, left + width, value, said, colour=colours[side])
    rows = [
        (_power(power), *(f"{one.found['sizes'].get(str(power), 0):,}" for one in found))
        for power in shown
        if str(power) in {size for one in found for size in one.found["sizes"]}
    ]
    table = Table(("from", *(one.name for one in found)), rows)
    text = "Each group is from its size to below the next one, which is twice as much."
    figure = Figure(chart, [(colour, one.name) for one, colour in zip(found, colours, strict=True)])
    return Card("Requests: size", text + left_out, [figure], table)


def requests_over_time(spans: Sequence[tuple[float, Mapping[str, Any]]], time_axis: Axis) -> list[Figure]:
    """Requests a second by what served them, and the reads of the block device; nothing where none was counted.

    Args:
        spans: of each epoch its begin on the axis, and its ``storage_series``.
        time_axis: of the charts above.
    """
    made, blocks = [], []
    for begin, series in spans:
        for source, counts in series["requests"].items():
            made.append((SERVED_BY[source], SERVED_COLOURS[source], *binned(begin, series, counts, time_axis)))
        block = series["block_device"]
        if block is not None and not series["requests"].get("network"):
            name = "reads of the block device, for all processes"
            blocks.append((name, BLOCK_COLOUR, *binned(begin, series, block["reads"], time_axis)))
    return _rates("requests a second over time", "requests/s", made, time_axis) + _rates(
        "reads a second of the block device over time", "device reads/s", blocks, time_axis
    )


def _rates(
    title: str,
    label: str,
    lines: list[tuple[str, str, NDArray[np.float64], NDArray[np.float64]]],
    time_axis: Axis,
) -> list[Figure]:
    top = max((float(rates.max(initial=0)) for *_, rates in lines), default=0.0)
    if top <= 0:
        return []
    chart = Chart(title, time_axis, Axis(label, 0, above(top)), width=1110, height=170)
    for name, colour, edges, rates in lines:
        draw_bins(chart, edges, rates, colour, f"{name}, a second")
    return [Figure(chart, list(dict.fromkeys((colour, name) for name, colour, *_ in lines)))]


def binned(
    begin: float, series: Mapping[str, Any], amounts: Sequence[int], time_axis: Axis
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges of bins along the axis, and what there was a second in each; bins that are narrower than can be seen are joined.

    Args:
        begin: of the epoch, along the axis.
        series: ``storage_series`` of the epoch.
        amounts: of each bin.
        time_axis: on which it is drawn.
    """
    width, found = series["bin_seconds"], np.array(amounts, np.float64)
    room = max(1, round(_MOST_BINS * width * len(found) / ((time_axis.high - time_axis.low) or 1.0)))
    starts = np.arange(0, len(found), -(-len(found) // room) or 1)
    if not len(starts):
        return np.zeros(0), np.zeros(0)
    edges = np.append(starts, len(found)) * width
    return begin + edges, np.add.reduceat(found, starts) / np.diff(edges)


def draw_bins(chart: Chart, edges: NDArray[np.float64], rates: NDArray[np.float64], colour: str, name: str) -> None:
    """A line of steps: a rate for each bin."""
    chart.line(np.repeat(edges, 2)[1:-1], np.repeat(rates, 2), colour, name)


def _served(runs: Sequence[RunFiles]) -> Iterator[_Served]:
    """Of all runs those sources that served any requests in training or evaluation."""
    for k, run in enumerate(runs):
        of = f"{run.name}: " if len(runs) > 1 else ""
        for stage, before in _STAGES:
            requests = (run.result.get("requests") or {}).get(stage) or {}
            for source, words in SERVED_BY.items():
                one = requests.get(source)
                if one is not None and one["latency"] is not None and _whole(one.get("latency_histogram")):
                    path = f"requests.{stage}.{source}"
                    yield _Served(f"{of}{before}{words}", k, run, path, one, SERVED_COLOURS[source])


def _whole(histogram: Mapping[str, Any] | None) -> bool:
    """Whether a histogram, which anybody may have made, has a count for each bucket, and anything in them."""
    return histogram is not None and len(histogram["to"]) == len(histogram["count"]) and any(histogram["count"])


def _colours(found: Sequence[_Served], runs: int) -> list[str]:
    """A colour for each: of several runs the run's, as in all charts, that of training the darkest; of one its sources'."""
    of_run: dict[int, list[_Served]] = {}
    for one in sorted(found, key=lambda one: one.path.split(".")[1] != "train"):
        of_run.setdefault(one.k, []).append(one)
    if runs > 1 and max(map(len, of_run.values())) <= len(_SHADES):
        shades = {one.name: shade for mine in of_run.values() for one, shade in zip(mine, _SHADES, strict=False)}
        return [run_colour(one.k) + shades[one.name] for one in found]
    own = [one.colour for one in found]
    return own if len(set(own)) == len(own) else [COLOURS[at % len(COLOURS)] for at in range(len(found))]


def _latency(one: _Served, name: str) -> str:
    """A latency as a datum; names with a dot are told in words alone, as a path has dots between its parts."""
    if "." in name:
        return time_text(one.found["latency"][name])
    return datum(one.k, one.run, f"{one.path}.latency.{name}", time_text)


def _word(name: str) -> str:
    return _WORDS.get(name, name.upper())


def _power(size: int) -> str:
    """A power of two: ``64 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} TiB"
