"""Attributes of a dataset that tell of its data and settings, by the names that mosaicml-streaming gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.lazy import shadowed
from stoker.loaders.dataset_methods.overrides import SAMPLE_METHODS
from stoker.order.global_batches import Remainder
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.epoch_reader import EpochReader
from stoker.streams.streams import Stream, Streams
from stoker.types import Ids

__all__ = ["DatasetAttributes"]

_ABSENT: Final = object()
# Those that mosaicml-streaming has as properties, or not at all.
_OF_THE_CLASS: Final = ("cache_usage", "epoch_reader", "leaves_out", "next_epoch", "size", "states_loaded")


def is_subclass(dataset: object) -> bool:
    """Whether the class of a dataset is somebody's own, which may have attributes of its own."""
    return not type(dataset).__module__.startswith("stoker.")


class DatasetAttributes:
    """Base of a dataset: what may be read of it, and not set. They cost nothing where nobody asks."""

    _streams: Streams
    _table: ShardTable
    _epoch_reader: EpochReader
    _given: dict[str, Any]
    _remainder: Remainder

    def overrides(self, *names: str) -> tuple[str, ...]:
        """Those of the methods ``names`` that the class of this object has from a subclass."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            found = getattr(type(self), name, None)
            fixed = isinstance(found, shadowed) and not is_subclass(self)
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
        given = self.__dict__.get("_given", {})
        if not given and name not in _OF_THE_CLASS:
            return
        for known in (getattr(self, name), given.get(name, _ABSENT)) if given else ():
            if value is known or (
                isinstance(value, str | int | float) and type(known) is type(value) and value == known
            ):
                return
        raise ConfigError(
            f"{type(self).__name__}.{name} tells of the open dataset and can not be set: "
            + ("give it to the constructor" if name in given else "call an attribute of your own otherwise")
        )

    def __reversed__(self) -> NoReturn:
        # Python's own would read by id, from the length of this rank's part.
        raise ConfigError(
            f"a {type(self).__name__} is read forwards: for all samples by id, last one first, write "
            "(dataset[number] for number in range(dataset.size - 1, -1, -1))"
        )

    # -- samples and shards ----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of samples in the dataset, all streams together, subsets not considered."""
        return self._table.total

    @property
    def num_samples(self) -> int:
        """The same as ``size``."""
        return self._table.total

    @property
    def num_shards(self) -> int:
        """Number of shards, all streams together."""
        return len(self._table)

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len(self._streams)

    @property
    def length(self) -> int:
        """The same as ``len``."""
        return len(self)  # type: ignore[arg-type]

    @property
    def epoch_size(self) -> int:
        """Number of samples in an epoch, over all ranks."""
        return self._epoch_reader.sample_order.epoch_size

    @property
    def shards(self) -> Sequence[ShardInfo]:
        """The index's entry of each shard: ``samples``, ``size`` in bytes, files."""
        return self._streams.index.shards

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams, as they were given; of a dataset without ``streams=``, the one that it made."""
        return self._streams.streams

    @shadowed
    def stream_names(self) -> tuple[str, ...]:
        """Names of the streams, all different."""
        return self._streams.names

    @property
    def samples_per_shard(self) -> Ids:
        """Number of samples in each shard; int64, shape ``(num_shards,)``."""
        return self._table.sizes

    @property
    def sample_offset_per_shard(self) -> Ids:
        """Id of each shard's first sample; int64, shape ``(num_shards,)``."""
        return self._table.starts[:-1]

    @property
    def samples_per_stream(self) -> Ids:
        """Number of samples in each stream; int64, shape ``(num_streams,)``."""
        return np.diff(self._streams.sample_offsets)

    @property
    def sample_offset_per_stream(self) -> Ids:
        """Id of each stream's first sample; int64, shape ``(num_streams,)``."""
        return self._streams.sample_offsets[:-1]

    @property
    def shards_per_stream(self) -> Ids:
        """Number of shards in each stream; int64, shape ``(num_streams,)``."""
        return np.diff(self._streams.shard_offsets)

    @property
    def shard_offset_per_stream(self) -> Ids:
        """Number of each stream's first shard; int64, shape ``(num_streams,)``."""
        return self._streams.shard_offsets[:-1]

    @property
    def stream_per_shard(self) -> Ids:
        """Number of each shard's stream; int64, shape ``(num_shards,)``."""
        return np.repeat(np.arange(self.num_streams), self.shards_per_stream)

    @shadowed
    def index(self) -> Index | ConcatIndex:
        """The index of all shards."""
        return self._streams.index

    @shadowed
    def remainder(self) -> Remainder:
        """Treatment of ranks whose parts of an epoch do not end together."""
        return self._remainder

    @property
    def transform(self) -> Any:
        """The function that is applied to each sample. A subclass that makes its own samples may set another, for itself.

        Raises:
            ConfigError: it is set where nothing would call it.
        """
        if "transform" in self.__dict__:  # a subclass's
            return self.__dict__["transform"]
        return self._epoch_reader.settings.transform

    @transform.setter
    def transform(self, function: Any) -> None:
        if not self.overrides(*SAMPLE_METHODS):
            raise ConfigError(
                f"{type(self).__name__}.transform is fixed when the dataset is opened: give it to the constructor, "
                "transform=..., or override __getitem__ to call it"
            )
        self.__dict__["transform"] = function

    # -- the cache -------------------------------------------------------------------------------------------------

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard into the cache, if it is not there.

        Args:
            shard_id: from 0 to ``num_shards - 1``.
            blocking: wait until it is there; otherwise it is fetched in the background.

        Raises:
            IndexError: there is no such shard.
            StorageError, CorruptDataError: it can not be fetched.
        """
        self._check_shard(shard_id)
        pool = self._epoch_reader.pool
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
        self._check_shard(shard_id)
        pool = self._epoch_reader.pool
        cache = pool.cache_of(shard_id)
        if cache.store is None:
            raise ConfigError(
                f"{cache.describe(self.shards[shard_id])} is no copy in a cache: there is nothing to evict"
            )
        pool.done_with(shard_id, close=True)
        cache.evict(self.shards[shard_id])

    @property
    def cache_usage(self) -> int:
        """Bytes that the raw files of this dataset's shards take in the caches now; looks at each file."""
        roots = {location.cache.root: location for location in self._streams.locations}.values()
        return sum(location.cache.used(location.index.shards) for location in roots)

    def _check_shard(self, shard_id: int) -> None:
        if not 0 <= shard_id < self.num_shards:
            raise IndexError(f"shard {shard_id} is not in a dataset of {self.num_shards} shards")

    # -- arguments of the constructor ------------------------------------------------------------------------------

    @property
    def predownload(self) -> int:
        """Samples ahead of the current one whose shards are fetched."""
        reader = self._epoch_reader
        found: int | None = reader.settings.amounts.predownload
        return reader.settings.amounts.lookahead(self._given["batch_size"] or 1) if found is None else found

    @property
    def cache_limit(self) -> int | None:
        """Bytes that all caches together may take."""
        return self._streams.limit

    @property
    def num_canonical_nodes(self) -> int | None:
        """Parts that a shuffle cuts the data into; ``None`` where the world in which the epoch begins decides."""
        found: int | None = self._order_settings.get("num_canonical_nodes", self._given["num_canonical_nodes"])
        return found

    @property
    def shuffle(self) -> bool:
        """Whether samples are shuffled. It is not a method: the constructor takes ``shuffle=`` and ``shuffle_seed=``."""
        return bool(self._given["shuffle"])

    @property
    def shuffle_algo(self) -> str:
        """Name of the shuffle."""
        return str(self._given["shuffle_algo"])

    @property
    def shuffle_seed(self) -> int:
        """Seed of the shuffle that was given; a loaded state of mosaicml-streaming brings its own."""
        return int(self._given["shuffle_seed"])

    @property
    def shuffle_block_size(self) -> int | None:
        """Samples in a shuffle block, as given."""
        found: int | None = self._given["shuffle_block_size"]
        return found

    @property
    def sampling_method(self) -> str:
        """``"balanced"`` or ``"fixed"``."""
        return str(self._given["sampling_method"])

    @property
    def sampling_granularity(self) -> int:
        """Samples that fixed sampling takes from one shard at a time."""
        return int(self._given["sampling_granularity"])

    @property
    def batching_method(self) -> str:
        """The method by which streams are mixed in batches."""
        return str(self._given["batching_method"])

    @property
    def partition_algo(self) -> str | None:
        """The partition of mosaicml-streaming, as given."""
        found: str | None = self._given["partition_algo"]
        return found

    @property
    def allow_unsafe_types(self) -> bool:
        """Whether columns are decoded whose decoding can run code from the data."""
        return self._epoch_reader.pool.options.allow_unsafe_types

    @property
    def replication(self) -> Any:
        """The ranks that read the same samples, as given."""
        return self._given["replication"]

    @property
    def _order_settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self._epoch_reader.sample_order.as_dict()["order"]
        return found
