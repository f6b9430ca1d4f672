"""Sources of a ``StreamingShardLoader``: its config, its samples and their order, and the ranges that are its worker's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.cluster import World
from stoker.errors import ConfigError
from stoker.lazy import told
from stoker.loaders.dataset import StreamingDataset
from stoker.order.global_batches import WorkerRemainder
from stoker.order.native import NativeOrder
from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import RoundRobin
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.workers.adaptive import Adaptive, adaptive_order, planned_order
from stoker.pipeline.workers.array_source import ArraySource, array_order
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.leased import LeasedSource
from stoker.pipeline.workers.ranges.lockstep import LockstepSource
from stoker.pipeline.workers.ranges.planned import PlannedSource
from stoker.pipeline.workers.ranges.range_source import RangeSource
from stoker.pipeline.workers.ranges.replayed import ReplayedSource
from stoker.pipeline.workers.sample_source import PoolSource, SampleSource


def changed_order(sample_order: SampleOrder, config: StreamingConfig) -> SampleOrder:
    """A dataset's sample order, with what the config says instead.

    Raises:
        ConfigError: the sample order is not stoker's own, or the config's partition needs what the dataset does not read.
    """
    partition = config.adaptive.base if config.adaptive is not None else config.partition
    if partition is None and config.shuffle_seed is None and config.remainder is None:
        return sample_order
    if not isinstance(sample_order, NativeOrder):
        raise ConfigError(
            "partition=, shuffle_seed= and remainder= change stoker's own orders, not those of mosaicml-streaming: leave "
            "them out of the config, or use shuffle_algo='block'"
        )
    settings = sample_order.settings
    if partition is not None:
        assert not isinstance(partition, Adaptive)
        column = partition.column
        if column is not None and (
            settings.partition.column != column or type(partition) is not type(settings.partition)
        ):
            raise ConfigError(
                f"partition {partition.name!r} needs the values of column {column!r}, which the dataset reads: give the "
                f"StreamingDataset partition_algo={partition!r} too"
            )
        settings = replace(settings, partition=partition)
    if config.shuffle_seed is not None:
        shuffle = "block" if settings.shuffle == "none" else settings.shuffle
        settings = replace(settings, shuffle=shuffle, seed=config.shuffle_seed)
    if config.remainder is not None:
        settings = replace(settings, remainder="uneven" if config.remainder == "join" else config.remainder)
    return NativeOrder(sample_order.sources, settings, sample_order.origin)


def order_of_arrays(source: ArraySource, config: StreamingConfig) -> NativeOrder:
    """The sample order of arrays in memory, as the config says."""
    given = config.adaptive.base if config.adaptive is not None else config.partition
    assert not isinstance(given, Adaptive)
    alone = config.world_size == 1 or config.global_batch_size is not None
    partition: Partition = given or (Elastic() if alone else RoundRobin())
    remainder = "uneven" if config.remainder in (None, "join") else config.remainder
    return array_order(source, partition, config.shuffle_seed, remainder)


def config_of(
    dataset: StreamingDataset | Mapping[str, Any], world: World | None, remainder: WorkerRemainder | None
) -> StreamingConfig:
    """The config of a loader that was given none."""
    if not isinstance(dataset, StreamingDataset):
        here = world or World.detect()
        return StreamingConfig(here.world_size, here.rank, remainder=remainder)
    readers = world or dataset.epoch_reader.data_rank(dataset.batch_size or 1)
    return StreamingConfig(readers.world_size, readers.rank, batch_size=dataset.batch_size, remainder=remainder)


def of_dataset(dataset: StreamingDataset, config: StreamingConfig) -> tuple[PoolSource, SampleOrder]:
    epoch_reader = dataset.epoch_reader  # the loader is a second reader of what the dataset has opened
    readers = epoch_reader.data_rank(dataset.batch_size or 1)
    if readers.world_size not in (told(dataset, "world").world_size, config.world_size):
        raise ConfigError(
            f"the dataset has replication=, by which {readers.world_size} ranks read different samples, and the config says "
            f"world_size={config.world_size}: give no config, or count in it the ranks that read different samples"
        )
    return PoolSource(epoch_reader, told(dataset, "world").local_world_size), changed_order(
        epoch_reader.sample_order, config
    )


def ranges_of(
    sample_source: SampleSource, sample_order: SampleOrder, config: StreamingConfig, batch_size: int
) -> RangeSource:
    """The ranges that a worker of this config reads."""
    if config.global_batch_size is not None:
        return PlannedSource(sample_source, planned_order(sample_order), config)
    if config.adaptive is None:
        return LockstepSource(sample_source, sample_order, config, batch_size)
    return (LeasedSource if config.leased else ReplayedSource)(
        sample_source, adaptive_order(sample_order, config.adaptive), config
    )


def check_ranks_in_step(source: SampleSource, ranges: RangeSource, config: StreamingConfig) -> None:
    """See that what a chain makes can be delivered, and that ranks in step stay so where samples are left out.

    Raises:
        ConfigError: samples are to be delivered one by one, and are made in batches, or ranks would have fewer and more.
    """
    if config.batch_size is not None or config.global_batch_size is not None:
        return
    if source.takes_batch:
        raise ConfigError(
            f"{source.takes_batch} needs batches, and this loader delivers single samples: set batch_size= or "
            "global_batch_size= in the config"
        )
    instead = source.instead_of_leaving_out
    if source.leaves_out and config.world_size > 1 and ranges.remainder != "uneven":
        raise ConfigError(
            f"{source.leaves_out} leaves {config.world_size} ranks with different numbers of samples, but with "
            f"remainder={ranges.remainder!r} all ranks must take the same number: set batch_size= in the config (then "
            f"batches become shorter), {instead and 'use '}{instead}or remainder='uneven'"
        )
