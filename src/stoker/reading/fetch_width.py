"""Chooses how many shards a process fetches at once, from their sizes and from how long they were seen to take."""

from __future__ import annotations

import math
from typing import Final

from stoker.policy import USUAL_FETCHES, first_fetches, most_fetches, small_shards_held

# Fetches that are seen before the first choice: those of the first connections take longer.
_LEAST_SEEN: Final = 2 * USUAL_FETCHES
# What one more fetch weighs in the means.
_WEIGHT: Final = 1 / 16
# The shortest time is forgotten by so much with each fetch, so that a store that becomes slower is noticed.
_FORGET: Final = 1.001
# Processors' clocks of threads may be coarse.
_LEAST_WORK: Final = 50e-6
# More than what fits exactly: times vary.
_SPARE: Final = 1.5
# Shards that are fetched at once while many wait to be read.
_WHILE_AHEAD: Final = 32


class FetchWidth:
    """The number of shards that a process fetches at once.

    A fetch takes a time, of which a part is work of this process; the rest is waiting, in which others can be fetched. By
    Little's law, time / work of them keep the process at work, and more at once would bring no more a second. The time
    is the shortest that was seen, as that has the least of waiting for each other in it. There is a bound for the bytes
    under way, and for the requests of all processes of a node.

    ``fixed``: the number, where it is set; ``None`` to choose it. ``first_bytes``: bytes of a shard that is fetched first.

    Attributes:
        sharers: processes on this node that read through the same cache.
        tuned: the number that a tuner sets instead; 0: none. The bound holds for it, too.
        is_ahead: whether much of what was fetched waits to be read; see :meth:`note_held`.
    """

    def __init__(self, fixed: int | None, first_bytes: int = 1 << 20) -> None:
        self.fixed = fixed
        self._first_bytes = first_bytes
        self.sharers = 1
        self.tuned = 0
        self._seen = 0
        self._time = math.inf
        self._work = self._bytes = 0.0
        self.is_ahead = False

    @property
    def value(self) -> int:
        """Shards to be fetched at once."""
        if self.fixed is not None:
            return self.fixed
        if self.tuned:
            return min(self.tuned, self.most)
        if self._seen < _LEAST_SEEN:
            return first_fetches(self._first_bytes, self.sharers)
        enough = math.ceil(_SPARE * self._time / max(self._work, _LEAST_WORK))
        if self.is_ahead:
            enough = min(enough, _WHILE_AHEAD)
        return min(max(USUAL_FETCHES, enough), self.most)

    @property
    def most(self) -> int:
        """The bound, for shards of the sizes that were seen."""
        return most_fetches(self._bytes, self.sharers)

    def note_held(self, size: int) -> None:
        """Note how many bytes of small shards are held until they are read.

        Where they are a quarter of what may be held, fewer are fetched at once, as a hundred threads take Python's lock from
        the one that reads; and more again when they are half of that.
        """
        self.is_ahead = size > small_shards_held(self.sharers) // (8 if self.is_ahead else 4)

    def saw(self, seconds: float, work: float, size: int) -> None:
        """Note a shard that was fetched and opened. ``work``: seconds of them in which its thread computed."""
        weight = max(_WEIGHT, 1 / (self._seen + 1))
        self._time = min(self._time * _FORGET, seconds)
        self._work += weight * (work - self._work)
        self._bytes += weight * (size - self._bytes)
        self._seen += 1
