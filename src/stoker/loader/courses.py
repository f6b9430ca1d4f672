"""Which course a dataset's arguments ask for: stoker's own, or that of mosaicml-streaming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stoker.dataset.streams import Streams
from stoker.dataset.subsets import Subset
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.loader.sources import make_sources
from stoker.order.batches import Remainder
from stoker.order.course import Course
from stoker.order.incumbent import Mixture, StreamWeight
from stoker.order.incumbent.course import IncumbentCourse
from stoker.order.incumbent.shuffles import SHUFFLES
from stoker.order.native import NativeCourse
from stoker.order.partition import Elastic, Partition
from stoker.order.schedule import Schedule
from stoker.order.settings import NativeSettings

__all__ = ["CourseOptions", "make_course"]


@dataclass(frozen=True, slots=True)
class CourseOptions:
    """What decides which sample comes when; see :class:`~stoker.streaming.StreamingDataset`."""

    shuffle: str = "none"
    seed: int = 9176
    num_canonical_nodes: int | None = None
    block_size: int | None = None
    epoch_size: int | None = None
    partition: Partition = field(default_factory=Elastic)
    batching_method: str = "random"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    schedule: Schedule | None = None
    subsets: tuple[Subset, ...] = ()
    remainder: Remainder = "pad"
    partition_algo: str | None = None
    shuffle_algo: str | None = None
    read: ReadOptions = ReadOptions()

    @property
    def foreign(self) -> bool:
        """Whether the order is mosaicml-streaming's."""
        return self.shuffle in SHUFFLES or self.partition_algo is not None


def make_course(streams: Streams, options: CourseOptions) -> Course:
    """The course of opened streams.

    Raises:
        ConfigError: options that do not go together, or do not fit the data.
    """
    if options.foreign:
        return _incumbent(streams, options)
    sources = make_sources(streams, options.subsets, options.partition, options.read)
    return NativeCourse(
        sources,
        NativeSettings(
            shuffle=options.shuffle,  # type: ignore[arg-type]
            seed=options.seed,
            num_canonical_nodes=options.num_canonical_nodes,
            block_size=options.block_size,
            epoch_size=options.epoch_size,
            partition=options.partition,
            batching_method=options.batching_method,
            sampling_method=options.sampling_method,
            sampling_granularity=options.sampling_granularity,
            schedule=options.schedule,
            remainder=options.remainder,
        ),
    )


def _incumbent(streams: Streams, options: CourseOptions) -> IncumbentCourse:
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
        [place.index.sizes for place in streams.places], weights, options.epoch_size, options.seed
    )
    shuffle: dict[str, Any] = {"shuffle": options.shuffle != "none"}
    # Without shuffling too, the algorithm decides the reference's default number of canonical nodes.
    named = options.shuffle_algo if options.shuffle == "none" else options.shuffle
    if named in SHUFFLES:
        shuffle["shuffle_algo"] = named
    about = [
        (name, {"fingerprint": place.index.fingerprint, "samples": place.index.samples})
        for name, place in zip(streams.names, streams.places, strict=True)
    ]
    return IncumbentCourse(
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
    )
