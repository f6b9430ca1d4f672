"""Charts of the training: how busy accelerators were, where the time went, and how long steps waited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.cli.terminal import count_text, seconds_text, time_unit
from stoker.display import counted
from stoker_bench.cli.bench.charts.common import (
    MOST_BARS,
    SecondsAxis,
    above,
    epochs_of,
    named_axis,
    room_for,
    run_colour,
    run_legend,
    threshold,
)
from stoker_bench.cli.bench.datum import datum, epoch_name
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table
from stoker_bench.cli.render.picture import COLOURS, SHARED
from stoker_bench.cli.render.rates import percent_text
from stoker_bench.results.report_files import RunFiles
from stoker_bench.results.report_steps import StepTimeline, stall_histogram, timeline

_SPANS: Final = 160
_PARTS: Final = (
    ("au", "computing", COLOURS[0]),
    ("stall_part", "stall", COLOURS[1]),
    ("barrier_part", "barrier", COLOURS[4]),
    ("overhead_part", "overhead", SHARED),
)


def utilization_over_time(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Both utilizations: the measured one over time, the nominal one of each epoch."""
    found = [(k, run, line) for k, run in enumerate(runs) if (line := timeline(run, _SPANS)) is not None]
    if not found:
        return None
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
        k, _, line = found[0]
        middles, colour = (line.edges[1:] + line.edges[:-1]) / 2, run_colour(k) if len(runs) > 1 else None
        chart.band(middles, line.low, line.high, "from the least to the most busy rank", colour=colour)
        for begin in line.begins[1:]:
            chart.span(begin, 0, 1.05, f"an epoch begins at {seconds_text(begin)}")
        text += " Shaded: from the least to the most busy rank. Lines upwards: epochs begin."
    text += " Dashed: nominal utilization of each epoch, by the computation that was drawn, of the steps that count."
    for k, run, line in found:
        chart.line((line.edges[1:] + line.edges[:-1]) / 2, line.mean, run_colour(k), f"{run.name}, measured")
        _nominal(chart, run, line, COLOURS[1] if len(runs) == 1 else run_colour(k))
        if line.ranks < run.result["world"]["ranks"]:
            text += (
                f" Of {run.name}, steps of {line.ranks} of {counted(run.result['world']['ranks'], 'rank')} are there."
            )
    asked = threshold(chart, runs)
    if len(runs) == 1:
        figure = Figure(chart, [(COLOURS[0], "measured")], [(COLOURS[1], "nominal"), *asked])
    else:
        figure = Figure(chart, run_legend(runs, [k for k, *_ in found]), asked)
    return Card("Utilization over time", text + left_out, [figure])


def _nominal(chart: Chart, run: RunFiles, line: StepTimeline, colour: str) -> None:
    """Dashed lines along the epochs."""
    epochs = [epoch for epoch in run.result["epochs"] if epoch["kind"] == "train"]
    for epoch, begin, end in zip(epochs, line.begins, [*line.begins[1:], float(line.edges[-1])], strict=True):
        value = epoch["au_nominal"]
        if value is not None:
            said = f"{run.name}, epoch {epoch_name(run.result, epoch)}: nominal {value:.2%}"
            chart.line([begin, end], np.array([value, value]), colour, said, dashed=True)


def time_goes(runs: Sequence[RunFiles]) -> Card | None:
    """Parts of the time of each epoch of each run."""
    entries, left_out = epochs_of(runs, "au")
    if not entries:
        return None
    what = _epoch(runs)
    chart = Chart(
        f"where the time of each {what} goes",
        named_axis(what, [one.name for one in entries]),
        Axis("part of the time (%)", 0, 1.0, 0.01),
        width=room_for(entries),
    )
    for at, one in enumerate(entries):
        begin = 0.0
        for part, words, colour in _PARTS:
            value = one.found[part] or 0.0
            if value > 0:
                said = f"{one.name}: {words} {value:.2%}"
                chart.bar(at + 0.6, at + 1.4, begin + value, said, begin=begin, colour=colour)
                begin += value
    table = Table(
        (what, *(words for _, words, _ in _PARTS)),
        [(one.name, *(percent_text(one.found[part]) for part, _, _ in _PARTS)) for one in entries],
    )
    figure = Figure(chart, [(colour, words) for _, words, colour in _PARTS])
    return Card("Where the time goes", "Of the steps that count." + left_out, [figure], table)


