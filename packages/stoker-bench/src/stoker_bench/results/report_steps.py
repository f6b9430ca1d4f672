"""The steps of runs: how busy the accelerators were over time, and how long each batch was waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.measure.step_files import RankSteps, counted_waits, read_steps, steps_path
from stoker_bench.results.report_files import RunFiles

_BINS_PER_DECADE: Final = 5
_LEAST: Final = 1e-6
"""Seconds; shorter waits are counted as this."""


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """Training over time; time between epochs is left out.

    Attributes:
        edges: of the spans, seconds, shape ``(spans + 1,)``.
        mean: part of each span in which a rank computed, mean of the ranks whose steps are there, shape ``(spans,)``.
        low, high: of the least and the most busy rank.
        begins: seconds at which epochs begin.
        ranks: how many ranks' steps are there, least of all epochs.
    """

    edges: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    begins: tuple[float, ...]
    ranks: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of the steps' waits: those that count, of all ranks and epochs of training.

    Attributes:
        edges: seconds, shape ``(bins + 1,)``, five to a power of ten; what is below 1 µs is in the first bin.
        counts: int64, shape ``(bins,)``.
        seconds: waited in all, in each bin.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    seconds: NDArray[np.float64]


def _epochs(run: RunFiles) -> Iterator[list[RankSteps]]:
    """Of each epoch of training, the ranks' steps that are there."""
    for epoch in run.result["epochs"]:
        if epoch["kind"] == "train":
            where = ("train", epoch["repeat"], epoch["epoch"])
            found = (read_steps(steps_path(run.folder, rank["rank"], *where)) for rank in epoch["ranks"])
            yield [steps for steps in found if steps is not None and len(steps.asked)]


def timeline(run: RunFiles, spans: int) -> StepTimeline | None:
    """Utilization over time, in ``spans`` of equal length; ``None`` where no steps are there.

    Ranks begin an epoch together, which is where their clocks are set to each other. All steps are in it, those of the
    warm-up, too.
    """
    epochs = list(_epochs(run))
    lengths = [max((steps.end for steps in epoch), default=0) * 1e-9 for epoch in epochs]
    total = sum(lengths)
    if total <= 0:
        return None
    edges = np.linspace(0, total, spans + 1)
    begins = np.concatenate([[0.0], np.cumsum(lengths)])
    ranks = min(len(epoch) for epoch, length in zip(epochs, lengths, strict=True) if length > 0)
    busy = np.zeros((max(map(len, epochs)), spans))
    present = np.zeros_like(busy)
    for epoch, begin, end in zip(epochs, begins[:-1], begins[1:], strict=True):
        there = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
        for k, steps in enumerate(epoch):
            starts = (steps.asked + steps.wait) * 1e-9 + begin
            done = np.concatenate([[0.0], np.cumsum(steps.compute * 1e-9)])
            times = np.stack([starts, starts + steps.compute * 1e-9], axis=1).reshape(-1)
            computed = np.stack([done[:-1], done[1:]], axis=1).reshape(-1)
            busy[k] += np.diff(np.interp(edges, times, computed))
            present[k] += there
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = np.where(present > 0, busy / present, np.nan)
    known = present.sum(axis=0)
    mean = np.where(known > 0, busy.sum(axis=0) / np.where(known > 0, known, 1), 0)
    low, high = np.fmin.reduce(parts, axis=0), np.fmax.reduce(parts, axis=0)
    mean, low, high = (np.clip(np.nan_to_num(one), 0, 1) for one in (mean, low, high))
    return StepTimeline(edges, mean, low, high, tuple(begins[:-1].tolist()), ranks)


def delivered_rate(
    run: RunFiles, epoch: Mapping[str, Any], spans: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Bytes a second that arrived at the steps of an epoch, all ranks together; ``None`` where the steps of one are missing.

    All batches of a rank are taken to have the same size.

    Args:
        run: the run.
        epoch: one of its epochs.
        spans: how many at most; fewer where an epoch has few steps.

    Returns:
        Edges of the spans in seconds before the epoch's end (so the last is 0), shape ``(spans + 1,)``; rates, ``(spans,)``.
    """
    found = [
        read_steps(steps_path(run.folder, rank["rank"], epoch["kind"], epoch["repeat"], epoch["epoch"]))
        for rank in epoch["ranks"]
    ]
    known = [steps for steps in found if steps is not None and len(steps.asked)]
    end = max((steps.end for steps in known), default=0)
    if not known or len(known) < len(found) or end <= 0:
        return None
    count = max(1, min(spans, min(len(steps.asked) for steps in known) // 4))
    edges = np.linspace(0, end * 1e-9, count + 1)
    arrived = np.zeros(count + 1)
    for rank, steps in zip(epoch["ranks"], known, strict=True):
        each = rank["bytes"] / len(steps.asked)
        # A batch begins to arrive when it is asked for, so that long waits are no peaks.
        moments = np.stack([steps.asked, steps.asked + steps.wait], axis=1).reshape(-1) * 1e-9
        numbers = np.arange(len(steps.asked), dtype=np.float64)
        done = np.stack([numbers, numbers + 1], axis=1).reshape(-1) * each
        arrived += np.interp(edges, moments, done)
    return edges - edges[-1], np.diff(arrived) / np.diff(edges)


def stall_histogram(run: RunFiles) -> Histogram | None:
    """The waits for batches; ``None`` where there are no steps."""
    start, end = int(run.number("metric.exclude_start", 1)), int(run.number("metric.exclude_end", 0))
    parts = [counted_waits(steps, start, end) for epoch in _epochs(run) for steps in epoch]
    waits = np.concatenate(parts) * 1e-9 if parts else np.zeros(0)
    if not len(waits):
        return None
    seen = np.maximum(waits, _LEAST)
    first = np.floor(np.log10(seen.min()))
    decades = max(1, int(np.floor(np.log10(seen.max())) + 1 - first))
    edges = 10.0 ** (first + np.arange(decades * _BINS_PER_DECADE + 1) / _BINS_PER_DECADE)
    edges[-1] = max(edges[-1], seen.max())
    counts, _ = np.histogram(seen, edges)
    seconds, _ = np.histogram(seen, edges, weights=waits)
    return Histogram(edges, counts.astype(np.int64), seconds)
