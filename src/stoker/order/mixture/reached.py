"""The progress of a run in each stream, at any position of an epoch, so that it can go on there with other streams.

A stream is an endless sequence of numbered samples. Inside windows, and on several canonical nodes, a mixing does not take
them in rising order: the samples that a run has had of a stream are all below some number, but for a few that it has passed
over. What is left of the stream is those, and then all from that number on.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from stoker.errors import StateError
from stoker.integers import is_count
from stoker.order.mixture.mixing import NUMBER_BITS
from stoker.types import Ids

_NONE: Final[Ids] = np.zeros(0, dtype=np.int64)
_MOST_BYTES: Final = 1 << 26
_ALWAYS: Final = ("epoch", "consumed", "samples")


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """The progress of a run in a stream.

    Attributes:
        count: samples that it has had.
        passed: numbers that it has passed over, rising. It has had all others below ``count + len(passed)``.
    """

    count: int = 0
    passed: Ids = field(default_factory=_NONE.copy)

    def after(self, first: int, taken: Ids) -> Reached:
        """After more: all samples before the ``first``-th of the stream, and the ``taken``-th, as this run counts them."""
        end = max(first, int(taken.max()) + 1 if taken.size else 0)
        left = np.setdiff1d(np.arange(first, end, dtype=np.int64), taken)
        count, end = end - len(left), max(end, self.count + len(self.passed))
        return Reached(count, self.numbers(np.concatenate([left, np.arange(count + len(left), end)])))

    def numbers(self, counted: Ids) -> Ids:
        """Numbers of the samples that come as the ``counted``-th of the stream; none is below ``count``."""
        inside = counted - self.count
        here = inside < len(self.passed)
        if not here.any():
            return counted
        numbers = counted.copy()
        numbers[here] = self.passed[inside[here]]
        return numbers

    def as_dict(self) -> dict[str, Any]:
        """The entries of a state beside the count, JSON-serialisable; empty where nothing was passed over."""
        if not self.passed.size:
            return {}
        first = int(self.passed[0])
        bits = np.zeros(self.count + len(self.passed) - first, dtype=np.bool_)
        bits[self.passed - first] = True
        packed = base64.b85encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()
        return {"passed": [first, packed]}

    @classmethod
    def read(cls, count: int, value: Any) -> Reached:
        """Read what :meth:`as_dict` has told beside the count.

        Raises:
            StateError: it is damaged.
        """
        if value is None:
            return cls(count)
        try:
            first, packed = value
            inflater = zlib.decompressobj()
            bits = np.frombuffer(inflater.decompress(base64.b85decode(packed), _MOST_BYTES), np.uint8)
            if not inflater.eof or type(first) is not int or not 0 <= first <= count:
                raise ValueError("it ends too early, or is too long")
            passed = first + np.flatnonzero(np.unpackbits(bits)).astype(np.int64)
            if not passed.size or int(passed[0]) != first or len(bits) != (count + len(passed) - first + 7) // 8:
                raise ValueError("its numbers are not of this stream")
        except (TypeError, ValueError, zlib.error) as error:
            raise StateError(f"what this state says of samples that were passed over is damaged: {error}") from None
        return cls(count, passed)


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The point at which a run with changed streams was restarted; at first the beginning of training.

    Attributes:
        epoch: its number.
        consumed: samples of each stream before, by name; streams that are not named begin at 0.
        samples: samples of training before.
        away: what states remember of streams that are left out since.
        twins: number of each stream among those of the same fingerprint, where the list of streams tells another; see
            :func:`~stoker.order.mixture.stream_quotas.twin_numbers`.
        position: in the epoch.
        passed: stream name to what :meth:`Reached.as_dict` has told of it.
        appended: stream name to what it was before files were appended, each time, as
            :class:`~stoker.order.mixture.appended.Before` tells it.
        rest: samples of each stream that are left of the epoch. Empty: its shares of them.
    """

    epoch: int = 0
    consumed: Mapping[str, int] = field(default_factory=dict)
    samples: int = 0
    away: Sequence[Mapping[str, Any]] = field(default_factory=list)
    twins: Mapping[str, int] = field(default_factory=dict)
    position: int = 0
    passed: Mapping[str, Any] = field(default_factory=dict)
    appended: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rest: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As states hold it, JSON-serialisable; empty at the beginning of training."""
        if self == RunOrigin():
            return {}
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in told.items() if value or name in _ALWAYS}

    @classmethod
    def read(cls, value: Any) -> RunOrigin:
        """Read what :meth:`as_dict` has told.

        Raises:
            StateError: it is damaged.
        """
        if not value:
            return cls()
        try:
            found = cls(**{one.name: value[one.name] for one in fields(cls) if one.name in (*value, *_ALWAYS)})
            away = found.away
            appended = [*found.appended.values(), *(one.get("appended", ()) for one in away)]
            consumed = [one["consumed"] for entries in (away, *appended) for one in entries]
            numbers = [found.epoch, found.samples, found.position, *(one.get("twin", 0) for one in away), *consumed]
            for counts in (found.consumed, found.twins, found.rest):
                numbers += counts.values()
            if not all(map(is_count, numbers)) or not all(isinstance(one["name"], str) for one in away):
                raise ValueError(numbers)
            if not found.passed.keys() | found.appended.keys() <= found.consumed.keys():
                raise LookupError("streams that were not consumed")
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateError(f"this state should say how much of each stream was consumed, found {value!r}") from error
        for name, passed in found.passed.items():
            Reached.read(found.consumed[name], passed)
        for one in away:
            Reached.read(one["consumed"], one.get("passed"))
        return found

    def reached(self, name: str) -> Reached:
        """The progress of the run in a stream by then."""
        return Reached.read(self.consumed[name], self.passed.get(name)) if name in self.consumed else Reached()


@dataclass(frozen=True, slots=True, eq=False)
class RunProgress:
    """The progress of a run in its epoch, and in each stream by name.

    Attributes:
        had: samples of the epoch that it has had.
        reached: its progress in the streams.
        left: samples of the streams that are left of the epoch.
    """

    had: int
    reached: Mapping[str, Reached]
    left: Mapping[str, int]


class Renumbering:
    """Codes of samples as a run counts them, to codes of the streams' numbers.

    Args:
        reached: for each stream, how far the run had got when it began to count so.
    """

    def __init__(self, reached: Iterable[Reached]) -> None:
        listed = list(reached)
        self._firsts: Ids = np.array([one.count for one in listed], dtype=np.int64)
        self._lengths: Ids = np.array([len(one.passed) for one in listed], dtype=np.int64)
        self._starts: Ids = np.cumsum(self._lengths) - self._lengths
        self._passed: Ids = np.concatenate([one.passed for one in listed])

    def __call__(self, codes: Ids) -> Ids:
        streams = codes >> NUMBER_BITS
        inside = (codes & ((1 << NUMBER_BITS) - 1)) - self._firsts[streams]
        here = (inside >= 0) & (inside < self._lengths[streams])
        if not here.any():
            return codes
        found = codes.copy()
        of = streams[here]
        found[here] = of << NUMBER_BITS | self._passed[self._starts[of] + inside[here]]
        return found
