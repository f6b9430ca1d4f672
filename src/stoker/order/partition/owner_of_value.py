"""Assigns samples to ranks by a column's value (hash or class), in chunks of bounded length.

An *owners* iterator yields ``(first, ranks)``: the ranks, an integer each, that own the samples from number ``first`` of
a selection on. So a rank holds its own samples' numbers and a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from stoker.integers import mix_array
from stoker.order.selection.selection import Everything, Numbered, Selection, dense_starts
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Array, Ids

Owners: TypeAlias = Iterator[tuple[int, Ids]]

_CHUNK = 1 << 20


def hashed_owners(
    table: ShardTable, whole: Selection, labels: Array, partitions: int, world_size: int, key: int
) -> Owners:
    """Owners by hash of the label: partition ``hash % partitions``, which goes to rank ``partition % world_size``."""
    for first, values in _along(table, whole, labels):
        yield first, (mix_array(key, values) % np.uint64(partitions) % np.uint64(world_size)).astype(np.int64)


def stratified_owners(
    table: ShardTable, whole: Selection, labels: Array, counts: dict[int, int], world_size: int
) -> Owners:
    """Owners by dealing the samples, sorted by label and then by number, to the ranks in turn.

    Args:
        table: the shards.
        whole: what is dealt.
        labels: of all samples of the table.
        counts: :func:`class_counts` of the same.
        world_size: number of ranks.
    """
    classes = np.array(list(counts), dtype=labels.dtype)
    sizes = np.array(list(counts.values()), dtype=np.int64)
    dealt = np.cumsum(sizes) - sizes
    narrow = np.min_scalar_type(max(classes.size - 1, 0))  # NumPy sorts short integers by radix
    for first, values in _along(table, whole, labels):
        number = np.searchsorted(classes, values).astype(narrow)
        order = np.argsort(number, kind="stable")
        here = np.bincount(number, minlength=classes.size)
        # The samples of a class in this chunk, in order, follow those of earlier chunks.
        turn = np.empty(number.size, dtype=np.int64)
        turn[order] = np.arange(number.size) + np.repeat(dealt - (np.cumsum(here) - here), here)
        dealt += here
        yield first, turn % world_size


def class_counts(table: ShardTable, whole: Selection, labels: Array) -> dict[int, int]:
    """Samples of each label that occurs, by rising label."""
    counts: dict[int, int] = {}
    for _, values in _along(table, whole, labels):
        found, times = np.unique(values, return_counts=True)
        for label, count in zip(found.tolist(), times.tolist(), strict=True):
            counts[label] = counts.get(label, 0) + count
    return dict(sorted(counts.items()))


def owned_counts(owners: Owners, world_size: int) -> Ids:
    """Samples of each rank; int64, shape ``(world_size,)``."""
    counts = np.zeros(world_size, dtype=np.int64)
    for _, ranks in owners:
        counts += np.bincount(ranks, minlength=world_size)
    return counts


def owned(whole: Selection, owners: Owners, rank: int, size: int) -> Selection:
    """The ``size`` samples that ``rank`` owns."""
    numbers = np.empty(size, dtype=np.int64)
    found = 0
    for first, ranks in owners:
        here = np.flatnonzero(ranks == rank)
        numbers[found : found + here.size] = here + first
        found += here.size
    return Numbered(whole, numbers)


def _along(table: ShardTable, whole: Selection, labels: Array) -> Iterator[tuple[int, Array]]:
    """Labels of the samples in dense order, chunk by chunk, with the number of each chunk's first sample."""
    if isinstance(whole, Everything):
        for first in range(0, table.total, _CHUNK):
            yield first, np.asarray(labels[first : first + _CHUNK])
        return
    starts = dense_starts(whole)
    for first in range(0, int(starts[-1]), _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, int(starts[-1])), dtype=np.int64)
        shards = np.searchsorted(starts, numbers, side="right") - 1
        rows = whole.rows(shards, numbers - starts[shards])
        yield first, np.asarray(labels[table.starts[shards] + rows])
