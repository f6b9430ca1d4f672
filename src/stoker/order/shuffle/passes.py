"""One pass of a shuffle: the order in which all samples of a stream come once.

A new shuffle is a subclass of :class:`ShufflePass`, and an entry in
:data:`stoker.order.shuffle.shuffle.SHUFFLES`; arguments, command line, checks and states know it by its name there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from stoker.integers import U32, mix, mix_arrays
from stoker.lazy import cached_property
from stoker.order.shuffle.bijection import Domain, split_keys, word_of
from stoker.order.shuffle.shard_table import IntervalLookup
from stoker.types import Array, Ids


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
    """Passes as tables, which can be concatenated with those of other streams: see
    :class:`~stoker.order.mixture.stream_locator.ConcatPasses`.

    They are passes of streams whose shards begin at the same offsets, each with an order of shards and a key of its own.

    Attributes:
        spans: first offset of each canonical node; int64, shape ``(nodes,)``.
        shards: the shards' numbers in their order in each pass; int64, shape ``(passes, shards)``.
        shard_starts: first offset of each of them; int64, shape ``(shards,)``.
        blocks: ``None``: samples stay at their offsets.
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

        ``shards``: numbers of the shards of each in their order; int64, shape ``(passes, shards)``. ``keys``: of each pass.
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


_TAG_BLOCKS: Final = 2

# Blocks smaller than this part of K are merged with a neighbour, so that one domain width suits all blocks.
_LEAST_PART: Final = 8
# There are at most so many blocks a shard, or so many at all. A block smaller than its shard saves no space in a cache.
_MOST_BLOCKS_PER_SHARD: Final = 4
_MOST_BLOCKS: Final = 1 << 16
# Rounds of a block's bijection. A fifth makes no difference in the measures of shuffle quality.
_ROUNDS: Final = 4
_KEY_FACTOR: Final = 0x9FB21C651E98DF24


