"""Quality of a shuffle as training sees it: measured on windows of steps of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from stoker.order.sample_order import Run
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

# Samples that are looked at, in so many windows; each look of a rank into a window has a cost of its own.
_SAMPLES = 1 << 18
_WINDOWS = 16
_LOOKS = 1 << 13


@dataclass(frozen=True, slots=True)
class StepQuality:
    """Measures of the order in which samples come, over all ranks.

    Attributes:
        samples: how many samples were looked at.
        steps: in how many steps.
        position_correlation: absolute Pearson correlation of a sample's position in the run with its id: 1 in id order, about
            ``1 / sqrt(samples)`` in a random order.
        neighbour_distance: mean distance of the ids of samples that follow each other in a global batch, as a part of
            what it is in a random order (a third of the ids): 1 in a random order, about 0 in id order.
        shards_a_batch: different shards in a global batch, on average.
        shards_if_random: the same, expected in a random order.
    """

    samples: int
    steps: int
    position_correlation: float
    neighbour_distance: float
    shards_a_batch: float
    shards_if_random: float


def measure_quality(runs: Sequence[Run], table: ShardTable) -> StepQuality:
    """Look at windows of steps, evenly spaced from the first to the last.

    Args:
        runs: order and plan of every rank.
        table: the shards' sizes.
    """
    steps = max(len(run.plan) for run in runs)
    together = sum(run.plan.batch_size for run in runs)
    windows = max(2, min(_WINDOWS, _LOOKS // len(runs)))
    width = max(1, _SAMPLES // together // windows)
    if windows * width >= steps:
        windows, width = 1, steps
    starts = np.unique(np.linspace(0, steps - width, windows).astype(np.int64))
    batches = [batch for start in starts.tolist() for batch in _window(runs, table, start, width)]
    ids = np.concatenate(batches)
    positions = np.concatenate(
        [np.arange(len(batch)) + (int(starts[k // width]) + k % width) * together for k, batch in enumerate(batches)]
    )
    distances = [np.abs(np.diff(batch)).sum() for batch in batches]
    neighbours = sum(max(0, len(batch) - 1) for batch in batches)
    full = [batch for batch in batches if len(batch) == len(batches[0])]
    shards = [np.unique(table.locate(batch)[0]).size for batch in full]
    share = table.sizes / max(1, table.total)
    return StepQuality(
        samples=len(ids),
        steps=len(batches),
        position_correlation=_correlation(positions, ids),
        neighbour_distance=float(sum(distances)) / max(1, neighbours) / max(1.0, table.total / 3),
        shards_a_batch=float(np.mean(shards)),
        shards_if_random=float((1 - (1 - share) ** len(full[0])).sum()),
    )


def _window(runs: Sequence[Run], table: ShardTable, start: int, width: int) -> list[Ids]:
    """Sample ids of global batches ``[start, start + width)``, the ranks' parts one behind the other."""
    parts: list[list[Ids]] = [[] for _ in range(width)]
    for run in runs:
        chunks = run.plan.chunks(width * run.plan.batch_size, skip=start)
        batches = list(islice(chain.from_iterable(chunks), width))
        if not batches:
            continue
        shards, rows = run.order.locate(np.concatenate(batches))
        ends = np.cumsum([len(batch) for batch in batches])[:-1]
        for part, ids in zip(parts, np.split(table.starts[shards] + rows, ends), strict=False):
            part.append(ids)
    return [np.concatenate(part) for part in parts if part]


def _correlation(positions: Ids, ids: Ids) -> float:
    x = positions - positions.mean()
    y = ids - ids.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return abs(float((x * y).sum())) / scale if scale else 0.0
