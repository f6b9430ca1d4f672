"""Delivers chunks of which some samples may be bad: these are listed, and those after each come as if nothing had been."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from stoker.errors import SampleError
from stoker.formats.kinds import may_hold_images
from stoker.formats.mds.encodings.images import last_left, leaves_images
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.chunk_reader import ChunkReader
from stoker.pipeline.chunks.located import Chunk
from stoker.pipeline.recovery.good_samples import GoodSamples, ImageNotLoadedError, with_loaded_images
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.reading.apply_chain import LEFT_OUT
from stoker.reading.bad_samples import BadSampleSink, is_of_sample
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool

_UNKNOWN: Final = object()
"""Stands for nothing that was seen yet."""


def _may_hold_images(pool: ShardPool, columns: Sequence[str] | None) -> bool:
    """Whether columns of the dataset may hold images: all shards with samples have columns of the same kinds."""
    sizes = pool.index.sizes
    return bool(len(sizes)) and may_hold_images(pool.index.shards[int(np.argmax(sizes > 0))], columns)


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
        self._pool, self._reader, self._log = pool, reader, log
        # All samples of a chunk are made at once.
        self._takes_chunks = settings.takes_chunks
        # Errors of samples are the consumer's, at once: none is left out or replaced.
        self._raises = settings.bad_samples is None
        # Whether samples may have images to load that were in none so far, as where some samples lack them.
        self._may_have_images = not self._raises and leaves_images() and _may_hold_images(pool, settings.columns)
        # What stood for the image that was left to load last when a chunk was begun; of none, this.
        self._last_left: object = _UNKNOWN
        # The chunk whose samples are made as they are asked for, until all that are left of it are there; ``None``: none.
        self._chunk: Chunk | None = None
        # Samples of the chunk that is delivered, and of those before it, of which the log does not know.
        self._here = self._before = 0

    def delivered_group(self, read: tuple[Chunk, BatchGroup | GoodSamples]) -> BatchGroup:
        """The batches of a chunk that is delivered now."""
        chunk, good = read
        self._enter(chunk)
        if not isinstance(good, GoodSamples):
            return good
        self._note(good.bad)
        return BatchGroup(good.values, self._reader.good_lengths(chunk, good))

    def delivered_run(self, read: tuple[Chunk, list[Any] | GoodSamples]) -> SampleRun:
        """The samples of a chunk that is delivered now, all made."""
        chunk, found = read
        self._enter(chunk)
        return self._run_of(found)

    def begin(self, chunk: Chunk) -> SampleRun:
        """The samples of a chunk that is delivered now, made as they are asked for: lists of small ones would cost more than
        the samples do. All are made at once where one is met before that is bad.
        """
        self._enter(chunk)
        return self._begin(chunk, 0)

    def recover(self, run: SampleRun, error: Exception) -> SampleRun:
        """The rest of the samples of the chunk that was begun last, with something in the place of one.

        Args:
            run: the samples, as :meth:`begin` or this gave them.
            error: what was raised when one was asked for, which is raised where it is final.
        """
        chunk, good = self._chunk, self._reader.good
        if chunk is None or self._log is None or not is_of_sample(error):
            raise error
        assert good is not None
        number = len(chunk.rows) - operator.length_hint(run.remaining) - 1
        position, shard, row = (int(values[number]) for values in (chunk.positions, chunk.shards, chunk.rows))
        if isinstance(error, ImageNotLoadedError):
            named = good.named(shard, row, error.error)
        else:
            named = good.named(shard, row, error, made=True)
        self._note([(number, named)])
        stands = good.instead(position, named)
        after = self._begin(chunk, number + 1) if number + 1 < len(chunk.rows) else SampleRun.of([])
        return replace(
            after, samples=chain([stands], after.samples), gaps=self._reader.filters or after.gaps or stands is LEFT_OUT
        )

    def _enter(self, chunk: Chunk) -> None:
        """Take note of a chunk that is delivered now."""
        self._before += self._here
        self._here = len(chunk.rows)

    def _note(self, bad: Iterable[tuple[int, SampleError]]) -> None:
        """Count and list bad samples of the chunk that is delivered, by their numbers in it."""
        log = self._log
        if log is None:
            return
        for number, error in bad:
            if self._here:
                log.enter(self._before)
                log.enter(self._here)
                self._before = self._here = 0
            log.note(number, error)

    def _begin(self, whole: Chunk, first: int) -> SampleRun:
        """The samples of a chunk from the ``first`` on."""
        reader, chunk = self._reader, whole
        if first:
            rest = slice(first, None)
            chunk = replace(
                whole,
                positions=whole.positions[rest],
                shards=whole.shards[rest],
                rows=whole.rows[rest],
                values=None if whole.values is None else whole.values[rest],
                others=None,
            )
        before, self._last_left = self._last_left, last_left()
        if before is not _UNKNOWN and before is not self._last_left:
            self._pool.has_images = True
        self._chunk = None
        if self._takes_chunks:
            return self._run_of(reader.good_samples(chunk), first)
        if self._raises:
            return self._transformed_lazily(chunk)
        chunk, missing = reader.find_others(chunk)
        # They are opened when samples are asked for: after the first chunk it is known whether there are any.
        images = before is _UNKNOWN or self._pool.has_images or self._may_have_images
        if missing or (images and reader.filters):
            return self._run_of(reader.good_samples(chunk), first)
        try:
            run = self._transformed_lazily(chunk)
        except Exception as error:
            if not is_of_sample(error):
                raise
            return self._run_of(reader.good_samples(chunk), first)
        self._chunk = whole
        # One at a time: a whole chunk of pictures would leave the processor's cache before it is delivered.
        if not images:
            return run
        # Functions of the user may have kept images of chunks before.
        unseen = _UNKNOWN if self._pool.has_images else self._last_left
        return replace(run, samples=with_loaded_images(run.samples, unseen))

    def _transformed_lazily(self, chunk: Chunk) -> SampleRun:
        reader = self._reader
        run = reader.sample_run(chunk)
        if not reader.filters:
            return run
        assert reader.good is not None
        return replace(run, samples=reader.good.settled(chunk.positions, run.samples), gaps=True)

    def _run_of(self, found: list[Any] | GoodSamples, first: int = 0) -> SampleRun:
        """Samples that were made together, which are the ``first`` of their chunk and those after it."""
        if not isinstance(found, GoodSamples):
            return SampleRun.of(found)
        run = SampleRun.of(found.values, gaps=self._reader.filters or len(found.kept) < len(found.values))
        return replace(run, samples=self._noted(run.samples, found.bad, first)) if found.bad else run

    def _noted(self, samples: Iterator[Any], bad: Iterable[tuple[int, SampleError]], first: int) -> Iterator[Any]:
        """The samples, where each bad one is counted and listed when its place is reached."""
        reached = 0
        for number, error in bad:
            yield from islice(samples, number - reached)
            for stands in islice(samples, 1):  # there is none where the iteration was superseded
                self._note([(first + number, error)])
                yield stands
            reached = number + 1
        yield from samples
