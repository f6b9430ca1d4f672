"""Finds the number of accelerators that a storage can feed: runs of growing size, each of which is a short benchmark."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from stoker.errors import ConfigError
from stoker_bench.compare.statistics import mean_interval
from stoker_bench.measure.metrics import deciding_au
from stoker_bench.mlperf.rules import Demand
from stoker_bench.ranks.world import find_world
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import Resolved
from stoker_bench.settings.workload import Workload

CONFIDENCE: Final = 0.9
"""Of two-sided intervals: 95 % on the side that counts."""


@dataclass(frozen=True, slots=True)
class Border:
    """The end of the search.

    Attributes:
        fed: the most accelerators that are fed; 0 if the fewest are too many.
        starved: the next number that can be had, which are not; ``None`` where there is none.
        sure: whether both sides of the border are on their side of the threshold by their intervals.
        values: utilization of all runs, by the number of accelerators.
    """

    fed: int
    starved: int | None
    sure: bool
    values: Mapping[int, tuple[float, ...]]


def find_border(probe: Callable[[int], float], threshold: float, *, counts: Sequence[int], repeats: int) -> Border:
    """Search.

    Args:
        probe: runs so many accelerators, and returns their utilization.
        threshold: utilization with which they count as fed.
        counts: numbers of accelerators that can be had, rising.
        repeats: runs on each side of the border.
    """
    # Counts are named by their index among all counts, from 1.
    values: dict[int, list[float]] = {}
    last = len(counts)
    while True:
        means = {index: math.fsum(found) / len(found) for index, found in sorted(values.items())}
        starved = next((index for index, mean in means.items() if mean < threshold), None)
        fed = max(
            (index for index, mean in means.items() if mean >= threshold and index < (starved or last + 1)), default=0
        )
        if starved is None and fed < last:
            ask = min(2 * fed or 1, last)
        elif starved is not None and starved - fed > 1:
            ask = (fed + starved) // 2
        else:
            border = [index for index in (fed, starved) if index]
            ask = min(border, key=lambda index: len(values[index]))
            if len(values[ask]) >= repeats:
                break
        values.setdefault(ask, []).append(probe(counts[ask - 1]))
    low = mean_interval(values[fed], CONFIDENCE)[0] if fed else math.inf
    high = mean_interval(values[starved], CONFIDENCE)[1] if starved else -math.inf
    return Border(
        counts[fed - 1] if fed else 0,
        counts[starved - 1] if starved else None,
        low >= threshold > high,
        {counts[index - 1]: tuple(found) for index, found in sorted(values.items())},
    )


FILE: Final = "size.json"
_SECONDS: Final = 15.0
_LEAST_STEPS: Final = 30
_MOST_STEPS: Final = 500

Limit = Literal["storage", "host", "unknown", "asked", "data set", "cluster"]


@dataclass(frozen=True, slots=True)
class Point:
    """The result of all runs with one number of accelerators.

    Attributes:
        accelerators: how many.
        values: utilization of each run, in the order in which they ran.
        fed: whether their mean is at least the threshold.
        low, high: of the mean, each with a confidence of 95 %; ``None`` of a single run.
        samples_per_second: mean of the runs.
    """

    accelerators: int
    values: tuple[float, ...]
    fed: bool
    low: float | None
    high: float | None
    samples_per_second: float | None = None

    @property
    def mean(self) -> float:
        """Mean utilization."""
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True)
class DatasetSize:
    """The answer.

    Attributes:
        workload: its name.
        url: the data.
        threshold: ``metric.au``.
        accelerators: how many are fed, at that utilization.
        limited_by: what would not feed one more: the ``storage``; the ``host`` or loader, which starve them with data in
            memory, too; ``unknown`` which of the two; or nothing did, and the search ended at the number that was ``asked``
            for, that the ``data set`` has samples for, or that the ``cluster`` has room for.
        sure: see :class:`~stoker_bench.size.size.Border`.
        said: the answer in a sentence or two.
        points: the curve.
        steps: of each run.
        ceiling: utilization of one more with data in memory, where that was measured.
        broken: rules that runs broke, with the reason: the answer does not hold.
        demand: what data set the rules ask for, for so many accelerators.
        results: where all runs' results are.
    """

    workload: str
    url: str
    threshold: float
    accelerators: int
    limited_by: Limit
    sure: bool
    said: str
    points: tuple[Point, ...]
    steps: int
    ceiling: float | None
    broken: Mapping[str, str]
    demand: Demand
    results: str

    @property
    def valid(self) -> bool:
        """Whether all runs kept to the rules."""
        return not self.broken

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        made = asdict(self) | {"broken": dict(self.broken), "valid": self.valid}
        return made | {
            "points": [asdict(point) | {"values": list(point.values), "mean": point.mean} for point in self.points]
        }


def probe_steps(workload: Workload) -> int:
    """Steps of a run where nobody says: about 15 seconds of computing that count, 30 to 500 steps, after half as many."""
    expected = workload.compute.seconds.expected
    counted = min(_MOST_STEPS, max(_LEAST_STEPS, math.ceil(_SECONDS / expected))) if expected > 0 else _MOST_STEPS
    return counted + max(workload.metric.exclude_start, counted // 2) + workload.metric.exclude_end


def _lead(workload: Workload, steps: int) -> int:
    """Steps at the beginning that do not count.

    What a loader has read ahead before the first step hides a storage that is too slow until it is used up, which lasts the
    longer the less is missing: ``n`` batches ahead at a part ``r`` of the rate that is needed last for ``n / (1 - r)`` steps.
    """
    return max(workload.metric.exclude_start, (steps - workload.metric.exclude_end) // 3)


def find_size(
    resolved: Resolved,
    *,
    results: str | os.PathLike[str],
    demand: Callable[[int], Demand],
    url: str | None = None,
    most: int = 64,
    repeats: int = 3,
    steps: int | None = None,
    calibrate: bool = True,
    launcher: Literal["ray"] | None = None,
    on_run: Callable[[int, Mapping[str, Any]], None] | None = None,
    command: Sequence[str] = (),
) -> DatasetSize:
    """Search for the number of accelerators that a storage feeds.

    Each run is one epoch of some steps, of which the first third does not count, with the files out of the page cache before
    it, and with another order of samples than all others. Ranks are processes on this host, or where the launcher puts them.

    Args:
        resolved: the workload; ``metric.au`` is the threshold.
        results: a directory, new or empty; each run's results are below it, and ``size.json``.
        demand: what the rules demand for so many accelerators.
        url: the data set, generated before; default, the workload's.
        most: accelerators to try.
        repeats: runs on each side of the border.
        steps: of each run; default, :func:`probe_steps`.
        calibrate: run the first number that is not fed with data in memory, too, to tell the storage from the host.
        launcher: as of :func:`~stoker_bench.run.run_benchmark`.
        on_run: called after each run with the number of accelerators and its results.
        command: how this was started, for the record.

    Raises:
        ConfigError: settings do not go together; the data set is too small for a single run; a launcher started this.
        RankFailedError: a run failed.
    """
    workload = resolved.workload
    if launcher is None and find_world() is not None:
        raise ConfigError("the search starts ranks by itself: run it without torchrun, Slurm or an MPI")
    if workload.compute.kind == "simulated" and workload.compute.seconds.expected <= 0:
        raise ConfigError("compute.seconds is 0: an accelerator that takes no time is never utilized")
    steps = probe_steps(workload) if steps is None else steps
    allowed = workload.dataset.files * workload.dataset.samples_per_file // (steps * workload.reader.batch_size)
    if allowed < 1:
        raise ConfigError(
            f"the data set has {workload.dataset.files * workload.dataset.samples_per_file} samples, and {steps} steps of "
            f"one accelerator need {steps * workload.reader.batch_size}: generate more (dataset.files), or take fewer steps"
        )
    folder = Path(results).expanduser().resolve()
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: give another directory for results, or remove what is in it")
    rates: dict[int, list[float]] = {}
    broken: dict[str, str] = {}
    count = 0

    def run(accelerators: int, *, calibrated: bool = False) -> dict[str, Any]:
        nonlocal count
        count += 1
        train = replace(
            workload.train, epochs=1, repeats=1, steps=steps, seed=workload.train.seed + count - 1, reshuffle=True
        )
        probe = replace(
            workload,
            stages=("train",),
            train=train,
            storage=replace(workload.storage, cache="drop"),
            metric=replace(workload.metric, calibrate=calibrated, exclude_start=_lead(workload, steps)),
        )
        name = f"{count:03d}-{accelerators}-accelerators{'-calibrated' if calibrated else ''}"
        result = run_benchmark(
            replace(resolved, workload=probe),
            results=folder / name,
            url=url,
            accelerators=accelerators,
            stages=("train",),
            launcher=launcher,
            command=command,
        )
        if on_run is not None:
            on_run(accelerators, result)
        return result

    def probe(accelerators: int) -> float:
        result = run(accelerators)
        for finding in result["findings"]:
            if finding["invalid"]:
                broken.setdefault(finding["rule"], finding["reason"])
        train = result["train"]
        if train is None or train["au"] is None:
            raise ConfigError(f"a run of {steps} steps has none that counts: give more steps")
        rates.setdefault(accelerators, []).append(train["samples_per_second"]["mean"])
        return deciding_au(train) or 0.0

    counts = _counts(min(most, allowed), launcher, workload)
    border = find_border(probe, workload.metric.au, counts=counts, repeats=repeats)
    limited: Limit = "asked" if border.fed == most else "data set" if border.fed == allowed else "cluster"
    ceiling = None
    if border.starved is not None:
        limited = "unknown"
        if calibrate:
            found = run(border.starved, calibrated=True)["calibration"]
            ceiling = None if found is None else found["au_ceiling"]
        if ceiling is not None:
            limited = "storage" if ceiling >= workload.metric.au else "host"
    made = DatasetSize(
        workload.name,
        url or workload.storage.url or "",
        workload.metric.au,
        border.fed,
        limited,
        border.sure,
        _said(workload.metric.au, border, limited, ceiling, allowed),
        tuple(
            _point(accelerators, values, workload.metric.au, rates[accelerators])
            for accelerators, values in border.values.items()
        ),
        steps,
        ceiling,
        broken,
        demand(max(1, border.fed)),
        str(folder),
    )
    (folder / FILE).write_text(json.dumps(made.as_dict(), indent=1) + "\n")
    return made


def _counts(most: int, launcher: Literal["ray"] | None, workload: Workload) -> Sequence[int]:
    """Numbers of accelerators that can be had."""
    if launcher is None:
        return range(1, most + 1)
    from stoker_bench.ranks.ray import possible_ranks

    return possible_ranks(most, workload)


def _point(accelerators: int, values: tuple[float, ...], threshold: float, rates: Sequence[float]) -> Point:
    low, high = mean_interval(values, CONFIDENCE) if len(values) > 1 else (None, None)
    fed = math.fsum(values) / len(values) >= threshold
    return Point(accelerators, values, fed, low, high, math.fsum(rates) / len(rates))


def _said(threshold: float, border: Border, limited: Limit, ceiling: float | None, allowed: int) -> str:
    many = "1 accelerator is" if border.fed == 1 else f"{border.fed} accelerators are"
    if border.starved is None:
        why = (
            f"the data set has samples for no more than {allowed} in runs of this length"
            if limited == "data set"
            else "no more were tried"
            if limited == "asked"
            else "the cluster can have no more, dealt out evenly"
        )
        first = f"At least {many} fed at a utilization of {threshold:.0%}: {why}."
    elif not border.fed:
        first = f"Not a single accelerator is fed at a utilization of {threshold:.0%}."
    else:
        more = "one more is" if border.starved == border.fed + 1 else f"{border.starved} are"
        first = f"{many} fed at a utilization of {threshold:.0%}, {more} not."
    if limited == "host":
        first += (
            f" With data in memory {border.starved} reach {ceiling:.1%}: it is this host or the loader that can not feed "
            "more, and the storage may."
        )
    elif limited == "storage":
        first += f" With data in memory {border.starved} reach {ceiling:.1%}: it is the storage that can not feed more."
    elif limited == "unknown":
        first += " Whether it is the storage or this host that can not feed more was not measured."
    if not border.sure:
        first += (
            " At the border runs scatter too much to be sure, or were not repeated: the true number may be another."
        )
    return first
