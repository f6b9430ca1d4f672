"""Sets of whole numbers that can be counted and indexed without being listed, where they are regular.

A set answers two questions, each the other's inverse: how many of its members are smaller than x, and which member has
t smaller ones. From the first follow the sizes of all shards of a selection at once, from the second its samples.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stoker.errors import ConfigError
from stoker.types import Ids


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

    Args:
        modulus: at least 1.
        residues: rising, not empty, inside ``[0, modulus)``.
    """

    def __init__(self, modulus: int, residues: range) -> None:
        _check_residues(modulus, residues[0] if residues else None, residues[-1] if residues else None)
        if residues.step < 1:
            raise ConfigError(f"residues must rise, got {residues}")
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


class Periodic:
    """Numbers whose remainder by a modulus is in a list, of which 8 bytes an entry are stored.

    Args:
        modulus: at least 1.
        residues: each inside ``[0, modulus)`` and different, in any order, not none.
    """

    def __init__(self, modulus: int, residues: Sequence[int] | Ids) -> None:
        kept = np.sort(np.asarray(residues, dtype=np.int64))
        _check_residues(modulus, int(kept[0]) if kept.size else None, int(kept[-1]) if kept.size else None)
        again = kept[1:][kept[1:] == kept[:-1]]
        if again.size:
            raise ConfigError(f"residue {int(again[0])} is listed more than once")
        self._modulus = modulus
        self._residues = kept

    def below(self, numbers: Ids) -> Ids:
        turns, rest = np.divmod(numbers, self._modulus)
        below: Ids = turns * self._residues.size + np.searchsorted(self._residues, rest)
        return below

    def at(self, indices: Ids) -> Ids:
        turns, within = np.divmod(indices, self._residues.size)
        at: Ids = turns * self._modulus + self._residues[within]
        return at


class Ranges:
    """Numbers inside half-open ranges.

    Args:
        ranges: ``(start, stop)`` each, ``0 <= start <= stop``, in rising order and not overlapping.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        last = 0
        for start, stop in ranges:
            if not last <= start <= stop:
                raise ConfigError(f"range [{start}, {stop}) is reversed, or begins before {last}, where another ends")
            last = stop
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
    """Listed numbers.

    Args:
        values: rising; int64, used as it is (it may lie in a mapped file).
    """

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
    """All numbers but the listed ones.

    Args:
        values: rising; int64, to which 8 bytes an entry are added.
    """

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


def _check_residues(modulus: int, least: int | None, most: int | None) -> None:
    if modulus < 1:
        raise ConfigError(f"modulus must be at least 1, got {modulus}")
    if least is None or most is None:
        raise ConfigError("residues must not be empty")
    for value in (least, most):
        if not 0 <= value < modulus:
            raise ConfigError(f"residue {value} is not in [0, {modulus})")
