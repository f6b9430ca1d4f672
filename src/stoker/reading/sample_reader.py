"""Reads samples of a dataset by shard and row, as columns or one by one: what a chain begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.spans.recorder import recorder
from stoker.concurrency.spans.sample_clock import SampleClock
from stoker.formats.unstacked import rows_of
from stoker.reading.sample_errors import SampleLocation, apply_transform, location_at
from stoker.reading.samples import SampleRun, iterate_samples, list_samples, make_all, read_sample, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids, Sample, Transform

OtherIds: TypeAlias = tuple[Ids, ...]
"""For each zip and join that a chain begins with, the ids of the other dataset's samples, -1 where there is none."""


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Samples of a dataset by shard and row, and what is known of them before they are read.

    Attributes:
        shards, rows: int64, shape ``(n,)``, n ≥ 1.
        own: the dataset's own columns, or its own samples in a list, where they were read already.
        others: where they are known, the ids of samples of other datasets.
    """

    shards: Ids
    rows: Ids
    own: Any = None
    others: OtherIds | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, number: int) -> tuple[int, int]:
        """Shard and row of one."""
        return int(self.shards[number]), int(self.rows[number])

    def at(self, numbers: Ids) -> SampleRows:
        """Those with these numbers, int64, in this order."""
        own, others = self.own, self.others
        if isinstance(own, list):
            own = [own[number] for number in numbers.tolist()]
        elif own is not None:
            own = {name: rows_of(column, numbers) for name, column in own.items()}
        others = None if others is None else tuple(ids[numbers] for ids in others)
        return SampleRows(self.shards[numbers], self.rows[numbers], own, others)

    def after(self, first: int) -> SampleRows:
        """Those from a number on, of samples that are known one by one."""
        return self.at(np.arange(first, len(self))) if first else self


def one_row(shard: int, row: int) -> SampleRows:
    """One sample."""
    return SampleRows(np.array([shard]), np.array([row]))


class SampleReader:
    """Reads samples of a dataset: its stored columns."""

    def __init__(self, pool: ShardPool, columns: Sequence[str] | None) -> None:
        self.pool, self.columns = pool, columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of a batch."""
        ids = self.pool.ids
        return (*(self.columns or self.pool.index.columns), *(() if ids is None else (ids,)))

    def batch(self, samples: SampleRows, *, named: bool = True) -> Batch:
        """The samples as columns, in their order.

        Errors are those of :func:`~stoker.reading.samples.read_samples`. ``named``: whether an error of a decoder says which
        sample it is of.
        """
        return samples.own or read_samples(self.pool, samples.shards, samples.rows, self.columns, named=named)

    def iterate(self, samples: SampleRows, transform: Transform | None = None, *, timed: bool = True) -> SampleRun:
        """The samples one by one, each made when it is asked for, or what a transform makes of it.

        ``timed``: whether a trace shows how long it takes. TransformError if the transform raised an error; names the sample.
        """
        clock = self.clock() if timed else None
        if samples.own is not None:
            return self.transformed(SampleRun.of(samples.own), samples, transform, clock)
        if transform is None:
            return iterate_samples(self.pool, samples.shards, samples.rows, self.columns, clock)
        run = iterate_samples(self.pool, samples.shards, samples.rows, self.columns)
        return self.transformed(run, samples, transform, clock)

    def clock(self) -> SampleClock | None:
        """A clock for samples that are made as they are asked for; ``None`` where no trace is made."""
        recording = recorder()
        return None if recording is None else SampleClock(recording, self.pool.short_samples)

    def samples(
        self, samples: SampleRows, transform: Transform | None = None, *, made: list[Any] | None = None
    ) -> list[Any]:
        """The samples of :meth:`iterate`, all made; args and errors are the same.

        ``made`` is the list that they are added to, which keeps those before one that has an error; default, a new one.
        """
        made = [] if made is None else made
        if samples.own is not None:
            made.extend(self.iterate(samples, transform).samples)
        elif transform is None:
            list_samples(self.pool, samples.shards, samples.rows, self.columns, made)
        else:
            run = iterate_samples(self.pool, samples.shards, samples.rows, self.columns)
            made.extend(make_all(run, transform, self._origin(samples)))
        return made

    def transformed(
        self,
        run: SampleRun,
        samples: SampleRows,
        transform: Transform | None,
        clock: SampleClock | None,
    ) -> SampleRun:
        """Samples with a transform applied to each."""
        if clock is not None:
            run = replace(run, samples=clock.decoded(run.samples, run.remaining))
            transform = None if transform is None else clock.transforming(transform)
        if transform is None:
            return run
        made = apply_transform(transform, run.samples, run.remaining, self._origin(samples))
        return SampleRun(made, run.remaining)

    def _origin(self, samples: SampleRows) -> Callable[[int], SampleLocation]:
        """A function from the number of one of some samples to where it comes from."""
        return partial(location_at, self.pool, samples.shards, samples.rows)

    def one(self, shard: int, row: int) -> Sample:
        """One sample, not transformed; see :func:`~stoker.reading.samples.read_sample`."""
        return read_sample(self.pool, shard, row, self.columns)

    def present(self, samples: SampleRows) -> NDArray[np.bool_] | None:  # noqa: ARG002 - those of joins
        """A mask of the samples that are there; ``None``: all of them."""
        return None
