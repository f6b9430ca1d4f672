"""``ChunkWork``: all that is done to a chunk where it is read: stages, and other samples in the places of some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.concurrency.spans.recorder import Stage, span
from stoker.formats.unstacked import Unstacked, has_arrays, number_dtype, scatter
from stoker.image.batch_rows import BatchRows
from stoker.lazy import cached_property
from stoker.order.sample_order import Run
from stoker.pipeline.chunks.chunk import NO_IDS, Chunk
from stoker.pipeline.columns import batch_length, cut_columns, stack_samples
from stoker.pipeline.stages.stage import ChunkStage, flattened
from stoker.pipeline.transforms import BatchSteps
from stoker.reading.bad_samples import OnBadSample, is_of_sample
from stoker.reading.row_reader import Rows
from stoker.reading.samples import SampleRun
from stoker.reading.steps import BAD, GONE, LEFT_OUT, TO_REPLACE, LeftOut, SeveralSamples
from stoker.types import Batch

if TYPE_CHECKING:  # most datasets need none of it
    from stoker.pipeline.chunks.empty_batch import EmptyBatch
    from stoker.pipeline.chunks.substitutes import Located, Substitutes
    from stoker.pipeline.joins.leading import LeadingJoins


class ChunkWork:
    """All that is done to a chunk where it is read. Several threads may call it.

    Args:
        rows: the samples, where they are stored.
        stages: what is done to them, one after the other.
        on_bad_sample: what becomes of bad ones. What ``"raise"`` raises is raised where the chunk is delivered.
        run: the positions of the epoch; ``None`` where no sample replaces another.
        as_columns: whether columns are asked for, and not samples.
        filters: whether stages may drop samples, or make several of one.
        batch_steps: changes columns at last, given positions, shards and rows of their samples; ``None``: nothing does.
        one_batch: whether that takes one batch at a time.
        names: gives the names of the columns before any function.
        as_stored: the stored name of each column that no function makes, where samples are made columns of and some are
            dropped: numbers get the dtype that they have in columns.
        stored_stages: makes the stages that read stored columns, of which these dtypes are.
        made: whether functions make the samples, so that nobody knows the columns of none.
        leading: zips and joins that a chain begins with.
        lazily: see below.

    Attributes:
        rows, leading, filters, one_batch: see above.
        whole: whether the first stage reads columns.
        lazily: reads samples of a chunk as they are asked for, or gives ``None`` where it can not; ``None``: they are not
            made one by one of stored ones alone.
        strict: whether a bad sample is raised.
        skips: whether a bad sample is left out.
    """

    def __init__(
        self,
        rows: Rows,
        stages: Sequence[ChunkStage],
        *,
        on_bad_sample: OnBadSample,
        run: Run | None,
        as_columns: bool,
        whole: bool,
        filters: bool = False,
        batch_steps: BatchSteps | None = None,
        one_batch: bool = False,
        names: Callable[[], Sequence[str]] = tuple,
        as_stored: Mapping[str, str] | None = None,
        stored_stages: Callable[[], Sequence[ChunkStage]] | None = None,
        made: bool = False,
        leading: LeadingJoins | None = None,
        lazily: Callable[[Chunk], SampleRun | None] | None = None,
    ) -> None:
        self.rows, self._stages, self._run, self._as_columns = rows, tuple(stages), run, as_columns
        self.whole, self.filters, self.one_batch, self.leading = whole, filters, one_batch, leading
        self.strict, self.skips = on_bad_sample == "raise", on_bad_sample == "skip"
        self._replaces = on_bad_sample == "replace"
        self.lazily = lazily
        self._batch_steps, self._names, self._as_stored = batch_steps, names, dict(as_stored or {})
        self._stored_stages, self._made = stored_stages, made
        if self._replaces:
            _ = self._others  # an error is raised here where the order does not say where others are
        self._dtypes: dict[str, np.dtype[Any]] | None = None

    def __call__(self, chunk: Chunk) -> Chunk:
        """Do it to a chunk. The errors of its bad samples are told where it is delivered.

        Columns are cut into batches, see :func:`~stoker.pipeline.columns.cut_columns`, whose lengths are those of the result.
        StokerError if something is wrong that is not a sample's fault.
        """
        if not self._as_columns:
            return self._settled(chunk)
        chunk = self.columns(chunk)
        if chunk.bad and self.strict:
            return chunk
        if not len(chunk.rows if chunk.kept is None else chunk.kept):
            chunk = replace(chunk, values=self.empty())
        elif not self.strict or self.filters:
            self._empty.meet(chunk.values)
        return self._cut(chunk)

    def columns(self, chunk: Chunk) -> Chunk:
        """Columns as functions of batches change them, by the places of the samples before; not so if a bad one is raised."""
        memory = None if self.whole else BatchRows(len(chunk))
        with memory or nullcontext():
            chunk = self._settled(chunk)
        if chunk.bad and self.strict:
            return chunk
        return self._changed(chunk, memory)

    def _settled(self, chunk: Chunk) -> Chunk:
        """The chunk after all stages, with other samples in the places of those that are to be replaced."""
        chunk = self._staged(chunk)
        if not chunk.bad and not self.filters:
            return chunk
        if isinstance(chunk.values, list):
            return self._filled_samples(chunk)
        if self.filters and chunk.kept is not None:
            chunk = replace(chunk, dropped=len(chunk) - len(chunk.kept) - len(chunk.bad))
        return self._filled_columns(chunk) if chunk.bad and self._replaces else chunk

    def _staged(self, chunk: Chunk) -> Chunk:
        for stage in self._stages:
            chunk = stage.apply(chunk)
        return chunk

    # -- others in the places of some ------------------------------------------------------------------------------

    def _filled_samples(self, chunk: Chunk) -> Chunk:
        entries, dropped = list(chunk.values), chunk.dropped
        filled: dict[int, Located] = {}
        for place, one in enumerate(entries):
            if isinstance(one, SeveralSamples):
                dropped += one.dropped
            elif isinstance(one, LeftOut) and one is not BAD and one is not GONE:
                dropped += 1
                if one is TO_REPLACE:
                    entries[place], filled[place] = self._others.find(
                        int(chunk.positions[place]), None, self._sample_at
                    )
        for place, error in sorted(chunk.bad.items()):
            if self._replaces:
                entries[place], filled[place] = self._others.find(int(chunk.positions[place]), error, self._sample_at)
            elif self.skips:
                entries[place] = LEFT_OUT
        return replace(_moved(chunk, filled), values=entries, dropped=dropped)

    def _filled_columns(self, chunk: Chunk) -> Chunk:
        kept = chunk.places
        filled: dict[int, Located] = {}
        parts = [(kept, chunk.values)] if len(kept) else []
        for place, error in sorted(chunk.bad.items()):
            batch, filled[place] = self._others.find(int(chunk.positions[place]), error, self._columns_at)
            parts.append((np.array([place]), batch))
        chunk = _moved(chunk, filled)
        self.rows.check_types([(int(chunk.shards[at[0]]), int(chunk.rows[at[0]]), part) for at, part in parts])
        whole = np.sort(np.concatenate([at for at, _ in parts]))
        values = scatter([(np.searchsorted(whole, at), part) for at, part in parts], len(whole))
        return replace(chunk, values=values, kept=None if len(whole) == len(chunk) else whole)

    def _one(self, position: int, shard: int, row: int) -> Chunk:
        return self._staged(Chunk.at(np.array([shard]), np.array([row]), np.array([position])))

    def _sample_at(self, position: int, shard: int, row: int) -> Any:
        return self._one(position, shard, row).check().values[0]

    def _columns_at(self, position: int, shard: int, row: int) -> Batch | LeftOut:
        chunk = self._one(position, shard, row).check()
        batch: Batch = chunk.values
        return batch if len(chunk.places) else LEFT_OUT

    @cached_property
    def _others(self) -> Substitutes:
        """Finds samples that come in the places of others."""
        from stoker.pipeline.chunks.substitutes import Substitutes

        return Substitutes(self._run, for_bad=self._replaces, strict=self.strict)

    @cached_property
    def _empty(self) -> EmptyBatch:
        from stoker.pipeline.chunks.empty_batch import EmptyBatch

        return EmptyBatch(self.rows.table)

    # -- columns ---------------------------------------------------------------------------------------------------

    def _collated(self, chunk: Chunk, memory: BatchRows | None) -> Chunk:
        """The samples as columns."""
        if not self.filters and not chunk.bad:
            origin = partial(self.rows.origin, chunk.shards, chunk.rows)
            with span(Stage.COLLATE, len(chunk)):
                return replace(chunk, values=stack_samples(chunk.values, origin, memory))
        found = flattened(chunk.values)
        if not found:
            return replace(chunk, values={}, kept=NO_IDS)
        kept = np.array([place for place, _ in found], np.int64)
        origin = partial(self.rows.origin, chunk.shards[kept], chunk.rows[kept])
        with span(Stage.COLLATE, len(found)):
            values = stack_samples([sample for _, sample in found], origin, memory)
        if self._as_stored:
            self._give_dtypes(values, chunk, kept)
        return replace(chunk, values=values, kept=kept)

    def _changed(self, chunk: Chunk, memory: BatchRows | None) -> Chunk:
        """The columns, made of samples where need be, as functions of batches change them."""
        if not isinstance(chunk.values, dict):
            chunk = self._collated(chunk, memory)
        if self._batch_steps is None or not len(chunk.places):
            return chunk
        at = slice(None) if chunk.kept is None else chunk.kept
        changed = self._batch_steps(chunk.values, chunk.positions[at], chunk.shards[at], chunk.rows[at])
        return replace(chunk, values=changed)

    def _cut(self, chunk: Chunk) -> Chunk:
        if self.one_batch:
            return replace(chunk, lengths=[batch_length(chunk.values)])
        lengths = chunk.lengths
        if chunk.kept is not None:
            lengths = np.diff(np.searchsorted(chunk.kept, np.cumsum(lengths)), prepend=0).tolist()
        values = cut_columns(chunk.values, lengths, None if chunk.kept is None else self.empty)
        return replace(chunk, values=values, lengths=lengths)

    def empty(self) -> Batch:
        """The columns of a batch of no samples; none where those that functions of the user give are not known."""
        found = self._empty.columns(self._alone)
        if found or self._made or self._batch_steps is not None:
            return found
        none: Batch = {name: [] for name in self._names()}
        ids = self.rows.ids
        return none if ids not in none else {**none, ids: np.zeros(0, np.int64)}

    def _alone(self, shard: int, row: int) -> Batch:
        """The columns of one sample, apart from all that is counted and listed; empty where it is bad or dropped."""
        with BatchRows(1) as memory:
            chunk = self._one(0, shard, row)
        if chunk.bad:
            return {}
        chunk = self._changed(chunk, memory)
        batch: Batch = chunk.values
        return batch if len(chunk.places) else {}

    def _give_dtypes(self, batch: Batch, chunk: Chunk, kept: Any) -> None:
        """Give Python's numbers the dtype that their column has when it is read as a whole.

        ``batch``: whose columns ``as_stored`` names. ``chunk``: where its samples are. ``kept``: the place of each row.
        """
        if self._dtypes is None:
            found = self._stored_columns(chunk, kept)
            if found is None:
                return
            self._dtypes = {
                name: dtype
                for name, stored in self._as_stored.items()
                if stored in found and (dtype := number_dtype(found[stored])) is not None
            }
        for name, dtype in self._dtypes.items():
            column = batch[name]
            if isinstance(column, np.ndarray):
                batch[name] = column.astype(dtype, copy=False)
            elif not has_arrays(column):
                numbers = Unstacked(column, dtype)
                whole = numbers.column()
                batch[name] = whole if isinstance(whole, np.ndarray) else numbers

    def _stored_columns(self, chunk: Chunk, kept: Any) -> Batch | None:
        """The stored columns of the first sample that can be read."""
        places = dict.fromkeys(zip(chunk.shards[kept].tolist(), chunk.rows[kept].tolist(), strict=True))
        for shard, row in places:
            try:
                return self._read_stored(shard, row)
            except Exception as error:
                if self.strict or not is_of_sample(error):
                    raise
        return None

    def _read_stored(self, shard: int, row: int) -> Batch:
        assert self._stored_stages is not None
        chunk = Chunk.at(np.array([shard]), np.array([row]))
        for stage in self._stored_stages():
            chunk = stage.apply(chunk)
        batch: Batch = chunk.check().values
        return batch


def _moved(chunk: Chunk, filled: Mapping[int, Located]) -> Chunk:
    """The chunk with other samples at some of its places."""
    if not filled:
        return chunk
    positions, shards, rows = chunk.positions.copy(), chunk.shards.copy(), chunk.rows.copy()
    for place, there in filled.items():
        positions[place], shards[place], rows[place] = there
    return replace(chunk, positions=positions, shards=shards, rows=rows)
