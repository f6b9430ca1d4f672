"""Selections: some rows of each shard of one stream, found in closed form or by a sorted list.

The *dense number* of a selected sample counts the samples of all shards before it: dense number u is sample
``u - start[shard]`` of its shard. A selection numbers the samples of a shard in an order of its own, which is row order
only where no keyed order is named.

All selections are made in O(shards) (and O(listed samples) where samples are listed), hold no more than that, and
depend on nothing that grows behind them: appending shards to a dataset leaves what was chosen of the earlier ones.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Protocol

import numpy as np

from stoker.arguments import must_be
from stoker.errors import ConfigError
from stoker.integers import mix, mix_array
from stoker.order.shuffle.bijection import permute, unpermute
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

# A change here would move samples between training and validation sets.
_FIRST: Final = np.array([0, 17, 6, 11, 15, 8, 4, 13, 18, 3, 9, 12, 1, 16, 5, 14, 10, 7, 19, 2])
_OTHERS: Final = np.array([0, 5, 7, 2, 8, 3, 4, 6, 1, 9])


def as_fraction(value: float | Fraction, name: str) -> Fraction:
    """``value`` exactly as it is written in decimals (0.1 is a tenth), checked to lie in [0, 1]."""
    try:
        share = value if isinstance(value, Fraction) else Fraction(str(value))
    except ValueError:
        share = Fraction(-1)
    must_be("a number from 0 to 1", 0 <= share <= 1, **{name: value})
    return share


def below_fraction(ends: Ids, share: Fraction) -> Ids:
    """Number of the numbers ``0 .. ends[i] - 1`` that belong to ``share``; int64 of the shape of ``ends``.

    Takes a few steps for each decimal digit of the largest of ``ends``.
    """
    if share == 1:
        return ends.copy()
    counts = np.zeros_like(ends)
    left, rest, digits = ends, share, _FIRST
    while rest and left.size and int(left.max()) > 1:
        radix = digits.size
        step, rest = divmod(rest * radix, 1)
        turns, some = np.divmod(left, radix)
        # Of each turn the numbers whose first digit's image is below `step` belong, wherever the turn is cut.
        within = np.concatenate([[0], np.cumsum(digits < step)])
        counts += turns * step + within[some]
        # Those whose image is `step` are decided by their other digits, which count 0, 1, 2, ... in turn.
        left = turns + (some > int(np.flatnonzero(digits == step)[0]))
        digits = _OTHERS
    # The number 0 has value 0, so every share but none has it.
    return counts + left if rest else counts


# Tags keep the keys of different uses apart even where their other inputs agree.
_TAG_SPLIT = 11
_TAG_SAMPLED = 12
_TAG_START = 13

_PHASES = 20
"""Bits of the resolution of time in a subsample; times 2**42 samples they fit in 63 bits."""


class Selection(Protocol):
    """Some rows of each shard of a shard table."""

    sizes: Ids
    """Chosen samples in each shard; int64, shape ``(shards,)``."""

    def rows(self, shards: Ids, numbers: Ids) -> Ids:
        """Row of chosen sample ``numbers[i]`` of shard ``shards[i]``; int64 of the same shape.

        ``shards``: shard numbers. ``numbers``: of the same shape, each in ``[0, sizes[shard])``.
        """
        ...

    def numbers(self, shards: Ids, rows: Ids) -> Ids:
        """The inverse: the number of a row among the chosen samples of its shard, -1 where it is not chosen."""
        ...


class TableSelection(Selection, Protocol):
    """A selection that knows the shards that it is of, so that sample ids can be found in it."""

    table: ShardTable


def dense_starts(selection: Selection) -> Ids:
    """Number of each shard's first dense number, and last the total; int64, shape ``(shards + 1,)``."""
    starts = np.zeros(selection.sizes.size + 1, dtype=np.int64)
    np.cumsum(selection.sizes, out=starts[1:])
    return starts


class Everything:
    """All samples, in row order."""

    def __init__(self, table: ShardTable) -> None:
        self.table = table
        self.sizes: Ids = table.sizes

    def rows(self, shards: Ids, numbers: Ids) -> Ids:  # noqa: ARG002 - the protocol's signature
        return numbers

    def numbers(self, shards: Ids, rows: Ids) -> Ids:  # noqa: ARG002
        return rows


