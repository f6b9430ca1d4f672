"""Reads samples with the columns of other datasets beside their own, where the samples of these are known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import SampleError, TransformError
from stoker.formats.unstacked import spread
from stoker.pipeline.joins.other_dataset import OtherReader
from stoker.reading.apply_chain import LEFT_OUT
from stoker.reading.chain_steps import LeadingJoin, Step
from stoker.reading.sample_errors import SampleLocation, location_at, location_of, transform_error
from stoker.reading.sample_reader import OtherIds, SampleReader, SampleRows, one_row
from stoker.reading.samples import SampleRun, make_all, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Column, Ids, Sample, Transform

Layout = tuple[tuple[str, int, str], ...]


def missing_error(step: Step, key: Any, origin: SampleLocation) -> TransformError:
    """The error of a sample whose key the other dataset has not."""
    return transform_error(
        f"no sample of {step.name!r} has the key {key!r}: missing='leave_out' leaves such samples out, 'none' gives None",
        origin,
        f"{step.told}:",
    )


class JoinedReader(SampleReader):
    """Reads samples of a dataset and of others beside it.

    Args:
        pool: the dataset's open shards.
        columns: names to read of the dataset itself.
        joins: the zips and joins that the chain begins with.
        readers: of the other dataset of each.
        layout: of the columns; see :class:`~stoker.reading.chain_steps.Projection`.
    """

    def __init__(
        self,
        pool: ShardPool,
        columns: Sequence[str] | None,
        joins: Sequence[LeadingJoin],
        readers: Sequence[OtherReader],
        layout: Layout,
    ) -> None:
        super().__init__(pool, columns)
        self.joins, self.readers, self.layout = tuple(joins), tuple(readers), layout
        self._leaves_out = any(join.known and join.step.changes_counts for join in joins)
        own = tuple(name for name, source, stored in layout if not source and name == stored)
        others = tuple(name for name, source, _ in layout if source)
        # A sample is its own dict and those of the others, added to it: no column has another name, place or none.
        self._adds = (
            tuple(name for name, _, _ in layout) == (*own, *others)
            and own == super().names
            and others
            == tuple(
                name for join, reader in zip(joins, readers, strict=True) if join.known for name in reader.made_names
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of a batch."""
        return tuple(name for name, _, _ in self.layout)

    # -- which samples ---------------------------------------------------------------------------------------------

    def others(self, samples: SampleRows) -> OtherIds:
        """For each zip and join, the ids of the samples that belong to these; -1 where there is none.

        Only columns of keys are read, and of those only such as were not read already.

        Raises:
            StokerError: one of these can not be read, or holds no keys.
        """
        return self._found(samples)[0]

    def _found(self, samples: SampleRows) -> tuple[OtherIds, tuple[Column | None, ...]]:
        """The same, and the keys that they were found by."""
        own = samples.own
        found: list[Ids] = []
        asked: list[Column | None] = []
        for join, reader in zip(self.joins, self.readers, strict=True):
            if join.key is None:
                found.append(self._ids(samples))
                asked.append(None)
                continue
            source, column = join.key
            if source:
                keys = self._keys_of(source, found, column)
            elif isinstance(own, dict) and column in own:
                keys = own[column]
            elif isinstance(own, list) and column in own[0]:
                keys = [sample[column] for sample in own]
            else:
                keys = self._own_keys(samples, column)
            found.append(reader.find(join.step.on[1], keys, f"{join.step.told}: column {join.step.on[0]!r}"))
            asked.append(keys)
        return tuple(found), tuple(asked)

    def _keys_at_hand(self, own: Batch) -> tuple[Column | None, ...]:
        """The keys of each join that are among columns which were read already."""
        return tuple(None if join.key is None or join.key[0] else own.get(join.key[1]) for join in self.joins)

    def _ids(self, samples: SampleRows) -> Ids:
        return self.pool.index.table.starts[samples.shards] + samples.rows

    def _own_keys(self, samples: SampleRows, column: str) -> Column:
        if column == self.pool.ids:
            return self._ids(samples)
        return read_samples(self.pool, samples.shards, samples.rows, [column])[column]

    def _keys_of(self, source: int, found: Sequence[Ids], column: str) -> Column:
        """Keys that are columns of another dataset; ``None`` where it has no sample."""
        ids = found[source - 1]
        there = np.flatnonzero(ids >= 0)
        values = self.readers[source - 1].some(((column, column),)).batch(ids[there])
        keys = values[column]
        return keys if len(there) == len(ids) else spread(keys, there.tolist(), len(ids))

    def present(self, samples: SampleRows) -> NDArray[np.bool_] | None:
        """See :meth:`~stoker.reading.sample_reader.SampleReader.present`: those that a join does not leave out."""
        return self.present_among(self.others(samples)) if self._leaves_out else None

    def present_among(self, others: OtherIds) -> NDArray[np.bool_] | None:
        """The same, given the ids of the others' samples."""
        left_out = [
            ids < 0
            for join, ids in zip(self.joins, others, strict=True)
            if join.known and join.step.missing == "leave_out"
        ]
        gone: NDArray[np.bool_] | None = np.logical_or.reduce(left_out) if left_out else None
        return None if gone is None or not gone.any() else ~gone

    def misses(self, others: OtherIds) -> bool:
        """Whether any sample must have one in another dataset and has none, given the ids of the others' samples."""
        return any(
            join.known and join.step.missing == "raise" and len(ids) and int(ids.min()) < 0
            for join, ids in zip(self.joins, others, strict=True)
        )

    def missing(self, others: OtherIds, samples: SampleRows) -> dict[int, SampleError]:
        """Errors of the samples that must have one in another dataset and have none, by number.

        Args:
            others: ids of the others' samples.
            samples: where the samples are.
        """
        found: dict[int, SampleError] = {}
        if not self.misses(others):
            return found
        for number, (join, ids) in enumerate(zip(self.joins, others, strict=True)):
            if join.known and join.step.missing == "raise":
                for at in np.flatnonzero(ids < 0).tolist():
                    found.setdefault(at, self._missing(number, samples, at))
        return found

    def _check(self, others: OtherIds, samples: SampleRows) -> None:
        """See that the samples are there that must be."""
        if self.misses(others):
            missing = self.missing(others, samples)
            raise missing[min(missing)]

    def _missing(self, number: int, samples: SampleRows, at: int) -> TransformError:
        join = self.joins[number]
        assert join.key is not None
        shard, row = samples.place(at)
        one = one_row(shard, row)
        source, column = join.key
        keys = self._keys_of(source, self.others(one), column) if source else self._own_keys(one, column)
        key = keys.tolist()[0] if isinstance(keys, np.ndarray) else keys[0]
        return missing_error(join.step, key, location_of(self.pool, shard, row))

    # -- their columns ---------------------------------------------------------------------------------------------

    def batch(self, samples: SampleRows, *, named: bool = True) -> Batch:
        """See the base class. Samples that a join leaves out are not among these: see :meth:`present`.

        Raises:
            TransformError: a sample's key is not in the other dataset, where that is an error.
        """
        found, others = super().batch(samples, named=named), samples.others
        if others is None:
            others, asked = self._found(replace(samples, own=found))
        else:
            asked = self._keys_at_hand(found)
        self._check(others, samples)
        parts: list[Batch] = [found]
        for join, reader, ids, keys in zip(self.joins, self.readers, others, asked, strict=True):
            parts.append(_columns(reader, ids, keys) if join.known else {})
        return {name: parts[source][_name(name, source, stored)] for name, source, stored in self.layout}

    def iterate(self, samples: SampleRows, transform: Transform | None = None, *, timed: bool = True) -> SampleRun:
        """See the base class. :data:`~stoker.reading.apply_chain.LEFT_OUT` stands for each sample that a join leaves out."""
        others = samples.others
        asked: tuple[Column | None, ...] = (None,) * len(self.joins)
        if others is None:
            others, asked = self._found(samples)
        run = super().iterate(samples, timed=False)
        known = [
            (number, reader, ids, keys)
            for number, (join, reader, ids, keys) in enumerate(
                zip(self.joins, self.readers, others, asked, strict=True)
            )
            if join.known
        ]
        there = [ids >= 0 for _, _, ids, _ in known]
        beside = [
            reader.iterate(ids[ok], taken(keys, np.flatnonzero(ok)))
            for (_, reader, ids, keys), ok in zip(known, there, strict=True)
        ]
        if all(bool(ok.all()) for ok in there):
            merged = self._whole(run.samples, beside)
        else:
            flags = zip(*(ok.tolist() for ok in there), strict=True)
            nothing = [{name: None for name, _ in reader.pairs or ()} for _, reader, _, _ in known]
            numbers = [number for number, _, _, _ in known]
            merged = self._partly(run.samples, beside, nothing, numbers, flags, samples)
        made = SampleRun(merged, run.remaining)
        return self.transformed(made, samples, transform, self.clock() if timed else None)

    def samples(
        self, samples: SampleRows, transform: Transform | None = None, *, made: list[Any] | None = None
    ) -> list[Any]:
        """See the base class."""
        run = self.iterate(samples, timed=False)
        made = [] if made is None else made
        made.extend(make_all(run, transform, partial(location_at, self.pool, samples.shards, samples.rows)))
        return made

    def one(self, shard: int, row: int) -> Sample:
        """See the base class."""
        sample: Sample = next(self.iterate(one_row(shard, row)).samples)
        return sample

    def _partly(
        self,
        samples: Iterator[Any],
        beside: Sequence[Iterator[dict[str, Any]]],
        nothing: Sequence[dict[str, Any]],
        numbers: Sequence[int],
        flags: Iterator[tuple[bool, ...]],
        origins: SampleRows,
    ) -> Iterator[Any]:
        for at, (sample, found) in enumerate(zip(samples, flags, strict=True)):
            # All that there are, also of a sample that is left out: those that follow come next.
            parts = [next(one) if ok else none for one, ok, none in zip(beside, found, nothing, strict=True)]
            left_out = False
            for number, ok in zip(numbers, found, strict=True):
                missing = self.joins[number].step.missing
                if not ok and missing == "raise":
                    raise self._missing(number, origins, at)
                left_out = left_out or (not ok and missing == "leave_out")
            yield LEFT_OUT if left_out else self._put_together([sample, *parts])

    def _whole(self, samples: Iterator[Any], beside: Sequence[Iterator[dict[str, Any]]]) -> Iterator[Any]:
        if not self._adds:
            for parts in zip(samples, *beside, strict=False):
                yield self._put_together(parts)
        elif len(beside) == 1:
            for sample, other in zip(samples, beside[0], strict=False):
                sample.update(other)
                yield sample
        else:
            for sample, *parts in zip(samples, *beside, strict=False):
                for other in parts:
                    sample.update(other)
                yield sample

    def _put_together(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {name: parts[source][_name(name, source, stored)] for name, source, stored in self.layout}


def _name(name: str, source: int, stored: str) -> str:
    """The name of a column in what was read of a dataset: other datasets are asked for the names that columns get."""
    return name if source else stored


def taken(keys: Column | None, at: Ids) -> Column | None:
    """The keys at these places, which rise."""
    if keys is None or len(at) == len(keys):
        return keys
    return keys[at] if isinstance(keys, np.ndarray) else [keys[place] for place in at.tolist()]


def _columns(reader: OtherReader, ids: Ids, keys: Column | None) -> Batch:
    """Columns of another dataset, with ``None`` where it has no sample."""
    there = np.flatnonzero(ids >= 0)
    batch = reader.batch(ids[there], taken(keys, there))
    if len(there) == len(ids):
        return batch
    return {name: spread(column, there.tolist(), len(ids)) for name, column in batch.items()}
