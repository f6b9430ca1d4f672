"""Reads samples of which some are bad: they are left out or replaced, and the others come as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.concurrency.spans.recorder import Stage, recorder, span
from stoker.concurrency.spans.sample_clock import SampleClock
from stoker.concurrency.user_code import calls_user_code, pass_exits
from stoker.errors import DecodeError, SampleError, TransformError
from stoker.formats.common.merge import check_types, scatter
from stoker.formats.mds.encodings.images import left_to_load, loaded
from stoker.image.batch_rows import BatchRows
from stoker.order.global_batches import BatchPlan
from stoker.order.partition.part_positions import PART_BITS
from stoker.order.protocols import Plan
from stoker.order.sample_order import Run
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.outer_plan import OuterPlan, OuterRun
from stoker.pipeline.transforms import Override, TransformOf
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.sample_errors import apply_transform, decode_error, location_at, location_of, override_error
from stoker.reading.samples import distinct, iterate_samples, read_sample, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids

_NEAR: Final = 1000
"""Positions on each side of a bad sample that are all tried before none is said to be good."""


class LeftOut:
    """Stands in an iteration over samples for one that is left out, where batches are made of a fixed number of places."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "LEFT_OUT"


LEFT_OUT: Final = LeftOut()


@dataclass(frozen=True, slots=True)
class GoodSamples:
    """Samples that were read together.

    Attributes:
        values: columns of those that are left, or all samples one by one, with :data:`LEFT_OUT` for those that are not.
        kept: numbers of those that are left or replaced, among those that were asked for, rising.
        bad: number of each bad one, rising, and its error.
    """

    values: Any
    kept: Ids
    bad: list[tuple[int, SampleError]]


