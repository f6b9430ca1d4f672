"""The order of one epoch: position to sample, computed where it is asked for.

``position -> sample`` depends on the shards' sizes, the seed, the epoch and the :class:`OrderSettings`; never on how
many nodes, ranks or workers read. Nothing is stored per sample: the start of an epoch costs O(shards) and a resume at
any position costs nothing more.

How the ``block`` shuffle works, for N samples, C canonical nodes and blocks of K samples:

1. The shards are put into a random order (sorted by a keyed hash). Laid end to end they make a line ``[0, N)``.
2. Position p belongs to canonical node ``c = p % C`` and is its sample number ``j = p // C``. The node owns a
   contiguous span of the line, of length ``ceil((N - c) / C)``, so each shard is needed by one canonical node (by two
   where a span's border cuts it).
3. The span is cut into blocks of K. The first block of node c has ``K * (c + 1) // C`` samples, so that the nodes cross
   into new shards at different times and downloads spread evenly.
4. Inside its block a sample is moved by a keyed bijection.

So at any moment about ``C * (K / samples a shard + 1)`` shards are in use, and a sample is mixed with those of all of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from stoker.errors import ConfigError
from stoker.order.bijection import mix, mix_array, permute
from stoker.order.shards import ShardTable
from stoker.types import Ids

__all__ = ["EpochOrder", "OrderSettings", "ShuffleName"]

ShuffleName = Literal["none", "block"]

# Tags keep the keys of different uses apart even where their other inputs agree.
_TAG_SHARDS = 1
_TAG_BLOCKS = 2

_DEFAULT_CANONICAL_NODES = 8
_SHARDS_PER_CANONICAL_NODE = 8
_SHARDS_PER_BLOCK = 2


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """Everything beside the shards and the epoch number that the order depends on.

    Attributes:
        shuffle: ``"none"`` (id order) or ``"block"``.
        seed: any integer.
        num_canonical_nodes: C, how many spans are interleaved; independent of the real number of nodes. A shard is
            read by one node only if the number of nodes divides it.
        block_size: K, samples in a shuffle block; ignored where ``shuffle`` is ``"none"``.
        epoch_size: positions in an epoch. Fewer than the samples: the epoch's order is cut short. More: the samples
            are gone through again, each pass in an order of its own.
    """

    shuffle: ShuffleName
    seed: int
    num_canonical_nodes: int
    block_size: int
    epoch_size: int

    def __post_init__(self) -> None:
        if self.shuffle not in get_args(ShuffleName):
            raise ConfigError(
                f"shuffle algorithm {self.shuffle!r} is unknown; known: {', '.join(get_args(ShuffleName))}"
            )
        for name, least in (("num_canonical_nodes", 1), ("block_size", 1), ("epoch_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @classmethod
    def resolve(
        cls,
        table: ShardTable,
        *,
        shuffle: ShuffleName,
        seed: int,
        num_canonical_nodes: int | None = None,
        block_size: int | None = None,
        epoch_size: int | None = None,
    ) -> OrderSettings:
        """Fill in defaults, from the dataset alone (never from the world, which may change at a resume).

        Without shuffling there is one canonical node, so that samples come in id order. With it there are up to 8,
        fewer for small datasets; a block holds the samples of two average shards, rounded up to a power of two.
        """
        shards = max(len(table), 1)
        if num_canonical_nodes is None:
            num_canonical_nodes = 1
            if shuffle != "none":
                num_canonical_nodes = min(_DEFAULT_CANONICAL_NODES, max(1, shards // _SHARDS_PER_CANONICAL_NODE))
        if block_size is None:
            block_size = 1 << max(0, (_SHARDS_PER_BLOCK * table.total // shards - 1).bit_length())
        if epoch_size is None:
            epoch_size = table.total
        return cls(shuffle, seed, num_canonical_nodes, block_size, epoch_size)

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, JSON-serialisable."""
        return {name: getattr(self, name) for name in self.__slots__}


