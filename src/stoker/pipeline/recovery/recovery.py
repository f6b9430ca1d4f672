"""Delivers chunks of which some samples may be bad: these are listed, and those after each come as if nothing had been."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from stoker.errors import SampleError
from stoker.formats.mds.encodings.images import last_left
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.chunk_reader import ChunkReader
from stoker.pipeline.chunks.located import Chunk
from stoker.pipeline.recovery.good_samples import GoodSamples, ImageNotLoadedError, loaded_image
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.reading.apply_chain import LEFT_OUT
from stoker.reading.bad_samples import BadSampleSink, is_of_sample
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool

Begun: TypeAlias = SampleRun | list[Any] | GoodSamples
"""The samples of a chunk, made as they are asked for; or all of them, where one is met before that is bad."""

_UNKNOWN: Final = object()
"""Stands for nothing that was seen yet."""


class Recovery:
    """Delivers the samples of chunks of which some may be bad or filtered, in order.

    Bad ones are counted and listed as they are delivered, not as they are read ahead.

    Args:
        pool: the dataset's open shards.
        reader: reads the chunks.
        settings: see :class:`~stoker.pipeline.transforms.EpochReaderSettings`.
        log: lists bad samples; ``None`` where they are errors.
    """

    def __init__(
        self, pool: ShardPool, reader: ChunkReader, settings: EpochReaderSettings, log: BadSampleSink | None
    ) -> None:
        self._pool, self._reader, self._settings, self._log = pool, reader, settings, log
        # What stood for the image that was left to load last when a chunk was begun; of none, this.
        self._last_left: object = _UNKNOWN
        # Samples that were delivered since bad ones were told last.
        self._untold = 0

    def told_group(self, read: tuple[Chunk, BatchGroup | GoodSamples]) -> BatchGroup:
        """The batches of a chunk that is delivered now."""
        chunk, good = read
        if not isinstance(good, GoodSamples):
            self._untold += len(chunk.rows)
            return good
        self._tell(chunk, good.bad)
        return BatchGroup(good.values, self._reader.good_lengths(chunk, good))

    def told_run(self, read: tuple[Chunk, list[Any] | GoodSamples]) -> SampleRun:
        """The samples of a chunk that is delivered now, all made."""
        chunk, found = read
        if isinstance(found, GoodSamples):
            self._tell(chunk, ())
            return self._run_of(found, 0)
        self._untold += len(found)
        return SampleRun.of(found)

    def runs(self, chunks: Iterable[tuple[Chunk, Begun]]) -> Iterator[SampleRun]:
        """Samples that are made as they are asked for: lists of small ones would cost more than the samples do.

        Args:
            chunks: with what :meth:`begin` gave of each.
        """
        for chunk, run in chunks:
            if self._log is not None:
                self._log.enter(len(chunk.rows))
            yield self._with_recovery(chunk, 0, run)
            del chunk, run

    def begin(self, chunk: Chunk) -> Begun:
        """The samples of a chunk, made as they are asked for; or all of them, where one is met before that is bad."""
        reader = self._reader
        before, self._last_left = self._last_left, last_left()
        if before is not _UNKNOWN and before is not self._last_left:
            self._pool.has_images = True
        if self._settings.takes_chunks:  # all samples of a chunk are made at once
            return reader.good_samples(chunk)
        if self._settings.bad_samples is None:
            return self._transformed_lazily(chunk)
        chunk, missing = reader.find_others(chunk)
        if missing:
            return reader.good_samples(chunk)
        # They are opened when samples are asked for: after the first chunk it is known whether there are any.
        images = before is _UNKNOWN or self._pool.has_images
        if images and reader.filters:
            return reader.good_samples(chunk)
        try:
            run = self._transformed_lazily(chunk)
            # One at a time: a whole chunk of pictures would leave the processor's cache before it is delivered.
            return replace(run, samples=map(loaded_image, run.samples)) if images else run
        except Exception as error:
            if not is_of_sample(error):
                raise
        return reader.good_samples(chunk)

    def _tell(self, chunk: Chunk, bad: Iterable[tuple[int, SampleError]]) -> None:
        """Count and list the bad samples of a chunk that is delivered now."""
        if self._log is not None:
            self._log.enter(self._untold)
            self._log.enter(len(chunk.rows))
            self._untold = 0
            for number, error in bad:
                self._log.note(number, error)

    def _transformed_lazily(self, chunk: Chunk) -> SampleRun:
        reader = self._reader
        run = reader.sample_run(chunk)
        if not reader.filters:
            return run
        assert reader.good is not None
        return replace(run, samples=reader.good.settled(chunk.positions, run.samples), gaps=True)

    def _run_of(self, found: GoodSamples, first: int) -> SampleRun:
        """Samples that were made together, which are the ``first`` of their chunk and those after it."""
        run = SampleRun.of(found.values, gaps=self._reader.filters or len(found.kept) < len(found.values))
        return replace(run, samples=self._noted(run.samples, found.bad, first)) if found.bad else run

    def _noted(self, samples: Iterator[Any], bad: Iterable[tuple[int, SampleError]], first: int) -> Iterator[Any]:
        """The samples, where each bad one is counted and listed when its place is reached."""
        assert self._log is not None
        reached = 0
        for number, error in bad:
            yield from islice(samples, number - reached)
            for stands in islice(samples, 1):  # there is none where the iteration was superseded
                self._log.note(first + number, error)
                yield stands
            reached = number + 1
        yield from samples

    def _with_recovery(self, chunk: Chunk, first: int, run: Begun) -> SampleRun:
        """The samples of a chunk from the ``first`` on."""
        if isinstance(run, SampleRun):
            if self._log is None:
                return run
            return SampleRun(run.samples, run.remaining, run.gaps, partial(self._recover, chunk))
        return self._run_of(run, first) if isinstance(run, GoodSamples) else SampleRun.of(run)

    def _recover(self, chunk: Chunk, run: SampleRun, error: Exception) -> SampleRun:
        good = self._reader.good
        assert good is not None
        assert self._log is not None
        if not is_of_sample(error):
            raise error
        number = len(chunk.rows) - operator.length_hint(run.remaining) - 1
        position, shard, row = (int(values[number]) for values in (chunk.positions, chunk.shards, chunk.rows))
        if isinstance(error, ImageNotLoadedError):
            named = good.named(shard, row, error.error)
        else:
            named = good.named(shard, row, error, made=True)
        self._log.note(number, named)
        stands = good.instead(position, named)
        rest = slice(number + 1, None)
        left = replace(
            chunk,
            positions=chunk.positions[rest],
            shards=chunk.shards[rest],
            rows=chunk.rows[rest],
            values=None if chunk.values is None else chunk.values[rest],
            others=None,
        )
        after = SampleRun.of([]) if not len(left.rows) else self._with_recovery(chunk, rest.start, self.begin(left))
        return replace(
            after, samples=chain([stands], after.samples), gaps=self._reader.filters or after.gaps or stands is LEFT_OUT
        )
