"""Makes the sample order that a dataset's arguments ask for: stoker's own, or that of mosaicml-streaming."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from stoker.arguments import unknown_name
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.order.mixture.weights import Mixture, StreamWeight
from stoker.order.mosaicml.sample_order import MosaicmlOrder
from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES
from stoker.order.native import NativeOrder
from stoker.order.partition.partition import Elastic
from stoker.order.sample_order import SampleOrder
from stoker.order.settings import NativeSettings, OrderChoices
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.pipeline.order_sources import make_sources
from stoker.streams.streams import Streams
from stoker.streams.subsets import Subset


@dataclass(frozen=True, slots=True)
class OrderOptions(OrderChoices):
    """All settings that decide which sample comes when; see :class:`~stoker.loaders.dataset.StreamingDataset`."""

    subsets: tuple[Subset, ...] = ()
    partition_algo: str | None = None
    shuffle_algo: str | None = None
    read: ReadOptions = ReadOptions()

    def __post_init__(self) -> None:
        known = (*SHUFFLES, *MOSAICML_SHUFFLES)
        if self.shuffle_algo is not None and self.shuffle_algo not in known:
            raise ConfigError(unknown_name("shuffle_algo", self.shuffle_algo, known))

    @property
    def foreign(self) -> bool:
        """Whether the order is mosaicml-streaming's."""
        return self.shuffle in MOSAICML_SHUFFLES or self.partition_algo is not None


def make_order(streams: Streams, options: OrderOptions) -> SampleOrder:
    """The sample order of opened streams.

    Raises:
        ConfigError: options that do not go together, or do not fit the data.
    """
    if options.foreign:
        return _mosaicml(streams, options)
    sources = make_sources(streams, options.subsets, options.partition, options.read)
    chosen: dict[str, Any] = {one.name: getattr(options, one.name) for one in fields(OrderChoices)}
    return NativeOrder(sources, NativeSettings(**chosen))


def _mosaicml(streams: Streams, options: OrderOptions) -> MosaicmlOrder:
    subsets = options.subsets or any(stream.subsets for stream in streams.streams)
    for name, given in (
        ("partition", options.partition != Elastic()),
        ("schedule", options.schedule is not None),
        ("subset", bool(subsets)),
        ("remainder", options.remainder != "pad"),
    ):
        if given:
            raise ConfigError(
                f"{name}= does not go with shuffle_algo={options.shuffle!r}, an order of mosaicml-streaming, which has no "
                'such thing: use shuffle_algo="block"'
            )
    weights = [StreamWeight(stream.proportion, stream.repeat, stream.choose) for stream in streams.streams]
    mixture = Mixture.resolve(
        [location.index.sizes for location in streams.locations], weights, options.epoch_size, options.seed
    )
    shuffle: dict[str, Any] = {"shuffle": options.shuffle != "none"}
    # Without shuffling too, the algorithm decides the reference's default number of canonical nodes.
    named = options.shuffle_algo if options.shuffle == "none" else options.shuffle
    if named in MOSAICML_SHUFFLES:
        shuffle["shuffle_algo"] = named
    about = [
        (name, {**location.about, "samples": location.index.samples})
        for name, location in zip(streams.names, streams.locations, strict=True)
    ]
    return MosaicmlOrder(
        mixture,
        about,
        {
            **shuffle,
            "shuffle_seed": options.seed,
            "num_canonical_nodes": options.num_canonical_nodes,
            "shuffle_block_size": options.block_size,
            "sampling_method": options.sampling_method,
            "sampling_granularity": options.sampling_granularity,
            "batching_method": options.batching_method,
            "partition_algo": options.partition_algo or "relaxed",
        },
        {name: location.url for name, location in zip(streams.names, streams.locations, strict=True)},
    )
