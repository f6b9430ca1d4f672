"""The zips and joins that a chain begins with: which samples belong together is known before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stoker.formats.unstacked import spread
from stoker.pipeline.chunks.chunk import Chunk, ChunkOthers, OtherIds
from stoker.pipeline.joins.other_reader import OtherReader
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.projection import LeadingJoin
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Column, Ids


class LeadingJoins:
    """Finds the samples of other datasets that belong to those of a dataset, of which only columns of keys are read.

    ``pool``: the dataset's open shards. ``joins``: the zips and joins. ``readers``: of the other dataset of each.
    """

    def __init__(self, pool: ShardPool, joins: Sequence[LeadingJoin], readers: Sequence[OtherReader]) -> None:
        self._pool, self.joins, self.readers = pool, tuple(joins), tuple(readers)

    def others(self, shards: Ids, rows: Ids) -> OtherIds:
        """For each zip and join, the ids of the samples that belong to these; -1 where there is none.

        StokerError if a key can not be read, or is none.
        """
        found: list[Ids] = []
        for join, reader in zip(self.joins, self.readers, strict=True):
            if join.key is None:
                found.append(self._ids(shards, rows))
                continue
            source, column = join.key
            keys = self._keys_of(source, found, column) if source else self._own_keys(shards, rows, column)
            found.append(reader.find(join.step.on[1], keys, f"{join.step.told}: column {join.step.on[0]!r}"))
        return tuple(found)

    def _ids(self, shards: Ids, rows: Ids) -> Ids:
        return self._pool.index.table.ids(shards, rows)

    def _own_keys(self, shards: Ids, rows: Ids, column: str) -> Column:
        if column == self._pool.ids:
            return self._ids(shards, rows)
        return read_samples(self._pool, shards, rows, [column])[column]

    def _keys_of(self, source: int, found: Sequence[Ids], column: str) -> Column:
        """Keys that are columns of another dataset; ``None`` where it has no sample."""
        ids = found[source - 1]
        there = np.flatnonzero(ids >= 0)
        reader = self.readers[source - 1].some(((column, column),))
        keys: Column = reader.read(ids[there], columns=True).check().values[column]
        return keys if len(there) == len(ids) else spread(keys, there.tolist(), len(ids))

    @property
    def leave_out(self) -> bool:
        """Whether samples are dropped for which a join has none."""
        return any(join.known and join.step.missing == "leave_out" for join in self.joins)

    def without_unmatched(self, chunk: Chunk) -> Chunk:
        """A chunk that is not read yet, without the samples that a join leaves out."""
        if chunk.values is not None:  # which are left out is found as they are joined
            return chunk
        others = chunk.other_ids
        if others is None:
            try:
                others = self.others(chunk.shards, chunk.rows)
            except Exception as error:
                if not is_of_sample(error):
                    raise
                return chunk  # which of them is bad is found where they are read
        gone = [
            ids < 0
            for join, ids in zip(self.joins, others, strict=True)
            if join.known and join.step.missing == "leave_out"
        ]
        kept = None if not np.any(gone) else np.flatnonzero(~np.logical_or.reduce(gone))
        return replace(chunk, others=ChunkOthers(others), kept=kept)
