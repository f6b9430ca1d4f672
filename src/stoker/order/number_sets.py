"""Sets of whole numbers that can be counted and indexed without being listed, where they are regular.

A set answers two questions, each the other's inverse: how many of its members are smaller than x, and which member has
t smaller ones. From the first follow the sizes of all shards of a selection at once, from the second its samples: selections
whose dense numbers are in such a set are here, too.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.order.selection import Drawn, Everything, Selection, TableSelection, dense_starts
from stoker.types import Ids

_CHUNK = 1 << 20


class NumberSet(Protocol):
    """A set of numbers from 0 on."""

    def below(self, numbers: Ids) -> Ids:
        """Number of members that are smaller than each of ``numbers`` (``>= 0``); int64 of the same shape."""
        ...

    def at(self, indices: Ids) -> Ids:
        """The member that has ``indices[i]`` smaller ones; int64 of the same shape."""
        ...


class Progression:
    """Numbers whose remainder by a modulus is in a ``range``: closed form, nothing is stored.

    ``modulus``: at least 1. ``residues``: rising, not empty, inside ``[0, modulus)``.
    """

    def __init__(self, modulus: int, residues: range) -> None:
        self._modulus = modulus
        self._residues = residues

    def below(self, numbers: Ids) -> Ids:
        turns, rest = np.divmod(numbers, self._modulus)
        first, step, count = self._residues.start, self._residues.step, len(self._residues)
        within = np.maximum(rest - (first - step + 1), 0) // step
        below: Ids = turns * count + np.minimum(within, count)
        return below

    def at(self, indices: Ids) -> Ids:
        first, step, count = self._residues.start, self._residues.step, len(self._residues)
        if count == 1:
            return indices * self._modulus + first
        turns, within = np.divmod(indices, count)
        at: Ids = turns * self._modulus + (within * step + first)
        return at


class Ranges:
    """Numbers inside half-open ranges.

    ``ranges``: ``(start, stop)`` each, ``0 <= start <= stop``, in rising order and not overlapping.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        bounds = np.array([pair for pair in ranges if pair[0] < pair[1]], dtype=np.int64).reshape(-1, 2)
        # An empty range at 0 in front makes every search find one.
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), bounds[:, 0]])
        self._lengths = np.concatenate([np.zeros(1, dtype=np.int64), bounds[:, 1] - bounds[:, 0]])
        self._before = np.cumsum(self._lengths) - self._lengths

    def below(self, numbers: Ids) -> Ids:
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        below: Ids = self._before[which] + np.minimum(numbers - self._starts[which], self._lengths[which])
        return below

    def at(self, indices: Ids) -> Ids:
        if self._starts.size == 2:
            return indices + int(self._starts[1])
        which = np.searchsorted(self._before, indices, side="right") - 1
        at: Ids = indices + (self._starts - self._before)[which]
        return at


class Sorted:
    """Listed numbers. ``values``: rising; int64, used as it is (it may lie in a mapped file)."""

    def __init__(self, values: Ids) -> None:
        # A slice of a mapped array does not know where in the file it begins.
        self._mapped: Any = values if isinstance(values, np.memmap) and isinstance(values.base, mmap.mmap) else None
        self._values = np.asarray(values)

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapped file is mapped again in the other process: it may have more ids than should travel.
        if self._mapped is None or self._mapped.filename is None:
            return Sorted, (self._values,)
        mapped = self._mapped
        return _map_again, (str(mapped.filename), mapped.dtype.str, mapped.offset, mapped.shape)

    def below(self, numbers: Ids) -> Ids:
        return np.searchsorted(self._values, numbers)

    def at(self, indices: Ids) -> Ids:
        at: Ids = self._values[indices]
        return at


def _map_again(path: str, dtype: str, offset: int, shape: tuple[int, ...]) -> Sorted:
    return Sorted(np.memmap(path, dtype, "r", offset, shape))


class AllBut:
    """All numbers but the listed ones. ``values``: rising; int64, to which 8 bytes an entry are added."""

    def __init__(self, values: Ids) -> None:
        self._values = np.asarray(values)
        # How many numbers are left before each listed one.
        self._left = self._values - np.arange(self._values.size)

    def below(self, numbers: Ids) -> Ids:
        below: Ids = numbers - np.searchsorted(self._values, numbers)
        return below

    def at(self, indices: Ids) -> Ids:
        at: Ids = indices + np.searchsorted(self._left, indices, side="right")
        return at


