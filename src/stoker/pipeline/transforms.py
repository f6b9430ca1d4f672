"""Settings of reading, and the functions of the user that are applied to samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from stoker.formats.mds.encodings.images import loaded
from stoker.order.shuffle.shard_table import ShardTable
from stoker.policy import ReadAmounts
from stoker.reading.bad_samples import BadSamples
from stoker.reading.chain import Chain, SampleIdentity, SampleKeys
from stoker.types import Ids, Transform

Override: TypeAlias = Callable[[Sequence[int], Iterator[Any]], Iterator[Any]]
"""A function from samples and their ids to samples, applied lazily."""

TransformOf: TypeAlias = Callable[[Ids, Ids, Ids], Transform]
"""A function from positions, shards and rows of samples to what is applied to each of them, in this order."""


@dataclass(frozen=True, slots=True)
class EpochReaderSettings:
    """Settings of an :class:`~stoker.pipeline.epoch_reader.EpochReader`; nothing here changes which samples come when.

    Attributes:
        columns: columns to read; ``None`` for all.
        transform: applied to each sample, on the reading threads.
        identity: what the random numbers of a chain belong to.
        read_threads: threads that read ahead; 0 reads in the consumer's thread; ``None``: some if there is a transform.
        amounts: how far ahead and how much at a time.
        by_shard: whether many samples are read together, shard by shard, as the order is too wide for the limit.
        bad_samples: what becomes of bad samples; ``None``: they are errors.
    """

    columns: Sequence[str] | None = None
    transform: Transform | None = None
    identity: SampleIdentity = SampleIdentity()  # noqa: RUF009 - frozen
    read_threads: int | None = None
    amounts: ReadAmounts = field(default_factory=ReadAmounts)
    by_shard: bool = False
    bad_samples: BadSamples | None = None


def make_transforms(table: ShardTable, settings: EpochReaderSettings, epoch: int) -> TransformOf | None:
    """The function that says what is applied to samples of an epoch, by their places; ``None`` where nothing is.

    Args:
        table: where the samples of each shard begin.
        settings: with the function or the chain.
        epoch: number of the epoch.
    """
    transform, identity = settings.transform, settings.identity
    if transform is None:
        return None
    if not isinstance(transform, Chain) or not transform.draws:
        return lambda *_: transform
    keys = SampleKeys(transform, identity, epoch)
    starts = table.starts
    firsts = np.array(identity.first_shards, np.int64)

    def of_samples(positions: Ids, shards: Ids, rows: Ids) -> Transform:
        streams = np.searchsorted(firsts, shards, side="right") - 1
        ids = starts[shards] + rows - starts[firsts[streams]]
        return keys.transform(streams, ids, positions if identity.repeats else np.zeros_like(rows))

    return of_samples


def loading_transform(transform: Transform | None) -> Transform | None:
    """A transform whose images are loaded, for a DataLoader worker."""
    if isinstance(transform, Chain):
        return transform.map(loaded, "the loading of images")
    return None if transform is None else lambda sample: loaded(transform(sample))


def loading_override(override: Override | None) -> Override | None:
    """An override whose images are loaded, for a DataLoader worker."""
    return None if override is None else lambda ids, samples: map(loaded, override(ids, samples))
