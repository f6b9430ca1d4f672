"""Another dataset whose columns come beside those of a dataset, and what reads its samples by id."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, DatasetChangedError, DecodeError, SampleError
from stoker.formats.mds.encodings.images import left_to_load, loaded
from stoker.formats.unstacked import Unstacked, rows_of, stackable
from stoker.image.batch_rows import BatchRows
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.chunks.by_shard import ShardByShard
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.policy import ReadAmounts
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.chain import as_chain
from stoker.reading.chain_steps import stored_names
from stoker.reading.sample_errors import SampleLocation, decode_error, location_at, location_of, returned_error
from stoker.reading.sample_reader import SampleReader, SampleRows
from stoker.reading.samples import SampleRun, distinct_shards, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.streams.key_index import KeyIndex
from stoker.streams.streams import Streams
from stoker.types import Batch, Column, Ids

logger = logging.getLogger(__name__)

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Names of columns, each as it is to be called and as the other dataset calls it."""

MakeReader: TypeAlias = Callable[[ShardPool, EpochReaderSettings, int, Sequence[str] | None], SampleReader]
ApplySteps: TypeAlias = Callable[[EpochReaderSettings, ShardPool, int, SampleRun, Ids, Ids], SampleRun]


class OtherDataset:
    """Another dataset as a zip or join reads it: by id, through open shards of its own.

    Args:
        streams: its streams.
        pool: its open shards, whose counters count what is read.
        settings: how it makes its samples.

    Attributes:
        pool: shards that are open for the zip or join alone.
        settings: see above.
        told_of_limit: whether it was logged that its cache is too small.
    """

    def __init__(self, streams: Streams, pool: ShardPool, settings: EpochReaderSettings) -> None:
        self._streams, self.settings = streams, settings
        self._counts, self.told_of_limit = pool.counts, False
        self.pool = ShardPool(
            pool.index,
            pool.caches,
            threads=pool.width.fixed,
            options=pool.options,
            counts=pool.counts,
            ids=pool.ids,
        )
        self._indexes: dict[str, KeyIndex] = {}
        self._sharers = 1

    @property
    def name(self) -> str:
        """The names of its streams."""
        return "+".join(self._streams.names)

    @property
    def table(self) -> ShardTable:
        """Its samples and shards."""
        return self.pool.index.table

    @property
    def samples(self) -> int:
        """Number of its samples, as they are stored."""
        return self.table.total

    @property
    def amounts(self) -> ReadAmounts:
        """Amounts of it that may be open and read at a time."""
        return self.settings.amounts

    @property
    def most_shards(self) -> int | None:
        """Shards that this process may have open; ``None`` where its cache has no limit."""
        limited = self.amounts.limit is not None
        return replace(self.amounts, sharers=self._sharers).most_shards if limited else None

    @property
    def about(self) -> list[dict[str, Any]]:
        """The entries that identify its streams in a state, and those of datasets that come with it."""
        own = [location.about for location in self._streams.locations]
        return [*own, *(about for other in self._nested for about in other.about)]

    @property
    def makes_samples(self) -> bool:
        """Whether its own functions make its samples, so that only these know the columns."""
        return any(step.calls for step in self.settings.steps)

    @property
    def draws(self) -> bool:
        """Whether its own chain draws random numbers."""
        return as_chain(self.settings.transform).draws

    @property
    def read_names(self) -> tuple[str, ...]:
        """The columns that are read of it, before its functions."""
        if self.settings.layout:
            return tuple(name for name, _, _ in self.settings.layout)
        return SampleReader(self.pool, self.settings.stored).names

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of its columns; ``None`` where functions make them."""
        return None if self.makes_samples else tuple(stored_names(self.settings.steps, self.read_names))

    def prepare(self, column: str) -> None:
        """Have its samples found by the values of a column, which is a stored one, by its name after ``rename``.

        Raises:
            ConfigError: there is no such column, or it holds no keys, all different.
        """
        if column in self._indexes:
            return
        if not self.pool.index.columns:
            raise ConfigError(
                f"{self.name!r} has no samples, and so no column {column!r} to find them by: write it first, or leave the "
                "join out"
            )
        names = {name: (0, name) for name in self.pool.index.columns}
        names |= {name: (source, stored) for name, source, stored in self.settings.layout}
        begin = tuple(takewhile(lambda step: not step.calls, self.settings.steps))
        names |= {
            name: names[stored] for name, stored in stored_names(begin, self.read_names).items() if stored in names
        }
        source, stored = names.get(column, (0, column))
        if source or stored == self.pool.ids:
            raise ConfigError(
                f"on={column!r}: keys are read once, from a stored column of {self.name!r} itself, and this is none"
            )
        if column not in names:
            given = self.settings.columns is not None
            raise ConfigError(
                f"{self.name!r} has no column {column!r}; there are {', '.join(self.pool.index.columns)}. "
                + (
                    "Name it in columns= of that dataset, too"
                    if given
                    else "on= takes two names, that here and that there"
                )
            )
        self._indexes[column] = KeyIndex(self._streams.locations, stored, self.pool.options)
        for cache in self.pool.caches:
            cache.counts = self._counts  # which reading the keys has replaced

    def index_of(self, column: str) -> KeyIndex:
        """The index of a column that was prepared."""
        return self._indexes[column]

    def reads_cut(self, cut: bool) -> None:
        """Say whether damaged samples are no errors; see :class:`~stoker.reading.shard_pool.ShardPool`."""
        self.pool.reads_cut = cut
        for other in self._nested:
            other.reads_cut(cut)

    def share(self, sharers: int, readers: int = 0) -> None:
        """Say how many processes of this node read through the same caches; args are those of the pool's method."""
        self._sharers = sharers
        self.pool.share(sharers, readers)
        self.pool.most_open = min(self.pool.most_open, replace(self.amounts, sharers=sharers).most_shards)
        for other in self._nested:
            other.share(sharers, readers)

    def close(self) -> None:
        """Close all files."""
        self.pool.close()
        for other in self._nested:
            other.close()

    @property
    def _nested(self) -> list[OtherDataset]:
        """Those of its own chain."""
        steps = as_chain(self.settings.transform).steps
        return [step.other for step in steps if isinstance(step.other, OtherDataset)]

    @property
    def _value(self) -> tuple[Any, ...]:
        return self.about, self.settings.steps, self.settings.stored, self.settings.layout

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OtherDataset) and self._value == other._value

    def __hash__(self) -> int:
        return hash((self._streams.index.fingerprint, self.settings.steps))


