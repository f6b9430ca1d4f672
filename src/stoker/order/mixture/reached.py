"""The progress of a run in each stream, at any position of an epoch, so that it can go on there with other streams.

A stream is an endless sequence of numbered samples. Inside windows, and on several canonical nodes, a mixing does not take
them in rising order: the samples that a run has had of a stream are all below some number, but for a few that it has passed
over. What is left of the stream is those, and then all from that number on.

If files were appended to a stream, the run had begun a pass over the samples that were there. What is left of it and the
appended samples come next, each once and mixed with each other; then come passes over all samples. So no sample comes twice
before all came once.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from stoker.errors import StateError
from stoker.integers import is_count
from stoker.order.mixture.mixing import NUMBER_BITS, Mixing
from stoker.order.sample_order import Order
from stoker.types import Ids

_NONE: Final[Ids] = np.zeros(0, dtype=np.int64)
_MOST_BYTES: Final = 1 << 26
_ALWAYS: Final = ("epoch", "consumed", "samples")


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """The progress of a run in a stream.

    ``count``: samples that it has had. ``passed``: numbers that it has passed over, rising. It has had all others below
    ``count + len(passed)``.
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
        """Read what :meth:`as_dict` has told beside the count. StateError if it is damaged."""
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
            :class:`~stoker.order.mixture.reached.Before` tells it.
        rest: samples of each stream that are left of the epoch. Empty: its shares of them.
        turn: see :class:`~stoker.order.mixture.mixing.Mixing`; of what begins there.
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
    turn: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As states hold it, JSON-serialisable; empty at the beginning of training."""
        if self == RunOrigin():
            return {}
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in told.items() if value or name in _ALWAYS}

    @classmethod
    def read(cls, value: Any) -> RunOrigin:
        """Read what :meth:`as_dict` has told. StateError if it is damaged."""
        if not value:
            return cls()
        try:
            found = cls(**{one.name: value[one.name] for one in fields(cls) if one.name in (*value, *_ALWAYS)})
            away = found.away
            appended = [*found.appended.values(), *(one.get("appended", ()) for one in away)]
            consumed = [one["consumed"] for entries in (away, *appended) for one in entries]
            numbers = [
                found.epoch,
                found.samples,
                found.position,
                found.turn,
                *(one.get("twin", 0) for one in away),
                *consumed,
            ]
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

    ``reached``: for each stream, how far the run had got when it began to count so.
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


_NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """A stream before files were appended to it, and the progress of the run in it by then.

    Attributes:
        samples: how many its shards had.
        shards: how many shards it had, which are its first ones now.
        fingerprint: its fingerprint then, which its order depends on.
        reached: the progress of the run in it.
        begun: the number at which whole passes over these samples begin.
        block_size: which its order depends on; ``None`` where it does not.
        twin: see :func:`~stoker.order.mixture.stream_quotas.twin_numbers`.
        inside: whether the run was inside of an epoch that had had some of it: then appended samples come before the next
            pass, also where none are left of the one before.
    """

    samples: int
    shards: int
    fingerprint: str
    reached: Reached
    begun: int = 0
    block_size: int | None = None
    twin: int = 0
    inside: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The entry of a state, JSON-serialisable."""
        told = {"samples": self.samples, "fingerprint": self.fingerprint, "consumed": self.reached.count}
        more = {"begun": self.begun, "block_size": self.block_size, "twin": self.twin, "inside": self.inside}
        return told | self.reached.as_dict() | {name: value for name, value in more.items() if value}

    @classmethod
    def read(cls, value: Any, starts: Ids) -> Before:
        """Read what :meth:`as_dict` has told.

        StateError if it is damaged. ``starts``: the stream's first sample in each of its shards, and their
        number at the end.
        """
        try:
            numbers = [value[name] for name in ("samples", "consumed")]
            begun, twin, block_size = value.get("begun", 0), value.get("twin", 0), value.get("block_size")
            inside = value.get("inside", False)
            counts = [*numbers, begun, twin, 1 if block_size is None else block_size]
            if not all(type(one) is int and 0 <= one < 1 << NUMBER_BITS for one in counts) or block_size == 0:
                raise ValueError(f"{counts} are not counts")
            if type(inside) is not bool:
                raise TypeError(f"inside is {inside!r}")
            shards = int(np.searchsorted(starts, numbers[0]))
            if int(starts[-1]) <= numbers[0] or int(starts[shards]) != numbers[0]:
                raise ValueError(f"its first shards do not have {numbers[0]} samples")
            reached = Reached.read(numbers[1], value.get("passed"))
            return cls(numbers[0], shards, str(value["fingerprint"]), reached, begun, block_size, twin, inside)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"what this state says of a stream to which files were appended is damaged: {error!r}"
            ) from None

    @property
    def first(self) -> int:
        """The first number that the run had not had."""
        return first_left(self.reached)

    def left(self, total: int) -> int:
        """Samples that are left of the pass that was begun. ``total``: samples of a pass."""
        end = self.reached.count + len(self.reached.passed)
        passes = -(-(end - self.begun) // total) if total else 0
        return self.begun + max(0, passes) * total - self.reached.count if total else 0

    def next_begun(self, total: int, more: int) -> int:
        """The number at which whole passes begin over these samples and ``more``."""
        return self.reached.count + self.left(total) + more


def first_left(reached: Reached) -> int:
    """The first number that a run has not had."""
    return int(reached.passed[0]) if reached.passed.size else reached.count


def still_begun(before: Sequence[Before], sizes: Ids, reached: Reached) -> tuple[Before, ...]:
    """Earlier forms of a stream that its order still depends on: none, where no pass of it is begun.

    StateError if it never was so. ``before``: what it was, the earliest first. ``sizes``: samples in its shards now, as far
    as they belong to it. ``reached``: the progress of the run in it.
    """
    known: list[Before] = []
    totals = [int(sizes[: one.shards].sum()) for one in before]
    for number, one in enumerate(before):
        if known:
            more = totals[number] - totals[number - 1]
            one = replace(one, begun=known[-1].next_begun(totals[number - 1], more))  # noqa: PLW2901
            if one.first >= one.begun:
                known = []
        known.append(one)
    firsts = [*(one.first for one in before), first_left(reached)]
    begins = [before[0].begun, *(one.reached.count for one in before)]
    if any(first < begin for first, begin in zip(firsts, begins, strict=True)):
        raise StateError("what this state says of a stream to which files were appended is damaged: its counts fall")
    return tuple(known) if known and (known[-1].inside or known[-1].left(totals[-1])) else ()


class AppendedStream:
    """The samples of a stream from where files were appended to it.

    Args:
        begun: the number, as the run counts them, of their first one.
        told: what it was then.
        left: see :meth:`Before.left`.
        added: the appended samples.
        whole: all of its samples.
        nodes, window, key: see :class:`~stoker.order.mixture.mixing.Mixing`. Without a window the appended samples come
            last.
    """

    def __init__(
        self,
        before: Order,
        begun: int,
        told: Before,
        left: int,
        added: Order,
        count: int,
        whole: Order,
        *,
        nodes: int,
        window: int,
        key: int,
    ) -> None:
        self._before, self._before_begun, self._reached = before, begun, told.reached
        self._added, self._whole = added, whole
        self._first, self._left, self._begun = told.reached.count, left, told.reached.count + left + count
        self._mixing = None
        if window:
            self._mixing = Mixing([left, count], [self._first, 0], nodes=nodes, window=window, key=key)

    def locate(self, numbers: Ids) -> tuple[Ids, Ids]:
        """See :class:`~stoker.order.sample_order.Order`; no number is asked for that came before."""
        codes = np.empty_like(numbers)
        later = numbers >= self._begun
        index = numbers[~later] - self._first
        if self._mixing is not None:
            codes[~later] = self._mixing.codes(index)
        else:
            codes[~later] = np.where(index < self._left, index + self._first, (1 << NUMBER_BITS) | (index - self._left))
        codes[later] = (2 << NUMBER_BITS) | (numbers[later] - self._begun)
        shards, rows = np.empty_like(numbers), np.empty_like(numbers)
        for stream, of in enumerate((self._before, self._added, self._whole)):
            here = np.flatnonzero(codes >> NUMBER_BITS == stream)
            if here.size:
                inside = codes[here] & _NUMBER_MASK
                shards[here], rows[here] = of.locate(
                    inside if stream else self._reached.numbers(inside) - self._before_begun
                )
        return shards, rows
