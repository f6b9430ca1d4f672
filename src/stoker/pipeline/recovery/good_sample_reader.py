"""Reads samples one by one of which some are bad or filtered: they are left out or replaced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.user_code import calls_user_code, pass_exits
from stoker.errors import SampleError, TransformError
from stoker.formats.mds.encodings.images import last_left, loaded
from stoker.order.sample_order import Run
from stoker.pipeline.joins.chunk_stage import ChunkStage
from stoker.pipeline.joins.joined_reader import JoinedReader
from stoker.pipeline.joins.sample_steps import SampleSteps
from stoker.pipeline.ranks.outer_plan import OuterRun
from stoker.pipeline.recovery.good_samples import GoodSamples
from stoker.pipeline.recovery.substitutes import Substitutes
from stoker.pipeline.transforms import Override, TransformOf
from stoker.reading.apply_chain import BAD, LEFT_OUT, TO_REPLACE, LeftOut, SeveralSamples
from stoker.reading.bad_samples import OnBadSample, is_of_sample
from stoker.reading.good_rows import GoodRowReader
from stoker.reading.sample_errors import location_at, override_error
from stoker.reading.sample_reader import SampleReader, SampleRows, one_row
from stoker.reading.samples import SampleRun, make_all
from stoker.types import Ids


class GoodSampleReader(GoodRowReader):
    """Reads samples one by one, and deals with bad and filtered ones.

    Where none is bad or filtered, what is done is that which is done where bad ones are errors.

    Args:
        reader: reads the samples.
        run: the positions of the epoch, and where their samples lie; ``None`` where no sample replaces another.
        steps: what is applied to the samples; ``None`` where nothing is.
        override: changes each sample, given its id.
        on_bad_sample: what becomes of bad ones.
        filters: whether what is applied may give something else than one sample for one.
        counts: filtered samples are counted here; default: the pool's.

    Attributes:
        steps, filters, counts: see above.
        strict: whether a bad sample is an error.
        replaces: whether another sample comes in the place of a bad one; otherwise, and where none is an error, none does.
        alone: whether samples are those of the dataset alone, each as the steps make it.
        substitutes: finds samples that come in the places of others.
    """

    def __init__(
        self,
        reader: SampleReader,
        run: Run | OuterRun | None,
        steps: SampleSteps | None,
        override: Override | None,
        *,
        on_bad_sample: OnBadSample,
        filters: bool,
        counts: Counts | None = None,
    ) -> None:
        super().__init__(reader, overridden=override is not None)
        self._run, self._override = run, override
        self.steps, self.filters = steps, filters
        self.replaces, self.strict = on_bad_sample == "replace", on_bad_sample == "raise"
        self.substitutes = Substitutes(run, for_bad=self.replaces, strict=self.strict)
        self.alone = override is None and not filters and not isinstance(reader, JoinedReader)
        # Whether samples can be made one after the other, up to one that is bad.
        self._in_turn = self.alone and (steps is None or steps.functions is not None)
        self.counts = self.pool.counts if counts is None else counts

    def apart(self) -> GoodSampleReader:
        """A reader of the same samples that leaves bad ones out, and counts nothing."""
        return GoodSampleReader(
            self.reader,
            self._run,
            self.steps,
            self._override,
            on_bad_sample="skip",
            filters=self.filters,
            counts=Counts(),
        )

    def samples(self, positions: Ids, samples: SampleRows) -> list[Any] | GoodSamples:
        """The samples at these places, transformed, in a list as long as they are many; alone where none is bad or filtered.

        Args:
            positions: in the epoch, int64, shape ``(n,)``.
            samples: where they are.
        """
        before = None if samples.own else last_left()
        found: list[Any] = []
        bad: dict[int, SampleError] = {}
        if self._in_turn:
            try:
                if self.steps is None:
                    self.reader.samples(samples, made=found)
                else:
                    self.steps.samples(self.reader, positions, samples, made=found)
                if self.strict or last_left() is before:
                    return found
            except Exception as error:
                if not is_of_sample(error):
                    raise
                # What was made before the bad sample is kept.
                if isinstance(error, TransformError):
                    bad[len(found)] = error
                    found.append(BAD)
        if len(found) < len(samples):
            self._make_rest(found, positions, samples, bad)
        # Whether an image is bad shows when it is loaded, by a function of the user or here.
        if last_left() is not before and not self.strict:
            for number, sample in enumerate(found):
                try:
                    for one in sample if isinstance(sample, SeveralSamples) else (sample,):
                        loaded(one)
                except Exception as error:  # noqa: BLE001 - as decoders raise
                    bad[number] = self.named(*samples.place(number), error)
                    found[number] = BAD
        if not (bad or self.filters):
            return found
        there = positions.copy()
        if self.filters:
            for number, (position, sample) in enumerate(zip(positions.tolist(), found, strict=True)):
                found[number], there[number] = self._settled(position, sample)
        if self.replaces:
            for number, why in bad.items():
                found[number], there[number] = self.substitutes.find(int(positions[number]), why, self._sample_at)
        else:
            for number in bad:
                found[number] = LEFT_OUT
        kept = np.arange(len(found))
        if self.filters or (bad and not self.replaces):
            kept = np.array([number for number in kept.tolist() if found[number] is not LEFT_OUT], np.int64)
        return GoodSamples(found, kept, there, sorted(bad.items()))

    def settled(self, positions: Ids, samples: Iterator[Any]) -> Iterator[Any]:
        """Samples as a chain makes them, one for each position, with others in the places of those that were filtered."""
        for position, sample in zip(positions.tolist(), samples, strict=False):
            yield self._settled(position, sample)[0]

    def instead(self, position: int, error: SampleError) -> Any:
        """The stand-in for a bad sample where samples come one by one: ``LEFT_OUT``, or another sample.

        Args:
            position: of the bad sample.
            error: its error, which is raised where no other sample is good.
        """
        return self.substitutes.find(position, error, self._sample_at)[0] if self.replaces else LEFT_OUT

    def raise_named(self, shard: int, row: int, error: Exception) -> None:
        """Raise the error of a sample that says which it is; nothing where ``error`` does."""
        named = self.named(shard, row, error)
        if named is not error:  # nothing is its own cause
            raise named from error

    def _settled(self, position: int, sample: Any) -> tuple[Any, int]:
        """The sample that comes in the place of one as a chain makes it, and its position."""
        if not isinstance(sample, LeftOut | SeveralSamples) or sample is BAD:
            return sample, position
        filtered = sample.dropped if isinstance(sample, SeveralSamples) else 1
        if filtered:
            self.counts.add(Count.FILTERED, filtered)
        if sample is TO_REPLACE:
            return self.substitutes.find(position, None, self._sample_at)
        return sample, position

    def _make_rest(self, found: list[Any], positions: Ids, samples: SampleRows, bad: dict[int, SampleError]) -> None:
        """Add the samples that are not made yet, and the errors of those that are bad."""
        first = len(found)
        samples = samples.after(first)
        rest, more = self._decoded(samples)
        if self.steps is not None or self._override is not None:
            self._make(rest, positions[first:], samples, more)
        found += rest
        bad.update((first + number, error) for number, error in more.items())

    def _decoded(self, samples: SampleRows) -> tuple[list[Any], dict[int, SampleError]]:
        """Samples before any function of the user, with ``BAD`` for those that are bad, and the errors of these by number."""
        if isinstance(self.reader, JoinedReader) and samples.others is not None and not self.strict:
            missing = self.reader.missing(samples.others, samples)
            if missing:
                return self._decoded_beside(missing, samples)
        found: list[Any] = []
        try:
            # What comes before an error is kept.
            found.extend(self.reader.iterate(samples).samples)
        except Exception as error:
            if self.strict or not is_of_sample(error):
                raise
        bad: dict[int, SampleError] = {}
        for number in range(len(found), len(samples)):
            try:
                found.append(self._decoded_at(*samples.place(number)))
            except SampleError as error:
                bad[number] = error
                found.append(BAD)
        return found, bad

    def _decoded_beside(
        self, missing: dict[int, SampleError], samples: SampleRows
    ) -> tuple[list[Any], dict[int, SampleError]]:
        """The samples of :meth:`_decoded`, where some have no sample in another dataset."""
        found: list[Any] = [BAD] * len(samples)
        there = np.setdiff1d(np.arange(len(samples)), list(missing))
        if not len(there):
            return found, missing
        decoded, bad = self._decoded(samples.at(there))
        for number, sample in zip(there.tolist(), decoded, strict=True):
            found[number] = sample
        return found, missing | {int(there[number]): error for number, error in bad.items()}

    def _make(self, found: list[Any], positions: Ids, samples: SampleRows, bad: dict[int, SampleError]) -> None:
        """Put what the steps make of samples in their place, and add to the bad ones."""
        stages = [] if self.steps is None else list(self.steps.stages)
        last = stages.pop() if stages and not isinstance(stages[-1], ChunkStage) else None
        for stage in stages:
            if isinstance(stage, ChunkStage):
                stage.apply(found, self.pool, samples.shards, samples.rows, None if self.strict else bad)
            else:
                self._call(stage, None, found, positions, samples, bad)
        if last is not None or self._override is not None:
            assert not isinstance(last, ChunkStage)
            self._call(last, self._override, found, positions, samples, bad)

    def _call(
        self,
        functions: TransformOf | None,
        override: Override | None,
        found: list[Any],
        positions: Ids,
        origins: SampleRows,
        bad: dict[int, SampleError],
    ) -> None:
        """Put what functions of single samples make in their place, and add to the bad ones."""
        left = np.array([number for number in range(len(found)) if number not in bad], np.int64)
        while len(left):
            made: list[Any] = []
            samples = [found[number] for number in left.tolist()]
            try:
                here = SampleRows(origins.shards[left], origins.rows[left])
                # What comes before an error is kept.
                made.extend(self._made(functions, override, samples, positions[left], here))
            except SampleError as error:
                if self.strict or not is_of_sample(error):
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
        origins: SampleRows,
    ) -> Iterator[Any]:
        """Samples as the functions of the user make them, each when it is asked for.

        Raises:
            SampleError: one of them raised an error for the sample that comes next.
        """
        remaining, shards, rows = iter(samples), origins.shards, origins.rows
        origin = partial(location_at, self.pool, shards, rows)
        made: Iterator[Any] = remaining
        if functions is not None:
            made = make_all(SampleRun(made, remaining), functions(positions, shards, rows), origin)
        if override is None:
            yield from made
            return
        ids = self.pool.index.table.starts[shards] + rows
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
            self.open_shard(shard)
            return self.reader.one(shard, row)
        except Exception as error:
            self.raise_named(shard, row, error)
            raise

    def _sample_at(self, position: int, shard: int, row: int) -> Any:
        found, bad = [self._decoded_at(shard, row)], dict[int, SampleError]()
        self._make(found, np.array([position]), one_row(shard, row), bad)
        if bad:
            raise bad[0]
        try:
            return loaded(found[0])
        except Exception as error:
            self.raise_named(shard, row, error)
            raise