class GoodSampleReader:
    """Reads samples and deals with bad ones.

    Args:
        pool: the dataset's open shards.
        run: the positions of the epoch, and where their samples lie.
        columns: names to read, default all.
        transform_of: gives what is applied to each of the samples at some places, in this order; ``None`` where nothing is.
        override: changes each sample, given its id.
        replace: whether another sample of the epoch comes in the place of a bad one.
    """

    def __init__(
        self,
        pool: ShardPool,
        run: Run | OuterRun,
        columns: Sequence[str] | None,
        transform_of: TransformOf | None,
        override: Override | None,
        *,
        replace: bool,
    ) -> None:
        self._pool, self._run, self._columns = pool, run, columns
        self._functions, self._override, self._replace = transform_of, override, replace
        # Shards that can not be opened: each attempt fetches them again.
        self._damaged: dict[int, Exception] = {}
        self._empty: Batch | None = None

    # -- one by one ------------------------------------------------------------------------------------------------

    def samples(self, positions: Ids, shards: Ids, rows: Ids, decoded: list[Any] | None = None) -> GoodSamples:
        """The samples at these places, transformed, in a list as long as they are many.

        Args:
            positions, shards, rows: int64, shape ``(n,)``.
            decoded: the samples, where they were read already, not yet transformed.
        """
        found, bad = self._decoded(shards, rows) if decoded is None else (list(decoded), {})
        if self._functions is not None or self._override is not None:
            self._make(found, positions, shards, rows, bad)
        if left_to_load():  # whether an image is bad shows when it is loaded, by a function of the user or here
            for number, sample in enumerate(found):
                try:
                    loaded(sample)
                except Exception as error:  # noqa: BLE001 - as decoders raise
                    bad[number] = self.named(int(shards[number]), int(rows[number]), error)
                    found[number] = LEFT_OUT
        if self._replace:
            for number, why in bad.items():
                found[number] = self.instead(int(positions[number]), why)
        kept = np.arange(len(found))
        if bad and not self._replace:
            kept = np.setdiff1d(kept, np.fromiter(bad, np.int64, len(bad)))
        return GoodSamples(found, kept, sorted(bad.items()))

    def _decoded(self, shards: Ids, rows: Ids) -> tuple[list[Any], dict[int, SampleError]]:
        found: list[Any] = []
        try:
            # What comes before an error is kept.
            found.extend(iterate_samples(self._pool, shards, rows, self._columns).samples)
        except Exception as error:
            if not is_of_sample(error):
                raise
        bad: dict[int, SampleError] = {}
        for number in range(len(found), len(rows)):
            try:
                found.append(self._decoded_at(int(shards[number]), int(rows[number])))
            except SampleError as error:
                bad[number] = error
                found.append(LEFT_OUT)
        return found, bad

    def _make(self, found: list[Any], positions: Ids, shards: Ids, rows: Ids, bad: dict[int, SampleError]) -> None:
        """Put what the functions of the user make of samples in their place, and add to the bad ones."""
        left = np.array([number for number, sample in enumerate(found) if sample is not LEFT_OUT], np.int64)
        while len(left):
            made: list[Any] = []
            samples = [found[number] for number in left.tolist()]
            try:
                # What comes before an error is kept.
                made.extend(self._made(samples, positions[left], shards[left], rows[left]))
            except SampleError as error:
                if not is_of_sample(error):
                    raise
                bad[int(left[len(made)])] = error
                made.append(LEFT_OUT)
            for number, sample in zip(left.tolist(), made, strict=False):
                found[number] = sample
            left = left[len(made) :]

    @calls_user_code
    def _made(self, samples: list[Any], positions: Ids, shards: Ids, rows: Ids) -> Iterator[Any]:
        """Samples as the functions of the user make them, each when it is asked for.

        Raises:
            SampleError: one of them raised an error for the sample that comes next.
        """
        remaining = iter(samples)
        origin = partial(location_at, self._pool, shards, rows)
        made: Iterator[Any] = remaining
        if self._functions is not None:
            transform, recording = self._functions(positions, shards, rows), recorder()
            if recording is not None:
                clock = SampleClock(recording)
                made, transform = clock.decoded(made), clock.transforming(transform)
            made = apply_transform(transform, made, remaining, origin)
        if self._override is None:
            yield from made
            return
        ids = self._pool.index.table.starts[shards] + rows
        number = 0
        try:
            for sample in self._override(ids.tolist(), made):
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
            return read_sample(self._pool, shard, row, self._columns)
        except Exception as error:
            raise self.named(shard, row, error) from error

    def _sample_at(self, position: int, shard: int, row: int) -> Any:
        decoded = self._decoded_at(shard, row)
        (made,) = self._made([decoded], np.array([position]), np.array([shard]), np.array([row]))
        try:
            return loaded(made)
        except Exception as error:
            raise self.named(shard, row, error) from error

    # -- as columns ------------------------------------------------------------------------------------------------

    def batch(self, positions: Ids, shards: Ids, rows: Ids, decoded: Any = None) -> GoodSamples:
        """The samples at these places as columns; args are those of :meth:`samples`."""
        if decoded is not None and self._functions is None and not left_to_load():
            return GoodSamples(decoded, np.arange(len(rows)), [])
        if self._functions is not None:
            with BatchRows(len(rows)) as memory:
                found = self.samples(positions, shards, rows, decoded)
            kept = found.kept
            here = [found.values[number] for number in kept.tolist()]

            def origin(number: int) -> Any:
                return location_at(self._pool, shards[kept], rows[kept], number)

            with span(Stage.COLLATE, len(here)):
                values = stack_samples(here, origin, memory) if here else self._none()
            return GoodSamples(self._noted(values, kept), kept, found.bad)
        parts, bad = self._parts(shards, rows)
        if self._replace:
            for number, error in bad.items():
                batch = self._replacement(int(positions[number]), error, self._columns_at)
                parts.append((np.array([number]), batch))
        kept = np.sort(np.concatenate([at for at, _ in parts])) if parts else np.zeros(0, np.int64)
        if len(parts) == 1:
            values = parts[0][1]
        elif parts:
            check_types([part for _, part in parts], [self._where(shards, rows, at) for at, _ in parts])
            values = scatter([(np.searchsorted(kept, at), part) for at, part in parts], len(kept))
        else:
            values = self._none()
        return GoodSamples(self._noted(values, kept), kept, sorted(bad.items()))

    def _noted(self, values: Batch, kept: Ids) -> Batch:
        """A batch, from which batches of no samples have their columns."""
        if self._empty is None and len(kept):
            self._empty = {name: column[:0].copy() for name, column in values.items()}
        return values

    def _where(self, shards: Ids, rows: Ids, at: Ids) -> str:
        return str(location_at(self._pool, shards, rows, int(at[0])))

    def _none(self) -> Batch:
        """A batch of no samples. Which columns a function of the user gives is not known before it has given some."""
        if self._empty is not None:
            return dict(self._empty)
        if self._functions is not None:
            return {}
        none: Batch = {name: [] for name in self._columns or self._pool.index.columns}
        return none if self._pool.ids is None else {**none, self._pool.ids: np.zeros(0, np.int64)}

    def _parts(self, shards: Ids, rows: Ids) -> tuple[list[tuple[Ids, Batch]], dict[int, SampleError]]:
        """The good samples as columns, in parts with their numbers, and the bad ones."""
        parts: list[tuple[Ids, Batch]] = []
        bad: dict[int, SampleError] = {}

        def read(at: Ids) -> None:
            here, there = shards[at], rows[at]
            try:
                if len(at) == 1:
                    self._open(int(here[0]))
                parts.append((at, self._columns_of(here, there)))
            except Exception as error:
                if not is_of_sample(error):
                    raise
                if len(at) == 1:
                    bad[int(at[0])] = self.named(int(here[0]), int(there[0]), error)
                    return
                half = len(at) // 2
                read(at[:half])
                read(at[half:])

        everything = np.arange(len(rows))
        try:
            return [(everything, self._columns_of(shards, rows))], bad
        except Exception as error:
            if not is_of_sample(error):
                raise
        for shard in distinct(shards, len(self._pool.index))[0].tolist():
            try:
                self._open(shard)
            except Exception as error:
                if not is_of_sample(error):
                    raise
                for number in np.flatnonzero(shards == shard).tolist():
                    bad[number] = self.named(shard, int(rows[number]), error)
        left = np.setdiff1d(everything, np.fromiter(bad, np.int64, len(bad)))
        if len(left):
            read(left)
        return parts, bad

    def _columns_of(self, shards: Ids, rows: Ids) -> Batch:
        batch = read_samples(self._pool, shards, rows, self._columns, named=False)
        for column in batch.values():
            if isinstance(column, list):
                loaded(column)
        return batch

    def _columns_at(self, position: int, shard: int, row: int) -> Batch:  # noqa: ARG002 - as _sample_at
        try:
            self._open(shard)
            return self._columns_of(np.array([shard]), np.array([row]))
        except Exception as error:
            raise self.named(shard, row, error) from error

    # -- both ------------------------------------------------------------------------------------------------------

    def _open(self, shard: int) -> None:
        """See that a shard can be opened.

        Raises:
            CorruptDataError: it can not, which is found out once.
        """
        if shard in self._damaged:
            raise self._damaged[shard]
        try:
            self._pool.get(shard)
        except Exception as error:
            if is_of_sample(error):
                self._damaged[shard] = error
            raise

    def named(self, shard: int, row: int, error: Exception, *, made: bool = False) -> SampleError:
        """The error of a sample that says which it is.

        Args:
            shard, row: of the sample.
            error: what was raised.
            made: whether the functions of the user had a part in it.

        Raises:
            Exception: ``error`` or what it comes from, which is not the sample's fault.
        """
        if shard not in self._damaged and not isinstance(error, SampleError):
            named, cause = decode_error(self._pool, np.array([shard]), np.array([row]), self._columns, error)
            if not is_of_sample(named):
                raise named from cause
            named.__cause__ = cause
            error = named
        if not is_of_sample(error):
            raise error
        if isinstance(error, SampleError):
            return error
        origin = location_of(self._pool, shard, row)
        if made and self._override is not None and shard not in self._damaged:
            return override_error(error, origin)  # the sample can be read
        told = DecodeError(
            f"{origin}: {type(error).__name__}: {error}",
            url=origin.url,
            shard=shard,
            row=row,
            sample=origin.sample,
        )
        told.__cause__ = error
        return told

    def instead(self, position: int, error: SampleError) -> Any:
        """The stand-in for a bad sample where samples come one by one: :data:`LEFT_OUT`, or another sample.

        Args:
            position: of the bad sample.
            error: its error, which is raised where no other sample is good.
        """
        return self._replacement(position, error, self._sample_at) if self._replace else LEFT_OUT

    def _replacement(self, position: int, error: SampleError, read: Callable[[int, int, int], Any]) -> Any:
        """Another sample in the place of a bad one, as ``read`` gives it.

        Raises:
            TransformError, DecodeError: every sample that was tried is bad, too.
        """
        for candidate in _candidates(position, self._run.plan):
            shards, rows = self._run.order.locate(np.array([candidate], np.int64))
            try:
                return read(candidate, int(shards[0]), int(rows[0]))
            except (DecodeError, TransformError) as other:
                if not is_of_sample(other):
                    raise
        error.add_note("no sample that was tried in its place is good")
        raise error


def _candidates(position: int, plan: Plan | OuterPlan) -> Iterator[int]:
    """Positions whose samples may replace that of another: those before it, near ones first, and then those after it.

    They are in the same part of an epoch that a partition divides. Where it divides nothing, they are the same in any world.
    """
    number = position & ((1 << PART_BITS) - 1)
    for distance in _distances(number):
        yield position - distance
    whole = plan.whole if isinstance(plan, OuterPlan) else plan
    if type(whole) is BatchPlan:
        for distance in _distances(whole.end - 1 - position):
            yield position + distance
        return
    for distance in _distances(len(whole)):
        for batch in next(whole.chunks(1, skip=distance - 1), []):
            yield int(batch[-1])


def _distances(most: int) -> Iterator[int]:
    """Distances up to ``most``, ever wider apart, so that few lead out of a damaged shard; and then all short ones."""
    distance = 1
    while distance <= most:
        yield distance
        distance += max(1, distance // 2)
    yield from range(1, min(most, _NEAR) + 1)