class _ByNumber:
    """The samples of the parent whose dense numbers are in a set."""

    def __init__(self, parent: Selection, chosen: NumberSet) -> None:
        starts = dense_starts(parent)
        before = chosen.below(starts)
        self.sizes: Ids = np.diff(before)
        self._parent = parent
        self._chosen = chosen
        self._starts = starts
        self._before = before

    def rows(self, shards: Ids, numbers: Ids) -> Ids:
        number = self._chosen.at(self._before[shards] + numbers)
        return self._parent.rows(shards, number - self._starts[shards])

    def numbers(self, shards: Ids, rows: Ids) -> Ids:
        numbers = self._parent.numbers(shards, rows)
        number = np.maximum(numbers, 0) + self._starts[shards]
        before = self._chosen.below(number)
        chosen = (numbers >= 0) & (self._chosen.below(number + 1) > before)
        return np.where(chosen, before - self._before[shards], -1)


class Residues(_ByNumber):
    """The samples whose dense number leaves one of some remainders.

    ``parent``: what is chosen from. ``modulus``: the divisor, at least 1. ``residues``: remainders, rising, not none, each in
    ``[0, modulus)``. ``key``: where given, the samples of each shard are first put in an order keyed by this and the shard's
    number.
    """

    def __init__(self, parent: Selection, modulus: int, residues: range, key: int | None = None) -> None:
        if key is not None:
            parent = Drawn(parent, np.zeros_like(parent.sizes), parent.sizes, key)
        super().__init__(parent, Progression(modulus, residues))


class Span(_ByNumber):
    """The samples in ranges of dense numbers.

    ``parent``: what is chosen from. ``ranges``: ``(start, stop)`` each, half open, in rising order, not overlapping, inside
    ``[0, total]``.
    """

    def __init__(self, parent: Selection, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(parent, Ranges(ranges))


class Numbered(_ByNumber):
    """The samples with these dense numbers.

    ``parent``: what is chosen from. ``values``: int64, rising, inside ``[0, total)``; not checked, and kept as it is.
    """

    def __init__(self, parent: Selection, values: Ids) -> None:
        super().__init__(parent, Sorted(values))


class Listed(_ByNumber):
    """Those of the listed samples that the parent has: 8 bytes each.

    ConfigError if an id is listed twice or is not in the table. ``parent``: what is chosen from. ``ids``: sample ids, which
    count through the whole table's shards; each once, in any order. A sorted int64 array of which the parent is
    :class:`Everything` is used without a copy; it may be a mapped file. ``checked``: the ids are known to be int64, sorted,
    distinct and of this table, so they are not checked again.
    """

    def __init__(self, parent: TableSelection, ids: Sequence[int] | NDArray[np.integer], checked: bool = False) -> None:
        self.table = parent.table
        super().__init__(parent, Sorted(_dense_numbers(parent, ids, checked)))


class Without(_ByNumber):
    """All samples of the parent but the listed ones: 16 bytes for each of these.

    ConfigError if an id is listed twice or is not in the table. ``parent``: what is chosen from. ``ids``: as for
    :class:`Listed`; those that the parent lacks change nothing.
    """

    def __init__(self, parent: TableSelection, ids: Sequence[int] | NDArray[np.integer]) -> None:
        self.table = parent.table
        super().__init__(parent, AllBut(_dense_numbers(parent, ids)))


def _dense_numbers(parent: TableSelection, ids: Sequence[int] | NDArray[np.integer], checked: bool = False) -> Ids:
    """The parent's dense numbers of those of ``ids`` that it has, rising."""
    sorted_ids = np.asanyarray(ids) if checked else _checked(ids, parent.table.total)
    if isinstance(parent, Everything):
        return sorted_ids
    starts = dense_starts(parent)
    chunks = [np.zeros(0, dtype=np.int64)]
    for first in range(0, sorted_ids.size, _CHUNK):
        shards, rows = parent.table.locate(sorted_ids[first : first + _CHUNK])
        numbers = parent.numbers(shards, rows)
        here = numbers >= 0
        chunks.append(starts[shards[here]] + numbers[here])
    return np.sort(np.concatenate(chunks))


def _checked(ids: Sequence[int] | NDArray[np.integer], total: int) -> Ids:
    """``ids`` as a sorted int64 array, the same memory if it is one already."""
    given = np.asarray(ids)
    if given.size == 0:
        return np.zeros(0, dtype=np.int64)
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise ConfigError(
            f"sample ids must be a one-dimensional list of integers, got shape {given.shape} of {given.dtype}"
        )
    for extreme in (int(given.min()), int(given.max())):
        if not 0 <= extreme < total:
            raise ConfigError(f"sample id {extreme} is not in a dataset of {total} samples: ids are 0 to {total - 1}")
    values: Ids = given.astype(np.int64, copy=False)
    if any(bool((np.diff(values[first : first + _CHUNK + 1]) <= 0).any()) for first in range(0, values.size, _CHUNK)):
        values = np.sort(values)
        again = np.flatnonzero(np.diff(values) == 0)
        if again.size:
            raise ConfigError(f"sample id {int(values[again[0]])} is listed more than once")
    return values