class Drawn:
    """In each shard a run of the parent's samples as a bijection keyed by shard arranges them."""

    def __init__(self, parent: Selection, firsts: Ids, sizes: Ids, key: int) -> None:
        self.sizes: Ids = sizes
        self._parent = parent
        self._firsts = firsts
        self._domains = parent.sizes
        self._keys = mix_array(key, np.arange(sizes.size))

    def rows(self, shards: Ids, numbers: Ids) -> Ids:
        indices = numbers + self._firsts[shards]
        return self._parent.rows(shards, permute(indices, self._domains[shards], self._keys[shards]))

    def numbers(self, shards: Ids, rows: Ids) -> Ids:
        numbers = self._parent.numbers(shards, rows)
        domains = np.maximum(self._domains[shards], 1)
        indices = unpermute(np.maximum(numbers, 0), domains, self._keys[shards]) - self._firsts[shards]
        chosen = (numbers >= 0) & (indices >= 0) & (indices < self.sizes[shards])
        return np.where(chosen, indices, -1)


class Split(Drawn):
    """The samples between two shares of the dataset, such as 0.9 to 1 for validation.

    Each shard gives its part, drawn by a bijection keyed by ``seed`` and the shard's number. Selections of the same
    seed that meet at a share are disjoint and leave nothing between them; and a sample never changes sides when shards
    are appended. How near the number of samples comes to the share: see :mod:`stoker.order.selection` (within
    one sample for multiples of 5 %).

    ``table``: the shards. ``low``: share where it begins, in [0, 1]; floats are taken as they are written (0.1 is a tenth).
    ``high``: share where it ends, above ``low``. ``seed``: any integer.
    """

    def __init__(self, table: ShardTable, low: float | Fraction, high: float | Fraction, seed: int) -> None:
        bottom, top = as_fraction(low, "low"), as_fraction(high, "high")
        if bottom >= top:
            raise ConfigError(f"a split must end above where it begins, got low={low!r} and high={high!r}")
        firsts = np.diff(below_fraction(table.starts, bottom))
        ends = np.diff(below_fraction(table.starts, top))
        self.table = table
        super().__init__(Everything(table), firsts, ends - firsts, mix(seed, _TAG_SPLIT))


class Sampled(Drawn):
    """A fixed random subset of exactly ``count`` samples; a larger ``count`` of the same key has all of a smaller one.

    :func:`_subsample_sizes` decides how many come from each shard, a bijection keyed by shard which. ``parent``: what is
    drawn from; less than 2**42 samples. ``count``: samples, in ``[0, total of parent]``. ``granularity``: samples that are
    taken of a shard at a time, at least 1. ``key``: of the draw.
    """

    def __init__(self, parent: Selection, count: int, granularity: int, key: int) -> None:
        sizes = _subsample_sizes(parent.sizes, count, granularity, key)
        super().__init__(parent, np.zeros_like(sizes), sizes, mix(key, _TAG_SAMPLED))


def _subsample_sizes(available: Ids, count: int, granularity: int, key: int) -> Ids:
    """Samples of each shard in a random draw of exactly ``count``; int64, of the shape of ``available``.

    Shards are cut into units of ``granularity`` samples. Unit i of n in a shard has time ``(i + t) / n``, where
    t is the shard's own random start, and units are taken in this order until there are ``count`` samples, the last
    unit cut (systematic sampling with random starts: W. G. Madow and L. H. Madow, "On the Theory of Systematic Sampling",
    Annals of Mathematical Statistics 15, 1944). So with small units each shard gives its share, within one unit; with units
    as large as a shard, whole shards are taken in random order; and a larger draw of the same key takes at least as much of
    every shard.

    ``available``: samples in each shard, fewer than 2**42 in one. ``count``: samples to draw, at most all. ``granularity``:
    samples that are taken of a shard at a time. ``key``: of the draw.
    """
    unit = min(granularity, max(int(available.max(initial=1)), 1))
    units = -(-available // unit)
    hashes = mix_array(mix(key, _TAG_START), np.arange(available.size))
    starts = (hashes >> np.uint64(64 - _PHASES)).astype(np.int64)

    def taken(time: int) -> Ids:
        """Samples of each shard whose units have a time before ``time``, in 2**-20."""
        up = np.clip(-(-(time * units - starts) >> _PHASES), 0, units)
        sizes: Ids = np.minimum(up * unit, available)
        return sizes

    early, late = 0, 1 << _PHASES
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (middle, late) if int(taken(middle).sum()) <= count else (early, middle)
    sizes = taken(early)
    # Units of equal time, within 2**-20, are taken in the order of the whole hashes.
    order = np.argsort(hashes, kind="stable")
    more = (taken(late) - sizes)[order]
    sizes[order] += np.clip(count - int(sizes.sum()) - (np.cumsum(more) - more), 0, more)
    return sizes
