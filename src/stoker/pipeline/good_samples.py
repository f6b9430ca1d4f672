"""Reads samples of which some are bad or filtered: they are left out or replaced, the others come as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.spans.recorder import Stage, recorder, span
from stoker.concurrency.spans.sample_clock import StretchClock
from stoker.concurrency.user_code import calls_user_code, pass_exits
from stoker.errors import ConfigError, SampleError, TransformError
from stoker.formats.common.rows.merge import check_types, scatter
from stoker.formats.mds.encodings.images import last_left, left_to_load, loaded
from stoker.formats.unstacked import Unstacked, number_dtype, rows_of
from stoker.image.batch_rows import BatchRows
from stoker.order.protocols import Plan
from stoker.order.sample_order import Run
from stoker.order.spans import check_spanned, spans_of
from stoker.pipeline.chunks.empty_batch import EmptyBatch
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.joins.chunk_stage import ChunkStage
from stoker.pipeline.joins.joined_reader import JoinedReader
from stoker.pipeline.joins.sample_steps import SampleSteps
from stoker.pipeline.ranks.outer_plan import OuterPlan, OuterRun
from stoker.pipeline.transforms import BatchSteps, Override, TransformOf
from stoker.reading.apply_chain import BAD, LEFT_OUT, TO_REPLACE, LeftOut, SeveralSamples
from stoker.reading.bad_samples import OnBadSample, is_of_sample
from stoker.reading.good_rows import GoodRowReader
from stoker.reading.replacement import Replacements, none_is_good
from stoker.reading.sample_errors import apply_transform, location_at, override_error
from stoker.reading.sample_reader import OtherIds, SampleReader
from stoker.types import Batch, Ids


class ImageNotLoadedError(Exception):
    """An image of a sample does not load.

    Attributes:
        error: the reason.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def loaded_image(sample: Any) -> Any:
    """A sample with its images loaded.

    Raises:
        ImageNotLoadedError: one can not be.
    """
    try:
        return loaded(sample)
    except Exception as error:
        raise ImageNotLoadedError(error) from error


class GoodSamples(NamedTuple):
    """Samples that were read together, of which some are bad or filtered, or replaced.

    Attributes:
        values: columns of those that are left, or what is made of each, one by one: a sample, :data:`LEFT_OUT` or
            :class:`SeveralSamples`.
        kept: for each row of the columns, or each that is not left out, its number among those that were asked for; rising.
        positions: the position of the sample that is in the place of each that was asked for.
        bad: number of each bad one, rising, and its error.
    """

    values: Any
    kept: Ids
    positions: Ids
    bad: list[tuple[int, SampleError]]


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


