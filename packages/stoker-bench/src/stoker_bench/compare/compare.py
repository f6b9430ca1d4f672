"""The changes from some runs to others that are larger than the scatter between runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final, Literal, NamedTuple

from stoker.errors import ConfigError
from stoker_bench.compare.comparable import apart, differing_conditions, warnings
from stoker_bench.compare.statistics import Difference, holm, welch
from stoker_bench.results.report_files import RunFiles

Level = Literal["repeats", "epochs", "blocks", "none"]
"""The unit that counts as one value: a repetition of the training, an epoch, a block; ``none``: there are too few of any."""

_ENOUGH: Final = 3
"""Values on each side, at least: with two, only differences of many times the scatter could be told from it."""

_LEVELS: Final[dict[Level, str]] = {
    "repeats": "Values are repetitions of the whole training.",
    "epochs": "Values are epochs, as there are fewer than 3 repetitions on a side. That is weaker: epochs of one run share "
    "its circumstances, so that what differs from run to run can look like a change. train.repeats=5 would tell.",
    "blocks": "Values are blocks of epochs, as there are fewer than 3 epochs on a side. That is much weaker: blocks of one "
    "epoch share its circumstances. train.repeats=5 would tell.",
    "none": "There are fewer than 3 repetitions, epochs or blocks on a side: what is noise can not be told. "
    "train.repeats=5 would tell.",
}
_METHOD: Final = (
    "Welch's t-test of the means, and Holm's correction for all metrics that were tested; intervals are of each alone. "
    "± is the sample standard deviation."
)


class ComparedMetric(NamedTuple):
    """Something that is compared.

    Attributes:
        name: as in ``results.json``, or ``stall_p99``.
        words: for people.
        higher: whether more is better.
        unit: ``part``, ``seconds``, ``bytes``, or what a number counts.
        of_blocks: whether blocks have it.
        summed: whether ranks' values add up; else their mean counts.
        checkpoints: ``saves`` or ``loads`` of those, each of which is a value; ``""`` for what is of training.
    """

    name: str
    words: str
    higher: bool
    unit: str
    of_blocks: bool = False
    summed: bool = False
    checkpoints: str = ""


METRICS: Final = (
    ComparedMetric("au", "utilization", True, "part", True),
    ComparedMetric("au_nominal", "nominal utilization", True, "part", True),
    ComparedMetric("samples_per_second", "samples/s", True, "number", True, True),
    ComparedMetric("storage_bytes_per_second", "bytes/s from storage", True, "bytes"),
    ComparedMetric("delivered_bytes_per_second", "bytes/s to the step", True, "bytes", True, True),
    ComparedMetric("tokens_per_second", "tokens/s", True, "number"),
    ComparedMetric("stall_part", "stall", False, "part", True),
    ComparedMetric("stall_p99", "stall, 99th percentile", False, "seconds"),
    ComparedMetric("time_to_first_batch", "time to first batch", False, "seconds"),
    ComparedMetric("request_p50", "storage request, median", False, "seconds"),
    ComparedMetric("request_p99", "storage request, 99th percentile", False, "seconds"),
    ComparedMetric("requests_per_second", "storage requests/s", True, "number"),
    ComparedMetric("cpu_seconds_per_gb", "CPU seconds a GB", False, "seconds"),
    ComparedMetric("peak_memory_bytes", "peak memory", False, "bytes"),
    ComparedMetric("checkpoint_save", "checkpoints saved, bytes/s", True, "bytes", checkpoints="saves"),
    ComparedMetric("checkpoint_load", "checkpoints loaded, bytes/s", True, "bytes", checkpoints="loads"),
)
"""In the order in which they are shown."""

_REQUESTS: Final[dict[str, Callable[[Mapping[str, Any]], float]]] = {
    "request_p50": lambda found: found["latency"]["p50"],
    "request_p99": lambda found: found["latency"]["p99"],
    "requests_per_second": lambda found: found["per_second"],
}
"""Metrics of the requests that the device or the network served; older results have none."""


@dataclass(frozen=True, slots=True)
class Change:
    """A metric on both sides.

    Attributes:
        metric: its name.
        a, b: means.
        count_a, count_b: values.
        stdev_a, stdev_b: standard deviation of one value, of the sample; ``None`` for fewer than two.
        change: ``(b - a) / a``; ``None`` where ``a`` is 0.
        low, high: of the confidence interval of ``change``; ``None`` where nothing was tested.
        p: of Welch's test.
        p_adjusted: by Holm's correction.
        verdict: ``better``, ``worse``, ``noise`` (no change beyond it) or ``unknown`` (nothing was tested).
    """

    metric: str
    a: float
    b: float
    count_a: int
    count_b: int
    stdev_a: float | None
    stdev_b: float | None
    change: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    verdict: Literal["better", "worse", "noise", "unknown"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two sides.

    Attributes:
        names: of the runs on each side.
        level: what counts as one value.
        method: in sentences.
        confidence: of intervals, and 1 minus the level of significance.
        changes: by metric.
        differences: what differs beside results: place such as ``settings reader.loader`` to both sides' values.
        warnings: sentences.
    """

    names: tuple[tuple[str, ...], tuple[str, ...]]
    level: Level
    method: str
    confidence: float
    changes: tuple[Change, ...]
    differences: Mapping[str, tuple[str, str]]
    warnings: tuple[str, ...]

    def regressions(self, fail_over: float, metrics: Sequence[str]) -> list[Change]:
        """Changes for the worse, beyond noise, of more than ``fail_over`` (a part of 1).

        Raises:
            ConfigError: nothing of ``metrics`` could be tested, so that nothing is known.
        """
        compared = [change for change in self.changes if change.metric in metrics]
        if not any(change.verdict != "unknown" for change in compared):
            raise ConfigError(
                f"whether {', '.join(metrics)} got worse can not be told: a side has fewer than {_ENOUGH} repetitions, "
                "epochs or blocks. Run with train.repeats=5"
            )
        return [
            one for one in compared if one.verdict == "worse" and (one.change is None or abs(one.change) > fail_over)
        ]


