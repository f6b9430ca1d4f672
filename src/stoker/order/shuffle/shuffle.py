"""A shuffled stream: the endless sequence of its samples, number to shard and row, computed where it is asked for.

Pass k is the numbers ``[k * total, (k + 1) * total)``. It goes once through all samples, in an order of its own, so that no
sample comes twice before all came once. The sample of a number depends on the shards' sizes, the settings and the key alone;
nothing is stored per sample. A pass costs O(shards) to begin, for the global shuffle nothing.

Within a pass of N samples, with C canonical nodes:

=========  ===========================================================================================================
none       id order
shard      shards in a random order, rows in order
block      shards in a random order, then samples moved inside blocks of about K samples
global     one keyed bijection over all samples; canonical nodes have no part in it
=========  ===========================================================================================================

How all but ``global`` work:

1. The shards are put into a random order (sorted by a keyed hash; not for ``none``). Concatenated, they are a sequence
   ``[0, N)``.
2. Number p belongs to canonical node ``c = p % C`` and is its sample ``j = p // C``. The node owns a contiguous span of the
   sequence, of length ``ceil((N - c) / C)``, so each shard is needed by one canonical node (by two where a span's border cuts
   it).
3. For ``block`` the span is cut into blocks of about K samples, which end where a shard ends
   (:func:`.passes.cut_blocks`). The first block of node c has about ``K * (c + 1) / C`` samples, so that the nodes cross
   into new shards at different times and downloads spread evenly.
4. Inside its block a sample is moved by a keyed bijection (:mod:`.bijection`).

So with ``block`` about ``C * K / samples a shard`` shards are in use at any moment, and those at the borders between spans,
of which there are up to ``C - 1``. A sample is mixed with all of its node's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError
from stoker.integers import mix, mix_arrays
from stoker.order.selection import Selection
from stoker.order.shuffle.bijection import Domain, split_keys
from stoker.order.shuffle.passes import BlockPass, PassTables, ShardOrderPass, ShufflePass, StoredOrderPass
from stoker.order.shuffle.shard_table import IntervalLookup, ShardTable
from stoker.types import Ids

_TAG_GLOBAL: Final = 3


class GlobalPass(ShufflePass):
    """Every sample can come at every position. Canonical nodes have no effect, and every node reads every shard."""

    moves_shards = False

    def _prepare(self) -> None:
        self._domain = Domain(np.int64(self.total))
        self._keys = split_keys(np.uint64(mix(self._key, _TAG_GLOBAL)), self._domain.word)

    def offsets(self, numbers: Ids) -> Ids:
        x = numbers.astype(self._domain.word)
        self._domain.move(x, *self._keys)
        return x.astype(np.int64)

    @classmethod
    def shards_per_node(cls, shards: int, samples: int, block_size: int) -> int:  # noqa: ARG003
        """All of them."""
        return shards


SHUFFLES: Final[dict[str, type[ShufflePass]]] = {
    "none": StoredOrderPass,
    "block": BlockPass,
    "shard": ShardOrderPass,
    "global": GlobalPass,
}
"""The shuffles by name. A new one is added here."""

_TAG_SHARDS: Final = 1
_DEFAULT_CANONICAL_NODES: Final = 8
_SHARDS_PER_CANONICAL_NODE: Final = 8
_SHARDS_PER_BLOCK: Final = 2

# So many numbers are located at a time that all arrays on the way stay in the processor's cache.
_CHUNK: Final = 1 << 13
# Streams of so many shards are large: many samples are located of each in one call.
_MOST_CONCATENATED: Final = 1 << 12
# Of larger streams one pass is kept: it takes some 50 bytes a shard.
_MOST_KEPT: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class ShuffleSettings:
    """Settings that the order of a pass depends on, with the shards and the key.

    Attributes:
        shuffle: a name in :data:`SHUFFLES`.
        num_canonical_nodes: C, how many spans are interleaved; independent of the real number of nodes. A shard is
            read by one node only if the number of nodes divides it. ``"global"`` ignores it.
        block_size: K, about how many samples a shuffle block has; only ``"block"`` looks at it. A block of less than a
            quarter of the average shard would save nothing: it is enlarged, unless there are few blocks.
    """

    shuffle: str
    num_canonical_nodes: int
    block_size: int

    @classmethod
    def resolve(
        cls,
        sizes: Ids,
        *,
        shuffle: str,
        num_canonical_nodes: int | None = None,
        block_size: int | None = None,
    ) -> ShuffleSettings:
        """Fill in defaults, from the samples of its shards alone (never from the world, which may change at a resume).

        ``"none"`` has one canonical node, so that samples come in id order, and so has ``"global"``. The others have up
        to 8, fewer for small datasets. A block holds the samples of two average shards, rounded up to a power of two.
        """
        shards = max(sizes.size, 1)
        if num_canonical_nodes is None:
            num_canonical_nodes = 1
            if SHUFFLES[shuffle].moves_shards:
                num_canonical_nodes = min(_DEFAULT_CANONICAL_NODES, max(1, shards // _SHARDS_PER_CANONICAL_NODE))
        if block_size is None:
            block_size = 1 << max(0, (_SHARDS_PER_BLOCK * int(sizes.sum()) // shards - 1).bit_length())
        return cls(shuffle, num_canonical_nodes, block_size)


class ShuffledStream:
    """An endless sequence of samples; see the module.

    ``table``: the shards' sizes. ``settings``: see :class:`ShuffleSettings`. ``key``: any integer; streams with other keys
    have other orders. ``selection``: which rows of each shard belong; ``None`` for all.

    ``total``: samples in a pass.
    """

    def __init__(
        self, table: ShardTable, settings: ShuffleSettings, key: int, selection: Selection | None = None
    ) -> None:
        self._settings = settings
        self._key = key
        self._selection = selection
        self._sizes = table.sizes if selection is None else selection.sizes
        self._filled = int(np.count_nonzero(self._sizes))
        self.total = int(self._sizes.sum())
        self._alike = self.total == int(self._sizes.max(initial=0)) * self._filled
        self._fixed: IntervalLookup | None = None
        # A chunk touches one pass or two; small streams go through many. Those of large ones take much memory.
        self._pass = lru_cache(maxsize=1 if self._filled > _MOST_KEPT else 2)(self._make_pass)

    def locate(self, numbers: Ids) -> tuple[Ids, Ids]:
        """Shard number and row of each number; int64, shape ``(k,)`` as ``numbers``, which are 0 or more.

        ConfigError if numbers were requested of a stream that has no samples.
        """
        shards = np.empty(numbers.shape, dtype=np.int64)
        rows = np.empty(numbers.shape, dtype=np.int64)
        if not numbers.size:
            return shards, rows
        if not self.total:
            raise ConfigError(
                "samples were asked of a stream that has none: its shards are empty, or no sample is chosen"
            )
        for start in range(0, numbers.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            self._locate_chunk(numbers[chunk], shards[chunk], rows[chunk])
        return shards, rows

    @staticmethod
    def tables(
        streams: Sequence[ShuffledStream], numbers: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], PassTables | None]]:
        """Passes of streams as tables, those of streams whose shards have the same sizes together.

        ``streams``: of each pass. ``numbers``: of each pass in its stream. Yields which of the passes, in order, and their
        tables. ``None``: they are located alone.
        """
        groups: dict[Any, list[int]] = {}
        for at, (stream, number) in enumerate(zip(streams, numbers, strict=True)):
            groups.setdefault(stream._form(number), []).append(at)
        for which in groups.values():
            first = streams[which[0]]
            if first._selection is not None or not 0 < first._filled <= _MOST_CONCATENATED:
                yield which, None
                continue
            keys = [mix(streams[at]._key, numbers[at]) for at in which]
            made = first._pass(numbers[which[0]])
            yield which, made.tables(first._shards_of(keys), keys)

    def _form(self, number: int) -> Any:
        """A key that passes share which differ in nothing but the order of their shards and their key."""
        settings, moves = self._settings, SHUFFLES[self._settings.shuffle].moves_shards
        if self._selection is not None or (moves and not self._alike):
            return id(self), number
        return settings.shuffle, settings.num_canonical_nodes, settings.block_size, self._sizes.tobytes()

    def _locate_chunk(self, numbers: Ids, shards: Ids, rows: Ids) -> None:
        total = self.total
        # Most numbers of a call lie in one pass; as unsigned integers, those before it are above it too.
        first = int(numbers[0]) // total
        inside = numbers - first * total if first else numbers
        if int(inside.view(np.uint64).max()) < total:
            self._pass(first).locate(inside, shards, rows)
        else:
            passes = numbers // total
            inside = numbers - passes * total
            for k in np.unique(passes).tolist():
                here = np.flatnonzero(passes == k)
                its_shards = np.empty(here.size, dtype=np.int64)
                its_rows = np.empty(here.size, dtype=np.int64)
                self._pass(k).locate(inside[here], its_shards, its_rows)
                shards[here], rows[here] = its_shards, its_rows
        if self._selection is not None:
            rows[...] = self._selection.rows(shards, rows)

    def _in_id_order(self) -> IntervalLookup:
        if self._fixed is None:
            self._fixed = IntervalLookup(self._sizes[self._sizes > 0])
        return self._fixed

    def _make_pass(self, number: int) -> ShufflePass:
        key, settings = mix(self._key, number), self._settings
        kind = SHUFFLES[settings.shuffle]
        shards: Ids = self._shards_of([key])[0]
        # Shards of one size begin at the same offsets in any order.
        fixed = self._alike or not kind.moves_shards
        bounds = self._in_id_order() if fixed else IntervalLookup(self._sizes[shards])
        return kind(shards, bounds, settings.num_canonical_nodes, settings.block_size, key)

    def _shards_of(self, keys: Sequence[int]) -> Ids:
        """Numbers of the shards in their order in the passes with these keys; int64, shape ``(passes, shards)``."""
        shards = np.flatnonzero(self._sizes)
        if not SHUFFLES[self._settings.shuffle].moves_shards:
            return np.tile(shards, (len(keys), 1))
        # The hashes of different shards differ, so the order does not depend on how the sort treats equals.
        orders = np.argsort(mix_arrays([mix(key, _TAG_SHARDS) for key in keys], shards), axis=1)
        found: Ids = orders if shards.size == self._sizes.size else shards[orders]
        return found
