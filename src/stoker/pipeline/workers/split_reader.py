"""Reads the splits that a worker leases, piece by piece, ahead of their consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from stoker.concurrency.shared_counters import Count
from stoker.coordination import Coordination, LeasedSplit, WaitTimeoutError
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import SampleSource, in_order

__all__ = ["SplitPiece", "SplitReader"]

# Samples that are read in one step, where they are delivered one by one.
_PIECE: Final = 64
# So many steps ahead of the one that is read, shards are fetched.
_EXPECTED: Final = 64
_LOOK: Final = 0.25


@dataclass(frozen=True, slots=True)
class SplitPiece:
    """Samples ``[begin, end)`` of a split, or a batch of them, or the error that reading them ended with."""

    split: LeasedSplit
    begin: int
    end: int
    samples: list[Any] | None = None
    batch: Any = None
    error: Exception | None = None


class SplitReader:
    """Reads splits, in a thread of its own. It knows nothing of the loader, so that a forgotten loader ends its thread.

    Args:
        rows: where samples come from.
        splits: the epoch's positions.
        config: this worker's.
        coordination: gives splits.
        lost: splits that others have now, of which no more need be read.

    Attributes:
        closing: set it to have it end.
        starved_since: since when it waits for a split, by the monotonic clock; 0 if it does not.
    """

    def __init__(
        self,
        rows: SampleSource,
        splits: Splits,
        config: StreamingConfig,
        coordination: Coordination,
        lost: AbstractSet[LeasedSplit],
    ) -> None:
        self.closing = threading.Event()
        self.starved_since = 0.0
        self._rows = rows
        self._splits = splits
        self._batch_size = config.batch_size
        room = config.prefetch_buffer_size or _PIECE
        self._step = config.batch_size or max(1, min(_PIECE, room // 4))
        self._coordination = coordination
        self._lost = lost

    def pieces(self) -> Iterator[SplitPiece]:
        """Pieces of all splits that this worker gets."""
        step = self._step
        while (split := self._next_split()) is not None:
            self._rows.counts.add(Count.LEASES, 1)
            for number, begin in enumerate(range(split.begin, split.end, step)):
                if split in self._lost or self.closing.is_set():
                    break
                end = min(split.end, begin + step)
                try:
                    if number % _EXPECTED == 0:
                        shards, _ = self._splits.locate(begin, min(split.end, begin + _EXPECTED * step))
                        self._rows.expect(in_order(shards))
                    piece = self._read(split, begin, end)
                except Exception as error:  # noqa: BLE001 - the consumer's, after what was read before it
                    yield SplitPiece(split, begin, end, error=error)
                    return
                yield piece
        self._rows.expect(())

    def _read(self, split: LeasedSplit, begin: int, end: int) -> SplitPiece:
        places = self._splits.locate(begin, end)
        if self._batch_size is None:
            return SplitPiece(split, begin, end, samples=self._rows.samples(*places))
        return SplitPiece(split, begin, end, batch=self._rows.batch(*places))

    def _next_split(self) -> LeasedSplit | None:
        try:
            while not self.closing.is_set():
                try:
                    return self._coordination.next_split(_LOOK)
                except WaitTimeoutError:
                    self.starved_since = self.starved_since or time.monotonic()
        finally:
            self.starved_since = 0.0
        return None
