"""Mixes several streams: maps a position of an epoch to a stream and the number of its sample.

A *code* names a sample by its stream and its number there: ``stream << 42 | number`` (see
:mod:`stoker.order.mixture.stream_locator`; a stream is read as one endless sequence). A :class:`Mixing` turns positions into
codes. All of it is closed form: nothing is stored per sample, and a sample costs O(log streams).

How it works, for S streams of which n_s samples are wanted, C canonical nodes and units of U samples:

1. Position x belongs to unit ``u = x // U``. Units are dealt to the canonical nodes in turn: ``c = u % C``, and u is the
   node's unit number ``j = u // C``. All samples of a unit are of one stream.
2. Each node has ``n_s // (C * U)`` units of stream s, and all nodes have them in the same even order
   (:mod:`stoker.order.mixture.interleave`). Inside windows of some units each node's order is scrambled by a bijection of
   its own, so that the order of streams is irregular, while each window still has their shares.
3. Node c reads the numbers of a stream that are c modulo C, which is what the stream's own canonical node c is made of. So
   shards stay with nodes.
4. Remainders that do not fill a unit of each node, less than ``C * U`` samples of a stream, come at the end, mixed.

If only one stream has samples, codes are the stream's numbers in rising order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import at_least
from stoker.errors import ConfigError
from stoker.integers import mix, mix_array
from stoker.order.mixture.interleave import Interleave
from stoker.order.shuffle.bijection import Domain, permute, split_keys
from stoker.types import Ids

NUMBER_BITS: Final = 42
"""Bits of a code that hold the number. 21 are left for the stream: 16,384 parts of 128 streams."""

WINDOW: Final = 1024
"""Units in a window that a node's units are scrambled in: enough to be irregular, few enough to keep shares steady."""

_TAG_WINDOWS: Final = 1
_TAG_REST: Final = 2


# Epochs have the same counts and windows, so that what follows from these alone is kept: of two datasets that take turns.


def _interleave(counts: NDArray[np.integer]) -> Interleave:
    return _interleave_of(counts.astype(np.int64).tobytes()) if counts.ndim == 1 else Interleave(counts)


@lru_cache(maxsize=4)
def _interleave_of(counts: bytes) -> Interleave:
    return Interleave(np.frombuffer(counts, dtype=np.int64))


@lru_cache(maxsize=4)
def _window_domain(window: int) -> Domain:
    return Domain(np.int64(window))