def cut_blocks(shard_starts: Ids, span_starts: Ids, size: int) -> Ids:
    """Divide the concatenated shards into blocks: where each begins, and last the total.

    A block ends at the shard border that comes nearest to ``size`` samples from its beginning. The first block of span c of
    C aims at ``size * (c + 1) / C``, so that spans cross into new shards at different times and downloads spread evenly.
    What is still more than half a block too long, as a shard is, is cut evenly; what is less than an eighth of a block goes
    with a neighbour.

    ``shard_starts``: where shards begin, and last the total; rising, int64. ``span_starts``: where canonical nodes' spans
    begin, and last the total; shape ``(C + 1,)``. ``size``: samples in a block. Gives int64, strictly rising from 0 to the
    total. Blocks have up to about five thirds of ``size`` samples. Time O(shards), with a step in Python a block, where
    shards differ in size.
    """
    total, spans = int(shard_starts[-1]), span_starts.size - 1
    if spans == 1 and size >= total:
        return span_starts
    size = min(size, int((span_starts[1:] - span_starts[:-1]).max()))
    size = max(size, -(-total // max(_MOST_BLOCKS, _MOST_BLOCKS_PER_SHARD * (shard_starts.size - 1))))
    begins = span_starts[:-1]
    first = _nearest(shard_starts, begins + size * np.arange(1, spans + 1) // spans).tolist()
    next_border, step, alike = _next_borders(shard_starts, size)
    last = shard_starts.size - 1
    # The first border of each span is the next border that is not before it, and of the next span.
    borders = np.searchsorted(shard_starts, span_starts, side="right").tolist()
    taken, stepped = array("q"), []
    for border, low, high in zip(first, borders[:-1], borders[1:], strict=True):
        at = max(border, low)
        if at < min(high, alike):
            stepped.append(np.arange(at, min(high, alike), step))
            at = min(int(stepped[-1][-1]) + step, last)
        while at < high:
            taken.append(at)
            at = next_border[at] if at < last else high
    cuts = np.concatenate([begins, shard_starts[np.concatenate([*stepped, np.frombuffer(taken, np.int64)])]])
    cuts.sort()
    new = cuts[1:] > cuts[:-1]
    cuts = _split(np.concatenate([cuts[:1], cuts[1:][new], [total]]), size)
    close = cuts[1:] - cuts[:-1] < -(-size // _LEAST_PART)
    if not close.any():
        return cuts
    fixed = np.zeros(cuts.size, dtype=bool)
    fixed[np.searchsorted(cuts, span_starts)] = True
    # Of two cuts that are close, the second is dropped unless a span begins there.
    drop = np.zeros(cuts.size, dtype=bool)
    drop[1:] |= close & ~fixed[1:]
    drop[:-1] |= close & fixed[1:] & ~fixed[:-1]
    return cuts[~drop]


def _next_borders(shard_starts: Ids, size: int) -> tuple[memoryview, int, int]:
    """The borders that blocks which begin at each border would end at.

    Gives their numbers; how many borders further it is from the first ones, which are before shards of one size; and how many
    these are. Of the last border, and where all shards are of one size, there are no numbers: none is further than it.
    """
    lengths = shard_starts[1:] - shard_starts[:-1]
    if bool((lengths == lengths[0]).all()):
        step = max(1, int(_nearest(shard_starts, np.array([size]))[0]))
        return memoryview(b""), step, lengths.size
    shards = np.arange(1, shard_starts.size)
    after = np.maximum(_nearest(shard_starts, shard_starts[:-1] + size), shards)
    step = int(after[0])
    others = np.flatnonzero(after != shards + (step - 1))
    # As memory of its own, of which a list takes five times as much.
    return after.data, step, int(others[0]) if others.size else after.size


def _nearest(borders: Ids, offsets: Ids) -> Ids:
    """Number of the border that is nearest to each offset."""
    above = np.minimum(np.searchsorted(borders, offsets), borders.size - 1)
    below = np.maximum(above - 1, 0)
    return np.where(borders[above] - offsets <= offsets - borders[below], above, below)


def _split(cuts: Ids, size: int) -> Ids:
    """More cuts, evenly, where there would be more than one and a half times ``size`` samples between two."""
    lengths = cuts[1:] - cuts[:-1]
    parts = np.maximum((lengths + (size - 1) // 2) // size, 1)
    if int(parts.max()) == 1:
        return cuts
    number = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    inside = np.repeat(cuts[:-1], parts) + np.repeat(lengths, parts) * number // np.repeat(parts, parts)
    return np.append(inside, cuts[-1])


class BlockPass(ShardOrderPass):
    """``block``: shards in a random order; inside its block each sample is moved by a bijection of the block's own.

    Blocks end where shards end, if possible. A shard in two blocks would be held for both, so a block of the same size would
    need one shard more.
    """

    uses_block_size = True

    def _prepare(self) -> None:
        super()._prepare()
        self._cuts = cut_blocks(self._bounds.starts, np.append(self._starts, self.total), self._block_size)
        self._block_sizes = self._cuts[1:] - self._cuts[:-1]
        # A width that suits blocks from an eighth to twice the usual size.
        usual = self.total // self._block_sizes.size
        self._bits = max(1, (usual.bit_length() >> 1) - 1)
        self._word: Any = word_of(int(self._block_sizes.max()) >> self._bits, self._bits)
        self._key_factor = np.asarray(_KEY_FACTOR & np.iinfo(self._word).max, dtype=self._word)

    def _block_keys(self, keys: Sequence[int]) -> Array:
        """Of each block of passes with these keys: one word of key. The other is a multiple of it, which costs less."""
        hashes = mix_arrays([mix(key, _TAG_BLOCKS) for key in keys], np.arange(self._block_sizes.size))
        return split_keys(hashes, self._word)[0]  # type: ignore[no-any-return]

    @cached_property
    def _parts(self) -> tuple[IntervalLookup, Array, Domain]:
        """The lookup of an offset's block, the blocks' keys, and the bijections inside them.

        Passes that are concatenated with those of other streams need none of it.
        """
        domains = Domain(self._block_sizes, bits=self._bits, rounds=_ROUNDS, taken=True)
        return IntervalLookup(self._block_sizes, self._cuts), self._block_keys([self._key])[0], domains

    def offsets(self, numbers: Ids) -> Ids:
        offsets, (lookup, block_keys, domains) = super().offsets(numbers), self._parts
        blocks = lookup.find(offsets)
        starts = lookup.starts.take(blocks, mode="wrap")
        x = (offsets - starts).astype(self._word)
        keys = block_keys.take(blocks, mode="wrap")
        domains.move(x, keys, keys * self._key_factor, domains.take(blocks))
        starts += x
        return starts

    def tables(self, shards: Ids, keys: Sequence[int]) -> PassTables | None:
        """``None`` where domains are too large for words of 32 bits."""
        if self._word is not np.uint32:
            return None
        blocks = PassBlocks(self._cuts[:-1], self._block_sizes, self._block_keys(keys), self._bits)
        return PassTables(self._starts, shards, self._bounds.starts[:-1], blocks, self.total)

    @staticmethod
    def move(x: U32, keys: U32, sizes: Ids, bits: Ids) -> None:
        """Move ``x[i]`` inside a block of ``sizes[i]`` samples, in place, as :meth:`offsets` does.

        ``x``: offset in its block of each sample, shape ``(k,)``. ``keys``: the block's key, shape ``(k,)``. ``sizes``: the
        block's samples, shape ``(k,)``. ``bits``: logarithm of the columns of its table, shape ``(k,)``.
        """
        factor = np.uint32(_KEY_FACTOR & np.iinfo(np.uint32).max)
        Domain(sizes, bits=bits, rounds=_ROUNDS).move(x, keys, keys * factor)

    @classmethod
    def shards_per_node(cls, shards: int, samples: int, block_size: int) -> int:
        """The shards of a block."""
        return block_size * shards // max(1, samples) + 1
