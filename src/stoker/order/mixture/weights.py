"""Weights of streams, and how many samples of each an epoch has: counted as mosaicml-streaming counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import must_be
from stoker.errors import ConfigError
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

SAMPLING_METHODS: Final = ("balanced", "fixed")
BATCHING_METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class StreamWeight:
    """The share of a stream in an epoch; at most one of the three is given, and none means all of it, once.

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
            must_be("a number, not negative", 0 <= value < float("inf"), **{name: value})


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Streams, and how many samples of each an epoch has.

    Attributes:
        shard_sizes: for each stream, samples in each of its shards, int64.
        choose: for each stream, samples of it in an epoch.
        proportion: for each stream, its part of an epoch.
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
            raise ConfigError(f"stream {int(np.argmin(totals))} has no samples: leave it out, or look at its subset=")
        proportional = [weight.proportion is not None for weight in weights]
        if any(proportional) and not all(proportional):
            raise ConfigError(
                "proportion and other weights can not be mixed: give every stream a proportion, or none of them"
            )
        if all(proportional):
            proportions = np.array([weight.proportion for weight in weights], dtype=np.float64)
            size = epoch_size or int(totals.sum())
        elif epoch_size and all(weight == StreamWeight() for weight in weights):
            proportions = totals.astype(np.float64)
            size = epoch_size
        elif epoch_size:
            raise ConfigError("epoch_size= needs proportion=: repeat= and choose= decide how long an epoch is")
        else:
            choose = [_absolute(weight, total) for weight, total in zip(weights, totals.tolist(), strict=True)]
            size = sum(choose)
            if not size:
                raise ConfigError(
                    "the streams' weights leave an epoch without samples: raise repeat= or choose= of one"
                )
            _check_size(size)
            return cls(streams, tuple(choose), tuple(count / size for count in choose), size)
        if not proportions.sum() > 0:
            raise ConfigError("proportions must not all be 0: give proportion= above 0 to one stream")
        _check_size(size)
        proportions /= proportions.sum()
        counts = (size * proportions).astype(np.int64)
        left = size - int(counts.sum())
        if left:
            counts[np.random.default_rng(seed).choice(len(streams), left, False)] += 1
        return cls(streams, tuple(counts.tolist()), tuple(proportions.tolist()), size)

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
