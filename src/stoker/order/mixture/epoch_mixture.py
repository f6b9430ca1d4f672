"""An epoch put together from mixings: positions to codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.errors import ConfigError
from stoker.order.mixture.mixing import Mixing
from stoker.types import Ids


class EpochMixture:
    """The mixings of an epoch, one after the other.

    Args:
        firsts: first position of each in the epoch, rising. Nothing is asked below the first of them.
        offsets: what position of the mixing that is, of each.
        mixings: the mixings.
    """

    __slots__ = ("_firsts", "_offsets", "mixings")

    def __init__(self, firsts: Sequence[int], offsets: Sequence[int], mixings: Sequence[Mixing]) -> None:
        if not mixings or not len(firsts) == len(offsets) == len(mixings):
            raise ConfigError(f"{len(mixings)} mixings have {len(firsts)} first positions and {len(offsets)} offsets")
        self._firsts: Ids = np.array(firsts, dtype=np.int64)
        self._offsets: Ids = np.array(offsets, dtype=np.int64)
        self.mixings = tuple(mixings)

    def numbers(self, positions: Ids) -> Ids:
        """Number of the mixing that has each position."""
        numbers: Ids = np.maximum(np.searchsorted(self._firsts, positions, side="right") - 1, 0)
        return numbers

    def codes(self, positions: Ids) -> Ids:
        """Code of the sample at each position of the epoch; int64, shape ``(k,)``."""
        if positions.size == 0:
            return np.zeros(0, dtype=np.int64)
        first, last = map(int, self.numbers(np.array([positions.min(), positions.max()])))
        if first == last:
            return self.mixings[first].codes(self._inside(positions, first))
        codes = np.empty_like(positions)
        numbers = self.numbers(positions)
        for number in range(first, last + 1):
            here = numbers == number
            codes[here] = self.mixings[number].codes(self._inside(positions[here], number))
        return codes

    def reached(self, positions: Ids) -> Ids:
        """The result of :meth:`Mixing.reached` at positions of the epoch, its end included; int64, shape ``(k, streams)``."""
        reached: Ids = np.empty((positions.size, self.mixings[0].counts.size), dtype=np.int64)
        numbers = self.numbers(positions)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            reached[here] = self.mixings[number].reached(self._inside(positions[here], number))
        return reached

    def taken(self, position: int) -> tuple[Ids, Ids]:
        """The samples of the run before a position of the epoch; see :meth:`Mixing.taken`."""
        number = int(self.numbers(np.array([position]))[0])
        return self.mixings[number].taken(int(self._inside(np.array([position]), number)[0]))

    def counts(self, positions: Ids) -> Ids:
        """Samples of each stream in the whole mixing that has each position; int64, shape ``(k, streams)``."""
        counts: Ids = np.stack([mixing.counts for mixing in self.mixings])[self.numbers(positions)]
        return counts

    def _inside(self, positions: Ids, number: int) -> Ids:
        shift = int(self._offsets[number] - self._firsts[number])
        return positions + shift if shift else positions
