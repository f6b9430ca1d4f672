"""Plans of an epoch of which each rank owns a part: for the world that divided it, and for any other that finishes it.

The *home world* divided the dataset into as many parts as it had ranks. The epoch's positions count round by round
(:class:`Rounds`), so what the home world has done after any number of steps is all positions
below one, and that one number says what is left. In the home world each rank continues its own part (:class:`PartPlan`).
Any other world deals out the rest of the positions as global batches (:class:`DealtPlan`). So each sample comes once in the
epoch, whatever worlds follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stoker.errors import ConfigError
from stoker.order.global_batches import BatchPlan, Remainder
from stoker.order.sample_order import Spans, check_rank
from stoker.types import Ids

PART_BITS = 42
"""A *part position*, ``part << PART_BITS | number``, is a sample of a part by its number in the order in which the part is
read."""


class Rounds:
    """Converts positions of an epoch of parts to part positions.

    Round j of the epoch is sample j of each part that is longer than j, and positions count round by round. Inside a round
    parts come larger ones first, equal ones by number. So the parts of a later round are always the first of those of an
    earlier, and rounds with the same number of parts form a band, in which division finds the round.

    ``sizes``: int64, shape ``(parts,)``: samples of each part. At most 2**21 parts of at most 2**42 samples.
    """

    def __init__(self, sizes: Ids) -> None:
        steps, times = np.unique(sizes, return_counts=True)
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


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The batches of a rank of the home world, as part positions: its own part, from a round to the end.

    Attributes:
        rounds: the epoch's parts; rank r reads part r, so the world's size is their number.
        batch_size: samples in a full batch of one rank.
        start_round: first sample of the part: 0, or where a stopped run had got to.
        remainder: what becomes of parts that do not end together. With ``"uneven"`` each rank takes all of its own, so
            ranks may take different numbers of steps. With ``"drop"`` all take as many full batches as the smallest
            part has. With ``"pad"`` all take as many steps as the largest part needs, and a rank whose part ends
            before repeats it from its beginning, until it has all full batches and one sample of the last.
    """

    rounds: Rounds
    batch_size: int
    rank: int
    start_round: int = 0
    remainder: Remainder = "pad"
    _size: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.rounds.parts, self.batch_size)
        object.__setattr__(self, "_size", self.rounds.size(self.rank))
        if self.remainder == "pad" and self.rounds.largest and not self._size:
            raise ConfigError(
                f"rank {self.rank} has a part without samples, which can not be padded; use remainder='uneven' or 'drop'"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.rounds.parts

    @property
    def end(self) -> int:
        """One past the last position of the epoch."""
        return self.rounds.total

    @property
    def samples(self) -> int:
        """Number of samples that this rank takes, repeated ones included."""
        return self._stop(self._size) - self.start_round

    @property
    def full_batches(self) -> int:
        """Number of this rank's batches that have ``batch_size`` samples."""
        return self.samples // self.batch_size

    @property
    def full_steps(self) -> int:
        """Batches of this rank where partial ones are left out: as many of every rank, unless ``"uneven"``."""
        if self.remainder == "uneven":
            return self.full_batches
        return (self._stop(self.rounds.smallest) - self.start_round) // self.batch_size

    @property
    def longest(self) -> int:
        """A rank that takes the most batches."""
        return self.rounds.largest_part

    @property
    def tail(self) -> int:
        """Samples of the epoch, of all ranks, behind the last step in which all ranks have a full batch of their own."""
        full = max(0, self.rounds.smallest - self.start_round) // self.batch_size
        return self.end - self.rounds.position_of_round(self.start_round + full * self.batch_size)

    @property
    def padding(self) -> int:
        """Samples that ``remainder="pad"`` repeats over all ranks."""
        if self.remainder != "pad":
            return 0
        stop = self._least_stop()
        # A part of n samples lacks (stop - n) of them, less what it had already repeated before the start.
        before = self.start_round * self.world_size - self.rounds.position_of_round(self.start_round)
        return stop * self.world_size - self.rounds.position_of_round(stop) - before

    def __len__(self) -> int:
        """Number of batches that this rank takes."""
        return (self.samples + self.batch_size - 1) // self.batch_size

    def position_after(self, batches: int) -> int:
        """The position that a resume starts from after ``batches`` batches of every rank."""
        number = self.start_round + batches * self.batch_size
        if self.remainder == "drop" and number + self.batch_size > self.rounds.smallest:
            return self.end
        return self.rounds.position_of_round(number)

    def position_at(self, samples: int) -> int:
        """The position that a resume starts from after ``samples`` of all ranks together, repeated ones counted.

        ConfigError if some of them are repeated, and this is no whole number of steps.
        """
        start, step = self.rounds.position_of_round(self.start_round), self.batch_size * self.world_size
        if self.remainder == "drop" and samples >= len(self) * step:
            return self.end
        if not self.padding or samples >= self.end - start + self.padding:
            return min(start + samples, self.end)
        if samples % step:
            raise ConfigError(
                f"{samples} samples are not a whole number of steps of {step} samples, and ranks whose part has ended repeat "
                "theirs, so it is not known which were delivered: take states between steps"
            )
        return self.position_after(samples // step)

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches, or those of one of its loader workers, as part positions, several at a time.

        Arguments and order are those of :meth:`stoker.order.sample_order.Plan.chunks`.
        """
        together = max(1, samples // self.batch_size)
        full = self.full_batches
        for first in range(worker + skip * workers, full, together * workers):
            batches: Ids = np.arange(first, min(full, first + together * workers), workers, dtype=np.int64)
            starts = self.start_round + batches * self.batch_size
            yield list(self._positions(starts[:, None] + np.arange(self.batch_size)))
        if full < len(self) and full % workers == worker and skip <= full // workers:
            yield [self._positions(np.arange(self.start_round + full * self.batch_size, self._stop(self._size)))]

    def spans(self) -> Spans:
        """The epoch's parts; see :class:`stoker.order.sample_order.SpannedPlan`."""
        return self.rounds.spans()

    def _positions(self, numbers: Ids) -> Ids:
        """Part positions of samples, which start again where the part has ended."""
        if self._stop(self._size) > self._size:
            numbers = numbers % self._size
        positions: Ids = numbers | self.rank << PART_BITS
        return positions

    def _stop(self, size: int) -> int:
        """One past the last sample that is taken of a part of ``size``; repeated ones count on from its end."""
        size = max(self.start_round, size)
        if self.remainder == "uneven":
            return size
        if self.remainder == "drop":
            left = max(0, self.rounds.smallest - self.start_round)
            return self.start_round + left // self.batch_size * self.batch_size
        return max(size, self._least_stop())

    def _least_stop(self) -> int:
        """The round at which a padded part may stop: one sample into the last step of the largest part."""
        left = self.rounds.largest - self.start_round
        return self.start_round + ((left - 1) // self.batch_size * self.batch_size + 1 if left else 0)


@dataclass(frozen=True, slots=True)
class DealtPlan(BatchPlan):
    """The rest of an epoch of parts in a world that is not the home world: its part positions in global batches.

    ``rounds``: the epoch's parts.
    """

    rounds: Rounds = field(kw_only=True)

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches as part positions; see :meth:`stoker.order.sample_order.Plan.chunks`."""
        for batches in BatchPlan.chunks(self, samples, worker, workers, skip):
            positions = self.rounds.to_part_positions(np.concatenate(batches))
            yield np.split(positions, np.cumsum([batch.size for batch in batches])[:-1])

    def spans(self) -> Spans:
        """The epoch's parts; see :class:`stoker.order.sample_order.SpannedPlan`."""
        return self.rounds.spans()


def plan_parts(
    rounds: Rounds, position: int, batch_size: int, rank: int, world_size: int, remainder: Remainder = "pad"
) -> PartPlan | DealtPlan:
    """The batches of one rank from a position of an epoch of parts: of its own part if it can, or else dealt.

    A rank continues its own part where the world is the home world and no round is half done.
    """
    start = rounds.round_at(position)
    if world_size == rounds.parts and start is not None:
        return PartPlan(rounds, batch_size, rank, start, remainder)
    # Of equal parts, position p is in part p % parts, so a rank gets samples of few parts.
    return DealtPlan(position, rounds.total, batch_size, rank, world_size, rounds.parts, remainder, rounds=rounds)
