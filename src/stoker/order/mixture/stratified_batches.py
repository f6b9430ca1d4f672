"""Global batches that have every stream in its exact share.

Global batch ``[p, p + G)`` has the numbers ``[T_s(p), T_s(p + G))`` of stream s, where T_s counts the samples of the stream
among the first p when streams are spread evenly (:mod:`stoker.order.mixture.interleave`). So the share of a stream in a
batch is right but for rounding, wherever the batch begins, in every world that has the same G.

A batch is laid out by canonical node (``number % C``), and rank r takes the r-th R-th, as in
:mod:`stoker.order.global_batches`. The nodes' sections are of nearly equal length: rounding, stream by stream, shifts their
borders by less than the number of streams. What so falls to a neighbouring node is of one stream only, the *filler*, which
is laid to both ends of a section: the rarest that is common enough for that. Only its shards are read by more than one
node. The rest of a section is mixed by a keyed bijection. Where a stream comes to its end inside a batch, its samples rise in
each section, so that what is left of a pass comes before the next one's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stoker.integers import mix, mix_array
from stoker.order.global_batches import BatchPlan
from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture
from stoker.order.sample_order import Spans
from stoker.order.shuffle.bijection import permute
from stoker.types import Ids

_TAG_SECTIONS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StratifiedPlan(BatchPlan):
    """A :class:`~stoker.order.global_batches.BatchPlan` whose positions are codes.

    :class:`~stoker.order.mixture.stream_locator.StreamLocator` locates them.

    Attributes:
        strata: which samples are dealt.
        shuffled: whether a node's section of a batch is mixed. If not, it is ordered by stream.
        totals: samples in a pass of each stream, shape ``(streams,)``.
        begun: number at which these passes begin, likewise. Default: 0.
    """

    strata: EpochMixture
    shuffled: bool = True
    key: int = 0
    totals: Ids | None = None
    begun: Ids | None = None

    def positions(self, first: int, last: int, step: int = 1) -> Ids:
        """Codes of this rank's full batches ``first, first + step, ...`` below ``last``.

        Gives int64 of shape ``(batches, batch_size)``.
        """
        batches: Ids = np.arange(first, last, step, dtype=np.int64)
        low = self.rank * self.batch_size
        entries = np.arange(low, low + self.batch_size, dtype=np.int64)
        return self._codes(self.start + batches * self.global_batch_size, self.global_batch_size, entries)

    def tail_positions(self) -> Ids:
        """Codes of this rank's part of the last, partial batch; int64, shape ``(n,)``, empty where it has none."""
        part = self._tail_part()
        if part is None:
            return np.zeros(0, dtype=np.int64)
        # Padding: ranks beyond the tail repeat it from its beginning.
        entries = np.arange(*part, dtype=np.int64) % self.tail
        codes: Ids = self._codes(np.array([self.end - self.tail], dtype=np.int64), self.tail, entries)[0]
        return codes

    def spans(self) -> Spans:
        """The samples that the epoch has of each stream, as codes; see :class:`stoker.order.sample_order.SpannedPlan`."""
        low, high = self.strata.reached(np.array([0, self.end], dtype=np.int64))
        streams: Ids = np.arange(low.size, dtype=np.int64) << NUMBER_BITS
        return Spans(streams | low, streams | high)

    def _codes(self, starts: Ids, length: int, entries: Ids) -> Ids:
        """Codes of some entries of batches.

        O(canonical nodes that the entries are of * streams) a batch, whatever its length. ``starts``: the batches' first
        positions, shape ``(batches,)``. ``length``: samples in each. ``entries``: numbers in the laid out batch, shape
        ``(n,)``, the same in all batches. Gives int64 of shape ``(batches, n)``.
        """
        if not starts.size or not entries.size:
            return np.zeros((starts.size, entries.size), dtype=np.int64)
        nodes, asked = self.num_canonical_nodes, entries
        low, high = self.strata.reached(starts), self.strata.reached(starts + length)
        streams = low.shape[1]
        # Of any run of a stream's numbers, the first x of C nodes have their share give or take x * (C - x) / C, which is at
        # most C / 4. A section begins at most so far from its nominal position, for each stream.
        slack = streams * -(-nodes // 4)
        first = max(0, (int(entries.min()) - slack) * nodes // length)
        last = min(nodes, -(-(int(entries.max()) + 1 + slack) * nodes // length))
        node: Ids = np.arange(first, last, dtype=np.int64)
        counts = _of_nodes(low, high, node, nodes)
        before = (_below(high, first, nodes) - _below(low, first, nodes)).sum(axis=1)
        if self.shuffled:
            entries = self._mix(starts, length, entries, before, counts.sum(axis=2), first)
        else:
            entries = np.broadcast_to(entries, (starts.size, entries.size))
        codes = _pick(low, counts, before, entries, length, self._filler(starts, length), node, nodes)
        if self.totals is not None and self.shuffled:
            begun = 0 if self.begun is None else self.begun
            ends = (high > low) & ((low - begun) // self.totals != (high - 1 - begun) // self.totals)
            for batch in np.flatnonzero(ends.any(axis=1)).tolist():
                whole = replace(self, totals=None)._codes(starts[batch : batch + 1], length, np.arange(length))[0]
                codes[batch] = _rising(whole, np.flatnonzero(ends[batch]), nodes)[asked]
        return codes

    def _filler(self, starts: Ids, length: int) -> Ids:
        """Number of each batch's filler, int64, shape ``(batches,)``. It is constant in a phase."""
        counts = self.strata.counts(starts)
        batches = np.maximum(counts.sum(axis=1, keepdims=True) // length, 1)
        enough = 2 * counts.shape[1] * self.num_canonical_nodes * batches
        filler: Ids = np.argmin(np.where(counts >= enough, counts, (1 << 62) - counts), axis=1)
        return filler

    def _mix(self, starts: Ids, length: int, entries: Ids, before: Ids, sections: Ids, first: int) -> Ids:
        """Shuffle entries inside the part of each section that it would have if all sections were of equal length."""
        nodes, count = self.num_canonical_nodes, sections.shape[1]
        positions = np.arange(first, first + count + 1, dtype=np.int64)
        borders = np.zeros((starts.size, count + 1), dtype=np.int64)
        np.cumsum(sections, axis=1, out=borders[:, 1:])
        borders += before[:, None]
        nominal = -(-positions * length // nodes)
        low = np.maximum(borders[:, :-1], nominal[:-1])
        size = np.minimum(borders[:, 1:], nominal[1:]) - low
        keys = mix_array(mix(self.key, _TAG_SECTIONS), starts[:, None] * nodes + positions[:-1]).reshape(-1)
        node = entries * nodes // length - first
        section: Ids = (np.arange(starts.size, dtype=np.int64)[:, None] * count + node).reshape(-1)
        inside = np.tile(entries, starts.size)
        inside -= low.reshape(-1).take(section)
        sizes = size.reshape(-1).take(section)
        moving = np.flatnonzero((inside >= 0) & (inside < sizes))
        section = section[moving]
        inside[moving] = permute(inside[moving], sizes[moving], keys.take(section))
        moved: Ids = inside.reshape(starts.size, -1) + low[:, node]
        return moved


def _rising(codes: Ids, streams: Ids, nodes: int) -> Ids:
    """The codes of a batch, those of some streams rising among the places that each node's samples of them have."""
    found = codes.copy()
    number = codes & ((1 << NUMBER_BITS) - 1)
    for stream in streams.tolist():
        places = np.flatnonzero(codes >> NUMBER_BITS == stream)
        by_node = places[np.argsort(number[places] % nodes, kind="stable")]
        found[by_node] = codes[places][np.lexsort((codes[places], number[places] % nodes))]
    return found


def _of_nodes(low: Ids, high: Ids, node: Ids, nodes: int) -> Ids:
    """Number of the numbers in ``[low, high)`` that are of each of some canonical nodes.

    Args:
        low: shape ``(batches, streams)``.
        high: likewise.
        node: shape ``(k,)``, in ``[0, nodes)``.

    Returns:
        int64 of shape ``(batches, k, streams)``.
    """
    turns, extra = np.divmod(high - low, nodes)
    after = node[:, None] - (low % nodes)[:, None, :]
    after += nodes * (after < 0)
    counts: Ids = turns[:, None, :] + (after < extra[:, None, :])
    return counts


def _below(numbers: Ids, node: int, nodes: int) -> Ids:
    """Number of the first ``numbers`` that are of the first ``node`` canonical nodes."""
    turns, rest = np.divmod(numbers, nodes)
    below: Ids = turns * node + np.minimum(rest, node)
    return below


def _pick(low: Ids, counts: Ids, before: Ids, entries: Ids, length: int, filler: Ids, node: Ids, nodes: int) -> Ids:
    """Codes of entries: a section is half of the filler, then the other streams, then the other half."""
    batches, sections, streams = counts.shape
    batch: Ids = np.arange(batches, dtype=np.int64)
    filling = counts[batch, :, filler]
    head = filling // 2
    lengths = np.zeros((batches, sections, streams + 2), dtype=np.int64)
    lengths[:, :, 1:-1] = counts
    lengths[batch, :, filler + 1] = 0
    lengths[:, :, 0] = head
    lengths[:, :, -1] = filling - head
    # One search for all batches: each is shifted into a range of its own.
    shift = batch[:, None] * (length + 1)
    ends = lengths.reshape(batches, -1).cumsum(axis=1) + before.reshape(-1, 1) + shift
    entry = entries + shift
    run = np.searchsorted(ends.reshape(-1), entry.reshape(-1), side="right").reshape(entry.shape)
    number = entry - (ends.reshape(-1) - lengths.reshape(-1))[run]
    section, column = np.divmod(run - batch[:, None] * (sections * (streams + 2)), streams + 2)
    number += np.where(column == streams + 1, head[batch[:, None], section], 0)
    stream = np.where((column == 0) | (column == streams + 1), filler[:, None], column - 1)
    start = low[batch[:, None], stream]
    number = start + (node[section] - start) % nodes + number * nodes
    codes: Ids = (stream << NUMBER_BITS) | number
    return codes
