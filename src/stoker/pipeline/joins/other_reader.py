"""Reads samples of another dataset by id, for a zip or join."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stoker.errors import DatasetChangedError, SampleError, StokerError
from stoker.formats.unstacked import rows_of, stackable
from stoker.pipeline.chunks.by_shard import ShardByShard
from stoker.pipeline.chunks.chunk import NO_IDS, Chunk
from stoker.pipeline.joins.other_dataset import OtherDataset
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.projection import stored_names
from stoker.reading.row_reader import RowReader
from stoker.reading.sample_errors import returned_error
from stoker.reading.samples import distinct_shards
from stoker.reading.shard_pool import ShardPool
from stoker.reading.steps import BAD
from stoker.streams.key_index import KeyIndex
from stoker.types import Batch, Column, Ids

if TYPE_CHECKING:
    from stoker.pipeline.stages.stage import ChunkStage

logger = logging.getLogger(__name__)

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Names of columns, each as it is to be called and as the other dataset calls it."""

MakeStages: TypeAlias = (
    "Callable[[ShardPool, EpochReaderSettings, int, Sequence[str] | None, bool], Sequence[ChunkStage]]"
)


class OtherReader:
    """Reads samples of another dataset by id.

    Args:
        pairs: the columns to read; ``None``: all that there are.
        key: the column that samples are found by; ``None``: they are not found by one.
        epoch: number of the epoch, for the random numbers of its own chain.
        make_stages: makes what reads its samples: some of its stored columns, as columns or as samples; or, where functions
            of its own chain make them, samples as these do.
    """

    def __init__(
        self, other: OtherDataset, pairs: Pairs | None, key: str | None, epoch: int, make_stages: MakeStages
    ) -> None:
        self.other, self._key, self._epoch, self._make_stages = other, key, epoch, make_stages
        stored = stored_names(other.settings.steps, other.read_names)
        self._functions = other.makes_samples
        if pairs is None and not self._functions:
            pairs = tuple((name, name) for name in other.columns or ())
        self.pairs = pairs
        self._pairs = () if self._functions else tuple((name, stored[theirs]) for name, theirs in pairs or ())
        self._wanted = None if self._functions else tuple(dict.fromkeys(theirs for _, theirs in self._pairs))
        self._stages: dict[bool, Sequence[ChunkStage]] = {}
        self._some: dict[Pairs, OtherReader] = {}
        self._empty: Batch | None = None

    def read(self, ids: Ids, asked: Column | None = None, *, columns: bool, keeps_dtypes: bool = False) -> Chunk:
        """The samples, in this order, as columns or in a list; bad ones are marked.

        Args:
            ids: int64, shape ``(n,)``; the same may come more than once.
            asked: the keys that they were found by, where they are at hand: comparing with them is faster.
            columns: whether columns are asked for; only where no function makes them.
            keeps_dtypes: whether columns are made of single samples again: numbers keep their dtype.

        Raises:
            DatasetChangedError: one has another key now than it was found by.
        """
        nothing = not len(ids) or (not self._functions and not self._pairs)
        shards, rows = (ids, ids) if nothing else self.other.table.locate(ids)
        if nothing:
            values: Any = [{} for _ in range(len(ids))]
            if columns:
                values = {} if len(ids) else self._nothing()
            return Chunk.at(shards, rows, values=values)
        as_columns = columns or (keeps_dtypes and not self._functions)
        own, places, bad = self._checked(ids, shards, rows, asked, as_columns=as_columns)
        found = Chunk.at(shards[places], rows[places], values=own)
        for stage in self._stages_of(as_columns=as_columns) if len(places) else ():
            found = stage.apply(found)
        bad = {int(places[number]): error for number, error in found.bad.items()} | bad
        made = Chunk.at(shards, rows)
        if not as_columns:
            return made.with_bad(bad, self._samples(made, places, found.values or []))
        batch = {name: found.values[theirs] for name, theirs in self._pairs} if found.values else self._nothing()
        kept = places[found.places] if len(places) else places
        if columns:
            return made.with_bad(bad, batch, None if len(kept) == len(ids) else kept)
        entries: list[Any] = [BAD] * len(ids)
        for place, row in zip(kept.tolist(), zip(*map(stackable, batch.values()), strict=True), strict=True):
            entries[place] = dict(zip(batch, row, strict=True))
        return made.with_bad(bad, entries)

    def columnwise(self, ids: Ids, asked: Column | None) -> dict[str, Iterable[Any]] | None:
        """See :meth:`~stoker.pipeline.stages.stage.ChunkStage.columnwise`; args are those of :meth:`read`."""
        if self._functions or not self._pairs:
            return None if self._functions else {}
        shards, rows = self.other.table.locate(ids)
        if not self._fit(shards):
            return None
        self._checked(ids, shards, rows, asked, as_columns=False)
        found: Chunk | None = Chunk.at(shards, rows)
        for stage in self._stages_of(as_columns=False):
            found = None if found is None else stage.columnwise(found)
        return None if found is None else {name: found.values[theirs] for name, theirs in self._pairs}

    def _stages_of(self, *, as_columns: bool) -> Sequence[ChunkStage]:
        stages = self._stages.get(as_columns)
        if stages is None:
            other = self.other
            stages = self._make_stages(other.pool, other.settings, self._epoch, self._wanted, as_columns)
            self._stages[as_columns] = stages
        return stages

    def _samples(self, made: Chunk, places: Ids, found: Sequence[Any]) -> list[Any]:
        pairs = self.pairs if self._functions else self._pairs
        if not self._functions and len(found) == len(made):
            names = tuple(found[0]) if found and isinstance(found[0], dict) else ()
            if pairs == tuple((name, name) for name in names):  # they are as they are asked for
                return list(found)
        entries: list[Any] = [BAD] * len(made)
        for place, sample in zip(places.tolist(), found, strict=True):
            if sample is BAD:
                continue
            if not isinstance(sample, dict):
                rows = RowReader(self.other.pool, None)
                raise returned_error(sample, rows.origin(made.shards, made.rows, place))
            entries[place] = sample if pairs is None else {name: sample[theirs] for name, theirs in pairs}
        return entries

    def first(self) -> dict[str, Any]:
        """Its first sample."""
        sample: dict[str, Any] = self.read(np.zeros(1, np.int64), columns=False).check().values[0]
        return sample

    def _nothing(self) -> Batch:
        """The columns of no sample: where they are stored, those of the first sample, without rows."""
        if self._empty is None:
            found: Batch = {}
            if not self._functions and self._pairs and self.other.samples:
                read = self.read(np.zeros(1, np.int64), columns=True)
                found = {} if read.bad else read.values
            self._empty = {name: rows_of(column, NO_IDS) for name, column in found.items()}
        return {name: self._empty.get(name, []) for name, _ in self.pairs or ()}

    def _checked(
        self, ids: Ids, shards: Ids, rows: Ids, asked: Column | None, *, as_columns: bool
    ) -> tuple[Any, Ids, dict[int, SampleError]]:
        """The own columns that were read to compare keys, or shard by shard; ``None``: nothing. Then the numbers
        of the samples that it is of, and errors of others.
        """
        pool, everything = self.other.pool, np.arange(len(ids))
        columns = self.other.settings.stored if self._wanted is None else self._own_columns()
        index = None if self._key is None else self.other.index_of(self._key)
        added = index is not None and columns is not None and index.column not in columns
        read = [*columns, index.column] if added and columns is not None and index is not None else columns
        own = self._shard_by_shard(shards, rows, read, whole=as_columns)
        if index is None:
            return own, everything, {}
        kept, bad = everything, dict[int, SampleError]()
        if as_columns:
            if own is None:
                own, kept, bad = RowReader(pool, read).good(shards, rows, loads=pool.reads_cut)
            keys = own.get(index.column, ())
        elif own is None:
            found, at, _ = RowReader(pool, [index.column]).good(shards, rows)
            self._compare(index, ids[at], shards[at], rows[at], found.get(index.column, ()), taken(asked, at))
            return None, everything, {}
        else:
            keys = [sample.pop(index.column) if added else sample[index.column] for sample in own]
        self._compare(index, ids[kept], shards[kept], rows[kept], keys, taken(asked, kept))
        return own, kept, bad

    def _own_columns(self) -> Sequence[str]:
        """The columns to read of the other dataset itself, for those that are wanted."""
        settings, pool = self.other.settings, self.other.pool
        wanted = self._wanted or ()
        if settings.layout:
            return settings.stored or pool.index.columns
        return [name for name in wanted if name != pool.ids] or list(pool.index.columns[:1])

    def _compare(self, index: KeyIndex, ids: Ids, shards: Ids, rows: Ids, keys: Any, asked: Column | None) -> None:
        at = index.differs(ids, keys, asked) if len(ids) else None
        if at is None:
            return
        was = index.key_of(int(ids[at])) if asked is None else asked[at]
        key = keys[at]
        key, was = (one.item() if isinstance(one, np.generic) else one for one in (key, was))
        before = "another one" if was is None else repr(was)
        remedy = (
            "That index is removed now: open the dataset again, and keys are read again"
            if index.discard()
            else f"Remove {index.path}, which this process must not, and open the dataset again"
        )
        origin = RowReader(self.other.pool, None).origin(shards, rows, at)
        raise DatasetChangedError(
            f"{origin}: its key {index.column!r} is {key!r}, and was {before} when the keys of {self.other.name!r} were read "
            f"for the index of keys that is kept: its shards were written over since, which its index does not show. {remedy}"
        )

    def _fit(self, shards: Ids) -> bool:
        """Return whether a cache holds all of these shards."""
        most = self.other.most_shards
        return most is None or len(distinct_shards(shards, len(self.other.table))) <= most

    def _shard_by_shard(self, shards: Ids, rows: Ids, columns: Sequence[str] | None, *, whole: bool) -> Any:
        """The samples, where they are of more shards than a limited cache holds; ``None``: they are read at once."""
        other, most = self.other, self.other.most_shards
        if most is None or self._fit(shards):
            return None
        if not other.told_of_limit:
            other.told_of_limit = True
            logger.warning(
                "cache_limit=%s of %r holds fewer shards than samples that are read together lie in, which are fetched again "
                "and again. Raise it, or write the dataset in the order of the one that it is joined to",
                other.settings.amounts.limit,
                other.name,
            )
        reader = ShardByShard(
            other.pool,
            columns,
            whole=whole,
            most_shards=most,
            most_bytes=other.settings.amounts.group_bytes,
            sample_bytes=other.settings.amounts.sample_bytes,
        )
        try:
            return reader.read(shards, rows)
        except StokerError as error:
            if not is_of_sample(error):
                raise
            return None  # which one it is, is found where they are read

    def some(self, pairs: Pairs) -> OtherReader:
        """A reader of some of the columns."""
        found = self._some.get(pairs)
        if found is None:
            found = self._some[pairs] = OtherReader(self.other, pairs, self._key, self._epoch, self._make_stages)
        return found

    def find(self, column: str, values: Column, where: str) -> Ids:
        """See :meth:`~stoker.streams.key_index.KeyIndex.find`."""
        return self.other.index_of(column).find(values, where)


def taken(keys: Column | None, at: Ids) -> Column | None:
    """The keys at these places, which rise."""
    if keys is None or len(at) == len(keys):
        return keys
    return keys[at] if isinstance(keys, np.ndarray) else [keys[place] for place in at.tolist()]
