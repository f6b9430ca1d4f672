"""Reads the samples of a chunk, and applies to them what the settings say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stoker.concurrency.spans.recorder import Stage, span
from stoker.image.batch_rows import BatchRows
from stoker.order.sample_order import Run
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.located import Chunk
from stoker.pipeline.columns import batch_length, cut_columns, stack_samples
from stoker.pipeline.joins.ahead import known_others
from stoker.pipeline.joins.joined_reader import JoinedReader
from stoker.pipeline.joins.sample_steps import make_reader, make_steps
from stoker.pipeline.ranks.outer_plan import OuterRun
from stoker.pipeline.recovery.good_batch_reader import GoodBatchReader
from stoker.pipeline.recovery.good_sample_reader import GoodSampleReader
from stoker.pipeline.recovery.good_samples import GoodSamples
from stoker.pipeline.transforms import EpochReaderSettings, Override, bind_batch_steps
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.chain_steps import split_steps, stored_names
from stoker.reading.sample_errors import location_at
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool


class ChunkReader:
    """Reads chunks of a run; several threads may do so at once.

    Args:
        pool: the dataset's open shards.
        run: the rank's batches, and where their samples lie; ``None`` where no sample replaces another.
        settings: see :class:`~stoker.pipeline.transforms.EpochReaderSettings`.
        epoch: its number, for the random numbers of a chain.
        as_columns: whether batches are asked for, and not samples.
        override: changes samples as they are asked for, given their ids.

    Attributes:
        good: reads samples of which some are bad or filtered; ``None`` where there are none, or they are errors.
        good_batches: the same as columns.
        filters: whether the chain may give something else than one sample for one.
        one_batch: whether the chain takes a batch as a whole, so that a chunk is one batch.
        sample_reader: reads what the chain begins with.
        stored: whether nothing is applied to single samples.
    """

    def __init__(
        self,
        pool: ShardPool,
        run: Run | OuterRun | None,
        settings: EpochReaderSettings,
        epoch: int,
        *,
        as_columns: bool,
        override: Override | None = None,
    ) -> None:
        self._pool, self._override = pool, override
        steps, batch_steps = split_steps(settings.steps) if as_columns else (settings.steps, ())
        self.sample_reader = make_reader(pool, settings, epoch)
        self._steps = make_steps(pool, settings, steps, epoch, as_columns=as_columns)
        self._batch_steps = bind_batch_steps(pool, batch_steps)
        self.stored = self._steps is None
        self.one_batch = any(step.kind == "batch_map" for step in batch_steps)
        self.filters = any(step.kind == "filter" or step.changes_counts for step in (*steps, *batch_steps))
        self.good: GoodSampleReader | None = None
        self.good_batches: GoodBatchReader | None = None
        bad = settings.bad_samples
        if bad is not None or self.filters:
            self.good = GoodSampleReader(
                self.sample_reader,
                run,
                self._steps,
                override,
                on_bad_sample="raise" if bad is None else bad.on_bad_sample,
                filters=self.filters,
            )
            as_stored = stored_names(steps, self.sample_reader.names) if self.filters else {}
            self.good_batches = GoodBatchReader(self.good, self._batch_steps, as_stored)

    def find_others(self, chunk: Chunk) -> tuple[Chunk, bool]:
        """The chunk with the ids of the samples beside its own, and whether some that must be there are not."""
        reader = self.sample_reader
        if not isinstance(reader, JoinedReader):
            return chunk, False
        try:
            samples = chunk.samples
            others = reader.others(samples) if samples.others is None else samples.others
        except Exception as error:
            if not is_of_sample(error):
                raise
            return chunk, True
        return replace(chunk, others=known_others(others)), reader.misses(others)

    def sample_run(self, chunk: Chunk) -> SampleRun:
        """The samples, each made when it is asked for."""
        return self.overridden(chunk, self._transformed(chunk))

    def samples(self, chunk: Chunk) -> list[Any]:
        """The samples, all made, before a method of a subclass has them."""
        if self._steps is None:
            return self.sample_reader.samples(chunk.samples)
        return self._steps.samples(self.sample_reader, chunk.positions, chunk.samples)

    def overridden(self, chunk: Chunk, run: SampleRun) -> SampleRun:
        """Samples as a method of a subclass makes them, each when it is asked for."""
        if self._override is None:
            return run
        ids = self._pool.index.table.starts[chunk.shards] + chunk.rows
        return SampleRun(self._override(ids.tolist(), run.samples), run.remaining)

    def group(self, chunk: Chunk) -> BatchGroup:
        """The samples as columns."""
        pool, shards, rows = self._pool, chunk.shards, chunk.rows
        if self._steps is None:
            batch = self.sample_reader.batch(chunk.samples)
        else:
            with BatchRows(len(rows)) as memory:
                samples = self.samples(chunk)
            with span(Stage.COLLATE, len(samples)):
                batch = stack_samples(samples, partial(location_at, pool, shards, rows), memory)
        if self._batch_steps is not None:
            batch = self._batch_steps(batch, chunk.positions, shards, rows)
            if self.one_batch:
                return BatchGroup(batch, [batch_length(batch)])
        return BatchGroup(cut_columns(batch, chunk.lengths), chunk.lengths)

    def good_samples(self, chunk: Chunk) -> list[Any] | GoodSamples:
        """The samples, made one by one; with those that are bad or filtered, where there are some."""
        assert self.good is not None
        return self.good.samples(chunk.positions, chunk.samples)

    def good_batch(self, chunk: Chunk) -> BatchGroup | GoodSamples:
        """The samples as columns; the good ones and which are bad or filtered, where there are some."""
        assert self.good_batches is not None
        found = self.good_batches.batch(chunk.positions, chunk.samples)
        if not isinstance(found, GoodSamples):
            if self.one_batch:
                return BatchGroup(found, [batch_length(found)])
            return BatchGroup(cut_columns(found, chunk.lengths), chunk.lengths)
        if self.one_batch:
            return found
        return found._replace(
            values=cut_columns(found.values, self.good_lengths(chunk, found), self.good_batches.empty)
        )

    def good_lengths(self, chunk: Chunk, found: GoodSamples) -> list[int]:
        """The lengths of the batches that are left of a chunk, where some samples are bad or filtered."""
        if self.one_batch:
            return [batch_length(found.values)]
        # flat_map() may make as many samples as there were, and other numbers of single ones.
        if not found.bad and not self.filters:
            return chunk.lengths
        ends = np.searchsorted(found.kept, np.cumsum(chunk.lengths))
        lengths: list[int] = np.diff(ends, prepend=0).tolist()
        return lengths

    def _transformed(self, chunk: Chunk) -> SampleRun:
        if self._steps is None:
            return self.sample_reader.iterate(chunk.samples)
        return self._steps.read(self.sample_reader, chunk.positions, chunk.samples)