class EpochOrder:
    """The order of one epoch.

    Args:
        table: the shards' sizes.
        settings: see :class:`OrderSettings`.
        epoch: the epoch's number, from 0.
    """

    def __init__(self, table: ShardTable, settings: OrderSettings, epoch: int) -> None:
        if settings.epoch_size and not table.total:
            raise ConfigError(f"an epoch of {settings.epoch_size} samples was asked of a dataset that has none")
        self.table = table
        self.settings = settings
        self.epoch = epoch
        # A pass is one time through all samples; only the one or two that a read touches are kept.
        self._pass = lru_cache(maxsize=2)(self._make_pass)

    def __len__(self) -> int:
        return self.settings.epoch_size

    def ids(self, positions: Ids) -> Ids:
        """Sample id at each position; int64 of the shape of ``positions``, which lie in ``[0, epoch_size)``."""
        shards, rows = self.locate(positions)
        return self.table.starts[shards] + rows

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Shard number and row in the shard at each position; two int64 arrays of the shape of ``positions``."""
        total = self.table.total
        if positions.size == 0:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty
        first = int(positions.min()) // total
        last = int(positions.max()) // total
        if first == last:
            return self._pass(first).locate(positions - first * total if first else positions)
        shards = np.empty_like(positions)
        rows = np.empty_like(positions)
        number = positions // total
        for k in range(first, last + 1):
            here = np.flatnonzero(number == k)
            shards[here], rows[here] = self._pass(k).locate(positions[here] - k * total)
        return shards, rows

    def _make_pass(self, number: int) -> _Pass:
        return _Pass(self.table, self.settings, mix(self.settings.seed, self.epoch, number))


class _Pass:
    """One time through all samples in one order."""

    def __init__(self, table: ShardTable, settings: OrderSettings, key: int) -> None:
        self._table = table
        self._nodes = settings.num_canonical_nodes
        self._block = settings.block_size
        self._shuffled = settings.shuffle != "none"
        self._key = mix(key, _TAG_BLOCKS)
        if self._shuffled:
            hashes = mix_array(mix(key, _TAG_SHARDS), np.arange(len(table)))
            self._shards: Ids | None = np.argsort(hashes, kind="stable")
            starts = np.zeros(len(table) + 1, dtype=np.int64)
            np.cumsum(table.sizes[self._shards], out=starts[1:])
            self._line = ShardTable.__new__(ShardTable)
            self._line.sizes, self._line.starts, self._line.total = table.sizes, starts, table.total
        else:
            self._shards = None
            self._line = table
        # Canonical node c owns ceil((total - c) / C) samples of the line, starting where node c - 1 ends.
        nodes = np.arange(self._nodes, dtype=np.int64)
        self._lengths = (table.total - nodes + self._nodes - 1) // self._nodes
        self._starts = np.cumsum(self._lengths) - self._lengths

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        if self._nodes == 1:
            node = np.zeros(1, dtype=np.int64)
            number = positions
        else:
            number, node = np.divmod(positions, self._nodes)
        if self._shuffled:
            number = self._shuffle(number, node)
        places = number + self._starts[node]
        slots, rows = self._line.locate(places)
        return (slots if self._shards is None else self._shards[slots]), rows

    def _shuffle(self, number: Ids, node: Ids) -> Ids:
        """Move each sample of canonical node ``node`` inside its block."""
        size = self._block
        first = size * (node + 1) // self._nodes
        first += first == 0  # a first block of nothing would shift the numbering
        block, inside = np.divmod(number + (size - first), size)
        start = np.maximum(block * size - (size - first), 0)
        end = np.minimum((block + 1) * size - (size - first), self._lengths[node])
        inside = number - start
        length = end - start
        keys = mix_array(self._key, block * self._nodes + node)
        if length.size and int(length.min()) == int(length.max()):
            return start + permute(inside, int(length[0]), keys)
        return start + permute(inside, length, keys)
