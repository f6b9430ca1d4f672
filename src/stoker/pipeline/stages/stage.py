"""``ChunkStage``: one thing that is done to the samples of a chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from stoker.errors import FormatError, SampleError, TransformError
from stoker.pipeline.chunks.chunk import Chunk
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.steps import BAD, LEFT_OUT, LeftOut, SeveralSamples
from stoker.types import Ids

Numbered: TypeAlias = tuple[int, Any]
"""A place of a chunk, and a sample that was made of the sample there."""


class ChunkStage(ABC):
    """One thing that is done to the samples of a chunk.

    A stage marks samples as bad or dropped, and never says what becomes of them. Several threads may call it.
    """

    @abstractmethod
    def apply(self, chunk: Chunk) -> Chunk:
        """The chunk with what this stage makes of its samples.

        StokerError if something is wrong that is not a sample's fault, such as storage.
        """

    def columnwise(self, chunk: Chunk) -> Chunk | None:  # noqa: ARG002
        """Like :meth:`apply`, for a chunk whose ``values`` map column names to iterators of single values.

        Default: ``None``, as the stage needs whole samples or columns. A stage also returns ``None`` for a chunk that it can
        not process in this way, and may raise the error of a bad sample.
        """
        return None


def flattened(entries: Sequence[Any]) -> list[Numbered]:
    """The samples of the entries of a chunk, without those that are dropped or bad."""
    return [
        (place, sample)
        for place, one in enumerate(entries)
        if not isinstance(one, LeftOut)
        for sample in (one if isinstance(one, SeveralSamples) else (one,))
    ]


class SamplesStage(ChunkStage):
    """A stage that takes single samples of a chunk together."""

    @abstractmethod
    def make(self, chunk: Chunk, samples: Sequence[Numbered], bad: dict[int, SampleError]) -> list[Any]:
        """The samples that come in the place of these: each a sample, :data:`LEFT_OUT`, or anything where it is bad.

        ``chunk``: where they lie. ``samples``: at least one. ``bad``: gets the errors of bad ones, by place.
        """

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        entries: list[Any] = chunk.values
        samples = flattened(entries)
        if not samples:
            return chunk
        bad: dict[int, SampleError] = {}
        made = _put_back(entries, iter(self.make(chunk, samples, bad)))
        for place in bad:
            made[place] = BAD
        return chunk.with_bad(bad, made)


def _put_back(entries: Sequence[Any], made: Iterator[Any]) -> list[Any]:
    found: list[Any] = []
    for one in entries:
        if isinstance(one, LeftOut):
            found.append(one)
        elif not isinstance(one, SeveralSamples):
            found.append(next(made))
        else:
            pairs = [(item, next(made)) for item in one.numbers]
            kept = SeveralSamples(sample for _, sample in pairs if sample is not LEFT_OUT)
            kept.numbers = [item for item, sample in pairs if sample is not LEFT_OUT]
            kept.dropped = one.dropped + len(pairs) - len(kept)
            found.append(kept)
    return found


def make_each(
    count: int,
    begin: Callable[[int], Iterator[Any]],
    fail: Callable[[int, Exception], SampleError],
) -> tuple[list[Any], dict[int, SampleError]]:
    """Samples that are made one after the other, :data:`BAD` for each bad one, and the errors of these by number.

    ``count``: how many. ``begin``: makes the samples from a number on; it is called anew after one has raised an error.
    ``fail``: the error of a sample that says which it is; raises it where it is not the sample's fault.
    """
    made: list[Any] = []
    bad: dict[int, SampleError] = {}
    while len(made) < count:
        try:
            made.extend(begin(len(made)))  # what comes before an error is kept
            if len(made) < count:
                raise FormatError("what reads its format gave too few samples: not this one, and no error either")
        except Exception as error:
            if not is_of_sample(error):
                raise
            bad[len(made)] = error if isinstance(error, TransformError) else fail(len(made), error)
            made.append(BAD)
    return made, bad


def spread_over(chunk: Chunk, places: Ids, made: list[Any], bad: dict[int, SampleError]) -> Chunk:
    """The chunk with samples that were made at some of its places; those at others are dropped, or as they were."""
    if len(places) == len(chunk):
        return chunk.with_bad(bad, made)
    entries = list(chunk.values) if isinstance(chunk.values, list) else [LEFT_OUT] * len(chunk)
    for place in chunk.bad:
        entries[place] = BAD
    for place, one in zip(places.tolist(), made, strict=True):
        entries[place] = one
    return chunk.with_bad({int(places[number]): error for number, error in bad.items()}, entries)


def unmarked(chunk: Chunk) -> Ids:
    """The places of a chunk whose entries are neither dropped nor bad."""
    return np.array([place for place, one in enumerate(chunk.values) if not isinstance(one, LeftOut)], np.int64)
