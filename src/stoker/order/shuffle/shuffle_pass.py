"""One pass of a shuffle: the order in which all samples of a stream come once.

A new shuffle is a subclass of :class:`ShufflePass` in a module of its own, and an entry in
:data:`stoker.order.shuffle.shuffle.SHUFFLES`; arguments, command line, checks and states know it by its name there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stoker.integers import U32
from stoker.order.shuffle.interval_lookup import IntervalLookup
from stoker.types import Ids


@dataclass(frozen=True, slots=True)
class PassBlocks:
    """The blocks of passes in which samples are moved by a bijection each.

    Attributes:
        starts: first offset of each block; int64, shape ``(blocks,)``.
        sizes: samples in each block; int64, shape ``(blocks,)``.
        keys: first word of each block's key in each pass; shape ``(passes, blocks)``.
        bits: logarithm of the columns of the bijections' tables.
    """

    starts: Ids
    sizes: Ids
    keys: U32
    bits: int


@dataclass(frozen=True, slots=True)
class PassTables:
    """Passes as tables, which can be concatenated with those of other streams: see :mod:`.concat_passes`.

    They are passes of streams whose shards begin at the same offsets, each with an order of shards and a key of its own.

    Attributes:
        spans: first offset of each canonical node; int64, shape ``(nodes,)``.
        shards: the shards' numbers in their order in each pass; int64, shape ``(passes, shards)``.
        shard_starts: first offset of each of them; int64, shape ``(shards,)``.
        blocks: ``None``: samples stay at their offsets.
        total: number of samples of a pass.
    """

    spans: Ids
    shards: Ids
    shard_starts: Ids
    blocks: PassBlocks | None
    total: int


class ShufflePass(ABC):
    """One pass over all samples of a stream, whose shards it concatenates in some order. An *offset* counts samples there.

    Args:
        shards: the shards' numbers, in the order in which they are concatenated; int64.
        bounds: finds the shard of an offset.
        num_canonical_nodes: C, how many spans of the concatenation are interleaved.
        block_size: K, about how many samples a block has.
        key: any integer, another one for each pass.
    """

    moves_shards: ClassVar[bool]
    """Whether each pass has the shards in a random order of its own, so that canonical nodes make sense; else in id order."""
    uses_block_size: ClassVar[bool] = False
    """Whether the order depends on ``block_size``, so that a state must name it."""

    def __init__(
        self, shards: Ids, bounds: IntervalLookup, num_canonical_nodes: int, block_size: int, key: int
    ) -> None:
        self._shards = shards
        self._bounds = bounds
        self._num_canonical_nodes = num_canonical_nodes
        self._block_size = block_size
        self._key = key
        self.total = int(bounds.starts[-1])
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Compute what :meth:`offsets` needs: O(shards)."""

    @abstractmethod
    def offsets(self, numbers: Ids) -> Ids:
        """Offset in the concatenated shards of each number in ``[0, total)``: a permutation; int64 of the same shape."""

    @classmethod
    def shards_per_node(cls, shards: int, samples: int, block_size: int) -> int:  # noqa: ARG003
        """About how many of a stream's shards a canonical node reads at once."""
        return 1

    def tables(self, shards: Ids, keys: Sequence[int]) -> PassTables | None:  # noqa: ARG002
        """Passes that differ from this one in nothing but shards and key, as tables. ``None``: they can not be written so.

        Args:
            shards: numbers of the shards of each in their order; int64, shape ``(passes, shards)``.
            keys: of each pass.
        """
        return None

    def locate(self, numbers: Ids, shards: Ids, rows: Ids) -> None:
        """Write shard and row of each number into the last two arguments."""
        offsets = self.offsets(numbers)
        found = self._bounds.find(offsets)
        self._shards.take(found, out=shards, mode="wrap")
        self._bounds.starts.take(found, out=rows, mode="wrap")
        np.subtract(offsets, rows, out=rows)


class StoredOrderPass(ShufflePass):
    """``none``: id order. Canonical node c of C reads the c-th span of the concatenation, side by side with the others."""

    moves_shards = False

    def _prepare(self) -> None:
        num_canonical_nodes = self._num_canonical_nodes
        self._nodes = np.asarray(num_canonical_nodes, dtype=np.int64)
        self._nodes_mask = np.asarray(num_canonical_nodes - 1, dtype=np.int64)
        # The logarithm of a power of two. No dimensions, which is faster than a scalar.
        power = num_canonical_nodes & (num_canonical_nodes - 1) == 0
        self._nodes_shift = np.asarray(num_canonical_nodes.bit_length() - 1, dtype=np.int64) if power else None
        nodes = np.arange(num_canonical_nodes, dtype=np.int64)
        lengths = (self.total - nodes + self._nodes - 1) // self._nodes
        self._starts = np.cumsum(lengths) - lengths

    def offsets(self, numbers: Ids) -> Ids:
        if self._nodes == 1:
            return numbers
        if self._nodes_shift is not None:
            inside, node = numbers >> self._nodes_shift, numbers & self._nodes_mask
        else:
            inside = numbers // self._nodes
            node = numbers - inside * self._nodes
        inside += self._starts.take(node, mode="wrap")
        return inside

    def tables(self, shards: Ids, keys: Sequence[int]) -> PassTables | None:  # noqa: ARG002 - rows stay in id order
        return PassTables(self._starts, shards, self._bounds.starts[:-1], None, self.total)


class ShardOrderPass(StoredOrderPass):
    """``shard``: shards in a random order, their rows in id order."""

    moves_shards = True
