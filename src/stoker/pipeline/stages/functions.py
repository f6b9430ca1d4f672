"""Functions of single samples: ``map``, ``random_map``, ``filter``, ``flat_map``, and methods of a subclass; and what
gives them the rows of a batch, where they come after a function of whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stoker.concurrency.user_code import calls_user_code, pass_exits
from stoker.errors import SampleError
from stoker.formats.mds.encodings.images import last_left, loaded
from stoker.formats.unstacked import stackable
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.stages.stage import ChunkStage, make_each, spread_over, unmarked
from stoker.pipeline.transforms import Override, TransformOf
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.row_reader import Rows
from stoker.reading.sample_errors import SampleLocation, override_error
from stoker.reading.samples import SampleRun, make_all
from stoker.reading.steps import BAD, GONE, LeftOut, SeveralSamples
from stoker.types import Ids


class Functions(ChunkStage):
    """Applies functions to the samples of a chunk, one after the other."""

    def __init__(self, reader: Rows, functions: TransformOf) -> None:
        self._reader, self._functions = reader, functions

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        places = unmarked(chunk)
        positions, shards, rows = chunk.positions[places], chunk.shards[places], chunk.rows[places]
        samples = [chunk.values[place] for place in places.tolist()]

        def begin(first: int) -> Iterator[Any]:
            return self._begin(samples[first:], positions[first:], shards[first:], rows[first:])

        def fail(number: int, error: Exception) -> SampleError:
            return self._reader.named(int(shards[number]), int(rows[number]), error)

        made, bad = make_each(len(places), begin, fail)
        return spread_over(chunk, places, made, bad)

    def _begin(self, samples: list[Any], positions: Ids, shards: Ids, rows: Ids) -> Iterator[Any]:
        transform = self._functions(positions, shards, rows)
        return make_all(SampleRun.of(samples), transform, partial(self._reader.origin, shards, rows))


class Overrides(Functions):
    """Applies a method of a subclass to the samples of a chunk, given their ids."""

    def __init__(self, reader: Rows, override: Override) -> None:
        self._reader, self._override = reader, override

    def _begin(self, samples: list[Any], positions: Ids, shards: Ids, rows: Ids) -> Iterator[Any]:  # noqa: ARG002
        ids = self._reader.table.ids(shards, rows).tolist()
        return _overridden(self._override, ids, samples, partial(self._reader.origin, shards, rows))


@calls_user_code
def _overridden(
    override: Override, ids: Sequence[int], samples: Sequence[Any], origin: Callable[[int], SampleLocation]
) -> Iterator[Any]:
    number = 0
    try:
        for sample in override(ids, iter(samples)):
            yield sample
            number += 1
    except BaseException as error:
        pass_exits(error)
        if isinstance(error, SampleError) or not is_of_sample(error):
            raise
        raise override_error(error, origin(number)) from error


class LoadImages(ChunkStage):
    """Loads images that were left to be loaded: one that does not load is a bad sample."""

    def __init__(self, reader: Rows) -> None:
        self._reader = reader

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        if last_left() is None:
            return chunk
        entries, bad = list(chunk.values), dict[int, SampleError]()
        for place, one in enumerate(entries):
            if isinstance(one, LeftOut):
                continue
            try:
                for sample in one if isinstance(one, SeveralSamples) else (one,):
                    loaded(sample)
            except Exception as error:  # noqa: BLE001 - as decoders raise
                bad[place] = self._reader.named(int(chunk.shards[place]), int(chunk.rows[place]), error)
                entries[place] = BAD
        return chunk.with_bad(bad, entries) if bad else chunk


class SamplesOfBatch(ChunkStage):
    """Makes samples of the rows of a batch. Row i has the place of sample i; further rows have that of the last one.

    ``columns``: makes the columns of a chunk, which is one batch, up to the function of the batch.
    """

    def __init__(self, columns: Callable[[Chunk], Chunk]) -> None:
        self._columns = columns

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        made = self._columns(chunk)
        entries: list[Any] = [GONE] * len(chunk)
        if isinstance(made.values, list):  # the iteration ends with the error of a bad one
            for place in made.bad:
                entries[place] = BAD
            return replace(made, values=entries, kept=None)
        names = tuple(made.values)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(stackable, made.values.values()), strict=True)]
        places = made.places.tolist()
        for number, row in enumerate(rows):
            place = places[min(number, len(places) - 1)]
            before = entries[place]
            if before is GONE:
                entries[place] = row
            elif isinstance(before, SeveralSamples):
                before.append(row)
            else:
                entries[place] = SeveralSamples((before, row))
        for one in entries:
            if isinstance(one, SeveralSamples):
                one.numbers = range(len(one))
        return replace(made, values=entries, kept=None)
