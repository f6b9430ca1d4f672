"""Reading: the first stage, which gives a chunk its values, as columns or as samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stoker.errors import FormatError, SampleError
from stoker.formats.common import entries as kinds
from stoker.formats.unstacked import rows_of
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.stages.stage import ChunkStage, make_each, spread_over
from stoker.pipeline.transforms import TransformOf
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.row_reader import RowReader, Rows, load_columns
from stoker.reading.samples import SampleRun, make_all, make_dicts
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids


class ReadColumns(ChunkStage):
    """Reads samples as columns.

    ``reader``: of the samples. ``loads``: whether images are loaded, as one that does not load is a bad sample.
    """

    def __init__(self, reader: Rows, *, loads: bool) -> None:
        self._reader, self._loads = reader, loads

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class. Columns that were read already are taken as they are."""
        shards, rows, own = chunk.shards, chunk.rows, chunk.values
        if chunk.kept is not None:
            shards, rows = shards[chunk.kept], rows[chunk.kept]
            own = None if own is None else {name: rows_of(column, chunk.kept) for name, column in own.items()}
        if not len(rows):
            return replace(chunk, values={})
        try:
            if own is None:
                return replace(chunk, values=self._reader.batch(shards, rows, named=False, loads=self._loads))
            if self._loads:
                load_columns(own)
            return replace(chunk, values=own)
        except Exception as error:
            if not is_of_sample(error):
                raise
            failed = error
        try:
            batch, kept, bad = self._reader.good(shards, rows, loads=self._loads, whole=own is not None)
        except FormatError:
            # Each can be read, and not together.
            self._reader.batch(shards, rows)
            raise failed  # noqa: B904 - it was this
        places = chunk.places
        return chunk.with_bad({int(places[number]): error for number, error in bad.items()}, batch, places[kept])


class ReadSamples(ChunkStage):
    """Reads samples one by one, and applies functions to each as it is made: what is decoded need not be kept for all.

    ``reader``: of the samples. ``functions``: what is applied to each; ``None``: nothing.
    """

    def __init__(self, reader: Rows, functions: TransformOf | None) -> None:
        self._reader, self._functions = reader, functions

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class. Samples that were read already are taken as they are."""
        places, own = chunk.places, chunk.values
        positions, shards, rows = chunk.positions, chunk.shards, chunk.rows
        if chunk.kept is not None:
            positions, shards, rows = positions[places], shards[places], rows[places]
            own = None if own is None else [own[place] for place in places.tolist()]
        source = _Source(self._reader, shards, rows, own)

        def begin(first: int) -> Iterator[Any]:
            rest = slice(first, None)
            origin = partial(self._reader.origin, shards[rest], rows[rest])
            if self._functions is None:
                return make_all(source.rest(first), None, origin)
            return make_all(source.rest(first), self._functions(positions[rest], shards[rest], rows[rest]), origin)

        def fail(number: int, error: Exception) -> SampleError:
            source.broken = True  # an iterator that has raised an error gives no more
            return self._reader.named(int(shards[number]), int(rows[number]), error)

        made, bad = make_each(len(rows), begin, fail)
        return spread_over(replace(chunk, values=None), places, made, bad)

    def columnwise(self, chunk: Chunk) -> Chunk | None:
        """See the base class."""
        if self._functions is not None or chunk.values is not None or chunk.kept is not None or not len(chunk):
            return None
        columns = self._reader.iterate_columns(chunk.shards, chunk.rows)
        return None if columns is None else replace(chunk, values=columns)


class ReadBeside(ChunkStage):
    """Reads samples with those of other datasets beside them.

    All of a sample is put together at once, as it is made. Where that is not possible, one thing is done after the other.

    ``reader``: of the samples. ``stages``: read them, and put others beside them.
    """

    def __init__(self, reader: RowReader, stages: Sequence[ChunkStage]) -> None:
        self._reader, self._stages = reader, tuple(stages)

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class."""
        run = self.lazily(chunk)
        try:
            if run is not None:
                return replace(chunk, values=list(run.samples))
        except Exception as error:
            if not is_of_sample(error):
                raise
        return self._in_turn(chunk)

    def columnwise(self, chunk: Chunk) -> Chunk | None:
        """See the base class."""
        made: Chunk | None = chunk
        for stage in self._stages:
            made = None if made is None else stage.columnwise(made)
        return made

    def lazily(self, chunk: Chunk) -> SampleRun | None:
        """The samples, each made when it is asked for; ``None``: these can not be."""
        try:
            made = self.columnwise(chunk)
        except Exception as error:
            if not is_of_sample(error):
                raise
            return None
        if made is None:
            return None
        remaining = iter(range(len(chunk)))
        run = SampleRun(make_dicts(made.values, remaining, partial(self._failed, chunk)), remaining)
        return self._reader.iterate_timed(chunk.shards, chunk.rows, None, run)

    def _in_turn(self, chunk: Chunk) -> Chunk:
        for stage in self._stages:
            chunk = stage.apply(chunk)
        return chunk

    def _failed(self, chunk: Chunk, first: int, error: Exception) -> tuple[Exception, BaseException | None]:
        """The error of the first bad sample from a place on, and its cause."""
        for place in range(first, len(chunk)):
            here = slice(place, place + 1)
            for told in self._in_turn(Chunk.at(chunk.shards[here], chunk.rows[here])).bad.values():
                return told, told.__cause__
        return error, error.__cause__


def may_hold_images(pool: ShardPool, columns: Sequence[str] | None) -> bool:
    """Whether columns of the dataset may hold images: all shards with samples have columns of the same kinds."""
    sizes = pool.index.sizes
    return bool(len(sizes)) and kinds.may_hold_images(pool.index.shards[int(np.argmax(sizes > 0))], columns)


def read_lazily(reader: RowReader, functions: TransformOf | None, chunk: Chunk) -> SampleRun:
    """The samples of :class:`ReadSamples`, each made when it is asked for: lists of small ones cost more than they do."""
    shards, rows = chunk.shards, chunk.rows
    transform = None if functions is None else functions(chunk.positions, shards, rows)
    return reader.iterate_timed(shards, rows, transform, None if chunk.values is None else SampleRun.of(chunk.values))


class _Source:
    """Samples one by one: together, as long as none is bad; from there on each by itself."""

    def __init__(self, reader: Rows, shards: Ids, rows: Ids, own: list[Any] | None) -> None:
        self._reader, self._shards, self._rows, self._own = reader, shards, rows, own
        self._run: SampleRun | None = None
        self.broken = False

    def rest(self, first: int) -> SampleRun:
        """Those from a number on, of which those before were taken, or are bad."""
        if self._own is not None:
            return SampleRun.of(self._own[first:])
        if self._run is None and not self.broken:
            try:
                self._run = self._reader.iterate(self._shards, self._rows)
            except Exception as error:
                if not is_of_sample(error):
                    raise
                self.broken = True  # by one of them
        if self._run is None or self.broken:
            return self._reader.each(self._shards[first:], self._rows[first:])
        return self._run
