"""Samples by place: from any shards, in the order asked for, as columns or one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.dataset.pool import ShardPool
from stoker.formats.base import ShardReader
from stoker.formats.merge import check_types, scatter
from stoker.formats.registry import get_format
from stoker.types import Batch, Ids, Sample

__all__ = ["SampleRun", "distinct", "iterate_samples", "read_samples"]

# Up to so many shards a table of them is cheaper than sorting.
_TABLE = 1 << 16


@dataclass(frozen=True, slots=True)
class SampleRun:
    """Samples to be taken one by one, and how many are left.

    Attributes:
        samples: the samples, each made when it is asked for.
        remaining: an iterator whose length hint is the number of samples not yet taken.
    """

    samples: Iterator[Any]
    remaining: Iterator[Any]

    @classmethod
    def of(cls, samples: list[Any]) -> SampleRun:
        """Samples that are all there already."""
        iterator = iter(samples)
        return cls(iterator, iterator)


def read_samples(pool: ShardPool, shards: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
    """Decode the samples at ``(shards[i], rows[i])``, in that order.

    Args:
        pool: the dataset's open shards.
        shards: shard numbers, int64, shape ``(n,)``, n ≥ 1.
        rows: rows in those shards, int64, shape ``(n,)``.
        columns: names to read, default all.

    Returns:
        Column name to column of n values.

    Raises:
        FormatError: the shards differ in columns, or in the type of one.
    """
    readers, which = _open(pool, shards)
    if _alike(readers):
        return get_format(readers[0].format).read_many(readers, which, rows, columns)
    kinds = list(_kinds(readers, which))
    parts = [get_format(chosen[0].format).read_many(chosen, here, rows[at], columns) for at, chosen, here in kinds]
    check_types(parts, [getattr(chosen[0], "where", chosen[0].format) for _, chosen, _ in kinds])
    return scatter([(at, part) for (at, _, _), part in zip(kinds, parts, strict=True)], len(rows))


def iterate_samples(pool: ShardPool, shards: Ids, rows: Ids, columns: Sequence[str] | None = None) -> SampleRun:
    """The samples at ``(shards[i], rows[i])``, in that order, as dicts, each decoded when it is asked for.

    Args and errors are those of :func:`read_samples`. Values of fixed-width array columns are views of larger arrays.
    """
    readers, which = _open(pool, shards)
    remaining = iter(range(len(rows)))
    if _alike(readers):
        columnwise = get_format(readers[0].format).iterate_many(readers, which, rows, columns)
        return SampleRun(_dicts(columnwise, remaining), remaining)
    samples: list[Sample | None] = [None] * len(rows)
    for here, chosen, which_of_them in _kinds(readers, which):
        part = get_format(chosen[0].format).iterate_many(chosen, which_of_them, rows[here], columns)
        for place, sample in zip(here.tolist(), _dicts(part, iter(range(len(here)))), strict=True):
            samples[place] = sample
    return SampleRun.of(samples)


def distinct(shards: Ids, count: int) -> tuple[Ids, Ids]:
    """The different shard numbers, rising, and for each entry of ``shards`` the place of its number among them.

    Args:
        shards: shard numbers in ``[0, count)``, shape ``(n,)``.
        count: number of shards.
    """
    if count > _TABLE:
        return np.unique(shards, return_inverse=True)
    # Sorting, as np.unique does it, would cost more than all else that is done for a sample of a few kilobytes.
    present = np.zeros(count, dtype=np.bool_)
    present[shards] = True
    numbers = np.flatnonzero(present)
    place = np.empty(count, dtype=np.int64)
    place[numbers] = np.arange(len(numbers))
    return numbers, place[shards]


def _open(pool: ShardPool, shards: Ids) -> tuple[list[ShardReader], Ids]:
    """Readers of the distinct shards, and for each sample the place of its reader."""
    numbers, which = distinct(shards, len(pool.index))
    return [pool.get(number) for number in numbers.tolist()], which


def _alike(readers: Sequence[ShardReader]) -> bool:
    first = readers[0].layout
    return all(reader.layout is first or reader.layout == first for reader in readers)


def _kinds(readers: Sequence[ShardReader], which: Ids) -> Iterator[tuple[Ids, list[ShardReader], Ids]]:
    """Where shards of different schemas or formats are under one index: places, readers and numbers of each kind."""
    groups: dict[object, list[int]] = {}
    for place, reader in enumerate(readers):
        groups.setdefault(reader.layout, []).append(place)
    for places in groups.values():
        number = np.full(len(readers), -1, dtype=np.int64)
        number[places] = np.arange(len(places))
        here = np.flatnonzero(number[which] >= 0)
        yield here, [readers[place] for place in places], number[which[here]]


def _dicts(columns: dict[str, Iterable[Any]], remaining: Iterator[Any]) -> Iterator[Sample]:
    """A dict a sample. ``remaining`` advances with each, and is asked first."""
    names = tuple(columns)
    values = tuple(columns.values())
    # The widths that nearly all data sets have are spelled out: building the dict is most of what a sample costs here.
    if len(names) == 1:
        (a,) = names
        return ({a: x} for _, x in zip(remaining, *values, strict=False))
    if len(names) == 2:
        a, b = names
        return ({a: x, b: y} for _, x, y in zip(remaining, *values, strict=False))
    if len(names) == 3:
        a, b, c = names
        return ({a: x, b: y, c: z} for _, x, y, z in zip(remaining, *values, strict=False))
    return (dict(zip(names, row, strict=True)) for _, *row in zip(remaining, *values, strict=False))
