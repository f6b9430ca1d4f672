"""Charts of the storage: bytes a second over time, by where they came from, and of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.cli.terminal import seconds_text, time_unit
from stoker_bench.cli.bench.charts.common import MOST_BARS, above, named_axis, run_colour, run_legend
from stoker_bench.cli.bench.charts.requests import SERVED_COLOURS, binned, draw_bins, requests_over_time
from stoker_bench.cli.bench.datum import NOTHING, datum, epoch_name
from stoker_bench.cli.bench.tables.requests_table import SERVED_BY
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table
from stoker_bench.cli.render.picture import COLOURS
from stoker_bench.cli.render.rates import bytes_rate_text
from stoker_bench.results.report_files import RunFiles
from stoker_bench.results.report_steps import delivered_rate

_SPANS: Final = 240
_LONGEST: Final = 1e9
"""Seconds from the begin of a run to its end, at most; more is no time of a run."""
_SOURCES: Final = (("device", COLOURS[0]), ("network", COLOURS[2]), ("page cache", COLOURS[4]))
_DELIVERED: Final = COLOURS[1]
_STORED: Final = ("device", "network", "cache_directory", "local")
"""Sources that are drawn in one chart, each as ``results.json`` names it."""


class _Span(NamedTuple):
    """An epoch in time.

    Attributes:
        at: its number in the results.
        name: as on the terminal.
        begin: seconds from the begin of the first epoch.
        end: likewise.
        reading: when the loader was open and had begun to read: before that the rate does not hold.
        sources: bytes a second by where they came from.
        series: bytes and requests over time; ``None`` where they are not known.
    """

    at: int
    name: str
    begin: float
    end: float
    reading: float
    sources: dict[str, float]
    series: Mapping[str, Any] | None


def storage_over_time(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Bytes a second from storage, epoch by epoch, with what arrived at the steps."""
    found = [(k, run, spans) for k, run in enumerate(runs) if (spans := _spans(run))]
    if not found:
        return None
    total = max(spans[-1].end for _, _, spans in found)
    lines = [(k, run, span, _delivered(run, span, total)) for k, run, spans in found for span in spans]
    top = max(
        *(_from_storage(run, span) for _, run, span, _ in lines),
        *(float(rates.max(initial=0)) for *_, (_, rates) in lines),
        *(float(rates.max(initial=0)) for span in found[0][2] for *_, rates in _binned(span, total) if len(runs) == 1),
    )
    if top <= 0:
        return None
    unit, name = time_unit(total)
    chart = Chart(
        "bytes a second from storage over time, and to the steps",
        Axis(f"time from the begin of the first epoch ({name})", 0, total, unit),
        Axis("MB/s", 0, above(top), 1e6),
        width=1110,
    )
    if len(runs) == 1:
        text = (
            "Bars: the mean of an epoch from when its loader began to read. Lines: over time. "
            "In the numbers, what came to the step is of the steps that count."
        )
        chart.headings([(span.begin, span.end, f"epoch {span.name}") for span in found[0][2]])
        names = _bars(chart, found[0][2])
    else:
        text = (
            "The mean of each epoch, from storage. Dashed: delivered to all steps, over time. "
            "In the numbers, what came to the step is of the steps that count."
        )
        names = run_legend(runs, [k for k, *_ in found])
        for k, run, spans in found:
            for span in spans:
                rate = _from_storage(run, span)
                label = f"{run.name}, epoch {span.name}: {bytes_rate_text(rate)} from storage"
                chart.line([span.reading, span.end], np.array([rate, rate]), run_colour(k), label)
    for k, run, span, (moments, rates) in lines:
        if not len(rates):
            continue
        colour = run_colour(k) if len(runs) > 1 else _DELIVERED
        label = f"{run.name}, epoch {span.name}: delivered to the steps"
        chart.line(np.repeat(moments, 2)[1:-1], np.repeat(rates, 2), colour, label, dashed=len(runs) > 1)
    rows = [
        (
            *(() if len(runs) == 1 else (run.name,)),
            span.name,
            seconds_text(span.begin),
            seconds_text(span.end - span.begin),
            datum(k, run, f"epochs.{span.at}.storage_bytes_per_second", bytes_rate_text),
            *(bytes_rate_text(span.sources[source]) if source in span.sources else NOTHING for source, _ in _SOURCES),
            datum(k, run, f"epochs.{span.at}.delivered_bytes_per_second", bytes_rate_text),
        )
        for k, run, spans in found
        for span in spans[:MOST_BARS]
    ]
    headings = ("epoch", "from", "took", "from storage", *(f"of the {name}" for name, _ in _SOURCES), "to the step")
    table = Table((*(() if len(runs) == 1 else ("run",)), *headings), rows)
    figures = [Figure(chart, names)]
    if len(runs) == 1:
        series = [(span.begin, span.series) for span in found[0][2] if span.series is not None]
        figures += _page_cache(found[0][2], chart.x) + requests_over_time(series, chart.x)
    return Card("Storage over time", text + left_out, figures, table)


