"""An estimate of what threads and processes get done, from the times that the first chunks took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CLEARLY: Final = 1.3
"""Processes are taken where they get this many times as much done as threads."""

_AT_ONCE: Final = 1.3
"""Threads that are busy at once, on average, in a burst that says something."""

_COMPUTES: Final = 0.1
"""The part of its time for which a thread computes, from which on that part tells how much it did."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Chunks that threads read at once.

    Attributes:
        rows: samples of all.
        took: nanoseconds of the thread that took longest.
        busy: nanoseconds of all threads together.
        computed: nanoseconds of the processor, of all together.
    """

    rows: int
    took: int
    busy: int
    computed: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the chunks that were measured.

    Attributes:
        alone: nanoseconds a sample, of chunks that one thread read alone.
        share: the part of them in which the thread computed.
        bursts: of several threads.
        packed, unpacked: nanoseconds a sample to send a result from a process, and to receive it.
    """

    alone: float
    share: float
    bursts: Sequence[Burst]
    packed: float
    unpacked: float

    def of_threads(self, threads: int) -> float:
        """The number of times that so many threads get as much done as one.

        Functions that hold Python's lock take turns: a burst takes as long as its chunks one after the other. Where they
        release it, as many are done at once as threads were busy, on average. In between, the part of the way is taken.
        What a burst did is told by its time of the processor, as samples differ: other samples take another time. Functions
        that wait for something else take hardly any, and are counted by their samples.
        """
        best = 0.0
        for burst in self.bursts:
            at_once = burst.busy / burst.took
            if at_once > _AT_ONCE:
                done = burst.computed / self.share if self.share >= _COMPUTES else self.alone * burst.rows
                best = max(best, (done / burst.took - 1) / (at_once - 1))
        return 1.0 + min(1.0, best) * (threads - 1)

    def of_processes(self, processes: int, processors: int) -> float:
        """The number of times that so many processes get as much done as one thread.

        What each does is packed there, and unpacked by one thread here.
        """
        each = self.alone + self.packed
        most = (processes / each, processors / (each + self.unpacked), 1 / max(self.unpacked, 1e-9))
        return self.alone * min(most)
