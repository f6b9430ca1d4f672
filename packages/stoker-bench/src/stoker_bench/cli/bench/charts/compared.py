"""Charts of several runs side by side, and of one kind of run with more and more accelerators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.display import counted
from stoker_bench.cli.bench.charts.common import (
    EpochEntry,
    above,
    epochs_of,
    named_axis,
    rate_text,
    room_for,
    run_colour,
    threshold,
)
from stoker_bench.cli.bench.datum import datum
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table
from stoker_bench.cli.render.rates import bytes_rate_text, percent_text
from stoker_bench.results.report_files import RunFiles

_SHOWN: Final[Mapping[str, tuple[str, str, float, str, str, Callable[[Any], str]]]] = {
    "storage_bytes_per_second": (
        *("Bytes a second from storage", "MB/s", 1e6),
        *("delivered_bytes_per_second", "delivered to the steps that count", bytes_rate_text),
    ),
    "au": ("Utilization", "utilization (%)", 0.01, "au_nominal", "nominal", percent_text),
    "samples_per_second": ("Samples a second", "samples/s", 1.0, "", "", rate_text),
}
"""Of a metric: title, axis, its unit, the metric beside it and its name, words."""


def compared(runs: Sequence[RunFiles], name: str) -> Card | None:
    """A metric of all runs with the least and the largest epoch, and beside it the metric that it is to be seen with."""
    title, label, unit, beside, other, words = _SHOWN[name]
    pair = [(name, "measured" if name == "au" else "from storage" if beside else "")]
    pair += [(beside, other)] if beside else []
    found = [(k, run, [(run.result["train"] or {}).get(one) for one, _ in pair]) for k, run in enumerate(runs)]
    found = [(k, run, each) for k, run, each in found if any(one is not None for one in each)]
    top = max((one["max"] for *_, each in found for one in each if one is not None), default=0)
    if not top:
        return None
    chart = Chart(
        f"{title.lower()} of each run",
        named_axis("run", [run.name for _, run, _ in found]),
        Axis(label, 0, 1.05 if name == "au" else above(top), unit),
        width=room_for(found),
    )
    rows = []
    shown, left_out = epochs_of(runs, name)
    epochs: dict[int, list[EpochEntry]] = {}
    for one_epoch in shown:
        if one_epoch.found["kind"] == "train":
            epochs.setdefault(one_epoch.k, []).append(one_epoch)
    width = 0.7 / len(pair)
    for place, (k, run, each) in enumerate(found):
        for at, ((path, which), one) in enumerate(zip(pair, each, strict=True)):
            if one is None:
                continue
            said = f"{run.name}{', ' if which else ''}{which}: {words(one['mean'])}, {words(one['min'])} to "
            said += f"{words(one['max'])} of {one['count']} epochs"
            left = place + 0.65 + at * width
            # What stands beside it is paler, in the same colour.
            chart.bar(left, left + width, one["mean"], said, colour=run_colour(k) + ("70" if at else ""))
            chart.span(left + width / 2, one["min"], one["max"], said)
            for epoch in epochs.get(k, ()):
                if (value := epoch.found[path]) is not None:
                    chart.mark(left, left + width, value, f"{epoch.name}{', ' if which else ''}{which}: {words(value)}")
            mean, least, most = (datum(k, run, f"train.{path}.{part}", words) for part in ("mean", "min", "max"))
            rows.append((run.name, *((which,) if beside else ()), mean, least, most, str(one["count"])))
    asked = threshold(chart, runs) if name == "au" else ()
    rows += [
        (one.name, *((which,) if beside else ()), datum(one.k, one.run, f"{one.path}.{path}", words), "-", "-", "1")
        for mine in epochs.values()
        for one in mine
        for path, which in pair
    ]
    text = f"Mean of the epochs; lines across: each epoch; upwards: from the least to the most.{left_out}"
    text += f" Paler: {other}." if beside else ""
    table = Table(("run", *(("",) if beside else ()), "mean", "least", "most", "epochs"), rows)
    return Card(f"{title}, run by run", text, [Figure(chart, dashed=asked)], table)


def by_accelerators(runs: Sequence[RunFiles]) -> Card | None:
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
        return None
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
        chart.line([float(count) for count in counts], np.array(means), run_colour(at), name)
        for count, mean, one in zip(counts, means, values, strict=True):
            chart.span(count, min(one), max(one), f"{name}: {count}: {mean:.2%}")
            chart.dot(count, mean, run_colour(at), f"{name}: {counted(count, 'accelerator')}: {mean:.2%}")
            for k, run, _ in points[count]:
                ranks, au = datum(k, run, "world.ranks", str), datum(k, run, "train.au.mean", percent_text)
                rows.append((name, ranks, run.name, au))
    figure = Figure(chart, [(run_colour(k), name) for k, name in enumerate(series)], threshold(chart, runs))
    table = Table(("loader and storage", "accelerators", "run", "utilization"), rows)
    text = "Mean of the runs; lines upwards: from the least to the most."
    return Card("Utilization by accelerators", text, [figure], table)
