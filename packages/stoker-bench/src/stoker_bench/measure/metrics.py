"""From the moments of steps to numbers. Every formula is in docs/bench/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.measure.steps import StepBlock, Steps

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class BlockMetrics:
    """One rank's block. Seconds and parts are of the window: the steps that count, and the time between all steps.

    Attributes:
        steps: of the block.
        counted: of the window.
        samples: of the window.
        bytes: that the window's batches hold.
        wall: seconds of the block.
        seconds: of the window: ``wall`` without the steps that are excluded, from asking for the batch to the end of
            computing. DLIO's ``total_time``.
        compute, stall, barrier, overhead: seconds of the window's parts.
        drawn: seconds that the window's steps were to compute; ``None`` where the work decides that.
        residue: seconds of the window, by the clock outside of the loop, that are in none of the parts.
        au: ``compute / seconds``; ``None`` without a window.
        au_nominal: ``drawn / seconds``; ``None`` without a window, or where nothing is drawn.
    """

    steps: int
    counted: int
    samples: int
    bytes: int
    wall: float
    seconds: float
    compute: float
    stall: float
    barrier: float
    overhead: float
    drawn: float | None
    residue: float
    au: float | None
    au_nominal: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        per = self.seconds if self.counted and self.seconds > 0 else None
        return {
            **asdict(self),
            "stall_part": None if per is None else self.stall / per,
            "barrier_part": None if per is None else self.barrier / per,
            "overhead_part": None if per is None else self.overhead / per,
            "samples_per_second": None if per is None else self.samples / per,
            "delivered_bytes_per_second": None if per is None else self.bytes / per,
        }


def window(block: StepBlock, exclude_start: int, exclude_end: int) -> slice:
    """The steps of a block that count, as a slice of the epoch's."""
    first = min(block.first + exclude_start, block.last)
    return slice(first, max(first, block.last - exclude_end))


def block_metrics(steps: Steps, block: StepBlock, exclude_start: int, exclude_end: int) -> BlockMetrics:
    """Compute the metrics of a block."""
    all_ = slice(block.first, block.last)
    kept = window(block, exclude_start, exclude_end)
    asked, arrived, begun, ended = (getattr(steps, name) for name in ("asked", "arrived", "begun", "ended"))
    busy = ended - asked
    excluded = int(busy[all_].sum() - busy[kept].sum())
    compute = int((ended[kept] - begun[kept]).sum())
    stall = int((arrived[kept] - asked[kept]).sum()) + block.tail
    barrier = int(steps.barrier[all_].sum())
    between = int((asked[all_][1:] - ended[all_][:-1]).sum())
    if block.last > block.first:
        between += int(asked[block.first]) - block.begun + block.ended - int(ended[block.last - 1])
    else:
        between += block.ended - block.begun
    overhead = int((begun[kept] - arrived[kept]).sum()) + between - barrier - block.tail
    total = block.wall - excluded
    counted = kept.stop - kept.start
    drawn = None if steps.drawn is None else int(steps.drawn[kept].sum())
    return BlockMetrics(
        steps=block.last - block.first,
        counted=counted,
        samples=int(steps.samples[kept].sum()),
        bytes=int(steps.bytes[kept].sum()),
        wall=block.wall * 1e-9,
        seconds=total * 1e-9,
        compute=compute * 1e-9,
        stall=stall * 1e-9,
        barrier=barrier * 1e-9,
        overhead=overhead * 1e-9,
        drawn=None if drawn is None else drawn * 1e-9,
        residue=(total - compute - stall - barrier - overhead) * 1e-9,
        au=compute / total if counted and total > 0 else None,
        au_nominal=drawn / total if drawn is not None and counted and total > 0 else None,
    )


def stalls(steps: Steps, exclude_start: int, exclude_end: int) -> NDArray[np.float64]:
    """Seconds waited for each batch that counts."""
    kept = [window(block, exclude_start, exclude_end) for block in steps.blocks]
    parts = [steps.arrived[one] - steps.asked[one] for one in kept]
    return np.concatenate(parts) * 1e-9 if parts else np.zeros(0)


def percentiles(values: NDArray[np.float64], wanted: Sequence[float] = PERCENTILES) -> dict[str, float] | None:
    """Mean, percentiles and the largest, in the values' unit; ``None`` where there is no value.

    Args:
        values: shape ``(count,)``.
        wanted: percentiles, 0 to 100.

    Example:
        >>> percentiles(np.array([1.0, 2.0, 3.0]), (50.0,))
        {'mean': 2.0, 'p50': 2.0, 'max': 3.0}
    """
    if not len(values):
        return None
    named = zip(wanted, np.percentile(values, wanted), strict=True)
    return {"mean": float(values.mean()), **{f"p{at:g}": float(one) for at, one in named}, "max": float(values.max())}


def epoch_metrics(blocks: Sequence[BlockMetrics]) -> dict[str, float | None]:
    """One rank's epoch: its blocks weighted by their steps, as DLIO has it."""
    counted = [block for block in blocks if block.au is not None]
    weight = sum(block.steps for block in counted)
    parts = ("au", "au_nominal", "stall_part", "barrier_part", "overhead_part")
    names = (*parts, "samples_per_second", "delivered_bytes_per_second")
    if not weight:
        return dict.fromkeys(names)
    rows = [block.as_dict() for block in counted]
    return {
        name: None
        if any(row[name] is None for row in rows)
        else sum(row[name] * block.steps for row, block in zip(rows, counted, strict=True)) / weight
        for name in names
    }


def step_seconds(blocks: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Mean seconds of the steps that count, as they were drawn and as they were measured.

    Args:
        blocks: of :meth:`BlockMetrics.as_dict`, of any number of ranks.

    Returns:
        ``compute_drawn`` and ``compute_measured``; each ``None`` where nothing counts, the first also where nothing is drawn.
    """
    counted = [block for block in blocks if block["counted"]]
    steps = sum(block["counted"] for block in counted)
    if not steps:
        return {"compute_drawn": None, "compute_measured": None}
    drawn = [block["drawn"] for block in counted]
    return {
        "compute_drawn": None if None in drawn else sum(drawn) / steps,
        "compute_measured": sum(block["compute"] for block in counted) / steps,
    }


def deciding_au(found: Mapping[str, Any]) -> float | None:
    """The utilization that has to reach ``metric.au``: the lower one of ``au`` and ``au_nominal``.

    Args:
        found: an epoch's result, or the means and spreads over epochs.

    Example:
        >>> deciding_au({"au": 0.92, "au_nominal": 0.46})
        0.46
    """
    values = [found["au"], found["au_nominal"]]
    known = [one["mean"] if isinstance(one, Mapping) else one for one in values if one is not None]
    return min(known, default=None)


def summarize(values: Sequence[float | None]) -> dict[str, float | int] | None:
    """Mean, standard deviation (population, as DLIO has it), least and largest; ``None`` where there is no value."""
    found = np.array([value for value in values if value is not None], np.float64)
    if not len(found):
        return None
    return {
        "mean": float(found.mean()),
        "stdev": float(found.std()),
        "min": float(found.min()),
        "max": float(found.max()),
        "count": len(found),
    }
