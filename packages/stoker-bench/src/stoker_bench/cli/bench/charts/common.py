"""Colours, axes and words that the charts of a report share."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.cli.terminal import seconds_text
from stoker_bench.cli.bench.datum import epoch_name
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.picture import COLOURS
from stoker_bench.results.report_files import RunFiles

_NARROW: Final = 16
"""Groups of bars of a chart of half the page's width."""
MOST_BARS: Final = 96
"""Of a chart; more are too narrow to be seen."""


class SecondsAxis(Axis):
    """Seconds, on a logarithmic scale."""

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


class EpochEntry(NamedTuple):
    """An epoch of a run.

    Attributes:
        k: number of the run.
        run: the run.
        name: as on the terminal; of several runs, after the run's.
        path: where it is in ``results.json``.
        found: its results.
    """

    k: int
    run: RunFiles
    name: str
    path: str
    found: Mapping[str, Any]


def epochs_of(runs: Sequence[RunFiles], *needed: str) -> tuple[list[EpochEntry], str]:
    """Epochs of all runs of which any of these fields is known, as many as can be seen; and a sentence on those left out."""
    found = [
        EpochEntry(k, run, epoch_name(run.result, epoch), f"epochs.{at}", epoch)
        for k, run in enumerate(runs)
        for at, epoch in enumerate(run.result["epochs"])
        if any(epoch[name] is not None for name in needed)
    ]
    if len(runs) > 1:
        found = [one._replace(name=f"{one.run.name}, {one.name}") for one in found]
    left_out = "" if len(found) <= MOST_BARS else f" Drawn are the first {MOST_BARS} of {len(found)} epochs."
    return found[:MOST_BARS], left_out


def room_for(entries: Sequence[object]) -> int:
    """The width of a chart with a group of bars for each."""
    return 1110 if len(entries) > _NARROW else 540


def named_axis(label: str, names: Sequence[str]) -> Axis:
    """An axis of groups of bars, of which the first is around 1."""
    return Axis(label, 0.5, len(names) + 0.5, names=tuple(names))


def run_colour(k: int) -> str:
    """The colour of a run or a series."""
    return COLOURS[k % len(COLOURS)]


def run_legend(runs: Sequence[RunFiles], drawn: Collection[int]) -> list[tuple[str, str]]:
    """Colours and names of those of several runs that are drawn; nothing where there is one run.

    Args:
        runs: all runs of the page.
        drawn: numbers of those that the chart shows.
    """
    return [(run_colour(k), run.name) for k, run in enumerate(runs) if k in drawn and len(runs) > 1]


def threshold(chart: Chart, runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Draw the utilization that was asked for, where all runs ask for the same.

    Returns:
        Its entry of a legend of dashed lines: a name in the chart would hide what is drawn there.
    """
    found = {run.number("metric.au", 0) for run in runs}
    if len(found) == 1 and (value := found.pop()) > 0:
        chart.level(value, name := f"asked for: {value:.0%}", named=False)
        return [("var(--ink)", name)]
    return []


def above(value: float) -> float:
    """The end of an axis whose largest value is this."""
    return min(1.12 * value, 1e300) or 1.0


def rate_text(value: float) -> str:
    """Things a second."""
    return f"{value:,.2f}"
