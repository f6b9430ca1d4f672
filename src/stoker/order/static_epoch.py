"""Epochs of a static partition: each rank owns a part of the data, which has sequences and a mixing of its own.

An epoch keeps the parts that it began with until it ends, whatever world resumes it
(:mod:`stoker.order.part_plan`). The world that it began with is its *home*.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.integers import mix
from stoker.order.global_batches import check_batch
from stoker.order.mixture.interleave import Interleave
from stoker.order.mixture.mixing import Mixing
from stoker.order.mixture.reached import RunOrigin
from stoker.order.mixture.stream_locator import StreamLocator
from stoker.order.mixture.stream_quotas import TAG_MIXING, StreamQuota
from stoker.order.part_plan import PART_BITS, Rounds, plan_parts
from stoker.order.sample_order import DataRank, EpochPosition, Run
from stoker.order.settings import NativeSettings
from stoker.order.shuffle.shuffle import ShuffledStream
from stoker.types import Ids

_PART_MASK: Final = (1 << PART_BITS) - 1


class StaticEpochs:
    """The streams of one epoch, divided among ranks.

    Args:
        settings: the sample order's, of which the partition is static.
        offsets: number of each quota's first shard among the shards of all streams.
        origin: where epochs are counted from.
        batching: how streams are put into batches.
    """

    def __init__(
        self,
        quotas: Sequence[StreamQuota],
        settings: NativeSettings,
        offsets: Sequence[int],
        origin: RunOrigin,
        batching: str,
    ) -> None:
        self._quotas = tuple(quotas)
        self._settings = settings
        self._offsets = list(offsets)
        self._origin = origin
        self._batching = batching
        self.locator = lru_cache(maxsize=2)(self._make_locator)
        self.counts = lru_cache(maxsize=2)(self._count)
        self._sizes = lru_cache(maxsize=2)(self._divide)

    def run(self, position: EpochPosition, data_rank: DataRank, home: int, batch: int) -> Run:
        """The samples of a reader in an epoch that began on ``home`` ranks with batches of ``batch``.

        ConfigError for samples that can not be divided so, or another batch size where batches are of one stream each.
        """
        settings, quotas = self._settings, self._quotas
        if self._batching == "device_per_stream":
            check_batch(data_rank.batch_size, batch)
        counts, _ = self.counts(position.epoch, home)
        # Only the sum of the parts' sizes is needed here, and not even that where they are known to be equal.
        even = settings.partition.even and len(quotas) == 1 and quotas[0].count == quotas[0].total
        rounds = Rounds.even(quotas[0].count, home) if even else Rounds(counts.sum(axis=0))
        if settings.remainder == "pad" and rounds.largest and not rounds.smallest:
            # Every rank raises the error, also those with samples: they would wait for the others.
            raise ConfigError(
                f"some of {home} ranks have parts without samples, which can not be padded: an epoch has {rounds.total}. Use "
                "a larger epoch_size, fewer ranks, or remainder='uneven' or 'drop'"
            )
        plan = plan_parts(
            rounds, position.position, data_rank.batch_size, data_rank.rank, data_rank.world_size, settings.remainder
        )
        return Run(_PartsOrder(self, position.epoch, home, batch), plan)

    def mixing(self, epoch: int, home: int, batch: int, part: int) -> Mixing:
        """The mixing of a part's quotas in an epoch."""
        counts, begun = self.counts(epoch, home)
        key = mix(self._settings.seed, TAG_MIXING, epoch)
        together = self._batching == "per_stream"
        return Mixing(
            counts[:, part],
            begun[:, part],
            unit=batch if self._batching in ("per_stream", "device_per_stream") else 1,
            window=0 if self._batching == "stratified" else self._settings.window,
            # All ranks scramble by the same key, so that they have the same stream at each step.
            key=key if together else mix(key, part),
            unit_counts=counts.min(axis=1) // batch if together else None,
            first_stream=part * len(self._quotas),
        )

    def _count(self, epoch: int, home: int) -> tuple[Ids, Ids]:
        """Samples of each quota (rows) in each part (columns) of an epoch, and before it; two int64 arrays."""
        begins, ends = [], []
        for quota, sizes in zip(self._quotas, self._sizes(home), strict=True):
            first = self._origin.consumed.get(quota.source.name, 0)
            first += quota.count * (epoch - self._origin.epoch)
            begins.append(_reached(sizes, first))
            ends.append(_reached(sizes, first + quota.count))
        begun = np.stack(begins)
        return np.stack(ends) - begun, begun

    def _divide(self, home: int) -> list[Ids]:
        """For each quota, samples in each part; int64, shape ``(home,)``."""
        divided = []
        for quota in self._quotas:
            source = quota.source
            try:
                divided.append(self._settings.partition.sizes(source.table, quota.selection, home, source.labels))
            except ConfigError as error:
                if len(self._quotas) == 1:
                    raise
                drawn = "" if quota.selection is source.selection else f", {quota.total} samples drawn of it"
                raise ConfigError(f"stream {source.name!r}{drawn}: {error}") from error
        return divided

    def _make_locator(self, home: int) -> StreamLocator:
        quotas, settings = self._quotas, self._settings

        def make(number: int) -> ShuffledStream:
            part, stream = divmod(number, len(quotas))
            return quotas[stream].shuffled_part(settings, part, home)

        return StreamLocator(make, self._offsets)


class _PartsOrder:
    """Locates the positions of an epoch of parts."""

    def __init__(self, static: StaticEpochs, epoch: int, home: int, batch: int) -> None:
        self._locator = static.locator(home)
        self._mixing = lru_cache(maxsize=256)(lambda part: static.mixing(epoch, home, batch, part))

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Shard number and row at each position, which is ``part << 42 | number``."""
        parts = positions >> PART_BITS
        numbers = positions & _PART_MASK
        first = int(parts.min()) if parts.size else 0
        if not parts.size or first == int(parts.max()):
            return self._locator.locate(self._mixing(first).codes(numbers))
        codes = np.empty_like(positions)
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            codes[here] = self._mixing(part).codes(numbers[here])
        return self._locator.locate(codes)


def _reached(sizes: Ids, count: int) -> Ids:
    """Number of the first ``count`` samples of an endless sequence that each of its parts has; int64, shape of ``sizes``.

    Every pass has all of each part. Inside a pass parts are spread evenly, so all advance equally.
    """
    passes, inside = divmod(count, max(1, int(sizes.sum())))
    reached: Ids = sizes * passes
    if inside:
        reached += Interleave(sizes).counts_before(np.array([inside], dtype=np.int64))[0]
    return reached
