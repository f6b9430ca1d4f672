"""Measures of a delivered sequence: how well it is shuffled, and what it takes to read it.

All take what is delivered, position after position: ``ids`` (sample ids, all different, shape ``(n,)``) or ``shards`` (the
shard of each). They look at nothing else, so they serve any order, of stoker or not. Each says what a fully random order
gives. Time O(n log n) at most; memory a few arrays of n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

# The median distance of two random points of a line of length 1.
_MEDIAN_DISTANCE: Final = 1 - 0.5**0.5


def position_correlation(ids: Ids) -> float:
    """Absolute Pearson correlation of position and id; for a whole epoch that is Spearman's too.

    1 in id order, about ``0.8 / sqrt(n)`` in a random order. Where whole shards move it is about ``0.8 / sqrt(shards)``
    however well rows are mixed, as the order of the shards alone decides it.
    """
    return float(_correlations(ids[None, :])[0]) if ids.size > 1 else 0.0


def window_correlation(ids: Ids, window: int) -> float:
    """Mean over windows of ``window`` positions of the correlation inside the window: a trend that windows keep.

    1 in id order; about ``0.8 / sqrt(window)`` in a random order. The last, partial window is left out.
    """
    windows = ids.size // window
    if not windows or window < 2:
        return 0.0
    return float(_correlations(ids[: windows * window].reshape(windows, window)).mean())


def neighbour_distance(ids: Ids, total: int, lag: int = 1) -> tuple[float, float]:
    """Distance in storage of samples delivered ``lag`` positions apart: mean and median of ``|id[p + lag] - id[p]|``.

    Both relative to those of random positions among ``total``, a third and 0.293 of it: 1.0 in a random order, next to 0 in
    id order. With C canonical nodes interleaved, a lag of C compares samples of the same node.
    """
    distances = np.abs(ids[lag:] - ids[:-lag])
    if not distances.size:
        return 0.0, 0.0
    return float(distances.mean() * 3 / total), float(np.median(distances) / (total * _MEDIAN_DISTANCE))


def separation(ids: Ids, table: ShardTable) -> float:
    """Distance in delivery of samples stored side by side: mean over pairs of successive ids of one shard, of a whole epoch.

    Relative to a third of the epoch: 1.0 in a random order. A shuffle that holds a share x of the dataset at once can
    reach about x.
    """
    positions = np.empty(ids.size, dtype=np.int64)
    positions[ids] = np.arange(ids.size)
    distances = np.abs(np.diff(positions))
    inside = np.ones(distances.size, dtype=bool)
    borders = table.starts[1:-1]
    inside[borders[(borders > 0) & (borders < ids.size)] - 1] = False
    return float(distances[inside].mean() * 3 / ids.size) if inside.any() else 0.0


def batch_mixing(shards: Ids, table: ShardTable, batch_size: int) -> float:
    """Distinct shards in a batch, mean over the full batches, relative to what random draws would give.

    Those are ``sum(1 - (1 - size / total) ** batch_size)``: a sample may be drawn twice, which matters only where a batch
    is a good part of the dataset.
    """
    batches = shards.size // batch_size
    if not batches:
        return 0.0
    rows = np.sort(shards[: batches * batch_size].reshape(batches, batch_size), axis=1)
    found = 1 + (np.diff(rows, axis=1) != 0).sum(axis=1).mean()
    expected = -np.expm1(batch_size * np.log1p(-np.minimum(table.sizes / table.total, 1 - 1e-12))).sum()
    return float(found / expected)


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The most that must be held at once for each shard to be fetched once.

    Attributes:
        shards: number of shards.
        weight: the largest sum of their weights; where these are bytes, bytes.
    """

    shards: int
    weight: int


def cache_need(shards: Ids, weights: Ids) -> CacheNeed:
    """The most that one node must hold at once.

    A shard is held from the position where its first sample is delivered to that of its last, both included.

    Args:
        shards: shard of each sample that the node delivers.
        weights: weight of each shard of the table: its bytes, or its samples; int64.
    """
    if not shards.size:
        return CacheNeed(0, 0)
    first, last = _lives(shards, weights.size)
    used = np.flatnonzero(first >= 0)
    most = []
    for weight in (np.ones(weights.size, dtype=np.int64), weights):
        held = np.zeros(shards.size + 1, dtype=np.int64)
        np.add.at(held, first[used], weight[used])
        np.subtract.at(held, last[used] + 1, weight[used])
        most.append(int(held.cumsum().max()))
    return CacheNeed(*most)


def download_peak(shards: Ids, window: int) -> float:
    """Shards first needed in a window of ``window`` positions: the most, relative to the mean.

    The first window, which fills an empty cache, is left out; 0 where it needs all. 1.0 is perfectly even, which can be only
    if a window needs many.
    """
    windows = shards.size // window
    if windows < 2:
        return 0.0
    first, _ = _lives(shards, int(shards.max()) + 1)
    needed = np.bincount(first[first >= 0] // window, minlength=windows)[1:windows]
    return float(needed.max() / needed.mean()) if needed.any() else 0.0


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """All measures of one epoch.

    Attributes:
        position_correlation: see :func:`position_correlation`.
        window_correlation: see :func:`window_correlation`, over windows of a batch.
        neighbour_distance: mean of :func:`neighbour_distance`.
        neighbour_median: median of it.
        node_distance: mean of it within canonical nodes.
        separation: see :func:`separation`.
        batch_mixing: see :func:`batch_mixing`.
        cache: see :func:`cache_need`; weights are samples. One node that reads all.
        download_peak: see :func:`download_peak`, over windows of a hundredth of the epoch.
    """

    position_correlation: float
    window_correlation: float
    neighbour_distance: float
    neighbour_median: float
    node_distance: float
    separation: float
    batch_mixing: float
    cache: CacheNeed
    download_peak: float


def measure(ids: Ids, table: ShardTable, batch_size: int, num_canonical_nodes: int = 1) -> ShuffleQuality:
    """All measures of a whole epoch.

    Args:
        ids: a permutation of ``[0, table.total)``, as delivered.
        table: the shards.
        batch_size: samples in a global batch.
        num_canonical_nodes: C of the order: samples of one node come C positions apart.
    """
    shards, _ = table.locate(ids)
    mean, median = neighbour_distance(ids, table.total)
    return ShuffleQuality(
        position_correlation(ids),
        window_correlation(ids, batch_size),
        mean,
        median,
        neighbour_distance(ids, table.total, num_canonical_nodes)[0],
        separation(ids, table),
        batch_mixing(shards, table, batch_size),
        cache_need(shards, table.sizes),
        download_peak(shards, max(1, ids.size // 100)),
    )


def _correlations(rows: Ids) -> NDArray[np.float64]:
    """Absolute correlation of each row with the column's number; 0 for rows of equal values."""
    values = rows - rows.mean(axis=1, keepdims=True)
    steps = np.arange(rows.shape[1]) - (rows.shape[1] - 1) / 2
    scale = np.sqrt((values * values).sum(axis=1) * (steps * steps).sum())
    found: NDArray[np.float64] = np.abs(values @ steps) / np.where(scale > 0, scale, 1.0)
    return found


def _lives(shards: Ids, count: int) -> tuple[Ids, Ids]:
    """First and last position of each shard; -1 for those that do not occur."""
    positions = np.arange(shards.size, dtype=np.int64)
    first = np.full(count, -1, dtype=np.int64)
    last = first.copy()
    # Of several values assigned to one index the last stays.
    first[shards[::-1]] = positions[::-1]
    last[shards] = positions
    return first, last
