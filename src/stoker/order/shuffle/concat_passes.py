"""Passes of many streams as one table: samples of a thousand streams are located in one call instead of a thousand.

The offsets of all passes lie one after the other in one sequence of *addresses*. What a pass looks up by an offset is here
looked up by an address in the tables of all passes, so the samples are those that :meth:`ShufflePass.locate` finds.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stoker.order.shuffle.blocks import BlockPass
from stoker.order.shuffle.shuffle_pass import PassTables
from stoker.types import Array, Ids

_FEWEST: Final = 256


class ConcatPasses:
    """Passes of streams with the same shuffle, by numbers from 0 on. Each costs about 16 bytes a shard and 28 a block."""

    def __init__(self) -> None:
        # By pass: canonical nodes, number of the first one's span, and bits of the blocks' tables.
        self._nodes, self._first_span, self._bits = (_Growing(np.int64) for _ in range(3))
        self._spans = _Growing(np.int64)
        self._shard_starts, self._shards = _Growing(np.int64), _Growing(np.int64)
        self._block_starts, self._block_sizes, self._keys = (
            _Growing(np.int64),
            _Growing(np.int64),
            _Growing(np.uint32),
        )
        self._total = 0

    def add(self, tables: PassTables, first_shards: Ids) -> int:
        """Add passes.

        Args:
            tables: the passes. All that are added have blocks, or none has.
            first_shards: what is added to the numbers of the shards of each pass; shape ``(passes,)``.

        Returns:
            The number of the first of them; the others follow.
        """
        first, count, spans = self._nodes.count, len(tables.shards), tables.spans.size
        bases = (self._total + tables.total * np.arange(count))[:, None]
        self._total += tables.total * count
        self._first_span.extend(self._spans.count + spans * np.arange(count))
        self._nodes.extend(np.full(count, spans))
        self._spans.extend(tables.spans + bases)
        self._shard_starts.extend(tables.shard_starts + bases)
        self._shards.extend(tables.shards + first_shards[:, None])
        blocks = tables.blocks
        if blocks is not None:
            self._bits.extend(np.full(count, blocks.bits))
            self._block_starts.extend(blocks.starts + bases)
            self._block_sizes.extend(np.tile(blocks.sizes, count))
            self._keys.extend(blocks.keys)
        return first

    def locate(self, passes: Ids, numbers: Ids) -> tuple[Ids, Ids]:
        """Shard and row of samples.

        Args:
            passes: number of the pass of each, shape ``(k,)``.
            numbers: number of each in its pass, shape ``(k,)``.

        Returns:
            Two int64 arrays of shape ``(k,)``.
        """
        nodes = self._nodes.values[passes]
        inside = numbers // nodes
        span = numbers - inside * nodes + self._first_span.values[passes]
        addresses: Ids = self._spans.values[span] + inside
        if self._keys.count:
            block = np.searchsorted(self._block_starts.values, addresses, side="right") - 1
            starts = self._block_starts.values[block]
            x = (addresses - starts).astype(np.uint32)
            BlockPass.move(x, self._keys.values[block], self._block_sizes.values[block], self._bits.values[passes])
            addresses = starts + x.astype(np.int64)
        shard = np.searchsorted(self._shard_starts.values, addresses, side="right") - 1
        return self._shards.values[shard], addresses - self._shard_starts.values[shard]


class _Growing:
    """An array to which values are appended, in a time that is proportional to their number."""

    __slots__ = ("_held", "count")

    def __init__(self, dtype: Any) -> None:
        self._held: Array = np.empty(_FEWEST, dtype=dtype)
        self.count = 0

    @property
    def values(self) -> Array:
        return self._held[: self.count]

    def extend(self, values: Array) -> None:
        end = self.count + values.size
        if end > self._held.size:
            larger = np.empty(2 * end, dtype=self._held.dtype)
            larger[: self.count] = self.values
            self._held = larger
        self._held[self.count : end] = values.reshape(-1)
        self.count = end
