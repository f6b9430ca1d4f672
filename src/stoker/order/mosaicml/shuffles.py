"""The samples of an epoch as mosaicml-streaming 0.13.0 chooses and shuffles them, number for number.

Samples are chosen in three steps: weights become how many are *chosen* from each stream (once a run); those are divided among
the stream's shards (each epoch); and for each shard they become sample ids: all of the shard's as often as they fit, then
some of them, drawn at random. The samples so chosen, in shard order, are the epoch's *big* numbering, which shuffles and
partitions speak of; each part of a shard counts as a shard of its own there (a *unit*).

A shuffle maps each position of an epoch to the sample that comes there. These are defined by what they draw from two
``numpy.random.default_rng`` generators, one seeded with ``seed`` (the same in all epochs), one with ``seed + epoch``, and
each draw depends on those before it. So unlike stoker's own orders they can not be evaluated at one position alone: all
samples are shuffled to learn where any one lies, O(N) time and memory.

All but ``naive`` begin alike: the shards are put into an order that is fixed for the run and concatenated; the result is
cut into canonical nodes of equal length, which cuts shards in parts; each node's parts are put into an order of the
epoch. Then:

========  ==============================================================================================================
naive     no parts: one permutation of all samples
py1s      each part is shuffled in itself
py2s      as py1s, but shards are shuffled in themselves before they are cut as well, and a node's draws come together
py1br     each node is shuffled in blocks of 3/4 to 5/4 ``block_size``, the first one shorter by the node's stagger
py1e      each part is shuffled in itself, then each sample is moved by up to half a block, inside its node
========  ==============================================================================================================

Memory for N samples at the peak, the result of 8 N bytes included: 8 N; for ``py2s`` 16 N; for ``py1e`` 8 N and 24 for each
sample of one canonical node. Time: 30 (``py1s``, ``py1br``) to 160 ns a sample (``py1e`` with one canonical node).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.order.mixture.weights import Mixture
from stoker.types import Ids

logger = logging.getLogger(__name__)


def shuffle_ids(
    algo: str,
    shard_sizes: NDArray[np.integer],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Ids:
    """Sample number at each position of an epoch.

    Args:
        algo: ``"naive"``, ``"py1s"``, ``"py2s"``, ``"py1br"`` or ``"py1e"``.
        shard_sizes: samples in each shard, int, shape ``(shards,)``.
        num_canonical_nodes: number of equal parts that are shuffled apart from each other.
        seed: of the run, from 0.
        epoch: number of the epoch, from 0.
        block_size: samples in a block; only ``py1br`` and ``py1e`` look at it.

    Returns:
        int64 of shape ``(sum(shard_sizes),)``, a permutation.

    Raises:
        ConfigError: a block size for which the algorithm has no blocks; or, for ``py1e``, a canonical node without samples.
    """
    sizes = np.ascontiguousarray(shard_sizes, dtype=np.int64)
    # Block sizes are drawn from [low, high): where that is empty the reference stops too.
    least = {"py1br": 2, "py1e": 1}.get(algo, block_size)
    if block_size < least:
        raise ConfigError(f"{algo} needs a shuffle block of at least {least} samples, got {block_size}")
    return MOSAICML_SHUFFLES[algo](sizes, num_canonical_nodes, seed, epoch, block_size)


@dataclass(frozen=True, slots=True)
class _ShardParts:
    """Shards cut at canonical nodes' borders, in the order in which they are concatenated.

    Attributes:
        starts: number of each part's first sample.
        sizes: samples in each part.
        offsets: where each part begins in the concatenation.
        bounds: node c has the parts ``bounds[c]`` to ``bounds[c + 1]``.
    """

    starts: Ids
    sizes: Ids
    offsets: Ids
    bounds: list[int]

    def take(self, order: Ids) -> _ShardParts:
        """The parts in another order that leaves each in its node."""
        sizes = self.sizes[order]
        return _ShardParts(self.starts[order], sizes, sizes.cumsum() - sizes, self.bounds)

    def shuffled(self, rng: np.random.Generator) -> _ShardParts:
        """The parts in an order drawn node after node."""
        order = np.arange(len(self.sizes))
        for first, last in pairwise(self.bounds):
            rng.shuffle(order[first:last])
        return self.take(order)

    def ids(self) -> Ids:
        """The numbers of all samples, part after part."""
        return count_through(self.starts, self.sizes)


def count_through(starts: Ids, sizes: Ids) -> Ids:
    """``arange(start, start + size)`` for each of some runs, put together; int64, and no other array of that length."""
    some = sizes > 0
    starts, sizes = starts[some], sizes[some]
    ids: Ids = np.ones(int(sizes.sum()), dtype=np.int64)
    if len(ids):
        # Steps from each number to the next, added up.
        ids[0] = starts[0]
        ids[sizes.cumsum()[:-1]] = starts[1:] - starts[:-1] - sizes[:-1] + 1
        np.cumsum(ids, out=ids)
    return ids


def _lay_out(sizes: Ids, nodes: int, order: Ids) -> _ShardParts:
    """Concatenate the shards in ``order`` and cut the result into ``nodes`` parts, equal to within one sample.

    A shard of no samples goes with the one before it, so it matters only in that it takes part in drawing orders.
    """
    total = int(sizes.sum())
    node_ends = np.array([total * (node + 1) // nodes for node in range(nodes)], dtype=np.int64)
    ends = sizes[order].cumsum()
    cuts = np.unique(node_ends)
    cuts = cuts[cuts > 0]
    at = np.searchsorted(ends, cuts)
    inside = ends[at] != cuts if len(ends) else np.zeros(0, dtype=bool)
    cuts, at = cuts[inside], at[inside]
    begins = (ends - sizes[order])[np.insert(np.arange(len(ends)), at, at)]
    shards = np.insert(order, at, order[at])
    ends = np.insert(ends, at, cuts)
    lengths = np.diff(ends, prepend=0)
    firsts = (sizes.cumsum() - sizes)[shards] + ends - lengths - begins
    owner = np.searchsorted(node_ends, ends)
    return _ShardParts(firsts, lengths, ends - lengths, np.searchsorted(owner, np.arange(nodes + 1)).tolist())


def _run_order(sizes: Ids, rng: np.random.Generator) -> Ids:
    """The order of the shards, which is the same in all epochs."""
    order = np.arange(len(sizes))
    rng.shuffle(order)
    return order


def _parts_of_epoch(sizes: Ids, nodes: int, seed: int, rng: np.random.Generator) -> _ShardParts:
    parts = _lay_out(sizes, nodes, _run_order(sizes, np.random.default_rng(seed)))
    return parts.shuffled(rng)


def _naive(sizes: Ids, nodes: int, seed: int, epoch: int, block_size: int) -> Ids:  # noqa: ARG001
    return np.random.default_rng(seed + epoch).permutation(int(sizes.sum()))


def _py1s(sizes: Ids, nodes: int, seed: int, epoch: int, block_size: int) -> Ids:  # noqa: ARG001
    rng = np.random.default_rng(seed + epoch)
    parts = _parts_of_epoch(sizes, nodes, seed, rng)
    ids = parts.ids()
    _shuffle_each(ids, parts.offsets, parts.sizes, rng)
    return ids


def _py2s(sizes: Ids, nodes: int, seed: int, epoch: int, block_size: int) -> Ids:  # noqa: ARG001
    run_rng = np.random.default_rng(seed)
    order = _run_order(sizes, run_rng)
    shards = _lay_out(sizes, 1, order)
    before = shards.ids()
    _shuffle_each(before, shards.offsets, shards.sizes, run_rng)
    parts = _lay_out(sizes, nodes, order)
    rng = np.random.default_rng(seed + epoch)
    ids = np.empty_like(before)
    filled = 0
    for first, last in pairwise(parts.bounds):
        order = np.arange(first, last)
        rng.shuffle(order)
        for offset, size in zip(parts.offsets[order].tolist(), parts.sizes[order].tolist(), strict=True):
            part = ids[filled : filled + size]
            part[:] = before[offset : offset + size]
            rng.shuffle(part)
            filled += size
    return ids


def _py1br(sizes: Ids, nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    rng = np.random.default_rng(seed + epoch)
    parts = _parts_of_epoch(sizes, nodes, seed, rng)
    ids = parts.ids()
    low, high = _block_range(block_size)
    staggers = rng.integers(0, low, (nodes,)).tolist()
    node_end = 0
    for stagger, (first, last) in zip(staggers, pairwise(parts.bounds), strict=True):
        node_start, node_end = node_end, node_end + int(parts.sizes[first:last].sum())
        blocks = []
        # Blocks follow each other by their lengths, yet each is set back by the stagger. So the second begins inside the
        # first, and the node's last samples, a stagger's worth, stay as they are. That is how the reference's orders are.
        reached = node_start
        while reached < node_end:
            begin = max(reached - stagger, node_start)
            end = min(reached + int(rng.integers(low, high)) - stagger, node_end)
            blocks.append((begin, end))
            reached += end - begin
        for begin, end in blocks:
            rng.shuffle(ids[begin:end])
    return ids


def _py1e(sizes: Ids, nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    rng = np.random.default_rng(seed + epoch)
    parts = _parts_of_epoch(sizes, nodes, seed, rng)
    ids = parts.ids()
    low, high = _block_range(block_size)
    alone = False
    begin = 0
    for first, last in pairwise(parts.bounds):
        its_sizes = parts.sizes[first:last]
        total = int(its_sizes.sum())
        if not total:
            raise ConfigError(
                f"py1e can not shuffle {len(ids)} samples for {nodes} canonical nodes: one would have none. Use fewer "
                "canonical nodes"
            )
        node = ids[begin : begin + total]
        begin += total
        offsets = its_sizes.cumsum() - its_sizes
        _shuffle_each(node, offsets, its_sizes, rng)
        positions = np.arange(total, dtype=np.float64)
        for offset, size in zip(offsets.tolist(), its_sizes.tolist(), strict=True):
            # A part spreads over a block around it; one larger than its block stays where it is.
            reach = (int(rng.integers(low, high)) - size) / 2
            alone |= reach < 0
            reach = max(reach, 0)
            positions[offset : offset + size] += rng.uniform(
                max(-reach, -offset), min(reach, total - offset - size), size
            )
        # Positions can be equal: n**2 / 2**53 pairs among n samples are to be expected. Which of the two comes first, NumPy's
        # default sort decides, as in the reference, by instructions that not every processor has.
        node[:] = node[np.argsort(positions)]
    if alone:
        logger.warning(
            "shuffle_block_size=%d is less than some shards have: their samples are not mixed with others", block_size
        )
    return ids


def _block_range(block_size: int) -> tuple[int, int]:
    return int(0.75 * block_size), int(1.25 * block_size)


def _shuffle_each(ids: Ids, offsets: Ids, sizes: Ids, rng: np.random.Generator) -> None:
    """Shuffle each part of ``ids`` in itself, in place."""
    for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        rng.shuffle(ids[offset : offset + size])


MOSAICML_SHUFFLES: Final[dict[str, Callable[[Ids, int, int, int, int], Ids]]] = {
    "naive": _naive,
    "py1s": _py1s,
    "py2s": _py2s,
    "py1br": _py1br,
    "py1e": _py1e,
}


def sample_counts(shard_sizes: Ids, choose: int, granularity: int, seed: int) -> Ids:
    """Samples that each shard of a stream gives to an epoch.

    Whole rounds take all shards alike. What is left over is picked ``granularity`` samples at a time, a shard's last pick
    having the rest, in a random order. O(samples / granularity) time and memory.

    Args:
        shard_sizes: int64, shape ``(shards,)``.
        choose: samples in all, from 0.
        granularity: samples a pick, from 1.
        seed: of the picks' order.

    Returns:
        int64 of shape ``(shards,)``.
    """
    total = int(shard_sizes.sum())
    rounds, rest = divmod(choose, total)
    counts = shard_sizes * rounds
    if not rest:
        return counts
    picks = (shard_sizes + granularity - 1) // granularity
    sizes: Ids = np.full(int(picks.sum()), granularity, dtype=np.int64)
    # With an empty shard this writes to the last pick of the shard before it; the reference does, so it stays.
    sizes[picks.cumsum() - 1] = shard_sizes - (picks - 1) * granularity
    order = np.random.default_rng(seed).permutation(len(sizes))
    reached = np.minimum(sizes[order].cumsum(), rest)
    taken = np.diff(reached, prepend=0)
    counts += np.bincount(
        np.repeat(np.arange(len(picks)), picks)[order], weights=taken.astype(np.float64), minlength=len(picks)
    ).astype(np.int64)
    return counts


@dataclass(frozen=True, slots=True)
class Units:
    """The samples that were chosen for an epoch.

    Attributes:
        sizes: samples in each unit, int64: a shard's own size for each time that all of it was chosen, then what is left.
        ids: sample id of each big number, int64, or ``None`` where it is the number plus ``first``: nothing is sampled.
        first: id of the first sample, for that case.
    """

    sizes: Ids
    ids: Ids | None
    first: int = 0

    def to_ids(self, big: Ids) -> Ids:
        """Sample ids of big numbers. ``big`` may be returned changed."""
        if self.ids is not None:
            return self.ids[big]
        if self.first:
            big += self.first
        return big


def choose_units(
    mixture: Mixture,
    streams: Sequence[int],
    *,
    sampling_seed: int,
    picking_seed: int,
    granularity: int,
) -> Units:
    """Choose an epoch's samples from some of the streams.

    One generator serves all shards of these streams in turn; a shard that gives only some of its samples draws them from it.
    Streams that are taken together so have other samples than each taken alone. 8 bytes for each sample chosen; none where
    every sample comes just once.

    Args:
        streams: numbers of those to choose from.
        sampling_seed: of the generator that draws samples of a shard.
        picking_seed: of how a stream's samples are divided among its shards.
    """
    starts = np.cumsum([0, *(int(sizes.sum()) for sizes in mixture.shard_sizes)])
    contiguous = all(later == earlier + 1 for earlier, later in pairwise(streams))
    if contiguous and all(mixture.whole(stream) for stream in streams):
        sizes = np.concatenate([mixture.shard_sizes[stream] for stream in streams])
        return Units(sizes[sizes > 0], None, int(starts[streams[0]]))
    rng = np.random.default_rng(sampling_seed)
    all_sizes: list[Ids] = []
    all_ids: list[Ids] = []
    for stream in streams:
        shards = mixture.shard_sizes[stream]
        firsts = starts[stream] + shards.cumsum() - shards
        counts = sample_counts(shards, mixture.choose[stream], granularity, picking_seed)
        rounds, rest = np.divmod(counts, np.maximum(shards, 1))
        rounds[shards == 0] = rest[shards == 0] = 0
        # A shard's whole units, then the one with the rest, if there is a rest.
        units = rounds + (rest > 0)
        sizes = np.repeat(shards, units)
        last = (units.cumsum() - 1)[rest > 0]
        sizes[last] = rest[rest > 0]
        offsets = sizes.cumsum() - sizes
        ids = count_through(np.repeat(firsts, units), sizes)
        for offset, first, size, some in zip(
            offsets[last].tolist(),
            firsts[rest > 0].tolist(),
            shards[rest > 0].tolist(),
            rest[rest > 0].tolist(),
            strict=True,
        ):
            drawn = rng.choice(size, some, False)
            drawn.sort()
            ids[offset : offset + some] = drawn + first
        all_sizes.append(sizes)
        all_ids.append(ids)
    ids = all_ids[0] if len(all_ids) == 1 else np.concatenate(all_ids)
    return Units(all_sizes[0] if len(all_sizes) == 1 else np.concatenate(all_sizes), ids)
