"""The sample order of one worker: the order of its data, with the settings of its config."""

from __future__ import annotations

from dataclasses import replace

from stoker.errors import ConfigError
from stoker.order.native import NativeOrder
from stoker.order.partition.partition import Elastic, Partition, RoundRobin
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.workers.adaptive import Adaptive
from stoker.pipeline.workers.array_source import ArraySource, array_order
from stoker.pipeline.workers.config import StreamingConfig


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
                f"StreamingDataset partition={partition.name} too"
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
