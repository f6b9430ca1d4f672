"""Reads batches of columns of which some samples are bad or filtered: they are left out or replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from stoker.concurrency.shared.counters import Count
from stoker.concurrency.spans.recorder import Stage, span
from stoker.concurrency.user_code import pass_exits
from stoker.errors import SampleError
from stoker.formats.common.rows.merge import scatter
from stoker.formats.mds.encodings.images import last_left, left_to_load
from stoker.formats.unstacked import Unstacked, has_arrays, number_dtype
from stoker.image.batch_rows import BatchRows
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.joins.joined_reader import JoinedReader
from stoker.pipeline.recovery.empty_batch import EmptyBatch
from stoker.pipeline.recovery.good_sample_reader import GoodSampleReader
from stoker.pipeline.recovery.good_samples import GoodSamples
from stoker.pipeline.transforms import BatchSteps
from stoker.reading.apply_chain import LEFT_OUT, LeftOut, SeveralSamples
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.good_rows import load_columns
from stoker.reading.sample_errors import location_at
from stoker.reading.sample_reader import OtherIds, SampleRows, one_row
from stoker.types import Batch, Ids


@dataclass(frozen=True, slots=True)
class _Found:
    """Samples that have one in each other dataset.

    Attributes:
        there: their numbers.
        bad: errors of those that must have one and have none, or whose key can not be read, by number.
        others: see :data:`~stoker.reading.sample_reader.OtherIds`, of ``there``; ``None``: not all are known.
    """

    there: Ids
    bad: dict[int, SampleError]
    others: OtherIds | None


class GoodBatchReader:
    """Reads samples as columns, and deals with bad and filtered ones.

    Args:
        good: reads the samples one by one, and says what becomes of bad ones.
        batch_steps: changes columns, given positions, shards and rows of their samples; ``None`` where nothing does.
        as_stored: the stored name of each column whose values no function makes.
    """

    def __init__(self, good: GoodSampleReader, batch_steps: BatchSteps | None, as_stored: Mapping[str, str]) -> None:
        self._good, self._batch_steps, self._as_stored = good, batch_steps, as_stored
        # Whether the columns of a batch are those of the shards.
        self._stored = good.steps is None and not isinstance(good.reader, JoinedReader)
        # Makes ids of whole columns of texts, as long as all are good.
        self._texts = good.steps.texts if good.steps is not None and good.alone else None
        self._dtypes: dict[str, np.dtype[Any]] | None = None
        self._empty = EmptyBatch(good.pool.index.table)
        self._apart: GoodBatchReader | None = None

    def batch(self, positions: Ids, samples: SampleRows) -> Batch | GoodSamples:
        """The samples at these places as columns; args are those of :meth:`GoodSampleReader.samples`."""
        whole: Batch | None = None
        if self._stored and samples.own is None:
            # What columns_of() does, without its call: all steps without a bad sample come by here.
            before = last_left()
            try:
                whole = self._good.reader.batch(samples, named=False)
                if last_left() is not before:
                    load_columns(whole)
            except Exception as reason:
                if not is_of_sample(reason):
                    raise
                whole = None
        if whole is None:
            found = self._batch(positions, samples)
            if isinstance(found, GoodSamples):
                return self._stepped(found, samples)
            whole = found
        if self._batch_steps is not None:
            whole = self._batch_steps(whole, positions, samples.shards, samples.rows)
        if not self._empty.has_met:
            self._empty.meet(whole)
        return whole

    def empty(self) -> Batch:
        """The columns of a batch of no samples; none where those that functions of the user give are not known."""
        found = self._empty.columns(self._alone)
        if found or self._good.steps is not None or self._batch_steps is not None:
            return found
        none: Batch = {name: [] for name in self._good.reader.names}
        return none if self._good.pool.ids not in none else {**none, self._good.pool.ids: np.zeros(0, np.int64)}

    def _stepped(self, found: GoodSamples, samples: SampleRows) -> GoodSamples:
        """Columns of which some samples are bad or filtered, as functions of batches change them."""
        kept = found.kept
        if not len(kept):
            return found._replace(values=self.empty())
        values = found.values
        if self._batch_steps is not None:
            values = self._batch_steps(values, found.positions[kept], samples.shards[kept], samples.rows[kept])
        self._empty.meet(values)
        return found if values is found.values else found._replace(values=values)

    def _batch(self, positions: Ids, samples: SampleRows) -> Batch | GoodSamples:
        """The samples of :meth:`batch` as columns, before functions of batches change these."""
        good, shards, rows = self._good, samples.shards, samples.rows
        if samples.own is not None and self._stored and not left_to_load():
            batch: Batch = samples.own
            return batch
        if self._texts is not None and samples.own is None:
            try:
                return self._texts.columns(good.columns_of(samples))
            except BaseException as reason:
                pass_exits(reason)
                if not is_of_sample(reason):
                    raise
        if good.steps is not None:
            with BatchRows(len(rows)) as memory:
                found = good.samples(positions, samples)
            if not isinstance(found, GoodSamples):
                with span(Stage.COLLATE, len(found)):
                    return stack_samples(found, partial(location_at, good.pool, shards, rows), memory)
            numbers: list[int] = []
            here: list[Any] = []
            for number in found.kept.tolist():
                sample = found.values[number]
                several = sample if isinstance(sample, SeveralSamples) else (sample,)
                numbers += [number] * len(several)
                here += several
            kept = np.array(numbers, np.int64)

            def origin(number: int) -> Any:
                return location_at(good.pool, shards[kept], rows[kept], number)

            with span(Stage.COLLATE, len(here)):
                stacked = stack_samples(here, origin, memory) if here else {}
            if here and self._as_stored:
                self._give_dtypes(stacked, shards[kept], rows[kept])
            return GoodSamples(stacked, kept, found.positions, found.bad)
        parts, bad = self._parts(samples)
        if len(parts) == 1 and not bad:
            if len(parts[0][0]) == len(rows):
                return parts[0][1]
            return GoodSamples(parts[0][1], parts[0][0], positions, [])
        there = positions.copy()
        places = [(int(shards[at[0]]), int(rows[at[0]])) for at, _ in parts]
        if good.replaces:
            for number, error in bad.items():
                batch, there[number] = good.substitutes.find(int(positions[number]), error, self._columns_at)
                parts.append((np.array([number]), batch))
                assert good.substitutes.last is not None
                places.append(good.substitutes.last)
        kept = np.sort(np.concatenate([at for at, _ in parts])) if parts else np.zeros(0, np.int64)
        values: Batch = {}
        if len(parts) == 1:
            values = parts[0][1]
        elif parts:
            told = [(*place, part) for place, (_, part) in zip(places, parts, strict=True)]
            good.check_types(told, alike=not isinstance(good.reader, JoinedReader))
            values = scatter([(np.searchsorted(kept, at), part) for at, part in parts], len(kept))
        return GoodSamples(values, kept, there, sorted(bad.items()))

    def _parts(self, samples: SampleRows) -> tuple[list[tuple[Ids, Batch]], dict[int, SampleError]]:
        """See :meth:`~stoker.reading.good_rows.GoodRowReader.parts`; samples that a join leaves out are in none."""
        good = self._good
        if not isinstance(good.reader, JoinedReader):
            return good.parts(samples, whole=samples.own is not None)  # others were tried
        found = self._found(samples)
        there, bad = found.there, found.bad
        if good.filters:
            good.counts.add(Count.FILTERED, len(samples) - len(there) - len(bad))
        if not len(there):
            return [], bad
        here = replace(samples, others=None)
        here = replace(here.at(there) if len(there) < len(samples) else here, others=found.others)
        if good.strict:
            return [(there, good.reader.batch(here))], bad
        parts, more = good.parts(here)
        return [(there[at], part) for at, part in parts], bad | {int(there[at]): error for at, error in more.items()}

    def _found(self, samples: SampleRows) -> _Found:
        """The samples that have one in each other dataset, and errors of those that must and have none."""
        good, reader = self._good, self._good.reader
        assert isinstance(reader, JoinedReader)
        try:
            if len(samples) == 1:
                good.open_shard(int(samples.shards[0]))
            others = reader.others(samples) if samples.others is None else samples.others
        except Exception as error:
            if good.strict or not is_of_sample(error):
                raise
            if len(samples) == 1:
                return _Found(np.zeros(0, np.int64), {0: good.named(*samples.place(0), error)}, None)
            half = len(samples) // 2
            one, two = (
                self._found(SampleRows(samples.shards[at], samples.rows[at])) for at in (slice(half), slice(half, None))
            )
            bad = one.bad | {number + half: why for number, why in two.bad.items()}
            return _Found(np.concatenate([one.there, two.there + half]), bad, None)
        bad = {} if good.strict else reader.missing(others, samples)
        mask = reader.present_among(others)
        mask = np.ones(len(samples), np.bool_) if mask is None else mask
        mask[list(bad)] = False
        there = np.flatnonzero(mask)
        return _Found(there, bad, tuple(ids[there] for ids in others))

    def _give_dtypes(self, batch: Batch, shards: Ids, rows: Ids) -> None:
        """Give Python's numbers the dtype that their column has when it is read as a whole.

        Args:
            batch: whose columns ``as_stored`` names.
            shards, rows: of its samples, of which some that are bad may have been replaced.
        """
        if self._dtypes is None:
            places = dict.fromkeys(zip(shards.tolist(), rows.tolist(), strict=True))
            if self._good.substitutes.last is not None:
                places[self._good.substitutes.last] = None  # where all are bad, what came instead was read
            for shard, row in places:
                try:
                    one = self._good.columns_of(one_row(shard, row))
                    break
                except Exception as error:
                    if self._good.strict or not is_of_sample(error):
                        raise
            else:
                return
            self._dtypes = {
                name: dtype
                for name, stored in self._as_stored.items()
                if stored in one and (dtype := number_dtype(one[stored])) is not None
            }
        for name, dtype in self._dtypes.items():
            column = batch[name]
            if isinstance(column, np.ndarray):
                batch[name] = column.astype(dtype, copy=False)
            elif not has_arrays(column):
                numbers = Unstacked(column, dtype)
                whole = numbers.column()
                batch[name] = whole if isinstance(whole, np.ndarray) else numbers

    def _alone(self, shard: int, row: int) -> Batch:
        """The columns of one sample, apart from all that is counted and listed; empty where it is bad or filtered."""
        if self._apart is None:
            self._apart = GoodBatchReader(self._good.apart(), self._batch_steps, self._as_stored)
        found = self._apart._batch(np.zeros(1, np.int64), one_row(shard, row))
        at: Ids = np.zeros(1, np.int64)
        if isinstance(found, GoodSamples):
            at, found = found.kept, found.values
        if self._batch_steps is not None and len(at):
            found = self._batch_steps(found, np.zeros_like(at), np.full_like(at, shard), np.full_like(at, row))
        return found if len(at) else {}

    def _columns_at(self, position: int, shard: int, row: int) -> Batch | LeftOut:  # noqa: ARG002 - as _sample_at
        good, one = self._good, one_row(shard, row)
        try:
            good.open_shard(shard)
            if good.filters and good.reader.present(one) is not None:
                return LEFT_OUT
            return good.columns_of(one)
        except Exception as error:
            good.raise_named(shard, row, error)
            raise