def _spans(run: RunFiles) -> list[_Span]:
    """Epochs whose times are known."""
    epochs = [
        (at, one, float(one["began_at"]), float(one["ended_at"]))
        for at, one in enumerate(run.result["epochs"])
        if one["began_at"] is not None and one["ended_at"] is not None
    ]
    first = min((began for _, _, began, _ in epochs), default=0.0)
    return sorted(
        (
            _Span(
                at,
                epoch_name(run.result, one),
                began - first,
                ended - first,
                max(began, ended - _reading_seconds(one)) - first,
                _sources(run, one),
                _series(one, ended - began),
            )
            for at, one, began, ended in epochs
            if began < ended < first + _LONGEST
        ),
        key=lambda span: span.end,
    )


def _series(epoch: Mapping[str, Any], seconds: float) -> Mapping[str, Any] | None:
    """Bytes and requests over time, if they are of as much time as the epoch took: anybody may have made the file."""
    found: Mapping[str, Any] | None = epoch.get("storage_series")
    if found is None:
        return None
    block = found["block_device"] or {"reads": ()}
    bins = max(map(len, (*found["bytes"].values(), *found["requests"].values(), block["reads"])), default=0)
    return found if bins * found["bin_seconds"] <= 1.01 * seconds + 1 else None


def _reading_seconds(epoch: Mapping[str, Any]) -> float:
    """Seconds to the epoch's end over which its bytes are as many as its rate says."""
    size, rate = epoch["storage_bytes"], epoch["storage_bytes_per_second"]
    return size / rate if size and rate else math.inf


def _sources(run: RunFiles, epoch: Mapping[str, Any]) -> dict[str, float]:
    """Bytes a second from each source that is known; those of the storage are as much as the results say."""
    size, rate = epoch["storage_bytes"], epoch["storage_bytes_per_second"]
    if size is None or rate is None:
        return {}
    if not run.result["storage"]["local"]:
        return {"network": rate}
    called, series = epoch["read_bytes"], epoch.get("storage_series")
    if series is not None and epoch.get("requests"):  # which leave out what else the processes read, such as their code
        called = size + sum(series["bytes"].get("page_cache", ()))
    cached = {} if not size or called is None else {"page cache": max(0.0, called - size) * rate / size}
    return {"device": rate, **cached}


def _from_storage(run: RunFiles, span: _Span) -> float:
    return float(run.result["epochs"][span.at]["storage_bytes_per_second"] or 0.0)


def _delivered(run: RunFiles, span: _Span, total: float) -> tuple[Any, Any]:
    """Edges and rates: of the steps where they are there, else the mean of the epoch; many epochs have few spans each."""
    epoch = run.result["epochs"][span.at]
    found = delivered_rate(run, epoch, max(1, round(_SPANS * (span.end - span.begin) / total)))
    if found is not None and span.end + found[0][0] >= span.begin - 1:
        return np.maximum(found[0] + span.end, 0), found[1]
    mean = epoch["delivered_bytes_per_second"]
    return np.array([span.begin, span.end]), np.array([] if mean is None else [float(mean)])


