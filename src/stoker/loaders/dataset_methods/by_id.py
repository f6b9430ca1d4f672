"""Samples of a dataset by their ids: read, one by one or as columns, located, and when they come."""

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
from stoker.arguments.messages import shown
from stoker.cluster import World
from stoker.errors import ConfigError
from stoker.formats.unstacked import as_batch
from stoker.lazy import cached_property
from stoker.loaders.trainers.consumers import fetches_by_id
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.chunks.empty_batch import EmptyBatch
from stoker.pipeline.epoch_reader import EpochReader
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.sample_errors import SampleLocation, location_of
from stoker.reading.samples import read_sample, read_samples
from stoker.streams.streams import Streams
from stoker.types import Batch, Ids

_ABSENT: Final = object()
logger = logging.getLogger(__name__)


class SamplesById:
    """Base of a dataset: ``dataset[i]``, and ``dataset.read(ids)``."""

    _streams: Streams
    _table: ShardTable
    _epoch_reader: EpochReader
    batch_size: int | None
    """Samples in a batch of a rank; ``None`` counts as 1."""
    _at_hand: dict[int, Any]
    """Samples that iteration has read, for a subclass's method that is about to ask for them."""
    _length_told: int | None = None
    """The number that ``len()`` said, until a sample by id was read."""

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[np.integer[Any]]) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """A sample by id, or a list of samples for a slice or an array of ids. Negative ids count from the end."""
        if type(index) is int and index >= 0:
            return self.get_item(index)
        if isinstance(index, slice):
            return self._samples(np.arange(*index.indices(self._table.total), dtype=np.int64))
        if isinstance(index, Sequence | np.ndarray) and not isinstance(index, str | bytes):
            return self._samples(self._ids(index))
        # A truth value has an __index__, too.
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            told = f"; a column of some samples is dataset.read(ids)[{index!r}]" if isinstance(index, str) else ""
            raise TypeError(f"an index is an int, a slice or an array of ints, got {shown(index)}{told}")
        number = operator.index(index)
        return self.get_item(number + self._table.total if -self._table.total <= number < 0 else number)

    def get_item(self, sample_id: int, retry: int | None = None) -> Any:  # noqa: ARG002
        """The sample with this id, for ``dataset[i]``, iteration and subclasses that override it.

        Args:
            sample_id: from 0 to ``size - 1``.
            retry: for code that was written for mosaicml-streaming; downloads are repeated ``download_retry`` times.

        Raises:
            IndexError: there is no such sample.
        """
        if self._at_hand:  # an override asks for the sample that iteration has read already
            sample = self._at_hand.pop(sample_id, _ABSENT)
            if sample is not _ABSENT:
                return sample
        if self._length_told is not None:
            self._check_length_told()
        if not 0 <= sample_id < self._table.total:
            raise IndexError(f"sample {sample_id} is not in a dataset of {self._table.total} samples")
        settings = self._epoch_reader.settings
        if settings.transform is not None:
            return self._read(np.array([sample_id]))[0]
        starts = self._starts
        shard = bisect_right(starts, sample_id) - 1
        return read_sample(self._epoch_reader.pool, shard, sample_id - starts[shard], settings.columns)

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
        wanted = self._epoch_reader.settings.columns if columns is None else columns
        shards, rows = self._table.locate(self._ids(ids))
        if not len(rows):
            return self._read_none(wanted)
        return as_batch(read_samples(self._epoch_reader.pool, shards, rows, wanted))

    def _read_none(self, columns: Sequence[str] | None) -> Batch:
        """The columns of a good sample, without rows."""
        pool, bad = self._epoch_reader.pool, list[Exception]()

        def read(shard: int, row: int) -> Batch:
            try:
                return read_samples(pool, np.array([shard]), np.array([row]), columns)
            except Exception as error:
                bad.append(error)
                if not is_of_sample(error):
                    raise
                return {}

        found = EmptyBatch(self._table).columns(read)
        if bad and not found:
            raise bad[0]
        return found or {name: [] for name in (columns or self._streams.index.columns)}

    @checked
    def where(self, sample_id: int) -> SampleLocation:
        """The URL, shard, row and stream of a sample.

        Raises:
            IndexError: there is no such sample.
        """
        shards, rows = self._table.locate(self._ids([sample_id]))
        stream = int(np.searchsorted(self._streams.shard_offsets, shards[0], side="right")) - 1
        found = location_of(self._epoch_reader.pool, int(shards[0]), int(rows[0]))
        return replace(found, stream=self._streams.names[stream])

    @checked
    def ids_of(
        self,
        step: int,
        rank: int | None = None,
        epoch: int | None = None,
        *,
        since_resume: bool = False,
        world_size: int | World | None = None,
        batch_size: int | None = None,
    ) -> Ids:
        """The ids of the samples in a batch of any rank, epoch and world, from the order alone: nothing is read.

        They are those that the world delivers with these settings; whether one is bad shows when it is read. What a wrapper
        of a trainer divides once more (``dispatch_batches``), or a sampler or a subclass's own ``__iter__`` changes, is not
        in it.

        >>> dataset.ids_of(340)                # doctest: +SKIP
        >>> dataset.where(dataset.ids_of(340, rank=2)[0])  # doctest: +SKIP

        Args:
            step: number of the batch, from 0, counted from the epoch's beginning in batches of this world, as ``SkipSteps``
                counts.
            rank: of those that read different samples; default: all, one after the other.
            epoch: number of the epoch; default: the one that was begun last, or that the next iteration begins.
            since_resume: count ``step`` from where the iteration of that epoch began: after a resume, where the state was
                taken.
            world_size: how many ranks read different samples, of another run of these settings, which would begin or resume
                where this one did. Where the order depends on nodes, they have as many ranks as here; or give a
                :class:`~stoker.cluster.world.World`, whose ``local_world_size`` says it. Default: this world.
            batch_size: of each rank of it; default: that of this dataset.

        Returns:
            int64, shape ``(batch_size,)``, or ``(ranks * batch_size,)`` without ``rank``; fewer in an epoch's last batch.

        Raises:
            ConfigError: there is no such step, rank or epoch, or no such number after a resume with other global batches.
        """
        if step < 0 or (epoch is not None and epoch < 0):
            raise ConfigError(f"step and epoch are numbered from 0, got step={step}, epoch={epoch}")
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        size = batch_size or self.batch_size or 1
        return self._epoch_reader.step(step, rank, epoch, size, world_size, since_resume=since_resume).ids

    def _check_length_told(self) -> None:
        """Warn of a dataset around this one that may take this rank's length for the number of samples. Once."""
        length, self._length_told = self._length_told, None
        if length != self._table.total and fetches_by_id():
            logger.warning(
                "samples are read by id, by a DataLoader over another dataset, and len() of the StreamingDataset in it was "
                "asked for: that is %d, what this rank gets in an epoch. Of all samples there are %d: .size says so",
                length,
                self._table.total,
            )

    def _ids(self, index: Any) -> Ids:
        given = np.asarray(index)
        if given.size == 0:
            return np.zeros(0, dtype=np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise TypeError(f"ids must be a one-dimensional array of ints, got {given.dtype} of shape {given.shape}")
        total = self._table.total
        ids = np.where(given < 0, given + total, given).astype(np.int64)
        outside = np.flatnonzero((ids < 0) | (ids >= total))
        if outside.size:
            raise IndexError(f"sample {int(given[outside[0]])} is not in a dataset of {total} samples")
        return ids

    def _samples(self, ids: Ids) -> list[Any]:
        if type(self).get_item is not SamplesById.get_item:
            return [self.get_item(number) for number in ids.tolist()]
        return self._read(ids) if len(ids) else []

    def _read(self, ids: Ids) -> list[Any]:
        return self._epoch_reader.read_by_id(*self._table.locate(ids))

    @cached_property
    def _starts(self) -> list[int]:
        """Id of each shard's first sample, in a list, in which a single id is found sooner than in an array."""
        starts: list[int] = self._table.starts.tolist()
        return starts
