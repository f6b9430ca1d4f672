"""Reads rows of shards, as columns or one by one, and finds those that are damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from stoker.concurrency.spans.recorder import recorder
from stoker.concurrency.spans.sample_clock import SampleClock
from stoker.errors import DecodeError, SampleError
from stoker.formats.mds.encodings.images import last_left, loaded
from stoker.formats.unstacked import check_types, scatter
from stoker.order.shuffle.shard_table import ShardTable
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.sample_errors import (
    SampleLocation,
    beside,
    decode_error,
    located,
    location_at,
    location_of,
)
from stoker.reading.samples import (
    SampleRun,
    distinct_shards,
    iterate_columns,
    iterate_samples,
    make_all,
    read_sample,
    read_samples,
)
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids, Sample, Transform


class Rows(Protocol):
    """Samples by shard and row: of shards, or of arrays in memory. ``shards`` and ``rows`` are int64, shape ``(n,)``."""

    @property
    def table(self) -> ShardTable:
        """Its shards, with where the ids of each begin."""
        ...

    @property
    def ids(self) -> str | None:
        """The column of the ids; ``None``: there is none."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    def batch(self, shards: Ids, rows: Ids, *, named: bool = True, loads: bool = False) -> Batch:
        """The samples as columns; ``named``: an error of a decoder says which sample it is of; ``loads``: images, too."""
        ...

    def good(self, shards: Ids, rows: Ids, *, loads: bool, whole: bool) -> tuple[Batch, Ids, dict[int, SampleError]]:
        """The columns of the good ones, their numbers, and the errors of the bad ones by number."""
        ...

    def iterate(self, shards: Ids, rows: Ids) -> SampleRun:
        """The samples one by one, each made when it is asked for."""
        ...

    def iterate_columns(self, shards: Ids, rows: Ids) -> dict[str, Iterable[Any]] | None:
        """The columns of which these are made, to be taken in place of them; ``None``: there are none."""
        ...

    def each(self, shards: Ids, rows: Ids) -> SampleRun:
        """Those samples, each by itself: an error is of the sample that is asked for."""
        ...

    def named(self, shard: int, row: int, error: Exception) -> SampleError:
        """The error of a sample that says which it is; raises ``error`` where it is not the sample's fault."""
        ...

    def check_types(self, parts: Sequence[tuple[int, int, Batch]]) -> None:
        """Check that a column holds values of one type in all parts."""
        ...

    def origin(self, shards: Ids, rows: Ids, number: int) -> SampleLocation:
        """The place where the n-th of these samples lies."""
        ...


def load_columns(batch: Batch) -> None:
    """Load the images of columns; raises the error of one that does not load."""
    for column in batch.values():
        if isinstance(column, list):
            loaded(column)


