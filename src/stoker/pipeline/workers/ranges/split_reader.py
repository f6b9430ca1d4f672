"""Reads the splits that a worker leases, chunk by chunk, ahead of their consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from stoker.concurrency.shared.counters import Count
from stoker.coordination import Coordination, LeasedSplit, WaitTimeoutError
from stoker.pipeline.workers.ranges.range_source import RangePart, RangeReader, SampleChunk
from stoker.pipeline.workers.replicas import Replicas

_LOOK: Final = 0.25


class SplitReader:
    """Reads splits in the reading thread.

    Args:
        reader: reads their ranges.
        coordination: gives splits.
        lost: splits that others have now, of which no more need be read.
        replicate: begins to fetch shards for others, while splits are read; ``None``: this worker keeps none for others.
        closing: set when no more is wanted.

    ``failed``: the split that could not be read, if reading ended with an error. ``starved_since``: since when it waits for a
    split, by the monotonic clock; 0 if it does not.
    """

    def __init__(
        self,
        reader: RangeReader,
        coordination: Coordination,
        lost: AbstractSet[LeasedSplit],
        replicate: Callable[[], Replicas] | None,
        closing: threading.Event,
    ) -> None:
        self.failed: LeasedSplit | None = None
        self.starved_since = 0.0
        self._reader = reader
        self._coordination = coordination
        self._lost = lost
        self._replicate = replicate
        self._closing = closing

    def chunks(self) -> Iterator[SampleChunk]:
        """Chunks of all splits that this worker gets; their numbers are positions."""
        replicas = None if self._replicate is None else self._replicate()
        try:
            while (split := self._next_split()) is not None:
                self._reader.sample_source.counts.add(Count.LEASES, 1)
                try:
                    yield from self._reader.read(self._parts_of(split))
                except Exception:
                    self.failed = split
                    raise
            self._reader.expect(())
        finally:
            self._reader.close()
            if replicas is not None:
                replicas.close()

    def _parts_of(self, split: LeasedSplit) -> Iterator[RangePart]:
        for begin, end in self._reader.steps(split.begin, split.end):
            if split in self._lost or self._closing.is_set():
                break
            yield RangePart(begin, end, (begin, end), split)

    def _next_split(self) -> LeasedSplit | None:
        try:
            while not self._closing.is_set():
                try:
                    return self._coordination.next_split(_LOOK)
                except WaitTimeoutError:
                    self.starved_since = self.starved_since or time.monotonic()
        finally:
            self.starved_since = 0.0
        return None
