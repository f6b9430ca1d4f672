"""``Settle``: bad and dropped samples of a chunk that is delivered are raised, left out, counted and listed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from stoker.concurrency.shared.counters import Count, Counts
from stoker.errors import SampleError, TransformError
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.chunks.work import ChunkWork
from stoker.pipeline.transforms import Override
from stoker.reading.bad_samples import BadSampleSink, is_of_sample
from stoker.reading.samples import SampleRun
from stoker.reading.steps import LEFT_OUT


class Settle:
    """Delivers chunks in order. Bad samples are counted and listed as they are delivered, not as they are read ahead.

    ``work``: what was done to the chunks. ``log``: lists bad samples; ``None`` where they are raised. ``override``: a method
    of a subclass, applied to each sample when it is asked for; ``None``: there is none, or it is a stage. ``counts``: where
    dropped samples are counted.
    """

    def __init__(self, work: ChunkWork, log: BadSampleSink | None, override: Override | None, counts: Counts) -> None:
        self._work, self._log, self._override, self._counts = work, log, override, counts
        # Samples of the chunk that is delivered, and of those before it, of which the log does not know.
        self._here = self._before = 0

    def group(self, read: tuple[Chunk, Chunk]) -> BatchGroup:
        """The batches of a chunk, asked for and made, that is delivered now."""
        chunk, made = read
        if self._log is not None or made.bad or made.dropped:
            self._enter(chunk, made.dropped)
            self._note(sorted(made.bad.items()))
        return BatchGroup(made.values, made.lengths)

    def samples(self, read: tuple[Chunk, Chunk]) -> SampleRun:
        """The samples of a chunk, asked for and made, that is delivered now."""
        chunk, made = read
        self._enter(chunk, made.dropped)
        run = SampleRun.of(made.values, gaps=self._work.filters or (self._work.skips and bool(made.bad)))
        if made.bad:
            run = replace(run, samples=self._noted(run.samples, sorted(made.bad.items())))
        return self.overridden(chunk, run)

    def lazily(self, read: tuple[Chunk, SampleRun | Chunk], *, present: bool) -> SampleRun:
        """The samples of a chunk that are made as they are asked for, or as :meth:`samples` gives them.

        ``read``: the chunk, and what was made of it. ``present``: whether nothing stands for one that is left out.
        """
        chunk, run = read
        if isinstance(run, Chunk):
            return self.samples((chunk, run))
        if self._log is None:
            return self.overridden(chunk, run)
        self._enter(chunk)
        samples = self._recovered(chunk, run, present=present)
        return self.overridden(chunk, replace(run, samples=samples, gaps=not present))

    def _recovered(self, chunk: Chunk, run: SampleRun, *, present: bool) -> Iterator[Any]:
        """The samples; where one is bad, it and those after it are made together."""
        try:
            yield from run.samples
            return
        except Exception as error:
            if not is_of_sample(error):
                raise
            failed = error
        first = len(chunk) - operator.length_hint(run.remaining) - 1
        rest = chunk.after(first)
        if isinstance(failed, TransformError):  # a function is called once for a sample
            rest = rest.with_bad({0: failed}, rest.values, np.arange(1, len(rest)))
        made = self._work(rest)
        for place, one in enumerate(made.values):
            if place and next(run.remaining, run) is run:  # the iteration was superseded
                return
            if place in made.bad:
                self._note([(first + place, made.bad[place])])
            if not (present and one is LEFT_OUT):
                yield one

    def overridden(self, chunk: Chunk, run: SampleRun) -> SampleRun:
        """Samples as a method of a subclass makes them."""
        if self._override is None:
            return run
        ids = self._work.rows.table.ids(chunk.shards, chunk.rows)
        return replace(run, samples=self._override(ids.tolist(), run.samples))

    def _enter(self, chunk: Chunk, dropped: int = 0) -> None:
        if dropped:
            self._counts.add(Count.FILTERED, dropped)
        self._before += self._here
        self._here = len(chunk.rows)

    def _note(self, bad: Iterable[tuple[int, SampleError]]) -> None:
        """Count and list bad samples of the chunk that is delivered, by place; or raise the error of the first."""
        log = self._log
        for place, error in bad:
            if log is None:
                raise error
            if self._here:
                log.enter(self._before)
                log.enter(self._here)
                self._before = self._here = 0
            log.note(place, error)

    def _noted(self, samples: Iterator[Any], bad: Iterable[tuple[int, SampleError]]) -> Iterator[Any]:
        """The samples, where each bad one is noted when its place is reached."""
        reached = 0
        for place, error in bad:
            yield from islice(samples, place - reached)
            if not operator.length_hint(samples):  # the iteration was superseded
                return
            stands = next(samples)
            self._note([(place, error)])
            yield stands
            del stands
            reached = place + 1
        yield from samples
