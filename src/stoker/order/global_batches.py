"""Assigns positions to ranks: global batches cut into equal parts, the same for every world.

Global batch k is the positions ``[start + k * G, start + (k + 1) * G)``. Inside a batch, positions are arranged by
canonical node (``position % C``), then by position, and rank r of R takes the r-th R-th of that row. So the ranks of one
node take the samples of the same canonical nodes, batch after batch, and the parts of all ranks put one behind the
other are the batch as one rank alone would see it. What a rank computes costs O(its own part), whatever R is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stoker.errors import ConfigError
from stoker.order.sample_order import Spans, check_rank
from stoker.types import Ids

Remainder = Literal["pad", "drop", "uneven"]
WorkerRemainder = Literal[Remainder, "join"]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The batches of one rank from a position to the epoch's end.

    Attributes:
        start: first position, in ``[0, end]``: 0, or where a stopped run had got to.
        end: one past the last position of the epoch.
        batch_size: samples in a full batch of one rank; the global batch is ``batch_size * world_size``.
        rank: this rank, in ``[0, world_size)``.
        world_size: number of ranks.
        num_canonical_nodes: C of the order.
        remainder: what becomes of the last, partial global batch. Its samples are spread evenly over the ranks;
            if there are fewer than ranks, ``"pad"`` repeats its samples so that every rank has one and all ranks take
            the same number of steps, and ``"uneven"`` leaves the last ranks without. ``"drop"`` leaves a partial
            batch out entirely.
    """

    start: int
    end: int
    batch_size: int
    rank: int
    world_size: int
    num_canonical_nodes: int = 1
    remainder: Remainder = "pad"

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size, self.batch_size)
        if not 0 <= self.start <= self.end:
            raise ConfigError(f"position {self.start} is not in an epoch of {self.end}")

    @property
    def global_batch_size(self) -> int:
        """Samples in a full global batch."""
        return self.batch_size * self.world_size

    @property
    def full_batches(self) -> int:
        """Number of full global batches."""
        return (self.end - self.start) // self.global_batch_size

    @property
    def full_steps(self) -> int:
        """Batches of this rank where partial ones are left out: as many of every rank."""
        return self.full_batches

    @property
    def longest(self) -> int:
        """A rank that takes as many batches as any."""
        return 0

    @property
    def tail(self) -> int:
        """Samples of the last, partial global batch, before ``remainder`` is applied."""
        return (self.end - self.start) % self.global_batch_size

    @property
    def padding(self) -> int:
        """Samples that ``remainder="pad"`` repeats over all ranks: 0 unless the tail is smaller than the world."""
        return max(0, self.world_size - self.tail) if self.tail and self.remainder == "pad" else 0

    def __len__(self) -> int:
        """Number of batches that this rank takes."""
        return self.full_batches + (1 if self._tail_part() is not None else 0)

    @property
    def samples(self) -> int:
        """Number of samples that this rank takes."""
        part = self._tail_part()
        return self.full_batches * self.batch_size + (0 if part is None else part[1] - part[0])

    def position_after(self, batches: int) -> int:
        """The position that a resume starts from after ``batches`` batches of every rank."""
        if self.remainder == "drop" and batches >= self.full_batches:
            return self.end
        return min(self.start + batches * self.global_batch_size, self.end)

    def position_at(self, samples: int) -> int:
        """The position that a resume starts from after ``samples`` of all ranks together."""
        if self.remainder == "drop" and samples >= self.full_batches * self.global_batch_size:
            return self.end
        return min(self.start + samples, self.end)

    def positions(self, first: int, last: int, step: int = 1) -> Ids:
        """Positions of this rank's full batches ``first, first + step, ...`` below ``last``.

        Returns:
            int64 of shape ``(batches, batch_size)``.
        """
        batches: Ids = np.arange(first, last, step, dtype=np.int64)
        starts: Ids = self.start + batches * self.global_batch_size
        low = self.rank * self.batch_size
        return _arranged(starts[:, None], self.global_batch_size, low, low + self.batch_size, self.num_canonical_nodes)

    def tail_positions(self) -> Ids:
        """Positions of this rank's part of the last, partial batch; int64, shape ``(n,)``, empty where it has none."""
        part = self._tail_part()
        if part is None:
            return np.zeros(0, dtype=np.int64)
        start = np.array([[self.end - self.tail]], dtype=np.int64)
        low, high = part
        whole: Ids = _arranged(start, self.tail, low, min(high, self.tail), self.num_canonical_nodes)[0]
        if high > self.tail:
            # Padding: ranks beyond the tail repeat it from its beginning.
            again = np.arange(max(low, self.tail), high) % self.tail
            row = _arranged(start, self.tail, 0, self.tail, self.num_canonical_nodes)[0]
            return np.concatenate([whole, row[again]])
        return whole

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches, several at a time; see :meth:`stoker.order.sample_order.Plan.chunks`."""
        together = max(1, samples // self.batch_size)
        full = self.full_batches
        for first in range(worker + skip * workers, full, together * workers):
            last = min(full, first + together * workers)
            yield list(self.positions(first, last, workers))
        if full % workers == worker and skip <= full // workers:
            tail = self.tail_positions()
            if tail.size:
                yield [tail]

    def spans(self) -> Spans:
        """All positions of the epoch; see :class:`stoker.order.sample_order.SpannedPlan`."""
        return Spans.one(self.end)

    def _tail_part(self) -> tuple[int, int] | None:
        """This rank's slice of the arranged tail, or ``None`` where it takes no part."""
        tail = self.tail
        if not tail or self.remainder == "drop":
            return None
        if tail < self.world_size:
            if self.remainder == "uneven" and self.rank >= tail:
                return None
            return self.rank, self.rank + 1
        return self.rank * tail // self.world_size, (self.rank + 1) * tail // self.world_size


