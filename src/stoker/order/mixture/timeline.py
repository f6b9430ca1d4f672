"""Phases of training with exact counts of samples of each stream, and the parts of them that an epoch has.

A *phase* knows nothing of epochs: an epoch that begins in the middle of one takes it up where the epoch before left off.
The last phase has no end. It is divided into periods of an epoch's size, all with the same counts. Where shares never change
(no :class:`~stoker.order.mixture.schedule.Schedule`), there is only that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from stoker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CountingOrigin:
    """The point from which samples are counted: the beginning of training, or where streams or shares were changed.

    Attributes:
        epoch: the epoch.
        position: the position in it.
        samples: samples of training before it.
        consumed: samples of each stream before it, in stream order. Empty: none of any.
    """

    epoch: int = 0
    position: int = 0
    samples: int = 0
    consumed: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """By name, JSON-serialisable."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "samples": self.samples,
            "consumed": list(self.consumed),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> CountingOrigin:
        """The origin that :meth:`as_dict` described."""
        return cls(value["epoch"], value["position"], value["samples"], tuple(value["consumed"]))


@dataclass(frozen=True, slots=True)
class EpochPhase:
    """A part of an epoch in which shares are fixed: a phase or a period, or what of it falls into the epoch.

    Attributes:
        first: its first position in the epoch.
        offset: what position of the phase or period that is.
        counts: samples of each stream in the whole phase or period.
        begun: samples of each stream before the phase or period.
        start: samples of training before the phase or period: tells it from all others.
    """

    first: int
    offset: int
    counts: tuple[int, ...]
    begun: tuple[int, ...]
    start: int


class Timeline:
    """Phases of training, and what of them falls into an epoch.

    Args:
        starts: samples of training before each phase, rising; the first is that of the origin.
        counts: samples of each stream in each phase, which are the phase's length together. In the last phase: in each
            of its periods, which are ``epoch_size`` long.
        epoch_size: positions in an epoch.
        origin: where counting begins. Default: the beginning of training.
    """

    __slots__ = ("_begun", "counts", "epoch_size", "origin", "starts")

    def __init__(
        self,
        starts: tuple[int, ...],
        counts: tuple[tuple[int, ...], ...],
        epoch_size: int,
        origin: CountingOrigin | None = None,
    ) -> None:
        origin = CountingOrigin() if origin is None else origin
        if epoch_size < 1:
            raise ConfigError(f"streams can not be mixed in an epoch of {epoch_size} samples")
        streams = len(counts[-1])
        if origin.consumed and len(origin.consumed) != streams:
            raise ConfigError(f"{len(origin.consumed)} of {streams} streams have a number of samples consumed")
        if not 0 <= origin.position <= epoch_size:
            raise ConfigError(f"position {origin.position} is not in an epoch of {epoch_size}")
        lengths = [later - start for start, later in pairwise(starts)] + [epoch_size]
        if starts[0] != origin.samples or lengths != [sum(phase) for phase in counts]:
            raise ConfigError(
                f"phases of {lengths} samples have {[sum(phase) for phase in counts]} samples of the streams"
            )
        self.starts = starts
        self.counts = counts
        self.epoch_size = epoch_size
        self.origin = origin
        begun = [origin.consumed or (0,) * streams]
        for phase in counts[:-1]:
            begun.append(_sum(begun[-1], phase))
        self._begun = begun

    @classmethod
    def constant(
        cls, counts: Sequence[int], origin: CountingOrigin | None = None, rest: Sequence[int] | None = None
    ) -> Timeline:
        """The same counts of samples of each stream in every epoch: what there is without a schedule.

        Args:
            counts: these counts.
            origin: where counting begins.
            rest: of its epoch from there on. Default: in the same proportions.
        """
        origin = CountingOrigin() if origin is None else origin
        size, starts, phases = sum(counts), [origin.samples], [tuple(counts)]
        if origin.position:  # the rest of its epoch, after which epochs are whole
            length = size - origin.position
            starts.append(origin.samples + length)
            if rest is None:
                rest = divide(length, [Fraction(number, size) for number in counts])
            phases.insert(0, tuple(rest))
        return cls(tuple(starts), tuple(phases), size, origin)

    def phases(self, epoch: int) -> list[EpochPhase]:
        """The phases of an epoch, in order. O(phases), and none of it grows with ``epoch``.

        An epoch that has the origin in it begins there: it has no positions before.
        """
        begin = self.origin.position if epoch == self.origin.epoch else 0
        now = self.samples_before(epoch, begin)
        end = self.samples_before(epoch, self.epoch_size)
        shift = begin - now
        found: list[EpochPhase] = []
        for number, start in enumerate(self.starts[:-1]):
            if start < end and self.starts[number + 1] > now:
                first = max(start, now)
                found.append(EpochPhase(first + shift, first - start, self.counts[number], self._begun[number], start))
        size, last, counts = self.epoch_size, self.starts[-1], self.counts[-1]
        for period in range(max(0, (now - last) // size), -((last - end) // size)):
            start = last + period * size
            first = max(start, now)
            begun = _sum(self._begun[-1], counts, period)
            found.append(EpochPhase(first + shift, first - start, counts, begun, start))
        return found

    def samples_before(self, epoch: int, position: int = 0) -> int:
        """Samples of training before a position of an epoch.

        Raises:
            ConfigError: a position before the origin: what came there is not known any more.
        """
        origin = self.origin
        if (epoch, position) < (origin.epoch, origin.position):
            raise ConfigError(
                f"position {position} of epoch {epoch} comes before position {origin.position} of epoch {origin.epoch}, "
                "where the streams were changed"
            )
        return origin.samples + (epoch - origin.epoch) * self.epoch_size + position - origin.position


def divide(size: int, proportions: Sequence[Fraction]) -> tuple[int, ...]:
    """``size`` in whole parts: rounded down, and one more for those with the largest remainders (Hamilton's method)."""
    exact = [size * share for share in proportions]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda stream: (parts[stream] - exact[stream], stream))
    for stream in by_remainder[: size - sum(parts)]:
        parts[stream] += 1
    return tuple(parts)


def _sum(first: Sequence[int], second: Sequence[int], times: int = 1) -> tuple[int, ...]:
    return tuple(a + b * times for a, b in zip(first, second, strict=True))