def _bars(chart: Chart, spans: Sequence[_Span]) -> list[tuple[str, str]]:
    """A bar an epoch, of the device or the network; the legend."""
    named = []
    for source, colour in _SOURCES[:2]:
        for span in spans:
            if span.sources.get(source, 0.0) > 0:
                label = f"epoch {span.name}: {bytes_rate_text(span.sources[source])} of the {source}"
                chart.bar(span.reading, span.end, span.sources[source], label, colour=f"{colour}70")
        if any(source in span.sources for span in spans):
            named.append((f"{colour}70", f"from the {source}, mean of the epoch"))
    for span in spans:
        for source, edges, rates in _binned(span, chart.x.high):
            label = f"epoch {span.name}: from the {SERVED_BY[source]}, over time"
            draw_bins(chart, edges, rates, SERVED_COLOURS[source], label)
            named.append((SERVED_COLOURS[source], f"from the {SERVED_BY[source]}, over time"))
    return [*dict.fromkeys(named), (_DELIVERED, "delivered to the steps")]


def _binned(
    span: _Span, total: float, sources: Sequence[str] = _STORED
) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Edges and bytes a second of an epoch's bins, of those of some sources that gave any; ``total`` is the axis' length."""
    series = span.series
    if series is None:
        return []
    found, axis = series["bytes"], Axis("", 0, total)
    return [(one, *binned(span.begin, series, found[one], axis)) for one in sources if any(found.get(one, ()))]


def _page_cache(spans: Sequence[_Span], time_axis: Axis) -> list[Figure]:
    """A chart of its own, as the page cache may give many times what the storage gives; nothing where it gave nothing."""
    source, colour = _SOURCES[2]
    lines = [(span, *one[1:]) for span in spans for one in _binned(span, time_axis.high, ("page_cache",))]
    top = max(
        *(span.sources.get(source, 0.0) for span in spans), *(float(rates.max()) for *_, rates in lines), 0.0, 0.0
    )
    if top <= 0:
        return []
    chart = Chart(
        "bytes a second from the page cache over time",
        time_axis,
        Axis("MB/s", 0, above(top), 1e6),
        width=1110,
        height=170,
    )
    for span in spans:
        if (value := span.sources.get(source, 0.0)) > 0:
            label = f"epoch {span.name}: {bytes_rate_text(value)} from the page cache"
            chart.bar(span.reading, span.end, value, label, colour=f"{colour}70")
    for span, edges, rates in lines:
        draw_bins(chart, edges, rates, colour, f"epoch {span.name}: from the page cache, over time")
    said = (
        "from the page cache: what read calls gave beyond the device's bytes, also again; what is mapped is not in it"
    )
    over_time = [(colour, "over time")] if lines else []
    return [Figure(chart, [(f"{colour}70", said), *over_time])]


def checkpoints(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Bytes a second of each checkpoint that was saved or loaded, one after the other."""
    made = [
        (k, run, kind, one)
        for k, run in enumerate(runs)
        if run.result["checkpoint"] is not None
        for kind in ("saves", "loads")
        for one in run.result["checkpoint"][kind]
        if one["bytes_per_second"] is not None
    ][:MOST_BARS]
    if not made:
        return None
    top = max(one["bytes_per_second"] for _, _, _, one in made)
    chart = Chart(
        "bytes a second of each checkpoint",
        named_axis("checkpoint", [f"{one['kind']} {one['number']}" for _, _, _, one in made]),
        Axis("MB/s", 0, above(top), 1e6),
    )
    rows = []
    for at, (k, run, kind, one) in enumerate(made):
        words = bytes_rate_text(one["bytes_per_second"])
        name = f"{run.name}: {one['kind']} {one['number']}"
        colour = run_colour(k) if len(runs) > 1 else COLOURS[kind == "loads"]
        chart.bar(at + 0.6, at + 1.4, one["bytes_per_second"], f"{name}: {words}", colour=colour)
        rows.append((str(at + 1), run.name, one["kind"], str(one["number"]), words))
    names = (
        run_legend(runs, {k for k, *_ in made}) if len(runs) > 1 else [(COLOURS[0], "saved"), (COLOURS[1], "loaded")]
    )
    table = Table(("", "run", "", "number", "bytes/s"), rows)
    text = "Bytes of all ranks by the time of the slowest."
    return Card("Checkpoints", text + left_out, [Figure(chart, names)], table)
