"""Reads samples of a dataset by shard and row, as columns or one by one: what a chain begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.spans.recorder import recorder
from stoker.concurrency.spans.sample_clock import SampleClock, StretchClock
from stoker.reading.sample_errors import apply_transform, location_at
from stoker.reading.samples import SampleRun, iterate_samples, list_samples, read_sample, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch, Ids, Sample, Transform

OtherIds: TypeAlias = tuple[Ids, ...]
"""For each zip and join that a chain begins with, the ids of the other dataset's samples, -1 where there is none."""


class SampleReader:
    """Reads samples of a dataset: its stored columns.

    Args:
        pool: the dataset's open shards.
        columns: names to read, default all.
    """

    def __init__(self, pool: ShardPool, columns: Sequence[str] | None) -> None:
        self.pool, self.columns = pool, columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of a batch."""
        ids = self.pool.ids
        return (*(self.columns or self.pool.index.columns), *(() if ids is None else (ids,)))

    def batch(
        self, shards: Ids, rows: Ids, *, others: OtherIds | None = None, own: Batch | None = None, named: bool = True
    ) -> Batch:
        """The samples at ``(shards[i], rows[i])``, in that order, as columns.

        Errors are those of :func:`~stoker.reading.samples.read_samples`.

        Args:
            shards, rows: int64, shape ``(n,)``, n ≥ 1.
            others: where they are known, the ids of samples of other datasets.
            own: the dataset's own columns, where they were read already.
            named: whether an error of a decoder says which sample it is of.
        """
        del others
        return own or read_samples(self.pool, shards, rows, self.columns, named=named)

    def iterate(
        self,
        shards: Ids,
        rows: Ids,
        transform: Transform | None = None,
        *,
        others: OtherIds | None = None,
        own: list[Any] | None = None,
        timed: bool = True,
    ) -> SampleRun:
        """The same one by one, each made when it is asked for, or what a transform makes of it.

        Args:
            shards, rows, others: as of :meth:`batch`.
            transform: applied to each.
            own: the dataset's own samples, where they were read already.
            timed: whether a trace shows how long it takes.

        Raises:
            TransformError: the transform raised an error; names the sample.
        """
        del others
        if own is None:
            return iterate_samples(self.pool, shards, rows, self.columns, transform, timed=timed)
        return self.transformed(SampleRun.of(own), shards, rows, transform, self.clock() if timed else None)

    def clock(self) -> SampleClock | None:
        """A clock for samples that are made as they are asked for; ``None`` where no trace is made."""
        recording = recorder()
        return None if recording is None else SampleClock(recording, self.pool.short_samples)

    def samples(
        self,
        shards: Ids,
        rows: Ids,
        transform: Transform | None = None,
        *,
        others: OtherIds | None = None,
        own: list[Any] | None = None,
        made: list[Any] | None = None,
    ) -> list[Any]:
        """The samples of :meth:`iterate`, all made; args and errors are the same.

        ``made`` is the list that they are added to, which keeps those before one that has an error; default, a new one.
        """
        if own is None:
            return list_samples(self.pool, shards, rows, self.columns, transform, made)
        made = [] if made is None else made
        made.extend(self.iterate(shards, rows, transform, others=others, own=own).samples)
        return made

    def transformed(
        self,
        run: SampleRun,
        shards: Ids,
        rows: Ids,
        transform: Transform | None,
        clock: SampleClock | StretchClock | None,
    ) -> SampleRun:
        """Samples with a transform applied to each.

        Args:
            run: the samples.
            shards, rows: of them.
            transform: applied to each; ``None``: nothing is.
            clock: measures it, for a trace.
        """
        if clock is not None:
            run = replace(run, samples=clock.decoded(run.samples, run.remaining))
            transform = None if transform is None else clock.transforming(transform)
        if transform is None:
            return run
        origin = partial(location_at, self.pool, shards, rows)
        return SampleRun(apply_transform(transform, run.samples, run.remaining, origin), run.remaining)

    def one(self, shard: int, row: int) -> Sample:
        """One sample, not transformed; see :func:`~stoker.reading.samples.read_sample`."""
        return read_sample(self.pool, shard, row, self.columns)

    def present(self, shards: Ids, rows: Ids) -> NDArray[np.bool_] | None:  # noqa: ARG002 - those of joins
        """A mask of the samples that are there; ``None``: all of them."""
        return None
