"""Chooses the samples of an epoch from streams and their weights, as mosaicml-streaming 0.13.0 does.

In three steps: weights become how many samples are *chosen* from each stream (once a run); those are divided among the
stream's shards (each epoch); and for each shard they become sample ids: all of the shard's as often as they fit, then some of
them, drawn at random. The samples so chosen, in shard order, are the epoch's *big* numbering, which shuffles and partitions
speak of; each part of a shard counts as a shard of its own there (a *unit*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stoker.errors import ConfigError
from stoker.order.mixture.weights import Mixture
from stoker.order.mosaicml.shuffles import count_through
from stoker.types import Ids


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
        mixture: all streams.
        streams: numbers of those to choose from.
        sampling_seed: of the generator that draws samples of a shard.
        picking_seed: of how a stream's samples are divided among its shards.
        granularity: see :func:`sample_counts`.
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
    if not len(ids):
        raise ConfigError(f"stream {streams[0]} gives no samples to an epoch: raise its weight, or leave it out")
    return Units(all_sizes[0] if len(all_sizes) == 1 else np.concatenate(all_sizes), ids)