class Mixing:
    """A phase of training in which streams have fixed shares.

    Args:
        counts: samples of each stream, shape ``(streams,)``.
        begun: samples of each stream that came before, shape ``(streams,)``; the mixing continues there. Default: none.
        unit: consecutive samples of one stream.
        window: units inside which their order is scrambled; 0: not scrambled. See :data:`WINDOW`.
        shared: whether a unit is read by all nodes together (position x by node ``x % nodes``), instead of by one
            alone. If ``nodes`` does not divide a unit, it is not shared, and any node may read any shard.
        unit_counts: units of each stream on each node. For phases whose steps must have the same streams although their
            counts differ. Default: the most possible.
        first_stream: number of the first stream in codes.
        turn: position at which :meth:`reached` starts; the positions before it come last. :meth:`codes` ignores it.

    Attributes:
        counts: int64, shape ``(streams,)``.
        begun: int64, shape ``(streams,)``.
        total: number of positions.
    """

    __slots__ = (
        "_domain",
        "_interleave",
        "_key",
        "_nodes",
        "_numbers",
        "_only",
        "_order",
        "_rest_codes",
        "_rest_ends",
        "_shared",
        "_starts",
        "_turn",
        "_turns",
        "_unit",
        "_window",
        "begun",
        "counts",
        "total",
    )

    def __init__(
        self,
        counts: Sequence[int] | NDArray[np.integer],
        begun: Sequence[int] | NDArray[np.integer] | None = None,
        *,
        nodes: int = 1,
        unit: int = 1,
        window: int = 0,
        key: int = 0,
        shared: bool = False,
        unit_counts: Sequence[int] | NDArray[np.integer] | None = None,
        first_stream: int = 0,
        turn: int = 0,
    ) -> None:
        at_least(1, unit=unit)  # as a damaged state may have less
        self.counts: Ids = np.array(counts, dtype=np.int64)
        self.total = sum(self.counts.tolist())
        self._turn = turn % max(1, self.total)
        some = np.flatnonzero(self.counts)
        # Of one stream there is nothing to lay out.
        self._only = int(some[0]) if some.size == 1 and int(self.counts[some[0]]) > 0 else None
        if self._only is None:
            self._interleave = _interleave(np.asarray(counts))
        # A state may have numbers that no array holds.
        longest = max(
            map(sum, zip(self.counts.tolist(), map(int, () if begun is None else begun), strict=False)), default=0
        )
        if longest > 1 << NUMBER_BITS:
            raise ConfigError(
                f"{longest} samples of a stream are asked for; a run reads at most {1 << NUMBER_BITS} of each"
            )
        self.begun: Ids = np.zeros_like(self.counts) if begun is None else np.array(begun, dtype=np.int64)
        if shared and unit % nodes:
            nodes = 1
        # From here on a unit is one node's part of it.
        self._shared = shared
        self._nodes = nodes
        self._unit = unit // nodes if shared else unit
        self._window = window
        self._key = key
        streams = first_stream + np.arange(self.counts.size, dtype=np.int64)
        self._starts = (streams << NUMBER_BITS) | self.begun
        if self._only is None:
            self._lay_out(unit_counts)

    def codes(self, index: Ids) -> Ids:
        """Code of the sample at each position; int64, shape ``(k,)``. ``index`` is in ``[0, total)``."""
        if self._only is not None:
            codes: Ids = index + self._starts[self._only]
            return codes
        main = self._order.total * self._nodes * self._unit
        if index.size == 0 or int(index.max()) < main:
            return self._main(index)
        if int(index.min()) >= main:
            return self._rest(index - main)
        codes = np.empty_like(index)
        early = index < main
        codes[early] = self._main(index[early])
        codes[~early] = self._rest(index[~early] - main)
        return codes

    def reached(self, index: Ids) -> Ids:
        """Number of each stream's next sample after ``index[i]`` positions in which streams are spread evenly.

        This is what :class:`~stoker.order.mixture.stratified_batches.StratifiedPlan` deals; :meth:`codes` has the same
        samples in all, in units and scrambled.

        ``index``: int64, shape ``(k,)``, in ``[0, total]``. Gives int64 of shape ``(k, streams)``.
        """
        if self._only is not None:
            before: Ids = np.zeros((index.size, self.counts.size), dtype=np.int64)
            before[:, self._only] = index
            return self.begun + before
        if not self._turn:
            return self.begun + self._interleave.counts_before(index)
        turned = index + self._turn
        round_ = turned > self.total
        before = self._interleave.counts_before(np.where(round_, turned - self.total, turned))
        skipped = self._interleave.counts_before(np.array([self._turn], dtype=np.int64))
        reached: Ids = self.begun + before - skipped + round_[:, None] * self.counts
        return reached

    def taken(self, index: int) -> tuple[Ids, Ids]:
        """The samples of the first ``index`` positions: all of each stream before a number, shape ``(streams,)``; and codes,
        in addition, of less than a window of each node."""
        if self._only is not None:
            return self.reached(np.array([index]))[0], np.zeros(0, dtype=np.int64)
        across, main = self._nodes * self._unit, self._order.total * self._nodes * self._unit
        whole = min(index, main)
        if whole < main:
            whole -= whole % (across * max(1, self._window))
        units = np.array([whole // max(1, across)], dtype=np.int64)
        before = self._order.counts_before(units)[0] * across
        return self.begun + before, self.codes(np.arange(whole, index, dtype=np.int64))

    def _lay_out(self, unit_counts: Sequence[int] | NDArray[np.integer] | None) -> None:
        across = self._nodes * self._unit
        units = self.counts // across if unit_counts is None else np.asarray(unit_counts, dtype=np.int64)
        self._order = _interleave(units)
        self._domain = _window_domain(max(1, self._window))
        rest = self.counts - units * across
        self._rest_ends = np.cumsum(rest)
        # The code after the units of stream s, minus the index of its remainder among all remainders.
        self._rest_codes = self._starts + units * across - (self._rest_ends - rest)
        # At [c * S + s]: offset of node c's first number from the start of stream s's numbers.
        nodes = np.arange(self._nodes, dtype=np.int64)[:, None]
        self._turns = ((nodes - self.begun) % self._nodes + self._starts).reshape(-1)

    def _main(self, index: Ids) -> Ids:
        nodes, unit = self._nodes, self._unit
        inside: Ids | None = None
        node: Ids | None = None
        if self._shared:
            inside, index = _split(index, unit * nodes)
            if nodes > 1:
                node, inside = _split(inside, nodes)
        else:
            if unit > 1:
                inside, index = _split(index, unit)
            if nodes > 1:
                node, index = _split(index, nodes)
        if self._window > 1:
            index = self._scramble(index, None if self._shared else node)
        streams, numbers = self._order.locate(index)
        if inside is not None:
            numbers = numbers * unit + inside
        if node is None:
            return numbers + self._turns.take(streams)
        return numbers * nodes + self._turns.take(node * self.counts.size + streams)

    def _scramble(self, index: Ids, node: Ids | None) -> Ids:
        """Move each unit inside its window."""
        if not index.size:
            return index
        whole = self._order.total // self._window * self._window
        if int(index.max()) < whole:
            return self._scramble_whole(index, node)
        # The last window is shorter.
        moved = np.empty_like(index)
        early = index < whole
        moved[early] = self._scramble_whole(index[early], None if node is None else node[early])
        windows = (
            np.full(index.size, whole // self._window) if node is None else whole // self._window * self._nodes + node
        )
        keys = mix_array(mix(self._key, _TAG_WINDOWS), windows[~early])
        moved[~early] = whole + permute(index[~early] - whole, self._order.total - whole, keys)
        return moved

    def _scramble_whole(self, index: Ids, node: Ids | None) -> Ids:
        if not index.size:
            return index
        inside, number = _split(index, self._window)
        window = number if node is None else number * self._nodes + node
        first, last = int(window.min()), int(window.max())
        key = mix(self._key, _TAG_WINDOWS)
        domain = self._domain
        if last - first < index.size:
            # Few windows: their keys are made once each, and looked up.
            window -= first
            words = split_keys(mix_array(key, np.arange(first, last + 1)), domain.word)
            low, high = (word.take(window) for word in words)
        else:
            low, high = split_keys(mix_array(key, window), domain.word)
        moved = inside.astype(domain.word)
        domain.move(moved, low, high)
        start = index - inside
        return start + moved.astype(np.int64)

    def _rest(self, index: Ids) -> Ids:
        if self._window > 1:
            index = permute(index, int(self._rest_ends[-1]), mix(self._key, _TAG_REST))
        streams = np.searchsorted(self._rest_ends, index, side="right")
        codes: Ids = index + self._rest_codes[streams]
        return codes


def _split(values: Ids, size: int) -> tuple[Ids, Ids]:
    """``values % size`` and ``values // size``, by shifts for powers of two, which is much faster."""
    if size & (size - 1):
        quotient = values // size
        return values - quotient * size, quotient
    return values & (size - 1), values >> (size.bit_length() - 1)


class EpochMixture:
    """The mixings of an epoch, one after the other: positions to codes.

    ``firsts``: first position of each in the epoch, rising. Nothing is asked below the first of them. ``offsets``: what
    position of the mixing that is, of each. ``mixings``: the mixings.
    """

    __slots__ = ("_firsts", "_shifts", "mixings")

    def __init__(self, firsts: Sequence[int], offsets: Sequence[int], mixings: Sequence[Mixing]) -> None:
        self._firsts: Ids = np.array(firsts, dtype=np.int64)
        self._shifts: Ids = np.array(offsets, dtype=np.int64) - self._firsts
        self.mixings = tuple(mixings)

    def numbers(self, positions: Ids) -> Ids:
        """Number of the mixing that has each position."""
        numbers: Ids = np.searchsorted(self._firsts, positions, side="right") - 1
        if numbers.size and int(numbers.min()) < 0:
            raise ConfigError(
                f"position {int(positions.min())} comes before position {int(self._firsts[0])} of its epoch, where streams "
                "or weights were changed: the order before that is no longer known"
            )
        return numbers

    def codes(self, positions: Ids) -> Ids:
        """Code of the sample at each position of the epoch; int64, shape ``(k,)``."""
        if positions.size == 0:
            return np.zeros(0, dtype=np.int64)
        if len(self.mixings) == 1 and not self._firsts[0]:  # as in most epochs
            return self.mixings[0].codes(positions + self._shifts[0])
        first, last = map(int, self.numbers(np.array([positions.min(), positions.max()])))
        if first == last:
            return self.mixings[first].codes(positions + self._shifts[first])
        codes = np.empty_like(positions)
        numbers = self.numbers(positions)
        for number in range(first, last + 1):
            here = numbers == number
            codes[here] = self.mixings[number].codes(positions[here] + self._shifts[number])
        return codes

    def reached(self, positions: Ids) -> Ids:
        """The result of :meth:`Mixing.reached` at positions of the epoch, its end included; int64, shape ``(k, streams)``."""
        reached: Ids = np.empty((positions.size, self.mixings[0].counts.size), dtype=np.int64)
        numbers = self.numbers(positions)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            reached[here] = self.mixings[number].reached(positions[here] + self._shifts[number])
        return reached

    def taken(self, position: int) -> tuple[Ids, Ids]:
        """The samples of the run before a position of the epoch; see :meth:`Mixing.taken`."""
        number = int(self.numbers(np.array([position]))[0])
        return self.mixings[number].taken(position + int(self._shifts[number]))

    def counts(self, positions: Ids) -> Ids:
        """Samples of each stream in the whole mixing that has each position; int64, shape ``(k, streams)``."""
        counts: Ids = np.stack([mixing.counts for mixing in self.mixings])[self.numbers(positions)]
        return counts
