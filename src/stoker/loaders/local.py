"""``LocalDataset``: samples of a directory by their ids, in the order that a sampler decides."""

from __future__ import annotations

import os
from typing import Any

from stoker.arguments import checked
from stoker.loaders.dataset_methods.by_id import SamplesById
from stoker.loaders.iterable import TorchMap
from stoker.loaders.pickled import PickledByVersion
from stoker.streams.streams import Stream, StreamDefaults

__all__ = ["LocalDataset"]


class LocalDataset(SamplesById, PickledByVersion, TorchMap[Any]):
    """A map-style dataset in a local directory: samples by id, for torch's samplers.

    It has no shuffled order, no ranks and no state; :class:`~stoker.loaders.dataset.StreamingDataset` has all of these,
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
        # What a copy in a worker does not need, which is given an opened dataset.
        from stoker.loaders.dataset_methods.open_dataset import open_dataset
        from stoker.pipeline.build_order import OrderOptions

        self.local = local
        self.split = split or ""
        self._opened = open_dataset([Stream(local=local, split=split or None)], StreamDefaults(), OrderOptions(), {})

    def __len__(self) -> int:
        return self.size
