"""Weights of streams that change in the course of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from stoker.arguments import at_least, checked, must_be, must_know
from stoker.errors import ConfigError
from stoker.units import parse_count


@dataclass(frozen=True, slots=True)
class CountingOrigin:
    """The point from which samples are counted: the beginning of training, or where streams or shares were changed.

    Attributes:
        samples: samples of training before it.
        consumed: samples of each stream before it, in stream order. Empty: none of any.
        turn: see :class:`~stoker.order.mixture.mixing.Mixing`; of what begins there.
    """

    epoch: int = 0
    position: int = 0
    samples: int = 0
    consumed: tuple[int, ...] = ()
    turn: int = 0


@dataclass(frozen=True, slots=True)
class EpochPhase:
    """A part of an epoch in which shares are fixed: a phase or a period, or what of it falls into the epoch.

    Attributes:
        first: its first position in the epoch.
        offset: what position of the phase or period that is.
        counts: samples of each stream in the whole phase or period.
        begun: samples of each stream before the phase or period.
        start: samples of training before the phase or period: tells it from all others.
        turn: see :class:`CountingOrigin`.
    """

    first: int
    offset: int
    counts: tuple[int, ...]
    begun: tuple[int, ...]
    start: int
    turn: int = 0


class Timeline:
    """Phases of training, and what of them falls into an epoch.

    ``starts``: samples of training before each phase, rising; the first is that of the origin. ``counts``: samples of each
    stream in each phase, which are the phase's length together. In the last phase: in each of its periods, which are
    ``epoch_size`` long. ``epoch_size``: positions in an epoch. ``origin``: where counting begins. Default: the beginning of
    training.
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

        ``counts``: these counts. ``origin``: where counting begins. ``rest``: of its epoch from there on. Default: in the
        same proportions.
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
        size, last = self.epoch_size, self.starts[-1]
        phases = zip(self.starts, self.starts[1:], self.counts, self._begun, strict=False)
        parts = [(start, counts, begun) for start, stop, counts, begun in phases if start < end and stop > now]
        parts += [
            (last + period * size, self.counts[-1], _sum(self._begun[-1], self.counts[-1], period))
            for period in range(max(0, (now - last) // size), -((last - end) // size))
        ]
        found: list[EpochPhase] = []
        for start, counts, begun in parts:
            first, turn = max(start, now), self.origin.turn if start == self.origin.samples else 0
            found.append(EpochPhase(first + shift, first - start, counts, begun, start, turn))
        return found

    def samples_before(self, epoch: int, position: int = 0) -> int:
        """Samples of training before a position of an epoch.

        ConfigError for a position before the origin: what came there is not known any more.
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


@checked
@dataclass(frozen=True, slots=True)
class Schedule:
    """Weights of streams that change in the course of training.

    Attributes:
        points: when weights begin to hold, and the weights by stream name, in order. The first is at 0. A time is a number
            of samples, or of epochs (``"2ep"``). Every point names all streams.
        interpolate: number of equally long steps in which weights change from one point to the next; 0: weights stay the
            same until the next point, and change there at once.
        most: the most samples of a stream in all of training, by its name. Then its share goes to the other streams.
    """

    points: tuple[tuple[int | str, tuple[tuple[str, float], ...]], ...]
    interpolate: int = 0
    most: tuple[tuple[str, int], ...] = ()

    @classmethod
    @checked
    def parse(
        cls,
        points: Mapping[int | str, Mapping[str, float]],
        interpolate: int = 0,
        most: Mapping[str, int | str] | None = None,
    ) -> Schedule:
        """Make a schedule of what a user wrote: ``{0: {"web": 0.9, "books": 0.1}, "1m": {"web": 0.5, "books": 0.5}}``.

        Times are numbers of samples that all ranks together have had, also like ``"10k"``, or of epochs, like ``"2ep"``.
        ``most`` are numbers of samples, too.

        Raises:
            ConfigError: a time or weight that is none, no point at 0, or weights that are all 0.
        """
        if not points:
            raise ConfigError("a schedule needs at least the weights that hold from 0 on")
        at_least(0, interpolate=interpolate)
        read: list[tuple[int | str, tuple[tuple[str, float], ...]]] = []
        for time, weights in points.items():
            epochs = epochs_in(time)
            read.append((parse_count(time) if epochs is None else f"{time}".strip().lower(), _weights(time, weights)))
        limits = tuple((name, parse_count(count)) for name, count in (most or {}).items())
        return cls(tuple(read), interpolate, limits)

    def timeline(self, names: Sequence[str], epoch_size: int, origin: CountingOrigin | None = None) -> Timeline:
        """The phases for streams of these names.

        Args:
            names: names of the streams, in order.
            epoch_size: positions in an epoch.
            origin: where counting begins. Default: the beginning of training.

        Raises:
            ConfigError: names that are not streams, streams that are not named, or times that do not rise.
        """
        for time, weights in self.points:
            _check_names(time, [name for name, _ in weights], names)
        begin = 0 if origin is None else origin.samples
        steps = self._steps(names, epoch_size)
        if self.most:
            must_know("stream", dict(self.most), names, "most=: ")
            consumed = (0,) * len(names) if origin is None or not origin.consumed else origin.consumed
            steps = self._limited(steps, names, begin, consumed)
        starts: list[int] = []
        counts: list[tuple[int, ...]] = []
        for (start, proportions), (end, _) in pairwise(steps):
            if max(start, begin) < end:
                starts.append(max(start, begin))
                counts.append(divide(end - starts[-1], proportions))
        start, proportions = steps[-1]
        starts.append(max(start, begin))
        counts.append(divide(epoch_size, proportions))
        return Timeline(tuple(starts), tuple(counts), epoch_size, origin)

    def same_until(self, other: Schedule, names: Sequence[str], epoch_size: int, samples: int) -> bool:
        """Whether both have the same weights for the first samples of training."""
        ours, theirs = (
            [
                (start, proportions)
                for number, (start, proportions) in enumerate(steps)
                if start < samples and (not number or proportions != steps[number - 1][1])
            ]
            for steps in (one._steps(names, epoch_size) for one in (self, other))
        )
        return ours == theirs and self.most == other.most

    def _limited(
        self, steps: Sequence[tuple[int, list[Fraction]]], names: Sequence[str], begin: int, consumed: Sequence[int]
    ) -> list[tuple[int, list[Fraction]]]:
        """The same steps from ``begin`` on, where a stream that has had the most of its samples has no share any more."""
        most, found = dict(self.most), []
        left = [most[name] - had if name in most else math.inf for name, had in zip(names, consumed, strict=True)]
        for (start, wanted), end in zip(steps, [*(start for start, _ in steps[1:]), math.inf], strict=True):
            now = max(start, begin)
            while now < end:
                shares = [share if rest > 0 else Fraction(0) for share, rest in zip(wanted, left, strict=True)]
                whole = sum(shares)
                must_be("left out for a stream that has a share to the end", whole > 0, most=most)
                shares = [share / whole for share in shares]
                lengths = [
                    math.inf if not share or rest == math.inf else int(rest / share)
                    for share, rest in zip(shares, left, strict=True)
                ]
                length = min(end - now, *lengths)
                if length > 0:
                    found.append((now, shares))
                if length == math.inf:
                    return found
                taken = divide(int(length), shares)
                left = [
                    0 if ends <= length else rest - count
                    for rest, count, ends in zip(left, taken, lengths, strict=True)
                ]
                now += int(length)
        return found

    def _steps(self, names: Sequence[str], epoch_size: int) -> list[tuple[int, list[Fraction]]]:
        """The streams' shares, and from which sample of training on they hold. The last have no end."""
        times = self._times(epoch_size)
        proportions = [_proportions(names, weights) for _, weights in self.points]
        found: list[tuple[int, list[Fraction]]] = []
        for (first, last), (now, then) in zip(pairwise(times), pairwise(proportions), strict=True):
            steps = max(1, min(self.interpolate, last - first))
            for step in range(steps):
                part = Fraction(step, steps)
                between = [a + (b - a) * part for a, b in zip(now, then, strict=True)]
                found.append((first + (last - first) * step // steps, between))
        return [*found, (times[-1], proportions[-1])]

    def as_dict(self) -> dict[str, Any]:
        """By name, JSON-serialisable."""
        return {
            "points": [[time, dict(weights)] for time, weights in self.points],
            "interpolate": self.interpolate,
            **({"most": dict(self.most)} if self.most else {}),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Schedule:
        """The schedule that :meth:`as_dict` described."""
        points = tuple((time, tuple(weights.items())) for time, weights in value["points"])
        return cls(points, value["interpolate"], tuple(value.get("most", {}).items()))

    def _times(self, epoch_size: int) -> list[int]:
        """The points' times in samples."""
        times = [_samples(time, epoch_size) for time, _ in self.points]
        if times[0]:
            raise ConfigError(f"the first point of a schedule must be at 0, got {self.points[0][0]!r}")
        for number, (time, following) in enumerate(pairwise(times)):
            if following <= time:
                raise ConfigError(
                    f"the points of a schedule must be in order: {self.points[number + 1][0]!r} does not come after "
                    f"{self.points[number][0]!r}"
                )
        return times


def _check_names(time: int | str, given: Sequence[str], names: Sequence[str]) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ConfigError(
            f"the schedule's weights from {time!r} on are for {', '.join(map(repr, unknown))} too, but the streams are "
            f"{', '.join(map(repr, names))}"
        )
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigError(
            f"the schedule's weights from {time!r} on lack {', '.join(map(repr, missing))}: give every stream "
            "a weight, 0 for none"
        )


def epochs_in(time: object) -> Fraction | None:
    """The number of epochs in ``"2ep"``; ``None`` for what is no such thing."""
    if not isinstance(time, str) or not time.strip().lower().endswith("ep"):
        return None
    number = time.strip().lower()[:-2].strip()
    try:
        epochs = Fraction(number)
    except (ValueError, ZeroDivisionError):
        epochs = Fraction(-1)
    if epochs < 0:
        raise ConfigError(f"{time!r} is not a number of epochs: expected one like '2ep' or '0.5ep', not negative")
    return epochs


def _samples(time: int | str, epoch_size: int) -> int:
    epochs = epochs_in(time)
    return int(time) if epochs is None else int(epochs * epoch_size)


def _weights(time: int | str, weights: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ConfigError(
                f"the schedule's weight of stream {name!r} from {time!r} on must be a number, not negative, got {weight!r}"
            )
    if not any(weights.values()):
        raise ConfigError(f"the schedule's weights from {time!r} on must not all be 0")
    return tuple(weights.items())


def _proportions(names: Sequence[str], weights: Sequence[tuple[str, float]]) -> list[Fraction]:
    """The streams' shares, exact for the numbers as they are written."""
    given = {name: Fraction(str(weight)) for name, weight in weights}
    whole = sum(given.values())
    return [given.get(name, Fraction(0)) / whole for name in names]
