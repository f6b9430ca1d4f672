"""Several streams as one sequence, each spread over it as evenly as can be, in closed form.

The streams are the leaves of a binary tree. A node whose leaves have n elements, a of them on its left side, sends
``floor((x * a + n // 2) / n)`` of its first x elements to the left: a Sturmian sequence, which is never more than half an
element away from its share. The tree is D. Huffman's ("A Method for the Construction of Minimum-Redundancy Codes", Proc. IRE,
1952) for the streams' counts. A sample so passes through the fewest nodes on average, and a side that is itself a node has at
most two thirds of its parent, so that the errors on the way down add up to less than 1.5 elements: any window of the sequence
has of each stream its share, give or take less than 3 (in practice 2).
"""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.types import Array, Ids

_MOST: Final = 1 << 42
# Estimates of quotients are made too small by this much, which is more than floating point gets wrong below _MOST.
_MARGIN: Final = 2.0**-8


class Interleave:
    """A sequence that has ``counts[s]`` elements of each stream s.

    ``counts``: int64, shape ``(streams,)``; zeros are allowed. ``total``: length of the sequence, at most 2**42.
    """

    __slots__ = ("_children", "_left", "_levels", "_size", "counts", "total")

    def __init__(self, counts: NDArray[np.integer]) -> None:
        self.counts: Ids = np.array(counts, dtype=np.int64)
        if int(self.counts.min()) < 0:
            raise ConfigError(f"counts of streams must not be negative, got {self.counts.tolist()}")
        self.total = sum(self.counts.tolist())
        if self.total > _MOST:
            raise ConfigError(f"{self.total} samples are more than can be mixed at once: {_MOST}")
        self._grow()

    def locate(self, index: Ids) -> tuple[Ids, Ids]:
        """Stream of each element, and its number among those of the stream, which rises with ``index``.

        ``index``: int64, shape ``(k,)``, in ``[0, total)``. Gives two int64 arrays of shape ``(k,)``.
        """
        if not self._size.size:
            return np.full(index.size, int(np.argmax(self.counts)), dtype=np.int64), index
        streams: Ids = np.empty(index.size, dtype=np.int64)
        numbers: Ids = np.empty(index.size, dtype=np.int64)
        elements: Ids | None = None  # of the elements that are still on their way down; None: all of them
        child, number = self._descend(index, np.intp(0))
        while True:
            arrived = child < 0
            if arrived.all():
                where: Any = slice(None) if elements is None else elements
                np.invert(child, out=child)
                streams[where], numbers[where] = child, number
                return streams, numbers
            if arrived.any():
                done, left = np.flatnonzero(arrived), np.flatnonzero(~arrived)
                where = done if elements is None else elements[done]
                streams[where], numbers[where] = ~child[done], number[done]
                elements = left if elements is None else elements[left]
                child, number = child[left], number[left]
            child, number = self._descend(number, child)

    def counts_before(self, index: Ids) -> Ids:
        """Elements of each stream among the first ``index[i]`` of the sequence; int64, shape ``(len(index), streams)``.

        ``index`` lies in ``[0, total]``.
        """
        streams = self.counts.size
        nodes = self._size.size
        # Columns: the nodes, then the streams.
        reached: Ids = np.zeros((index.size, nodes + streams), dtype=np.int64)
        reached[:, 0 if nodes else int(np.argmax(self.counts))] = index
        for level in self._levels:
            left, _ = _go_left(reached[:, level], self._left[level], self._size[level])
            right = reached[:, level] - left
            for side, numbers in ((0, left), (1, right)):
                child = self._children[2 * level + side]
                reached[:, np.where(child < 0, nodes + ~child, child)] = numbers
        return reached[:, nodes:]

    def _grow(self) -> None:
        """Make the tree: nodes numbered from the root, children that are streams as their numbers' complements."""
        # Among equal counts the oldest go first, which keeps the tree of equal streams flat.
        heap = [(count, order, ~order) for order, count in enumerate(self.counts.tolist()) if count]
        heapq.heapify(heap)
        made: list[tuple[int, int, int, int]] = []
        while len(heap) > 1:
            count, _, left = heapq.heappop(heap)
            other, _, right = heapq.heappop(heap)
            heapq.heappush(heap, (count + other, self.counts.size + len(made), len(made)))
            made.append((count, count + other, left, right))
        # The root was made last.
        table = np.array(made[::-1], dtype=np.int64).reshape(-1, 4)
        self._left: Ids = np.ascontiguousarray(table[:, 0])
        self._size: Ids = np.ascontiguousarray(table[:, 1])
        children = table[:, 2:]
        self._children: Ids = np.where(children < 0, children, len(made) - 1 - children).reshape(-1)
        self._levels: list[Ids] = []
        level: Ids = np.zeros(min(1, len(made)), dtype=np.int64)
        while level.size:
            self._levels.append(level)
            below = np.concatenate([self._children[2 * level], self._children[2 * level + 1]])
            level = below[below >= 0]

    def _descend(self, index: Ids, node: Any) -> tuple[Ids, Ids]:
        """Child of ``node`` that each element belongs to, and its number in it."""
        size = self._size[node]
        part = self._left[node]
        before, rest = _go_left(index, part, size)
        right = rest < size - part
        child = self._children[2 * node + right]
        return child, np.where(right, index - before, before)


def _go_left(index: Ids, part: Any, size: Any) -> tuple[Ids, Ids]:
    """``floor((index * part + size // 2) / size)`` and what that division leaves over.

    The quotient is estimated in floating point, at most 1 too small, and put right by the remainder, which is exact modulo
    2**64 whatever the products overflow to. So the result does not depend on how a machine rounds.
    """
    half = size >> 1
    estimate: Array = index * (part / size)
    estimate += half / size - _MARGIN
    quotient: Ids = estimate.astype(np.int64)
    rest: Ids = index * part
    rest += half
    rest -= quotient * size
    short = rest >= size
    quotient += short
    rest -= short * size
    return quotient, rest