@dataclass(frozen=True, slots=True)
class DevicePlan(BatchPlan):
    """Global batches in which each rank's batch is of one stream. The last, partial batch may be of several.

    A unit is ``batch_size`` positions of the epoch that a :class:`~stoker.order.mixture.mixing.Mixing` has taken from one
    stream: the mixings' first positions, less their offsets, must be multiples of it. A global batch is as many units in a
    row as there are ranks, arranged by the units' canonical node, and each rank takes one. ``start`` must be a multiple of
    ``batch_size`` or the end of the epoch.
    """

    def __post_init__(self) -> None:
        BatchPlan.__post_init__(self)
        if self.start % self.batch_size and self.start != self.end:
            raise ConfigError(
                f"position {self.start} is inside a batch of {self.batch_size} samples of one stream: resume it with the "
                "batch_size that the epoch was begun with"
            )

    def positions(self, first: int, last: int, step: int = 1) -> Ids:
        """Positions of this rank's full batches ``first, first + step, ...`` below ``last``.

        Returns:
            int64 of shape ``(batches, batch_size)``.
        """
        begun = self.start // self.batch_size
        units = BatchPlan(
            begun,
            begun + self.full_batches * self.world_size,
            1,
            self.rank,
            self.world_size,
            self.num_canonical_nodes,
        ).positions(first, last, step)
        return units * self.batch_size + np.arange(self.batch_size, dtype=np.int64)


def _arranged(start: Ids, length: int, low: int, high: int, nodes: int) -> Ids:
    """Entries ``[low, high)`` of the window ``[start, start + length)`` sorted by ``(position % nodes, position)``.

    Args:
        start: first positions of windows, shape ``(windows, 1)``.
        length: length of every window.
        low: first entry of the sorted window.
        high: one past the last entry.

    Returns:
        int64 of shape ``(windows, high - low)``, in closed form: nothing of length ``length`` is built.
    """
    entry = np.arange(low, max(low, high), dtype=np.int64)[None, :]
    if nodes == 1:
        return start + entry
    # What is taken of a window depends on where in the round of nodes it starts. Usually all windows start alike.
    kinds, which = np.unique(start % nodes, return_inverse=True)
    positions: Ids = start + _offsets(kinds[:, None], length, entry, nodes)[which.reshape(-1)]
    return positions


def _offsets(first: Ids, length: int, entry: Ids, nodes: int) -> Ids:
    """:func:`_arranged` for windows that start at node ``first``: distance of each entry from the window's start."""
    # Each residue occurs `each` times in the window, those of the circular run [first, first + extra) once more. Over
    # residues in order 0 .. nodes-1 that makes three runs: [0, a) and [b, nodes) with n_outer, [a, b) with n_inner.
    each, extra = divmod(length, nodes)
    wraps = first + extra > nodes
    a = np.where(wraps, first + extra - nodes, first)
    b = np.where(wraps, first, first + extra)
    outer = np.where(wraps, each + 1, each)
    inner = np.where(wraps, each, each + 1)
    at_a = a * outer
    at_b = at_a + (b - a) * inner
    in_left = entry < at_a
    in_middle = entry < at_b
    count = np.maximum(np.where(in_left | ~in_middle, outer, inner), 1)
    base = np.where(in_left, 0, np.where(in_middle, at_a, at_b))
    residue, turn = np.divmod(entry - base, count)
    residue += np.where(in_left, 0, np.where(in_middle, a, b))
    offsets: Ids = (residue - first) % nodes + turn * nodes
    return offsets


def check_batch(batch_size: int, begun: int) -> None:
    """Check that an epoch whose batches are of one stream each is finished with the batches that it was begun with.

    ConfigError if it is not.
    """
    if batch_size != begun:
        raise ConfigError(
            f"this epoch was begun with batches of {begun} samples of one stream; resume it with batch_size={begun}, not "
            f"{batch_size}, until it ends"
        )