def compare_runs(
    a: Sequence[RunFiles], b: Sequence[RunFiles], *, confidence: float = 0.95, force: bool = False
) -> Comparison:
    """Compare runs with runs.

    Args:
        a: before; all of one workload.
        b: after.
        confidence: from 0.5 to below 1.
        force: compare also what is of different workloads, or did not finish.

    Raises:
        ConfigError: the workloads differ, or a run is not complete, and ``force`` was not given; nothing was trained.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"a confidence is from 0.5 to below 1, got {confidence}")
    said = [*apart(a, b, force), *warnings([*a, *b], force)]
    level = _level(a, b)
    tested: list[tuple[ComparedMetric, list[float], list[float], Difference | None]] = []
    for metric in METRICS:
        left, right = (_values(side, metric, level if level != "none" else "epochs") for side in (a, b))
        if left and right:
            test = (level != "none" or metric.checkpoints) and min(len(left), len(right)) >= _ENOUGH
            tested.append((metric, left, right, welch(left, right, confidence) if test else None))
    if not tested:
        raise ConfigError(
            "on a side nothing was trained, nor checkpoints saved or loaded, so that there is nothing to compare"
        )
    adjusted = iter(holm([found.p for _, _, _, found in tested if found is not None]))
    changes = [_change(*one, None if one[3] is None else next(adjusted), confidence) for one in tested]
    return Comparison(
        (tuple(run.name for run in a), tuple(run.name for run in b)),
        level,
        " ".join(_method(level, tested)),
        confidence,
        tuple(changes),
        differing_conditions(a, b),
        tuple(said),
    )


def _method(
    level: Level, tested: Sequence[tuple[ComparedMetric, list[float], list[float], Difference | None]]
) -> Iterator[str]:
    if any(found is not None for _, _, _, found in tested):
        yield _METHOD
    if any(not metric.checkpoints for metric, _, _, _ in tested):
        yield _LEVELS[level]
    if any(metric.checkpoints for metric, _, _, _ in tested):
        yield "Of checkpoints, values are single ones: those of one run share its circumstances, too."


def _change(
    metric: ComparedMetric, a: list[float], b: list[float], found: Difference | None, p: float | None, confidence: float
) -> Change:
    means = fmean(a), fmean(b)
    relative: Callable[[float], float | None] = lambda value: value / abs(means[0]) if means[0] else None  # noqa: E731
    verdict: Literal["better", "worse", "noise", "unknown"] = "unknown"
    if found is not None and p is not None:
        significant = p < 1 - confidence
        verdict = "noise" if not significant else "better" if (found.difference > 0) == metric.higher else "worse"
    return Change(
        metric.name,
        *means,
        len(a),
        len(b),
        stdev(a) if len(a) > 1 else None,
        stdev(b) if len(b) > 1 else None,
        relative(means[1] - means[0]),
        None if found is None else relative(found.low),
        None if found is None else relative(found.high),
        None if found is None else found.p,
        p,
        verdict,
    )


# -- values --------------------------------------------------------------------------------------------------------


def _level(a: Sequence[RunFiles], b: Sequence[RunFiles]) -> Level:
    for level in ("repeats", "epochs", "blocks"):
        if min(len(_values(side, METRICS[0], level)) for side in (a, b)) >= _ENOUGH:
            return level
    return "none"


def _values(runs: Sequence[RunFiles], metric: ComparedMetric, level: str) -> list[float]:
    """A metric's values: of all repetitions, epochs or blocks in which something counts."""
    found: list[float] = []
    for run in runs:
        if metric.checkpoints:
            each = (run.result["checkpoint"] or {}).get(metric.checkpoints, [])
            found += _known(one["bytes_per_second"] for one in each if one["complete"])
            continue
        epochs = [one for one in run.result["epochs"] if one["kind"] == "train" and one["au"] is not None]
        if level == "epochs":
            found += _known(_of_epoch(epoch, metric) for epoch in epochs)
        elif level == "blocks":
            found += [value for epoch in epochs if metric.of_blocks for value in _of_blocks(epoch, metric)]
        else:
            for repeat in sorted({epoch["repeat"] for epoch in epochs}):
                values = _known(_of_epoch(epoch, metric) for epoch in epochs if epoch["repeat"] == repeat)
                found += [fmean(values)] if values else []
    return found


def _known(values: Iterator[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _of_epoch(epoch: Mapping[str, Any], metric: ComparedMetric) -> float | None:
    if metric.name == "stall_p99":
        return None if epoch["stall_seconds"] is None else float(epoch["stall_seconds"]["p99"])
    if metric.name in _REQUESTS:
        served = epoch.get("requests") or {}
        found = served.get("network", served.get("device"))
        return None if found is None else float(_REQUESTS[metric.name](found))
    value = epoch[metric.name]
    return None if value is None else float(value)


def _of_blocks(epoch: Mapping[str, Any], metric: ComparedMetric) -> list[float]:
    """Of each block that all ranks have; ranks' values added or their mean, as it is in an epoch."""
    count = min((len(rank["blocks"]) for rank in epoch["ranks"]), default=0)
    found = []
    for k in range(count):
        values = [rank["blocks"][k][metric.name] for rank in epoch["ranks"]]
        if all(value is not None for value in values):
            found.append(math.fsum(values) / (1 if metric.summed else len(values)))
    return found