class GoodSampleReader(GoodRowReader):
    """Reads samples and deals with bad and filtered ones.

    Where none is bad or filtered, what is done is that which is done where bad ones are errors.

    Args:
        reader: reads the samples.
        run: the positions of the epoch, and where their samples lie; ``None`` where no sample replaces another.
        steps: what is applied to the samples; ``None`` where nothing is.
        batch_steps: changes columns, given positions, shards and rows of their samples; ``None`` where nothing does.
        override: changes each sample, given its id.
        on_bad_sample: what becomes of bad ones.
        filters: whether what is applied may give something else than one sample for one.
        as_stored: the stored name of each column whose values no function makes.
        counts: filtered samples are counted here; default: the pool's.
    """

    def __init__(
        self,
        reader: SampleReader,
        run: Run | OuterRun | None,
        steps: SampleSteps | None,
        batch_steps: BatchSteps | None,
        override: Override | None,
        *,
        on_bad_sample: OnBadSample,
        filters: bool,
        as_stored: Mapping[str, str],
        counts: Counts | None = None,
    ) -> None:
        super().__init__(reader, overridden=override is not None)
        self._run = run
        self._steps, self._batch_steps, self._override = steps, batch_steps, override
        self._replace, self._strict = on_bad_sample == "replace", on_bad_sample == "raise"
        if self._replace:
            check_spanned(*self._asked())  # an error is raised here, not when a sample is bad
        self._filters, self._as_stored = filters, as_stored
        joined = isinstance(reader, JoinedReader)
        # Whether the columns of a batch are those of the shards.
        self._stored = steps is None and not joined
        alone = override is None and not filters and not joined
        # Whether samples can be made one after the other, up to one that is bad.
        self._in_turn = alone and (steps is None or steps.functions is not None)
        # Makes ids of whole columns of texts, as long as all are good.
        self._texts = steps.texts if steps is not None and alone else None
        self._dtypes: dict[str, np.dtype[Any]] | None = None
        # Made where a sample is bad or filtered: most epochs have none.
        self._replacements: Replacements | None = None
        self._counts = self._pool.counts if counts is None else counts
        self._empty = EmptyBatch(self._pool.index.table)
        self._apart: GoodSampleReader | None = None
        # Shard and row of the sample that replaced another last.
        self._replaced_by: tuple[int, int] | None = None

    def _asked(self) -> tuple[Plan, str]:
        """The plan of the epoch that is asked where other samples are, and the setting that asks."""
        assert self._run is not None
        plan = self._run.plan.whole if isinstance(self._run.plan, OuterPlan) else self._run.plan
        return plan, "on_bad_sample='replace'" if self._replace else "filter(dropped='replace')"

    # -- one by one ------------------------------------------------------------------------------------------------

    def samples(
        self,
        positions: Ids,
        shards: Ids,
        rows: Ids,
        own: list[Any] | None = None,
        others: OtherIds | None = None,
    ) -> list[Any] | GoodSamples:
        """The samples at these places, transformed, in a list as long as they are many; alone where none is bad or filtered.

        Args:
            positions, shards, rows: int64, shape ``(n,)``.
            own, others: what is known of them; see :meth:`~stoker.reading.sample_reader.SampleReader.iterate`.
        """
        before = None if own else last_left()
        found, bad = list[Any](), dict[int, SampleError]()
        if self._in_turn:
            self._make_in_turn(found, positions, shards, rows, own, bad)
        if len(found) < len(rows):
            self._make_rest(found, positions, shards, rows, own, others, bad)
        # Whether an image is bad shows when it is loaded, by a function of the user or here.
        if last_left() is not before and not self._strict:
            for number, sample in enumerate(found):
                try:
                    for one in sample if isinstance(sample, SeveralSamples) else (sample,):
                        loaded(one)
                except Exception as error:  # noqa: BLE001 - as decoders raise
                    bad[number] = self.named(int(shards[number]), int(rows[number]), error)
                    found[number] = BAD
        if not (bad or self._filters):
            return found
        there = positions.copy()
        if self._filters:
            for number, (position, sample) in enumerate(zip(positions.tolist(), found, strict=True)):
                found[number], there[number] = self._settled(position, sample)
        if self._replace:
            for number, why in bad.items():
                found[number], there[number] = self._replacement(int(positions[number]), why, self._sample_at)
        else:
            for number in bad:
                found[number] = LEFT_OUT
        kept = np.arange(len(found))
        if self._filters or (bad and not self._replace):
            kept = np.array([number for number in kept.tolist() if found[number] is not LEFT_OUT], np.int64)
        return GoodSamples(found, kept, there, sorted(bad.items()))

    def settled(self, positions: Ids, samples: Iterator[Any]) -> Iterator[Any]:
        """Samples as a chain makes them, one for each position, with others in the places of those that were filtered."""
        for position, sample in zip(positions.tolist(), samples, strict=False):
            yield self._settled(position, sample)[0]

    def _settled(self, position: int, sample: Any) -> tuple[Any, int]:
        """The sample that comes in the place of one as a chain makes it, and its position."""
        if not isinstance(sample, LeftOut | SeveralSamples) or sample is BAD:
            return sample, position
        filtered = sample.dropped if isinstance(sample, SeveralSamples) else 1
        if filtered:
            self._counts.add(Count.FILTERED, filtered)
        if sample is TO_REPLACE:
            return self._replacement(position, None, self._sample_at)
        return sample, position

    def _make_in_turn(
        self,
        found: list[Any],
        positions: Ids,
        shards: Ids,
        rows: Ids,
        own: list[Any] | None,
        bad: dict[int, SampleError],
    ) -> None:
        """Add the samples up to the first one that is bad; that one, too, where a function raised its error."""
        try:
            if self._steps is None:
                self._reader.samples(shards, rows, own=own, made=found)
            else:
                self._steps.samples(self._reader, positions, shards, rows, own=own, made=found)
        except Exception as error:
            if not is_of_sample(error):
                raise
            if isinstance(error, TransformError):
                bad[len(found)] = error
                found.append(BAD)

    def _make_rest(
        self,
        found: list[Any],
        positions: Ids,
        shards: Ids,
        rows: Ids,
        own: list[Any] | None,
        others: OtherIds | None,
        bad: dict[int, SampleError],
    ) -> None:
        """Add the samples that are not made yet, and the errors of those that are bad."""
        first = len(found)
        if first:
            positions, shards, rows = positions[first:], shards[first:], rows[first:]
            own = None if own is None else own[first:]
            others = None if others is None else tuple(ids[first:] for ids in others)
        rest, more = self._decoded(shards, rows, own, others)
        if self._steps is not None or self._override is not None:
            self._make(rest, positions, shards, rows, more)
        found += rest
        bad.update((first + number, error) for number, error in more.items())

    def _decoded(
        self, shards: Ids, rows: Ids, own: list[Any] | None, others: OtherIds | None
    ) -> tuple[list[Any], dict[int, SampleError]]:
        if isinstance(self._reader, JoinedReader) and others is not None and not self._strict:
            missing = self._reader.missing(others, shards, rows)
            if missing:
                return self._decoded_beside(missing, shards, rows, own, others)
        found: list[Any] = []
        try:
            # What comes before an error is kept.
            found.extend(self._reader.iterate(shards, rows, others=others, own=own).samples)
        except Exception as error:
            if self._strict or not is_of_sample(error):
                raise
        bad: dict[int, SampleError] = {}
        for number in range(len(found), len(rows)):
            try:
                found.append(self._decoded_at(int(shards[number]), int(rows[number])))
            except SampleError as error:
                bad[number] = error
                found.append(BAD)
        return found, bad

    def _decoded_beside(
        self,
        missing: dict[int, SampleError],
        shards: Ids,
        rows: Ids,
        own: list[Any] | None,
        others: OtherIds,
    ) -> tuple[list[Any], dict[int, SampleError]]:
        """The same, where some have no sample in another dataset."""
        found: list[Any] = [BAD] * len(rows)
        there = np.setdiff1d(np.arange(len(rows)), list(missing))
        if not len(there):
            return found, missing
        mine = None if own is None else [own[number] for number in there.tolist()]
        decoded, bad = self._decoded(shards[there], rows[there], mine, tuple(ids[there] for ids in others))
        for number, sample in zip(there.tolist(), decoded, strict=True):
            found[number] = sample
        return found, missing | {int(there[number]): error for number, error in bad.items()}

    def _make(self, found: list[Any], positions: Ids, shards: Ids, rows: Ids, bad: dict[int, SampleError]) -> None:
        """Put what the steps make of samples in their place, and add to the bad ones."""
        stages = [] if self._steps is None else list(self._steps.stages)
        last = stages.pop() if stages and not isinstance(stages[-1], ChunkStage) else None
        for stage in stages:
            if isinstance(stage, ChunkStage):
                stage.apply(found, self._pool, shards, rows, None if self._strict else bad)
            else:
                self._call(stage, None, found, positions, shards, rows, bad)
        if last is not None or self._override is not None:
            assert not isinstance(last, ChunkStage)
            self._call(last, self._override, found, positions, shards, rows, bad)

    def _call(
        self,
        functions: TransformOf | None,
        override: Override | None,
        found: list[Any],
        positions: Ids,
        shards: Ids,
        rows: Ids,
        bad: dict[int, SampleError],
    ) -> None:
        """The same for functions that take samples one by one."""
        left = np.array([number for number in range(len(found)) if number not in bad], np.int64)
        while len(left):
            made: list[Any] = []
            samples = [found[number] for number in left.tolist()]
            try:
                # What comes before an error is kept.
                made.extend(self._made(functions, override, samples, positions[left], shards[left], rows[left]))
            except SampleError as error:
                if self._strict or not is_of_sample(error):
                    raise
                bad[int(left[len(made)])] = error
                made.append(BAD)
            for number, sample in zip(left.tolist(), made, strict=False):
                found[number] = sample
            left = left[len(made) :]

    @calls_user_code
    def _made(
        self,
        functions: TransformOf | None,
        override: Override | None,
        samples: list[Any],
        positions: Ids,
        shards: Ids,
        rows: Ids,
    ) -> Iterator[Any]:
        """Samples as the functions of the user make them, each when it is asked for.

        Raises:
            SampleError: one of them raised an error for the sample that comes next.
        """
        remaining = iter(samples)
        origin = partial(location_at, self._pool, shards, rows)
        made: Iterator[Any] = remaining
        if functions is not None:
            transform, recording = functions(positions, shards, rows), recorder()
            if recording is not None:
                clock = StretchClock(recording)
                made, transform = clock.decoded(made, remaining), clock.transforming(transform)
            made = apply_transform(transform, made, remaining, origin)
        if override is None:
            yield from made
            return
        ids = self._pool.index.table.starts[shards] + rows
        number = 0
        try:
            for sample in override(ids.tolist(), made):
                yield sample
                number += 1
        except BaseException as error:
            pass_exits(error)
            if isinstance(error, SampleError) or not is_of_sample(error):
                raise
            raise override_error(error, origin(number)) from error

    def _decoded_at(self, shard: int, row: int) -> Any:
        """One sample, not transformed; its images may be left to be loaded.

        Raises:
            SampleError: it is bad.
        """
        try:
            self._open(shard)
            return self._reader.one(shard, row)
        except Exception as error:
            self._raise(shard, row, error)
            raise

    def _sample_at(self, position: int, shard: int, row: int) -> Any:
        found, bad = [self._decoded_at(shard, row)], dict[int, SampleError]()
        self._make(found, np.array([position]), np.array([shard]), np.array([row]), bad)
        if bad:
            raise bad[0]
        try:
            return loaded(found[0])
        except Exception as error:
            self._raise(shard, row, error)
            raise

    def _raise(self, shard: int, row: int, error: Exception) -> None:
        """Raise the error of a sample that says which it is; nothing where ``error`` does."""
        named = self.named(shard, row, error)
        if named is not error:  # nothing is its own cause
            raise named from error

    # -- as columns ------------------------------------------------------------------------------------------------

    def batch(
        self,
        positions: Ids,
        shards: Ids,
        rows: Ids,
        own: Batch | list[Any] | None = None,
        others: OtherIds | None = None,
    ) -> Batch | GoodSamples:
        """The samples at these places as columns; args are those of :meth:`samples`."""
        whole: Batch | None = None
        if self._stored and own is None:
            try:
                whole = self._columns_of(shards, rows)
            except Exception as reason:
                if not is_of_sample(reason):
                    raise
        if whole is None:
            found = self._batch(positions, shards, rows, own, others)
            if isinstance(found, GoodSamples):
                return self._stepped(found, shards, rows)
            whole = found
        if self._batch_steps is not None:
            whole = self._batch_steps(whole, positions, shards, rows)
        if not self._empty.has_met:
            self._empty.meet(whole)
        return whole

    def _stepped(self, found: GoodSamples, shards: Ids, rows: Ids) -> GoodSamples:
        """What functions of batches make of columns of which some samples are bad or filtered."""
        kept = found.kept
        if not len(kept):
            return found._replace(values=self.empty())
        values = found.values
        if self._batch_steps is not None:
            values = self._batch_steps(values, found.positions[kept], shards[kept], rows[kept])
        self._empty.meet(values)
        return found if values is found.values else found._replace(values=values)

    def _batch(self, positions: Ids, shards: Ids, rows: Ids, own: Any, others: OtherIds | None) -> Batch | GoodSamples:
        """The same before functions of batches; columns of the shards one part after the other."""
        if own is not None and self._stored and not left_to_load():
            batch: Batch = own
            return batch
        if self._texts is not None and own is None:
            try:
                return self._texts.columns(self._columns_of(shards, rows))
            except BaseException as reason:
                pass_exits(reason)
                if not is_of_sample(reason):
                    raise
        if self._steps is not None:
            with BatchRows(len(rows)) as memory:
                found = self.samples(positions, shards, rows, own, others)
            if not isinstance(found, GoodSamples):
                with span(Stage.COLLATE, len(found)):
                    return stack_samples(found, partial(location_at, self._pool, shards, rows), memory)
            numbers: list[int] = []
            here: list[Any] = []
            for number in found.kept.tolist():
                sample = found.values[number]
                several = sample if isinstance(sample, SeveralSamples) else (sample,)
                numbers += [number] * len(several)
                here += several
            kept = np.array(numbers, np.int64)

            def origin(number: int) -> Any:
                return location_at(self._pool, shards[kept], rows[kept], number)

            with span(Stage.COLLATE, len(here)):
                stacked = stack_samples(here, origin, memory) if here else {}
            if here and self._as_stored:
                self._give_dtypes(stacked, shards[kept], rows[kept])
            return GoodSamples(stacked, kept, found.positions, found.bad)
        parts, bad = self._parts(shards, rows, own, others)
        if len(parts) == 1 and not bad:
            if len(parts[0][0]) == len(rows):
                return parts[0][1]
            return GoodSamples(parts[0][1], parts[0][0], positions, [])
        there = positions.copy()
        if self._replace:
            for number, error in bad.items():
                batch, there[number] = self._replacement(int(positions[number]), error, self._columns_at)
                parts.append((np.array([number]), batch))
        kept = np.sort(np.concatenate([at for at, _ in parts])) if parts else np.zeros(0, np.int64)
        values: Batch = {}
        if len(parts) == 1:
            values = parts[0][1]
        elif parts:
            check_types([part for _, part in parts], [self._where(shards, rows, at) for at, _ in parts])
            values = scatter([(np.searchsorted(kept, at), part) for at, part in parts], len(kept))
        return GoodSamples(values, kept, there, sorted(bad.items()))

    def _parts(
        self, shards: Ids, rows: Ids, own: Batch | None, others: OtherIds | None
    ) -> tuple[list[tuple[Ids, Batch]], dict[int, SampleError]]:
        """See :meth:`parts`; samples that a join leaves out are in none."""
        if not isinstance(self._reader, JoinedReader):
            return self.parts(shards, rows, own=own, whole=own is not None)  # others were tried
        found = self._found(shards, rows, own, others)
        there, bad = found.there, found.bad
        if self._filters:
            self._counts.add(Count.FILTERED, len(rows) - len(there) - len(bad))
        if not len(there):
            return [], bad
        some = len(there) < len(rows)
        own = {name: rows_of(column, there) for name, column in own.items()} if own and some else own
        if self._strict:
            return [(there, self._reader.batch(shards[there], rows[there], others=found.others, own=own))], bad
        parts, more = self.parts(shards[there], rows[there], others=found.others, own=own)
        return [(there[at], part) for at, part in parts], bad | {int(there[at]): error for at, error in more.items()}

    def _found(self, shards: Ids, rows: Ids, own: Batch | None, others: OtherIds | None) -> _Found:
        """The samples that have one in each other dataset, and errors of those that must and have none."""
        assert isinstance(self._reader, JoinedReader)
        try:
            if len(rows) == 1:
                self._open(int(shards[0]))
            others = self._reader.others(shards, rows, own) if others is None else others
        except Exception as error:
            if self._strict or not is_of_sample(error):
                raise
            if len(rows) == 1:
                return _Found(np.zeros(0, np.int64), {0: self.named(int(shards[0]), int(rows[0]), error)}, None)
            half = len(rows) // 2
            one, two = (self._found(shards[at], rows[at], None, None) for at in (slice(half), slice(half, None)))
            bad = one.bad | {number + half: why for number, why in two.bad.items()}
            return _Found(np.concatenate([one.there, two.there + half]), bad, None)
        bad = {} if self._strict else self._reader.missing(others, shards, rows)
        mask = self._reader.present_among(others)
        mask = np.ones(len(rows), np.bool_) if mask is None else mask
        mask[list(bad)] = False
        there = np.flatnonzero(mask)
        return _Found(there, bad, tuple(ids[there] for ids in others))

    def _where(self, shards: Ids, rows: Ids, at: Ids) -> str:
        return str(location_at(self._pool, shards, rows, int(at[0])))

    def _give_dtypes(self, batch: Batch, shards: Ids, rows: Ids) -> None:
        """Make lists of Python's numbers arrays, where their column is one when it is read as a whole.

        Args:
            batch: whose columns ``as_stored`` names.
            shards, rows: of its samples, of which some that are bad may have been replaced.
        """
        if self._dtypes is None:
            places = dict.fromkeys(zip(shards.tolist(), rows.tolist(), strict=True))
            if self._replaced_by is not None:
                places[self._replaced_by] = None  # where all are bad, what came instead was read
            for shard, row in places:
                try:
                    one = self._columns_of(np.array([shard]), np.array([row]))
                    break
                except Exception as error:
                    if self._strict or not is_of_sample(error):
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
            if isinstance(column, list) and not isinstance(column, Unstacked):
                numbers = Unstacked(column, dtype)
                whole = numbers.column()
                batch[name] = whole if isinstance(whole, np.ndarray) else numbers

    def empty(self) -> Batch:
        """The columns of a batch of no samples; none where those that functions of the user give are not known."""
        found = self._empty.columns(self._alone)
        if found or self._steps is not None or self._batch_steps is not None:
            return found
        none: Batch = {name: [] for name in self._reader.names}
        return none if self._pool.ids not in none else {**none, self._pool.ids: np.zeros(0, np.int64)}

    def _alone(self, shard: int, row: int) -> Batch:
        """The columns of one sample, apart from all that is counted and listed; empty where it is bad or filtered."""
        if self._apart is None:
            self._apart = GoodSampleReader(
                self._reader,
                self._run,
                self._steps,
                self._batch_steps,
                self._override,
                on_bad_sample="skip",
                filters=self._filters,
                as_stored=self._as_stored,
                counts=Counts(),
            )
        found = self._apart._batch(np.zeros(1, np.int64), np.array([shard]), np.array([row]), None, None)
        at: Ids = np.zeros(1, np.int64)
        if isinstance(found, GoodSamples):
            at, found = found.kept, found.values
        if self._batch_steps is not None and len(at):
            found = self._batch_steps(found, np.zeros_like(at), np.full_like(at, shard), np.full_like(at, row))
        return found if len(at) else {}

    def _columns_at(self, position: int, shard: int, row: int) -> Batch | LeftOut:  # noqa: ARG002 - as _sample_at
        shards, rows = np.array([shard]), np.array([row])
        try:
            self._open(shard)
            if self._filters and self._reader.present(shards, rows) is not None:
                return LEFT_OUT
            return self._columns_of(shards, rows)
        except Exception as error:
            self._raise(shard, row, error)
            raise

    # -- both ------------------------------------------------------------------------------------------------------

    def instead(self, position: int, error: SampleError) -> Any:
        """The stand-in for a bad sample where samples come one by one: :data:`LEFT_OUT`, or another sample.

        Args:
            position: of the bad sample.
            error: its error, which is raised where no other sample is good.
        """
        return self._replacement(position, error, self._sample_at)[0] if self._replace else LEFT_OUT

    def _replacement(
        self, position: int, error: SampleError | None, read: Callable[[int, int, int], Any]
    ) -> tuple[Any, int]:
        """Another sample in the place of a bad or filtered one, as ``read`` gives it, and its position.

        Args:
            position: of that one.
            error: why it is bad; ``None``: it is filtered.
            read: reads the sample at a position, shard and row.

        Raises:
            TransformError, DecodeError: every sample that was tried is bad or filtered, too.
            ConfigError: as said, where the one to replace is filtered.
        """

        def read_at(candidate: int) -> Any:
            assert self._run is not None
            shards, rows = self._run.order.locate(np.array([candidate], np.int64))
            made = read(candidate, int(shards[0]), int(rows[0]))
            self._replaced_by = int(shards[0]), int(rows[0])
            return made

        if self._replacements is None:
            self._replacements = Replacements(spans_of(*self._asked()), strict=self._strict)
        replacements = self._replacements
        found = replacements.find(position, read_at, lambda made: not isinstance(made, LeftOut))
        if found is not None:
            return found
        if error is None:
            raise ConfigError(
                f"filter(dropped='replace'): of {replacements.tried} samples that were tried in the place of one, none "
                "is kept: use dropped='leave_out', or choose samples by their columns, subset=Where(...)"
            )
        raise none_is_good(error)
