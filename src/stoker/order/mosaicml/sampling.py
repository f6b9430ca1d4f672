"""How mosaicml-streaming 0.13.0 turns streams and their weights into the samples of an epoch.

In three steps: weights become how many samples are *chosen* from each stream (once a run); those are divided among the
stream's shards (each epoch); and for each shard they become sample ids: all of the shard's as often as they fit, then some of
them, drawn at random. The samples so chosen, in shard order, are the epoch's *big* numbering, which shuffles and partitions
speak of; each part of a shard counts as a shard of its own there (a *unit*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.order.mosaicml.shuffles import count_through
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

__all__ = ["SAMPLING_METHODS", "Mixture", "StreamWeight", "Units", "choose_units", "sample_counts"]

SAMPLING_METHODS: Final = ("balanced", "fixed")
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class StreamWeight:
    """How much of a stream an epoch has; at most one of the three is given, and none means all of it, once.

    Attributes:
        proportion: its part of the epoch, relative to other streams' proportions. All streams have one, or none has.
        repeat: how often each of its samples comes.
        choose: how many samples of it come.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        if len(given) > 1:
            raise ConfigError(f"a stream has one of proportion, repeat and choose, not {' and '.join(given)}")
        for name, value in given.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Streams, and how many samples of each an epoch has.

    Attributes:
        shard_sizes: for each stream, samples in each of its shards, int64.
        choose: for each stream, samples of it in an epoch.
        proportion: for each stream, its part of an epoch.
        epoch_size: samples in an epoch.
    """

    shard_sizes: tuple[Ids, ...]
    choose: tuple[int, ...]
    proportion: tuple[float, ...]
    epoch_size: int

    @classmethod
    def resolve(
        cls,
        shard_sizes: Sequence[NDArray[np.integer]],
        weights: Sequence[StreamWeight] | None = None,
        epoch_size: int | None = None,
        seed: int = 9176,
    ) -> Mixture:
        """Weigh streams as the reference does.

        Args:
            shard_sizes: for each stream, samples in each of its shards.
            weights: one for each stream. Default: all of each, once.
            epoch_size: samples in an epoch, for proportions, or for streams without any weights, which then have
                proportions as their sizes. ``None`` or 0: as many as there are in all streams.
            seed: decides which streams get the samples that rounding leaves over. It is the ``shuffle_seed`` that the
                dataset is made with: a state that is loaded later does not change it.

        Raises:
            ConfigError: weights that do not go together, or an epoch without samples.
        """
        streams = tuple(np.ascontiguousarray(sizes, dtype=np.int64) for sizes in shard_sizes)
        weights = [StreamWeight()] * len(streams) if weights is None else list(weights)
        if not streams or len(weights) != len(streams):
            raise ConfigError(
                f"{len(streams)} streams have {len(weights)} weights; there must be one each, and a stream"
            )
        totals: Ids = np.array([sizes.sum() for sizes in streams], dtype=np.int64)
        if not totals.all():
            raise ConfigError(f"stream {int(np.argmin(totals))} has no samples")
        proportional = [weight.proportion is not None for weight in weights]
        if any(proportional) and not all(proportional):
            raise ConfigError(
                "proportion and other weights can not be mixed: give every stream a proportion, or none of them"
            )
        if all(proportional):
            shares = np.array([weight.proportion for weight in weights], dtype=np.float64)
            size = epoch_size or int(totals.sum())
        elif epoch_size and all(weight == StreamWeight() for weight in weights):
            shares = totals.astype(np.float64)
            size = epoch_size
        elif epoch_size:
            raise ConfigError("epoch_size goes with proportions: repeat and choose decide how long an epoch is")
        else:
            choose = [_absolute(weight, total) for weight, total in zip(weights, totals.tolist(), strict=True)]
            size = sum(choose)
            if not size:
                raise ConfigError("the streams' weights leave an epoch without samples")
            _check_size(size)
            return cls(streams, tuple(choose), tuple(count / size for count in choose), size)
        if not shares.sum() > 0:
            raise ConfigError("proportions must not all be 0")
        _check_size(size)
        shares /= shares.sum()
        counts = (size * shares).astype(np.int64)
        left = size - int(counts.sum())
        counts[np.random.default_rng(seed).choice(len(streams), left, False)] += 1
        return cls(streams, tuple(counts.tolist()), tuple(shares.tolist()), size)

    def table(self) -> ShardTable:
        """The shards of all streams, in stream order: sample ids count through them."""
        return ShardTable(np.concatenate(self.shard_sizes))

    def whole(self, stream: int) -> bool:
        """Whether an epoch has each sample of a stream exactly once."""
        return self.choose[stream] == int(self.shard_sizes[stream].sum())


def _check_size(size: int) -> None:
    if size > _MOST:
        raise ConfigError(f"an epoch of {size} samples is too long: at most {_MOST}")


def _absolute(weight: StreamWeight, total: int) -> int:
    if weight.repeat is not None:
        return int(weight.repeat * total)
    return total if weight.choose is None else int(weight.choose)


def sample_counts(shard_sizes: Ids, choose: int, granularity: int, seed: int) -> Ids:
    """How many samples each shard of a stream gives to an epoch.

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
    """What was chosen for an epoch.

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
