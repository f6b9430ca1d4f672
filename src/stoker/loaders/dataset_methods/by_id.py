"""Samples of a dataset by their ids: read, one by one or as columns, and located."""

from __future__ import annotations

import logging
import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import check_argument, checked
from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.formats.unstacked import as_batch
from stoker.loaders.dataset_methods.opened import DatasetBase
from stoker.loaders.trainers.consumers import fetches_by_id
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.sample_errors import SampleLocation, location_of
from stoker.reading.samples import read_sample, read_samples
from stoker.types import Batch, Ids

_ABSENT: Final = object()
logger = logging.getLogger(__name__)


class SamplesById(DatasetBase):
    """Base of a dataset: its samples and shards, ``dataset[i]``, and ``dataset.read(ids)``."""

    @property
    def num_samples(self) -> int:
        """The same as ``size``."""
        return self.size

    @property
    def shards(self) -> Sequence[ShardInfo]:
        """The index's entry of each shard: ``samples``, ``size`` in bytes, files."""
        return self._opened.streams.index.shards

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[np.integer[Any]]) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """A sample by id, or a list of samples for a slice or an array of ids. Negative ids count from the end."""
        if type(index) is int and index >= 0:
            return self.get_item(index)
        total = self._opened.table.total
        if isinstance(index, slice):
            return self._samples(np.arange(*index.indices(total), dtype=np.int64))
        if isinstance(index, Sequence | np.ndarray) and not isinstance(index, str | bytes):
            return self._samples(self._ids(index))
        # A truth value has an __index__, too.
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            from stoker.arguments.messages import shown

            told = f"; a column of some samples is dataset.read(ids)[{index!r}]" if isinstance(index, str) else ""
            raise TypeError(f"an index is an int, a slice or an array of ints, got {shown(index)}{told}")
        number = operator.index(index)
        return self.get_item(number + total if -total <= number < 0 else number)

    def get_item(self, sample_id: int, retry: int | None = None) -> Any:  # noqa: ARG002
        """The sample with this id, for ``dataset[i]``, iteration and subclasses that override it.

        Args:
            sample_id: from 0 to ``size - 1``.
            retry: for code that was written for mosaicml-streaming; downloads are repeated ``download_retry`` times.

        Raises:
            IndexError: there is no such sample.
        """
        opened = self._opened
        if opened.at_hand:  # an override asks for the sample that iteration has read already
            sample = opened.at_hand.pop(sample_id, _ABSENT)
            if sample is not _ABSENT:
                return sample
        if opened.length_told is not None:
            self._check_length_told()
        if not 0 <= sample_id < opened.table.total:
            raise IndexError(f"sample {sample_id} is not in a dataset of {opened.table.total} samples")
        settings, starts = opened.reader.settings, opened.starts
        if settings.transform is not None:
            return self._read(np.array([sample_id]))[0]
        shard = bisect_right(starts, sample_id) - 1
        return read_sample(opened.reader.pool, shard, sample_id - starts[shard], settings.columns)

    def read(self, ids: Sequence[int] | NDArray[np.integer[Any]], columns: Sequence[str] | None = None) -> Batch:
        """Columns of any samples by id, in the order given; ``transform`` is not applied.

        Args:
            ids: sample ids; negative ones count from the end. Of no ids, the columns are those of a sample, without rows:
                one is read for it. Of a dataset without samples they are lists.
            columns: names to read; default, those of the dataset.

        Raises:
            ConfigError: ``columns`` is no list of names, or is empty.
        """
        if columns is not None:
            columns = check_argument(f"{type(self).__name__}.read", "columns", Sequence[str], columns)
            if not len(columns):
                raise ConfigError("columns is empty: name at least one, or leave it out for all")
        opened = self._opened
        wanted = opened.reader.settings.columns if columns is None else columns
        shards, rows = opened.table.locate(self._ids(ids))
        if not len(rows):
            return self._read_none(wanted)
        return as_batch(read_samples(opened.reader.pool, shards, rows, wanted))

    def _read_none(self, columns: Sequence[str] | None) -> Batch:
        """The columns of a good sample, without rows."""
        from stoker.pipeline.chunks.empty_batch import EmptyBatch

        opened, bad = self._opened, list[Exception]()

        def read(shard: int, row: int) -> Batch:
            try:
                return read_samples(opened.reader.pool, np.array([shard]), np.array([row]), columns)
            except Exception as error:
                bad.append(error)
                if not is_of_sample(error):
                    raise
                return {}

        found = EmptyBatch(opened.table).columns(read)
        if bad and not found:
            raise bad[0]
        return found or {name: [] for name in (columns or opened.streams.index.columns)}

    @checked
    def where(self, sample_id: int) -> SampleLocation:
        """The URL, shard, row and stream of a sample.

        Raises:
            IndexError: there is no such sample.
        """
        opened = self._opened
        shards, rows = opened.table.locate(self._ids([sample_id]))
        stream = int(np.searchsorted(opened.streams.shard_offsets, shards[0], side="right")) - 1
        found = location_of(opened.reader.pool, int(shards[0]), int(rows[0]))
        return replace(found, stream=opened.streams.names[stream])

    def _check_length_told(self) -> None:
        """Warn of a dataset around this one that may take this rank's length for the number of samples. Once."""
        length, self._opened.length_told = self._opened.length_told, None
        if length != self.size and fetches_by_id():
            logger.warning(
                "samples are read by id, by a DataLoader over another dataset, and len() of the StreamingDataset in it was "
                "asked for: that is %d, what this rank gets in an epoch. Of all samples there are %d: .size says so",
                length,
                self.size,
            )

    def _ids(self, index: Any) -> Ids:
        given = np.asarray(index)
        if given.size == 0:
            return np.zeros(0, dtype=np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise TypeError(f"ids must be a one-dimensional array of ints, got {given.dtype} of shape {given.shape}")
        total = self.size
        ids = np.where(given < 0, given + total, given).astype(np.int64)
        outside = np.flatnonzero((ids < 0) | (ids >= total))
        if outside.size:
            raise IndexError(f"sample {int(given[outside[0]])} is not in a dataset of {total} samples")
        return ids

    def _samples(self, ids: Ids) -> list[Any]:
        if self.overrides("get_item"):
            return [self.get_item(number) for number in ids.tolist()]
        return self._read(ids) if len(ids) else []

    def _read(self, ids: Ids) -> list[Any]:
        return self._opened.reader.read_by_id(*self._opened.table.locate(ids))