class OtherReader:
    """Reads samples of another dataset by id.

    Args:
        other: the dataset.
        pairs: the columns to read; ``None``: all that there are.
        key: the column that samples are found by; ``None``: they are not found by one.
        epoch: number of the epoch, for the random numbers of its own chain.
        make_reader: makes a reader of its stored columns, of which it may be asked for some.
        apply_steps: applies the functions of its own chain.
    """

    def __init__(
        self,
        other: OtherDataset,
        pairs: Pairs | None,
        key: str | None,
        epoch: int,
        make_reader: MakeReader,
        apply_steps: ApplySteps,
    ) -> None:
        self.other, self._key = other, key
        self._epoch, self._make, self._apply = epoch, make_reader, apply_steps
        self._some: dict[Pairs, OtherReader] = {}
        stored = stored_names(other.settings.steps, other.read_names)
        self._functions = other.makes_samples
        if pairs is None and not self._functions:
            pairs = tuple((name, name) for name in other.columns or ())
        self.pairs = pairs
        self._pairs = () if self._functions else tuple((name, stored[theirs]) for name, theirs in pairs or ())
        wanted = None if self._functions else tuple(dict.fromkeys(theirs for _, theirs in self._pairs))
        self._reader = make_reader(other.pool, other.settings, epoch, wanted)
        self._same = all(name == theirs for name, theirs in self._pairs) and len(self._pairs) == len(self._reader.names)
        # Shards that can not be opened: each attempt fetches them again.
        self.damaged: dict[int, Exception] = {}
        self._empty: Batch | None = None

    @property
    def made_names(self) -> tuple[str, ...]:
        """Names of the columns of its samples, in their order there."""
        if not self._same:
            return tuple(name for name, _ in self.pairs or ())
        names = {name for name, _ in self._pairs}
        return tuple(name for name in self._reader.pool.index.columns if name in names)

    def batch(self, ids: Ids, asked: Column | None = None) -> Batch:
        """Their columns, in this order.

        Args:
            ids: int64, shape ``(n,)``; the same may come more than once.
            asked: the keys that they were found by, where they are at hand: comparing with them is faster.

        Raises:
            SampleError: one is bad; it names the URL, shard and row of the other dataset.
            DatasetChangedError: one has another key now than it was found by.
        """
        if not self._functions and not self._pairs:
            return {}
        if not len(ids):
            return self._nothing()
        shards, rows = self.other.table.locate(ids)
        if self._functions:
            with BatchRows(len(rows)) as memory:
                samples = list(self.iterate(ids, asked))
            made = stack_samples(samples, partial(location_at, self.other.pool, shards, rows), memory)
            for one in made.values():
                if isinstance(one, Unstacked):
                    one.own_numbers = True  # as beside None, where another sample has none
            return made
        with _Naming(self, shards, rows):
            own = self._stored(ids, shards, rows, asked, whole=True)
            batch = self._reader.batch(SampleRows(shards, rows, own))
            if self.other.pool.reads_cut:  # a bad image is a bad sample here
                for column in batch.values():
                    if isinstance(column, list):
                        loaded(column)
        return {name: batch[theirs] for name, theirs in self._pairs}

    def iterate(self, ids: Ids, asked: Column | None = None, *, as_columns: bool = False) -> Iterator[dict[str, Any]]:
        """The same one by one, each made when it is asked for.

        Args:
            ids, asked: as of :meth:`batch`.
            as_columns: whether columns are made of them again: numbers keep their dtype.
        """
        if not len(ids):
            return iter(())
        if not self._functions and not self._pairs:
            return ({} for _ in range(len(ids)))
        if as_columns and not self._functions:
            batch = self.batch(ids, asked)
            lists = map(stackable, batch.values())
            return (dict(zip(batch, values, strict=True)) for values in zip(*lists, strict=True))
        shards, rows = self.other.table.locate(ids)
        with _Naming(self, shards, rows):  # what can not be opened is an error here, not of the first sample
            own = self._stored(ids, shards, rows, asked, whole=False)
            run = self._reader.iterate(SampleRows(shards, rows, own), timed=False)
            if self._functions:
                run = self._apply(self.other.settings, self.other.pool, self._epoch, run, shards, rows)
        return self._iterate(run, shards, rows)

    def _nothing(self) -> Batch:
        """The columns of no sample: where they are stored, those of the first sample, without rows."""
        if self._empty is None:
            found: Batch = {}
            if not self._functions and self.other.samples:
                with contextlib.suppress(SampleError):  # it is raised where this sample is asked for
                    found = self.batch(np.zeros(1, np.int64))
            self._empty = {name: rows_of(column, np.zeros(0, np.int64)) for name, column in found.items()}
        return {name: self._empty.get(name, []) for name, _ in self.pairs or ()}

    def _iterate(self, run: SampleRun, shards: Ids, rows: Ids) -> Iterator[dict[str, Any]]:
        other, number = self.other, 0
        with _Naming(self, shards, rows):
            for sample in run.samples:
                if self._functions:
                    if not isinstance(sample, dict):
                        raise returned_error(sample, location_at(other.pool, shards, rows, number))
                    if self.pairs is not None:
                        sample = {name: sample[theirs] for name, theirs in self.pairs}  # noqa: PLW2901
                elif not self._same:
                    sample = {name: sample[theirs] for name, theirs in self._pairs}  # noqa: PLW2901
                if left_to_load() and other.pool.reads_cut:
                    loaded(sample)
                yield sample
                number += 1

    def _stored(self, ids: Ids, shards: Ids, rows: Ids, asked: Column | None, *, whole: bool) -> Any:
        """The stored columns, where they had to be read for a comparison of keys, or shard by shard; otherwise ``None``."""
        pool, columns = self.other.pool, self._reader.columns
        if self._key is None:
            return self._shard_by_shard(shards, rows, columns, whole=whole)
        index = self.other.index_of(self._key)
        key = index.column
        added = columns is not None and key not in columns
        if columns is not None and added:
            columns = [*columns, key]
        own = self._shard_by_shard(shards, rows, columns, whole=whole)
        if whole:
            own = read_samples(pool, shards, rows, columns) if own is None else own
            keys = own[key]
        elif own is None:
            keys = read_samples(pool, shards, rows, [key])[key]
        else:
            keys = [sample.pop(key) if added else sample[key] for sample in own]
        at = index.differs(ids, keys, asked)
        if at is not None:
            was = index.key_of(int(ids[at])) if asked is None else asked[at]
            raise self._changed(index, location_of(pool, int(shards[at]), int(rows[at])), keys[at], was)
        return own

    def _changed(self, index: KeyIndex, origin: SampleLocation, key: Any, was: Any) -> DatasetChangedError:
        """The error of a sample that has another key than it was found by. The index of keys is removed."""
        key, was = (one.item() if isinstance(one, np.generic) else one for one in (key, was))
        before = "another one" if was is None else repr(was)
        remedy = (
            "That index is removed now: open the dataset again, and keys are read anew"
            if index.discard()
            else f"Remove {index.path}, which this process must not, and open the dataset again"
        )
        return DatasetChangedError(
            f"{origin}: its key {index.column!r} is {key!r}, and was {before} when the keys of {self.other.name!r} were read "
            f"for the index of keys that is kept: its shards were written over since, which its index does not show. {remedy}"
        )

    def _shard_by_shard(self, shards: Ids, rows: Ids, columns: Sequence[str] | None, *, whole: bool) -> Any:
        """The samples, where they are of more shards than a limited cache holds; ``None``: they are read at once."""
        other, most = self.other, self.other.most_shards
        if most is None or len(distinct_shards(shards, len(other.table))) <= most:
            return None
        if not other.told_of_limit:
            other.told_of_limit = True
            logger.warning(
                "cache_limit=%s of %r holds fewer shards than samples that are read together lie in, which are fetched again "
                "and again. Raise it, or write the dataset in the order of the one that it is joined to",
                other.amounts.limit,
                other.name,
            )
        reader = ShardByShard(
            other.pool,
            columns,
            whole=whole,
            most_shards=most,
            most_bytes=other.amounts.group_bytes,
            sample_bytes=other.amounts.sample_bytes,
        )
        return reader.read(shards, rows)

    def some(self, pairs: Pairs) -> OtherReader:
        """A reader of some of the columns."""
        found = self._some.get(pairs)
        if found is None:
            found = self._some[pairs] = OtherReader(self.other, pairs, self._key, self._epoch, self._make, self._apply)
        return found

    def find(self, column: str, values: Column, where: str) -> Ids:
        """See :meth:`~stoker.streams.key_index.KeyIndex.find`."""
        return self.other.index_of(column).find(values, where)

    def named(self, error: Exception, shards: Ids, rows: Ids) -> tuple[Exception, BaseException | None]:
        """The error to raise where reading these samples raised one, and its cause: it names the sample that is bad."""
        if isinstance(error, SampleError) or not is_of_sample(error):
            return error, error.__cause__
        pool = self.other.pool
        if isinstance(error, CorruptDataError):
            for shard in distinct_shards(shards, len(pool.index)):
                try:
                    pool.get(shard)
                except Exception as found:
                    if not is_of_sample(found):
                        raise
                    self.damaged[shard] = found
                    return self.damaged_error(shards, rows, shard), found
        return decode_error(pool, shards, rows, self._reader.columns, error)

    def damaged_error(self, shards: Ids, rows: Ids, shard: int) -> DecodeError:
        """The error of the first of these samples that lies in a shard which can not be opened."""
        origin = location_of(self.other.pool, shard, int(rows[np.argmax(shards == shard)]))
        told = f"{origin}: {self.damaged[shard]}"
        return DecodeError(told, url=origin.url, shard=shard, row=origin.row, sample=origin.sample)


class _Naming:
    """While samples of another dataset are read: an error names the one that is bad."""

    def __init__(self, reader: OtherReader, shards: Ids, rows: Ids) -> None:
        self._reader, self._shards, self._rows = reader, shards, rows

    def __enter__(self) -> None:
        for shard, why in self._reader.damaged.items():
            if shard in self._shards:
                raise self._reader.damaged_error(self._shards, self._rows, shard) from why

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            told, cause = self._reader.named(error, self._shards, self._rows)
            if told is not error:
                raise told from cause
