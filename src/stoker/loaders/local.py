"""``LocalDataset``: samples of a directory by their ids, in the order that a sampler decides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stoker.arguments import checked
from stoker.formats.base import ShardInfo
from stoker.loaders.dataset import StreamingDataset
from stoker.loaders.dataset_methods.by_id import SamplesById
from stoker.loaders.iterable import TorchMap
from stoker.loaders.pickled import PickledByVersion

__all__ = ["LocalDataset"]


class LocalDataset(SamplesById, PickledByVersion, TorchMap[Any]):
    """A dataset in a local directory, by id: what torch calls a map-style dataset, for its samplers.

    It has no order of its own, no ranks, and no state; :class:`~stoker.loaders.dataset.StreamingDataset` has all of these,
    and ``dataset[i]``, too.

    >>> LocalDataset("data/train")[0]  # doctest: +SKIP

    Args:
        local: the directory.
        split: its sub-directory.

    Raises:
        StorageError, IndexFileError: there is no dataset, or its index is not valid.
    """

    @checked
    def __init__(self, local: str | os.PathLike[str], split: str | None = None) -> None:
        self.local = local
        self.split = split or ""
        opened = StreamingDataset(local=local, split=split or None)
        self._streams, self._table, self._epoch_reader = opened._streams, opened._table, opened._epoch_reader
        self._at_hand = {}

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._table.total

    @property
    def num_samples(self) -> int:
        """The same as ``size``."""
        return self._table.total

    @property
    def shards(self) -> Sequence[ShardInfo]:
        """The index's entry of each shard."""
        return self._streams.index.shards

    def __len__(self) -> int:
        return self._table.total