def computation(runs: Sequence[RunFiles]) -> Card | None:
    """Computation of a step as drawn and as it was, of each epoch of each run."""
    kinds = ("compute_drawn", "compute_measured")
    entries, left_out = epochs_of(runs, *kinds)
    top = max((one.found[kind] for one in entries for kind in kinds if one.found[kind] is not None), default=0)
    if top <= 0:
        return None
    what = _epoch(runs)
    unit, name = (1e-3, "ms") if top < 2 else time_unit(top)
    chart = Chart(
        f"computation of a step of each {what}, drawn and measured",
        named_axis(what, [one.name for one in entries]),
        Axis(f"computation of a step ({name})", 0, above(top), unit),
        width=room_for(entries),
    )
    words = ("drawn", "measured")
    rows = []
    for at, one in enumerate(entries):
        drawn, real = (one.found[kind] for kind in kinds)
        for side, (value, word) in enumerate(zip((drawn, real), words, strict=True)):
            if value is not None:
                left = at + 0.65 + 0.35 * side
                said = f"{one.name}, {word}: {seconds_text(value)}"
                chart.bar(left, left + 0.35, value, said, colour=COLOURS[1 - side])
        more = "-" if not drawn or real is None else f"{real / drawn - 1:+.2%}"
        rows.append((one.name, *(datum(one.k, one.run, f"{one.path}.{kind}", seconds_text) for kind in kinds), more))
    figure = Figure(chart, [(COLOURS[1], "drawn: asked for"), (COLOURS[0], "measured")])
    table = Table((what, *words, "longer by"), rows)
    text = "Mean of the steps. Where a step computes longer than was drawn, the host was too busy." + left_out
    return Card("Computation, asked and real", text, [figure], table)


def _epoch(runs: Sequence[RunFiles]) -> str:
    return "epoch" if len(runs) == 1 else "run and epoch"


def stalls(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """The histogram of the steps' waits for their batches."""
    found = [(k, run, one) for k, run in enumerate(runs) if (one := stall_histogram(run)) is not None]
    if not found:
        return None
    low, high = min(one.edges[0] for _, _, one in found), max(one.edges[-1] for _, _, one in found)
    parts = [one.counts / one.counts.sum() for _, _, one in found]
    top = max(float(one.max()) for one in parts)
    chart = Chart(
        "how many steps waited how long for their batch",
        SecondsAxis("waited for a batch", float(low), float(high)),
        Axis("steps (%)", 0, above(top), 0.01),
    )
    rows = []
    for (k, run, one), part in zip(found, parts, strict=True):
        if len(found) > 1:
            chart.line(np.repeat(one.edges, 2)[1:-1], np.repeat(part, 2), run_colour(k), run.name)
        for first, last, value, count, seconds in zip(
            one.edges[:-1], one.edges[1:], part.tolist(), one.counts.tolist(), one.seconds.tolist(), strict=True
        ):
            if count:
                span = f"{chart.x.text(float(first))} to {chart.x.text(float(last))}"
                if len(found) == 1:
                    name = f"{span}: {count_text(count)} steps, {seconds_text(seconds)} in all"
                    chart.bar(float(first), float(last), value, name, colour=run_colour(k) if len(runs) > 1 else None)
                rows.append((run.name, span, count_text(count), f"{value:.2%}", seconds_text(seconds)))
    text = "Steps that count, of all ranks and epochs of training."
    table = Table(("run", "waited", "steps", "of all", "in all"), rows)
    return Card("Stalls", text + left_out, [Figure(chart, run_legend(runs, [k for k, *_ in found]))], table)


def by_rank(runs: Sequence[RunFiles], left_out: str) -> Card | None:
    """Samples a second of each rank."""
    rates = [_rates(run) for run in runs]
    count = max(map(len, rates), default=0)
    if not count:
        return None
    top = max(value for one in rates for value in one.values())
    ranks = max(max(one, default=0) for one in rates)
    chart = Chart(
        "samples a second of each rank",
        Axis("rank", -0.5, ranks + 0.5, whole=True),
        Axis("samples/s", 0, above(top)),
    )
    bars = count * len(runs) <= MOST_BARS
    drawn = [k for k, one in enumerate(rates) if one]
    for k, (run, one) in enumerate(zip(runs, rates, strict=True)):
        if not bars:
            chart.line(list(one), np.array(list(one.values())), run_colour(k), run.name)
            continue
        width = 0.8 / len(drawn)
        for rank, value in one.items():
            left = rank - 0.4 + drawn.index(k) * width
            chart.bar(
                left,
                left + width,
                value,
                f"{run.name}, rank {rank}: {value:,.2f} samples/s",
                colour=run_colour(k) if len(runs) > 1 else None,
            )
    rows = [
        (run.name, str(rank), f"{value:,.2f}")
        for run, one in zip(runs, rates, strict=True)
        for rank, value in one.items()
    ]
    text = "Samples a second, mean of the epochs of training."
    table = Table(("run", "rank", "samples/s"), rows)
    return Card("Throughput by rank", text + left_out, [Figure(chart, run_legend(runs, drawn))], table)


def _rates(run: RunFiles) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for epoch in run.result["epochs"]:
        for rank in epoch["ranks"]:
            value = rank["metrics"]["samples_per_second"]
            if epoch["kind"] == "train" and value is not None and 0 <= rank["rank"] < 1 << 20:
                found.setdefault(rank["rank"], []).append(float(value))
    return {rank: math.fsum(values) / len(values) for rank, values in sorted(found.items())}
