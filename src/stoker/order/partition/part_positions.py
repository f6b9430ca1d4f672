"""Maps positions of an epoch of which each rank owns a part to samples of the parts.

A sample of such an epoch is sample j of part c, in the order in which part c is read; its *part position* is the number
``c << 42 | j``. Round j of the epoch is sample j of each part that is longer than j, and positions count round by round.
"""

from __future__ import annotations

import numpy as np

from stoker.errors import ConfigError
from stoker.order.spans import Spans
from stoker.types import Ids

PART_BITS = 42
"""A part position is ``part << PART_BITS | number``."""


class Rounds:
    """Converts positions of an epoch of parts to part positions.

    Inside a round parts come larger ones first, equal ones by number. So the parts of a later round are always the first
    of those of an earlier, and rounds with the same number of parts form a band, in which division finds the round.

    Args:
        sizes: int64, shape ``(parts,)``: samples of each part. At most 2**21 parts of at most 2**42 samples.

    Attributes:
        parts: number of parts.
        total: samples of all.
        smallest: samples of the smallest part.
        largest: samples of the largest part.
    """

    def __init__(self, sizes: Ids) -> None:
        steps, times = np.unique(sizes, return_counts=True)
        if steps.size and int(steps[0]) < 0:
            raise ConfigError("sizes of parts must not be negative")
        order = None if bool((np.diff(sizes) <= 0).all()) else np.argsort(-sizes, kind="stable")
        self._set(steps, times, order)

    @classmethod
    def even(cls, total: int, parts: int) -> Rounds:
        """Parts whose sizes differ by one at most, larger ones first, in constant memory."""
        each, more = divmod(total, parts)
        rounds = cls.__new__(cls)
        rounds._set(
            np.array([each, each + 1])[: 1 + (more > 0)], np.array([parts - more, more])[: 1 + (more > 0)], None
        )
        return rounds

    def _set(self, steps: Ids, times: Ids, order: Ids | None) -> None:
        """Take the different sizes, rising, how many parts have each, and the parts from the largest to the smallest."""
        self.parts = int(times.sum())
        if not self.parts:
            raise ConfigError("an epoch of parts needs at least one part")
        self.smallest, self.largest = int(steps[0]), int(steps[-1])
        self._order = order
        self._slots: Ids | None = None
        if order is not None:
            self._slots = np.empty_like(order)
            self._slots[order] = np.arange(order.size)
        # Band i: rounds [first_rounds[i], first_rounds[i + 1]), each of wide[i] parts.
        bounds = np.concatenate([[0], steps])
        heights = np.diff(bounds)
        self._first_rounds: Ids = bounds[:-1]
        self._wide: Ids = self.parts - (np.cumsum(times) - times)
        samples = heights * self._wide
        self._first_positions: Ids = np.cumsum(samples) - samples
        self.total = int(samples.sum())

    @property
    def largest_part(self) -> int:
        """A part that has the most samples."""
        return 0 if self._order is None else int(self._order[0])

    def size(self, part: int) -> int:
        """Samples of one part."""
        slot = part if self._slots is None else int(self._slots[part])
        # A part is in all bands that are wider than its slot.
        last = int(np.count_nonzero(self._wide > slot))
        return int(self._first_rounds[last]) if last < self._first_rounds.size else self.largest

    def spans(self) -> Spans:
        """The part positions of each part. A rank owns its part: no sample comes from another one."""
        parts: Ids = np.arange(self.parts, dtype=np.int64)
        bands = np.searchsorted(-self._wide, -(parts if self._slots is None else self._slots), side="left")
        begins = parts << PART_BITS
        return Spans(begins, begins + np.append(self._first_rounds, self.largest)[bands], alone=True)

    def to_part_positions(self, positions: Ids) -> Ids:
        """The part positions of positions in ``[0, total)``; int64 of the same shape."""
        band = np.searchsorted(self._first_positions, positions, side="right") - 1
        number, slot = np.divmod(positions - self._first_positions[band], self._wide[band])
        number += self._first_rounds[band]
        part = slot if self._order is None else self._order[slot]
        part_positions: Ids = part << PART_BITS | number
        return part_positions

    def position_of_round(self, number: int) -> int:
        """The position at which a round begins: the samples of all earlier rounds; the total, if there is no such round."""
        if number >= self.largest:
            return self.total
        band = int(np.searchsorted(self._first_rounds, number, side="right")) - 1
        inside = (number - int(self._first_rounds[band])) * int(self._wide[band])
        return int(self._first_positions[band]) + inside

    def round_at(self, position: int) -> int | None:
        """The round that begins at ``position``, or None if that is inside a round."""
        if position >= self.total:
            return self.largest
        band = int(np.searchsorted(self._first_positions, position, side="right")) - 1
        number, inside = divmod(position - int(self._first_positions[band]), int(self._wide[band]))
        return None if inside else int(self._first_rounds[band]) + number