class RowReader:
    """Reads rows of the shards of a dataset. ``columns``: names of those to read; ``None``: all."""

    def __init__(self, pool: ShardPool, columns: Sequence[str] | None) -> None:
        self.pool, self.columns = pool, columns
        # Shards that can not be opened: each attempt fetches them again.
        self._damaged: dict[int, Exception] = {}

    @property
    def table(self) -> ShardTable:
        return self.pool.index.table

    @property
    def ids(self) -> str | None:
        return self.pool.ids

    @property
    def names(self) -> tuple[str, ...]:
        ids = self.pool.ids
        return (*(self.columns or self.pool.index.columns), *(() if ids is None else (ids,)))

    def batch(self, shards: Ids, rows: Ids, *, named: bool = True, loads: bool = False) -> Batch:
        before = last_left() if loads else None
        batch = read_samples(self.pool, shards, rows, self.columns, named=named)
        if loads and last_left() is not before:
            load_columns(batch)
        return batch

    def iterate(self, shards: Ids, rows: Ids) -> SampleRun:
        return iterate_samples(self.pool, shards, rows, self.columns)

    def iterate_columns(self, shards: Ids, rows: Ids) -> dict[str, Iterable[Any]] | None:
        return iterate_columns(self.pool, shards, rows, self.columns)

    def iterate_timed(self, shards: Ids, rows: Ids, transform: Transform | None, run: SampleRun | None) -> SampleRun:
        """Samples, or what a transform makes of each, as they are asked for; a trace shows how long they take.

        ``run``: the samples, where these are not only to be read. TransformError if the transform raised an error; names the
        sample.
        """
        recording = recorder()
        clock = None if recording is None else SampleClock(recording, self.pool.times)
        if run is None and transform is None:
            return iterate_samples(self.pool, shards, rows, self.columns, clock)
        run = run or iterate_samples(self.pool, shards, rows, self.columns)
        samples = make_all(run, transform, partial(self.origin, shards, rows), clock)
        return SampleRun(samples, run.remaining)

    def each(self, shards: Ids, rows: Ids) -> SampleRun:
        remaining = iter(range(len(rows)))
        return SampleRun(self._each(shards.tolist(), rows.tolist(), remaining), remaining)

    def _each(self, shards: list[int], rows: list[int], remaining: Iterator[int]) -> Iterator[Sample]:
        for number in remaining:
            self.open_shard(shards[number])
            yield read_sample(self.pool, shards[number], rows[number], self.columns)

    def origin(self, shards: Ids, rows: Ids, number: int) -> SampleLocation:
        return location_at(self.pool, shards, rows, number)

    def good(
        self, shards: Ids, rows: Ids, *, loads: bool = True, whole: bool = True
    ) -> tuple[Batch, Ids, dict[int, SampleError]]:
        """See :class:`Rows`. ``loads``: images that do not load are bad. ``whole``: all may be good, and are read together
        first.
        """
        parts, bad = self.parts(shards, rows, loads=loads, whole=whole)
        kept = np.sort(np.concatenate([at for at, _ in parts])) if parts else np.zeros(0, np.int64)
        if len(parts) < 2:
            return (parts[0][1] if parts else {}), kept, bad
        self.check_types([(int(shards[at[0]]), int(rows[at[0]]), part) for at, part in parts])
        return scatter([(np.searchsorted(kept, at), part) for at, part in parts], len(kept)), kept, bad

    def parts(
        self, shards: Ids, rows: Ids, *, loads: bool = True, whole: bool = True
    ) -> tuple[list[tuple[Ids, Batch]], dict[int, SampleError]]:
        """The good samples as columns, in parts with their numbers, and the errors of the bad ones, by number.

        A StokerError if something is wrong that is not the samples' fault, such as storage.
        """
        parts: list[tuple[Ids, Batch]] = []
        bad: dict[int, SampleError] = {}

        def attempt(at: Ids) -> Exception | None:
            here, there = shards[at], rows[at]
            try:
                if len(at) == 1:
                    self.open_shard(int(here[0]))
                parts.append((at, self.batch(here, there, named=False, loads=loads)))
            except Exception as error:
                if not is_of_sample(error):
                    raise
                return error
            return None

        def read(at: Ids) -> None:
            error = attempt(at)
            if error is not None and len(at) == 1:
                bad[int(at[0])] = self.named(int(shards[at[0]]), int(rows[at[0]]), error)
            elif error is not None:
                half = len(at) // 2
                read(at[:half])
                read(at[half:])

        everything = np.arange(len(rows))
        if whole and len(rows) > 1 and attempt(everything) is None:
            return parts, bad
        for shard in distinct_shards(shards, len(self.pool.index)):
            try:
                self.open_shard(shard)
            except Exception as error:
                if not is_of_sample(error):
                    raise
                for number in np.flatnonzero(shards == shard).tolist():
                    bad[number] = self.named(shard, int(rows[number]), error)
        left = np.setdiff1d(everything, np.fromiter(bad, np.int64, len(bad)))
        if len(left):
            read(left)
        return parts, bad

    def check_types(self, parts: Sequence[tuple[int, int, Batch]]) -> None:
        """Check that a column holds values of one type in all parts, but for those of shards that are laid out alike.

        What such shards hold is of one type by their format. That may be the type of any value, as of a key of JSON lines
        with text and numbers, which parts of a batch need not both have. FormatError if it does not. ``parts``: shard and row
        of a sample of each, and its columns.
        """
        kinds: dict[object, tuple[int, int, Batch]] = {}
        for part in parts:
            kinds.setdefault(self.pool.get(part[0]).layout, part)
        check_types(
            [batch for _, _, batch in kinds.values()],
            [str(location_of(self.pool, shard, row)) for shard, row, _ in kinds.values()],
        )

    def open_shard(self, shard: int) -> None:
        """See that a shard can be opened. CorruptDataError if it can not, which is found out once."""
        if shard in self._damaged:
            raise self._damaged[shard]
        try:
            self.pool.get(shard)
        except Exception as error:
            if is_of_sample(error):
                self._damaged[shard] = error
            raise

    def named(self, shard: int, row: int, error: Exception) -> SampleError:
        if shard not in self._damaged and not isinstance(error, SampleError):
            named, cause = decode_error(self.pool, np.array([shard]), np.array([row]), self.columns, error)
            if not is_of_sample(named):
                raise named from cause
            named.__cause__ = cause
            error = named
        if not is_of_sample(error):
            raise error
        origin = location_of(self.pool, shard, row)
        if isinstance(error, SampleError):
            return beside(error, origin)
        told = located(DecodeError, f"{origin}: {type(error).__name__}: {error}", origin)
        told.__cause__ = error
        return told
