"""Charts of benchmark runs: each a section of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.bench.results.report_files import RunFiles
from stoker.bench.results.report_steps import stall_histogram, timeline
from stoker.cli.bench.datum import datum
from stoker.cli.render.charts import Axis, Chart
from stoker.cli.render.markup import legend, numbers, section
from stoker.cli.render.numbers import count_text, decimal_bytes_text, percent_text, seconds_text, time_unit
from stoker.cli.render.picture import COLOURS, SHARED

_SPANS: Final = 160
_MOST_BARS: Final = 96
_PARTS: Final = (
    ("au", "computing", COLOURS[0]),
    ("stall_part", "stall", COLOURS[1]),
    ("barrier_part", "barrier", COLOURS[4]),
    ("overhead_part", "overhead", SHARED),
)


class _Seconds(Axis):
    """Seconds, each power of ten as long as the others."""

    __slots__ = ()

    def part(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        low, high = math.log10(self.low), math.log10(self.high)
        return np.asarray((np.log10(np.maximum(values, self.low)) - low) / ((high - low) or 1.0))

    def ticks(self, most: int) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        every = -(-(last - first + 1) // most)
        return [10.0**power for power in range(first, last + 1, every)]

    def text(self, value: float) -> str:
        return seconds_text(value)


def charts(runs: Sequence[RunFiles]) -> str:
    """All charts for which there is something to show."""
    drawn = runs[: len(COLOURS)]
    left_out = "" if len(drawn) == len(runs) else f" Drawn are the first {len(drawn)} of {len(runs)} runs."
    made = [_over_time(drawn, left_out), _time_goes(runs), _stalls(drawn, left_out), _by_rank(drawn, left_out)]
    if len(runs) > 1:
        made += [_compared(runs, "au"), _compared(runs, "samples_per_second")]
    made += [_by_accelerators(runs), _checkpoints(drawn, left_out)]
    return f'<div class="charts">{"".join(made)}</div>'


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def _names(runs: Sequence[RunFiles]) -> str:
    return legend([(_colour(k), run.name) for k, run in enumerate(runs)]) if len(runs) > 1 else ""


def _over_time(runs: Sequence[RunFiles], left_out: str) -> str:
    found = [(k, run, line) for k, run in enumerate(runs) if (line := timeline(run, _SPANS)) is not None]
    if not found:
        return ""
    total = max(float(line.edges[-1]) for _, _, line in found)
    unit, name = time_unit(total)
    said = "; ".join(
        f"{run.name}: {line.mean.min():.0%} to {line.mean.max():.0%} along {seconds_text(float(line.edges[-1]))}"
        for _, run, line in found
    )
    chart = Chart(
        f"utilization over time, {said}",
        Axis(f"time in training ({name})", 0, total, unit),
        Axis("utilization (%)", 0, 1.05, 0.01),
        width=1110,
    )
    text = "Part of the time in which accelerators computed, of all steps, also those that do not count."
    if len(found) == 1:
        line = found[0][2]
        chart.band((line.edges[1:] + line.edges[:-1]) / 2, line.low, line.high, "from the least to the most busy rank")
        for begin in line.begins[1:]:
            chart.span(begin, 0, 1.05, f"an epoch begins at {seconds_text(begin)}")
        text += " Shaded: from the least to the most busy rank. Lines upwards: epochs begin."
    for k, run, line in found:
        chart.line((line.edges[1:] + line.edges[:-1]) / 2, line.mean, _colour(k), run.name)
        if line.ranks < run.result["world"]["ranks"]:
            text += f" Of {run.name}, steps of {line.ranks} of {run.result['world']['ranks']} ranks are there."
    _threshold(chart, runs)
    return section("Utilization over time", text + left_out, chart.svg() + _names(runs), wide=True)


def _threshold(chart: Chart, runs: Sequence[RunFiles]) -> None:
    thresholds = {run.number("metric.au", 0) for run in runs}
    if len(thresholds) == 1 and (value := thresholds.pop()) > 0:
        chart.level(value, f"asked for: {value:.0%}")


def _time_goes(runs: Sequence[RunFiles]) -> str:
    """Of each run; of each epoch where there is one run."""
    if len(runs) == 1:
        entries = [
            (f"{epoch['kind']} {epoch['repeat']}.{epoch['epoch']}", {name: epoch[name] for name, _, _ in _PARTS})
            for epoch in runs[0].result["epochs"]
        ]
        what = "epoch"
    else:
        entries = [(run.name, {name: _mean(run, name) for name, _, _ in _PARTS}) for run in runs]
        what = "run"
    known = [(name, parts) for name, parts in entries if parts["au"] is not None]
    if not known:
        return ""
    chart = Chart(
        f"where the time of each {what} goes",
        Axis(what, 0.5, len(known) + 0.5, whole=True),
        Axis("part of the time (%)", 0, 1.0, 0.01),
    )
    for k, (name, parts) in enumerate(known):
        begin = 0.0
        for part, words, colour in _PARTS:
            value = parts[part] or 0.0
            if value > 0:
                chart.bar(k + 0.6, k + 1.4, begin + value, f"{name}: {words} {value:.2%}", begin=begin, colour=colour)
                begin += value
    table = numbers(
        ("", what, *(words for _, words, _ in _PARTS)),
        [
            (str(k + 1), name, *(percent_text(parts[part]) for part, _, _ in _PARTS))
            for k, (name, parts) in enumerate(known)
        ],
    )
    names = legend([(colour, words) for _, words, colour in _PARTS])
    return section("Where the time goes", "Of the steps that count.", chart.svg() + names + table)


def _stalls(runs: Sequence[RunFiles], left_out: str) -> str:
    found = [(k, run, one) for k, run in enumerate(runs) if (one := stall_histogram(run)) is not None]
    if not found:
        return ""
    low, high = min(one.edges[0] for _, _, one in found), max(one.edges[-1] for _, _, one in found)
    parts = [one.counts / one.counts.sum() for _, _, one in found]
    top = max(float(one.max()) for one in parts)
    chart = Chart(
        "how many steps waited how long for their batch",
        _Seconds("waited for a batch", float(low), float(high)),
        Axis("steps (%)", 0, _above(top), 0.01),
    )
    rows = []
    for (k, run, one), part in zip(found, parts, strict=True):
        if len(found) > 1:
            chart.line(np.repeat(one.edges, 2)[1:-1], np.repeat(part, 2), _colour(k), run.name)
        for first, last, value, count, seconds in zip(
            one.edges[:-1], one.edges[1:], part.tolist(), one.counts.tolist(), one.seconds.tolist(), strict=True
        ):
            if count:
                span = f"{chart.x.text(float(first))} to {chart.x.text(float(last))}"
                if len(found) == 1:
                    name = f"{span}: {count_text(count)} steps, {seconds_text(seconds)} in all"
                    chart.bar(float(first), float(last), value, name)
                rows.append((run.name, span, count_text(count), f"{value:.2%}", seconds_text(seconds)))
    text = "Steps that count, of all ranks and epochs of training."
    table = numbers(("run", "waited", "steps", "of all", "in all"), rows)
    return section("Stalls", text + left_out, chart.svg() + _names(runs) + table)


def _by_rank(runs: Sequence[RunFiles], left_out: str) -> str:
    rates = [_rates(run) for run in runs]
    count = max(map(len, rates), default=0)
    if not count:
        return ""
    top = max(value for one in rates for value in one.values())
    ranks = max(max(one, default=0) for one in rates)
    chart = Chart(
        "samples a second of each rank",
        Axis("rank", -0.5, ranks + 0.5, whole=True),
        Axis("samples/s", 0, _above(top)),
    )
    bars = count * len(runs) <= _MOST_BARS
    for k, (run, one) in enumerate(zip(runs, rates, strict=True)):
        if not bars:
            chart.line(list(one), np.array(list(one.values())), _colour(k), run.name)
            continue
        width = 0.8 / len(runs)
        for rank, value in one.items():
            left = rank - 0.4 + k * width
            chart.bar(
                left,
                left + width,
                value,
                f"{run.name}, rank {rank}: {value:,.2f} samples/s",
                colour=_colour(k) if len(runs) > 1 else None,
            )
    rows = [
        (run.name, str(rank), f"{value:,.2f}")
        for run, one in zip(runs, rates, strict=True)
        for rank, value in one.items()
    ]
    text = "Samples a second, mean of the epochs of training."
    return section(
        "Throughput by rank", text + left_out, chart.svg() + _names(runs) + numbers(("run", "rank", "samples/s"), rows)
    )


def _rates(run: RunFiles) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for epoch in run.result["epochs"]:
        for rank in epoch["ranks"]:
            value = rank["metrics"]["samples_per_second"]
            if epoch["kind"] == "train" and value is not None and 0 <= rank["rank"] < 1 << 20:
                found.setdefault(rank["rank"], []).append(float(value))
    return {rank: math.fsum(values) / len(values) for rank, values in sorted(found.items())}


def _compared(runs: Sequence[RunFiles], name: str) -> str:
    """A metric of all runs, with the least and the largest epoch."""
    spreads: list[Mapping[str, Any] | None] = [(run.result["train"] or {}).get(name) for run in runs]
    top = max((one["max"] for one in spreads if one is not None), default=0)
    if not top:
        return ""
    part = name == "au"
    title = "Utilization" if part else "Samples a second"
    chart = Chart(
        f"{title.lower()} of each run",
        Axis("run", 0.5, len(runs) + 0.5, whole=True),
        Axis("utilization (%)", 0, 1.05, 0.01) if part else Axis("samples/s", 0, _above(top)),
    )
    rows = []
    for k, (run, one) in enumerate(zip(runs, spreads, strict=True)):
        if one is None:
            continue
        words = percent_text if part else _rate
        label = f"{run.name}: {words(one['mean'])}, {words(one['min'])} to {words(one['max'])} of {one['count']} epochs"
        chart.bar(k + 0.65, k + 1.35, one["mean"], label, colour=_colour(k))
        chart.span(k + 1, one["min"], one["max"], label)
        rows.append((str(k + 1), run.name, words(one["mean"]), words(one["min"]), words(one["max"]), str(one["count"])))
    if part:
        _threshold(chart, runs)
    table = numbers(("", "run", "mean", "least", "most", "epochs"), rows)
    text = "Loaders and storages compared; lines: from the least to the most of all epochs."
    return section(f"{title}, run by run", text, chart.svg() + _names(runs) + table)


def _by_accelerators(runs: Sequence[RunFiles]) -> str:
    """Utilization as accelerators are added, where runs differ in how many there are."""
    decoded = {run.setting("reader.decode") is not False for run in runs}
    series: dict[str, dict[int, list[tuple[int, RunFiles, float]]]] = {}
    for k, run in enumerate(runs):
        au = (run.result["train"] or {}).get("au")
        if au is not None:
            name = f"{run.text('reader.loader')}, {run.result['storage']['kind']}"
            if len(decoded) > 1:
                name += ", bytes alone" if run.setting("reader.decode") is False else ", decoded"
            series.setdefault(name, {}).setdefault(run.result["world"]["ranks"], []).append((k, run, au["mean"]))
    if not any(len(points) > 1 for points in series.values()):
        return ""
    most = max(count for points in series.values() for count in points)
    chart = Chart(
        "utilization by number of accelerators",
        Axis("accelerators", 0, most * 1.02, whole=True),
        Axis("utilization (%)", 0, 1.05, 0.01),
    )
    rows = []
    for at, (name, points) in enumerate(series.items()):
        counts = sorted(points)
        values = [[value for _, _, value in points[count]] for count in counts]
        means = [math.fsum(one) / len(one) for one in values]
        chart.line([float(count) for count in counts], np.array(means), _colour(at), name)
        for count, mean, one in zip(counts, means, values, strict=True):
            chart.span(count, min(one), max(one), f"{name}: {count}: {mean:.2%}")
            for k, run, _ in points[count]:
                ranks, au = datum(k, run, "world.ranks", str), datum(k, run, "train.au.mean", percent_text)
                rows.append((name, ranks, run.name, au))
    _threshold(chart, runs)
    names = legend([(_colour(k), name) for k, name in enumerate(series)])
    table = numbers(("loader and storage", "accelerators", "run", "utilization"), rows)
    text = "Mean of the runs; lines upwards: from the least to the most."
    return section("Utilization by accelerators", text, chart.svg() + names + table)


def _checkpoints(runs: Sequence[RunFiles], left_out: str) -> str:
    """Bytes a second of each checkpoint that was saved or loaded, one after the other."""
    made = [
        (k, run, kind, one)
        for k, run in enumerate(runs)
        if run.result["checkpoint"] is not None
        for kind in ("saves", "loads")
        for one in run.result["checkpoint"][kind]
        if one["bytes_per_second"] is not None
    ][:_MOST_BARS]
    if not made:
        return ""
    top = max(one["bytes_per_second"] for _, _, _, one in made)
    chart = Chart(
        "bytes a second of each checkpoint",
        Axis("checkpoint", 0.5, len(made) + 0.5, whole=True),
        Axis("MB/s", 0, _above(top), 1e6),
    )
    rows = []
    for at, (k, run, kind, one) in enumerate(made):
        words = f"{decimal_bytes_text(one['bytes_per_second'])}/s"
        name = f"{run.name}: {one['kind']} {one['number']}"
        colour = _colour(k) if len(runs) > 1 else COLOURS[kind == "loads"]
        chart.bar(at + 0.6, at + 1.4, one["bytes_per_second"], f"{name}: {words}", colour=colour)
        rows.append((str(at + 1), run.name, one["kind"], str(one["number"]), words))
    names = _names(runs) if len(runs) > 1 else legend([(COLOURS[0], "saved"), (COLOURS[1], "loaded")])
    table = numbers(("", "run", "", "number", "bytes/s"), rows)
    text = "Bytes of all ranks by the time of the slowest."
    return section("Checkpoints", text + left_out, chart.svg() + names + table)


def _mean(run: RunFiles, name: str) -> float | None:
    found = (run.result["train"] or {}).get(name)
    return None if found is None else float(found["mean"])


def _above(value: float) -> float:
    """The end of an axis whose largest value is this."""
    return min(1.12 * value, 1e300) or 1.0


def _rate(value: float) -> str:
    return f"{value:,.2f}"
