"""``Chunk``: some samples of a run, before and after they are read; and all chunks of a run, whose batches are located."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.errors import SampleError
from stoker.order.sample_order import Batches, Order
from stoker.reading.samples import distinct_shards
from stoker.types import Ids

_LOCATE_SAMPLES: Final = 4096

OtherIds: TypeAlias = tuple[Ids, ...]
"""For each zip and join that a chain begins with, the ids of the other dataset's samples, -1 where there is none."""

NO_IDS: Final[Ids] = np.zeros(0, np.int64)


class ChunkOthers:
    """The samples of other datasets that belong to those of a chunk, where they are looked for ahead.

    Attributes:
        ids: of all places; ``None``: they are not known yet, or could not be found.
        shards: of each other dataset, the different shards.
        counted: whether these are counted as needed.
        work: finds them, where a thread does.
    """

    __slots__ = ("counted", "ids", "shards", "work")

    def __init__(self, ids: OtherIds | None = None) -> None:
        self.ids = ids
        self.shards: list[list[int]] = []
        self.counted = False
        self.work: Future[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkOthers, (self.await_ids(),)

    def await_ids(self) -> OtherIds | None:
        """The ids, once they are found; ``None`` where that failed: reading the samples raises the error."""
        if self.work is not None:
            try:
                self.work.result()
            except CancelledError:  # the iteration ends
                return None
        return self.ids


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some samples of a run: their places, and what stages have made of them so far.

    Stages change ``values``, ``kept`` and ``bad``. A place whose sample is dropped has no value; a bad one has none either,
    unless another sample came in its place.

    Attributes:
        lengths: places of each of its batches; once columns are made, the lengths of the batches.
        positions, shards, rows: where the sample of each place is, int64, shape ``(n,)``.
        distinct: the different shards that must be open to read it.
        values: ``None`` before they are read; a list with an entry for each place: a sample,
            :class:`~stoker.reading.steps.SeveralSamples`, or what stands for one that is dropped or bad
            (:class:`~stoker.reading.steps.LeftOut`); or columns.
        kept: of columns, the place of each row, rising; before they are read, places that are to be read. ``None``: all.
        bad: errors of bad samples by place.
        dropped: samples that were dropped, those for which others came among them.
        others: samples of other datasets that are known before it is read.
    """

    lengths: Sequence[int]
    positions: Ids
    shards: Ids
    rows: Ids
    distinct: tuple[int, ...] = ()
    values: Any = None
    kept: Ids | None = None
    bad: Mapping[int, SampleError] = field(default_factory=dict)
    dropped: int = 0
    others: ChunkOthers | None = None

    @classmethod
    def at(cls, shards: Ids, rows: Ids, positions: Ids | None = None, values: Any = None) -> Chunk:
        """One batch of samples by their places; without positions, outside of an epoch."""
        return cls([len(rows)], np.zeros_like(rows) if positions is None else positions, shards, rows, values=values)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def other_ids(self) -> OtherIds | None:
        """The ids of samples of other datasets, once they are known; ``None``: they are not looked for ahead."""
        return None if self.others is None else self.others.await_ids()

    @property
    def places(self) -> Ids:
        """The place of each row of its columns."""
        return np.arange(len(self.rows)) if self.kept is None else self.kept

    def with_bad(self, bad: Mapping[int, SampleError], values: Any, kept: Ids | None = None) -> Chunk:
        """The chunk with other values, and further bad samples."""
        return replace(self, values=values, kept=kept, bad={**bad, **self.bad} if bad else self.bad)

    def after(self, first: int) -> Chunk:
        """Those from a place on, of which samples were read already or nothing was."""
        rest = slice(first, None)
        values = None if self.values is None else self.values[rest]
        return Chunk.at(self.shards[rest], self.rows[rest], self.positions[rest], values)

    def check(self) -> Chunk:
        """The chunk itself; raises the error of its first bad sample."""
        if self.bad:
            raise self.bad[min(self.bad)]
        return self

    def made(self) -> Chunk:
        """The result alone, without what is known where it was asked for."""
        return replace(self, positions=NO_IDS, shards=NO_IDS, rows=NO_IDS, distinct=(), others=None)


def cut_chunk(chunk: Chunk, samples: int, shards: int) -> list[Chunk]:
    """A chunk that is not read yet in parts of whole batches, each of about so many samples.

    ``chunk``: what is cut. ``samples``: of a part, at most where its batches are no longer. ``shards``: number of shards of
    the dataset.
    """
    parts: list[Chunk] = []
    first = start = end = 0
    for number, length in enumerate([*chunk.lengths, samples + 1]):
        if end > start and end + length - start > samples:
            here = slice(start, end)
            present = tuple(distinct_shards(chunk.shards[here], shards))
            parts.append(
                Chunk(chunk.lengths[first:number], chunk.positions[here], chunk.shards[here], chunk.rows[here], present)
            )
            first, start = number, end
        end += length
    return parts


def located_chunks(
    order: Order, batches: Batches, shards: int, samples: int, worker: LoaderWorker, skip: int, *, in_groups: bool
) -> Iterator[Chunk]:
    """All chunks of a worker, in order.

    Args:
        order: locates the samples.
        batches: of the rank.
        shards: number of shards of the dataset.
        samples: about how many samples a chunk has at most; it has one batch at least.
        worker: this process.
        skip: batches of this worker to leave out at the beginning.
        in_groups: whether the worker takes every ``worker.count``-th chunk; otherwise every such batch.
    """
    lists = _position_groups(batches, samples, worker, skip, in_groups=in_groups)
    first = next(lists, None)
    if first is None:
        return
    # The first batch waits for few others to be located: of many streams, each costs something when it is first met.
    pairs = (first[at : at + 2] for at in range(1, len(first), 2))
    for groups in chain([first[:1]], pairs, lists):
        positions = np.concatenate([batch for group in groups for batch in group])
        numbers, rows = order.locate(positions)
        start = 0
        for group in groups:
            lengths = [len(batch) for batch in group]
            here = slice(start, start + sum(lengths))
            start = here.stop
            present = tuple(distinct_shards(numbers[here], shards))
            yield Chunk(lengths, positions[here], numbers[here], rows[here], present)


def _position_groups(
    plan: Batches, samples: int, worker: LoaderWorker, skip: int, *, in_groups: bool
) -> Iterator[list[list[Ids]]]:
    """Positions of the batches of each chunk, in lists of chunks that are located together."""
    most = max(1, samples // plan.batch_size)
    # Locating has a cost a call as well as a cost a sample, so it is done for many chunks at once: for whole ones, as
    # memory of one size is used again.
    whole = most * plan.batch_size
    together_located = whole * -(-_LOCATE_SAMPLES // whole)
    if in_groups:  # all workers cut all batches alike
        lists = plan.chunks(together_located * worker.count)
    else:
        lists = plan.chunks(together_located, worker.number, worker.count, skip)
    turns, turn = (worker.count, worker.number) if in_groups else (1, 0)
    # Chunks begin with one batch and double, so that the first batch waits for few shards and the rest is efficient.
    together, number = 1, 0
    for batches in lists:
        groups: list[list[Ids]] = []
        first = 0
        while first < len(batches):
            if number % turns == turn:
                groups.append(batches[first : first + together])
            first += together
            number += 1
            if number % turns == 0:
                together = min(2 * together, most)
        if groups:
            yield groups
