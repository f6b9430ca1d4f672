"""``LocalDataset``: samples of a directory by their ids, in the order that a sampler decides."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from stoker.arguments import checked
from stoker.formats.base import ShardInfo
from stoker.loaders.dataset import StreamingDataset

__all__ = ["LocalDataset"]


class LocalDataset:
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
        self._dataset = StreamingDataset(local=local, split=split or None)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._dataset.size

    @property
    def num_samples(self) -> int:
        """The same as ``size``."""
        return self._dataset.size

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The index's entry of each shard."""
        return self._dataset.shards

    def __len__(self) -> int:
        return self._dataset.size

    def __getitem__(self, index: Any) -> Any:
        """A sample by id, or a list of samples for a slice or an array of ids. Negative ids count from the end.

        Raises:
            IndexError: there is no such sample.
        """
        if isinstance(index, slice):
            return [self.get_item(number) for number in range(*index.indices(self.size))]
        if isinstance(index, list | tuple | np.ndarray):
            return [self[number] for number in index]
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise TypeError(f"an index is an int, a slice or an array of ints, got {type(index).__name__}")
        number = int(index)
        return self.get_item(number + self.size if -self.size <= number < 0 else number)

    def get_item(self, sample_id: int) -> Any:
        """The sample with this id, from 0 to ``size - 1``."""
        return self._dataset.get_item(sample_id)
