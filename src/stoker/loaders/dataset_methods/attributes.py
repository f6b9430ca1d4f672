"""Attributes and methods of a dataset for programs that were written for mosaicml-streaming, by the names it gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import ConfigError
from stoker.lazy import shadowed
from stoker.loaders.dataset_methods.opened import SAMPLE_METHODS, DatasetBase, Told
from stoker.order.mixture.schedule import Schedule
from stoker.order.partition import Partition
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids

__all__ = ["GIVEN", "DatasetAttributes"]

GIVEN: Final = (
    "allow_unsafe_types",
    "batch_size",
    "batching_method",
    "cache_limit",
    "epoch_size",
    "num_canonical_nodes",
    "partition_algo",
    "predownload",
    "remainder",
    "replication",
    "sampling_granularity",
    "sampling_method",
    "shuffle",
    "shuffle_algo",
    "shuffle_block_size",
    "shuffle_seed",
    "streams",
)
"""Arguments of the constructor that are attributes, too."""

_ABSENT: Final = object()
# Those that mosaicml-streaming has as properties, or not at all.
_OF_THE_CLASS: Final = (
    "cache_usage",
    "epoch_reader",
    "leaves_out",
    "next_epoch",
    "order_number",
    "size",
    "states_loaded",
)


class DatasetAttributes(DatasetBase):
    """Base of a dataset: what may be read of it, and not set. They cost nothing where nobody asks."""

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            found = getattr(type(self), name, None)
            own = not type(self).__module__.startswith("stoker.")  # which may have attributes of its own
            fixed = isinstance(found, shadowed) and not own
            if fixed or (isinstance(found, property) and found.fset is None):
                self._check_same(name, value)
            else:
                object.__setattr__(self, name, value)

    def _check_same(self, name: str, value: Any) -> None:
        """See that setting an attribute would not change it. What is set before the constructor runs, that overwrites, where
        mosaicml-streaming's does so.

        Raises:
            ConfigError: it would.
        """
        opened = self.__dict__.get("_opened")
        if opened is None and name not in _OF_THE_CLASS:
            return
        given = {} if opened is None else opened.given
        for known in () if opened is None else (getattr(self, name), given.get(name, _ABSENT)):
            if value is known or (
                isinstance(value, str | int | float) and type(known) is type(value) and value == known
            ):
                return
        raise ConfigError(
            f"{type(self).__name__}.{name} tells of the open dataset and can not be set: "
            + ("give it to the constructor" if name in given else "call an attribute of your own otherwise")
        )

    shuffle = Told[bool](
        "Whether samples are shuffled. It is not a method: the constructor takes ``shuffle=`` and ``shuffle_seed=``."
    )
    shuffle_algo = Told[str]("Name of the shuffle.")
    shuffle_seed = Told[int]("Seed of the shuffle, as given; a loaded state of mosaicml-streaming brings its own.")
    shuffle_block_size = Told[int | None]("Samples in a shuffle block, as given.")
    sampling_method = Told[str | Schedule]('``"balanced"``, ``"fixed"`` or a schedule, as given.')
    sampling_granularity = Told[int]("Samples that fixed sampling takes from one shard at a time.")
    batching_method = Told[str]("The method by which streams are mixed in batches.")
    partition_algo = Told[str | Partition]("How samples are divided among ranks, as given.")
    replication = Told[Any]("The ranks that read the same samples, as given.")
    num_canonical_nodes = Told[int | None](
        "Parts that a shuffle cuts the data into; ``None`` where the world in which the epoch begins decides.",
        lambda opened: opened.order.get("num_canonical_nodes", opened.given["num_canonical_nodes"]),
    )
    allow_unsafe_types = Told(
        "Whether columns are decoded whose decoding can run code from the data.",
        lambda opened: opened.reader.pool.options.allow_unsafe_types,
    )
    cache_limit = Told("Bytes that all caches together may take.", lambda opened: opened.streams.limit)
    epoch_size = Told("Samples in an epoch, over all ranks.", lambda opened: opened.reader.sample_order.epoch_size)
    streams = Told(
        "The streams, as they were given; of a dataset without ``streams=``, the one that it made.",
        lambda opened: opened.streams.streams,
    )
    num_streams = Told("Number of streams.", lambda opened: len(opened.streams))
    num_shards = Told("Number of shards, all streams together.", lambda opened: len(opened.table))
    samples_per_shard = Told("Samples in each shard; int64.", lambda opened: opened.table.sizes)
    samples_per_stream = Told[Ids](
        "Samples in each stream; int64.", lambda opened: np.diff(opened.streams.sample_offsets)
    )
    shards_per_stream = Told[Ids]("Shards of each stream; int64.", lambda opened: np.diff(opened.streams.shard_offsets))
    sample_offset_per_shard = Told[Ids](
        "Id of each shard's first sample; int64.", lambda opened: opened.table.starts[:-1]
    )
    sample_offset_per_stream = Told[Ids](
        "Id of each stream's first sample; int64.", lambda opened: opened.streams.sample_offsets[:-1]
    )
    shard_offset_per_stream = Told[Ids](
        "Number of each stream's first shard; int64.", lambda opened: opened.streams.shard_offsets[:-1]
    )
    stream_per_shard = Told[Ids](
        "Number of each shard's stream; int64.",
        lambda opened: np.repeat(np.arange(len(opened.streams)), np.diff(opened.streams.shard_offsets)),
    )

    @property
    def predownload(self) -> int:
        """Samples ahead of the current one whose shards are fetched."""
        amounts, batch_size = self._opened.reader.settings.amounts, self._opened.given["batch_size"]
        return amounts.lookahead(batch_size or 1) if amounts.predownload is None else amounts.predownload

    @property
    def length(self) -> int:
        """The same as ``len``."""
        return len(self)  # type: ignore[arg-type]

    @property
    def transform(self) -> Any:
        """The function that is applied to each sample. A subclass that makes its own samples may set another, for itself.

        Raises:
            ConfigError: it is set where nothing would call it.
        """
        if "transform" in self.__dict__:  # a subclass's
            return self.__dict__["transform"]
        return self._opened.reader.settings.transform

    @transform.setter
    def transform(self, function: Any) -> None:
        if not self.overrides(*SAMPLE_METHODS):
            raise ConfigError(
                f"{type(self).__name__}.transform is fixed when the dataset is opened: give it to the constructor, "
                "transform=..., or override __getitem__ to call it"
            )
        self.__dict__["transform"] = function

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard into the cache, if it is not there.

        Args:
            shard_id: from 0 to ``num_shards - 1``.
            blocking: wait until it is there; otherwise it is fetched in the background.

        Raises:
            IndexError: there is no such shard.
            StorageError, CorruptDataError: it can not be fetched.
        """
        pool = self._pool_with(shard_id)
        if blocking:
            pool.get(shard_id)
        else:
            pool.prefetch([shard_id])

    def evict_shard(self, shard_id: int) -> None:
        """Remove a shard from the cache; it is fetched again when it is needed.

        Raises:
            IndexError: there is no such shard.
            ConfigError: it is read where it lies, with nowhere to fetch it from.
        """
        pool = self._pool_with(shard_id)
        cache, shard = pool.cache_of(shard_id), pool.index.shards[shard_id]
        if cache.store is None:
            raise ConfigError(f"{cache.describe(shard)} is not a copy in a cache: there is nothing to evict")
        pool.done_with(shard_id, close=True)
        cache.evict(shard)

    @property
    def cache_usage(self) -> int:
        """Bytes that the raw files of this dataset's shards take in the caches now; looks at each file."""
        roots = {location.cache.root: location for location in self._opened.streams.locations}.values()
        return sum(location.cache.used(location.index.shards) for location in roots)

    def _pool_with(self, shard_id: int) -> ShardPool:
        pool = self._opened.reader.pool
        if not 0 <= shard_id < len(pool.index):
            raise IndexError(f"shard {shard_id} is not in a dataset of {len(pool.index)} shards")
        return pool
