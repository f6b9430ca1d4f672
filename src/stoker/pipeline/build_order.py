"""Makes the sample order that a dataset's arguments ask for: stoker's own, or that of mosaicml-streaming."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from stoker.arguments import must_know
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.order.by_length import ByLengthOrder, Lengths
from stoker.order.mixture.weights import Mixture
from stoker.order.native import NativeOrder
from stoker.order.partition import Elastic, Partition, strategies
from stoker.order.settings import NativeSettings, OrderChoices
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.order.subsets import Subset
from stoker.pipeline.order_sources import make_sources
from stoker.streams.streams import Streams

if TYPE_CHECKING:
    from stoker.order.mosaicml.sample_order import MosaicmlOrder


@dataclass(frozen=True, slots=True)
class OrderOptions(OrderChoices):
    """All settings that decide which sample comes when; see :class:`~stoker.loaders.dataset.StreamingDataset`."""

    subsets: tuple[Subset, ...] = ()
    batch_by: Lengths | None = None
    partition_algo: str | None = None
    shuffle_algo: str | None = None
    read: ReadOptions = ReadOptions()

    def __post_init__(self) -> None:
        if self.shuffle_algo is not None and self.shuffle_algo not in SHUFFLES:
            from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES

            must_know("shuffle_algo", [self.shuffle_algo], (*SHUFFLES, *MOSAICML_SHUFFLES))

    @property
    def foreign(self) -> bool:
        """Whether the order is mosaicml-streaming's."""
        if self.partition_algo is not None:
            return True
        others = {self.shuffle, self.shuffle_algo}.difference(SHUFFLES, (None,))
        if not others:  # as nearly always
            return False
        from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES

        return not others.isdisjoint(MOSAICML_SHUFFLES)


def chosen_partition(name: str) -> tuple[Partition, str | None]:
    """The partition of a name for stoker's orders; and the name, if it is one of mosaicml-streaming's, with its orders.

    ConfigError if there is no such partition, or it needs arguments.
    """
    from stoker.order.mosaicml.partition import PARTITIONS

    if name in PARTITIONS:
        return Elastic(), name
    known = strategies()
    must_know("partition", [name], (*known, *PARTITIONS))
    return known[name](), None


def make_order(streams: Streams, options: OrderOptions) -> NativeOrder | ByLengthOrder | MosaicmlOrder:
    """The sample order of opened streams. ConfigError for options that do not go together, or do not fit the data."""
    if options.foreign:
        return _mosaicml(streams, options)
    sources = make_sources(streams, options.subsets, options.partition, options.read)
    chosen: dict[str, Any] = {one.name: getattr(options, one.name) for one in fields(OrderChoices)}
    order = NativeOrder(sources, NativeSettings(**chosen))
    if options.batch_by is None:
        return order
    from stoker.streams.lengths import sample_lengths

    lengths = sample_lengths(streams, options.batch_by, options.read)
    return ByLengthOrder(order, streams.index.table, lengths, options.batch_by)


def _mosaicml(streams: Streams, options: OrderOptions) -> MosaicmlOrder:
    from stoker.order.mosaicml.sample_order import MosaicmlOrder
    from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES

    chosen = (
        f"partition_algo={options.partition_algo!r}"
        if options.partition_algo is not None
        else f"shuffle_algo={options.shuffle_algo or options.shuffle!r}"
    )
    subsets = options.subsets or any(stream.subsets for stream in streams.streams)
    for name, given in (
        ("partition_algo=", options.partition != Elastic()),
        ("sampling_method=Schedule(...)", options.schedule is not None),
        ("subset=", bool(subsets)),
        ("remainder=", options.remainder != "pad"),
        ("batch_by=", options.batch_by is not None),
    ):
        if given:
            raise ConfigError(
                f"{name} cannot be combined with {chosen}, as orders of mosaicml-streaming do not support it: "
                'use shuffle_algo="block"' + (" without partition_algo=" if name != "partition_algo=" else "")
            )
    weights = [stream.weight for stream in streams.streams]
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
            "partition_algo": "relaxed" if options.partition_algo is None else options.partition_algo,
        },
        {name: location.url for name, location in zip(streams.names, streams.locations, strict=True)},
    )
