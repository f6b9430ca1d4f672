"""A loader that runs a recorded assignment again: each rank gets the ranges that it had, in the order in which it did."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from stoker.concurrency.forks import reset_in_children
from stoker.errors import ConfigError, StateError
from stoker.order.capabilities import stream_urls
from stoker.order.native import NativeOrder
from stoker.pipeline.prefetch_buffer import END, PrefetchBuffer
from stoker.pipeline.state.checkpoint import Checkpoint
from stoker.pipeline.workers.adaptive import Splits, replayed
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.storage.recorded_versions import check_versions, with_versions_of

__all__ = ["Replayed"]

_PIECE: Final = 64


class Replayed:
    """One rank's part of a recorded assignment, again.

    Args:
        rows: where samples come from.
        sample_order: see :func:`~stoker.pipeline.workers.adaptive.adaptive_order`.
        config: this worker's place.
    """

    def __init__(self, rows: SampleSource, sample_order: NativeOrder, config: StreamingConfig) -> None:
        adaptive = config.adaptive
        assert adaptive is not None
        assert adaptive.replay is not None
        self._rows = rows
        self._sample_order = sample_order
        self._config = config
        self._assignment = adaptive.replay
        self._ahead: PrefetchBuffer[tuple[Any, int, bool]] | None = None
        self._part: Iterator[Any]
        self.delivered: int
        self.finished: bool
        self._begin(self._assignment.epoch, 0)
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: the child goes on by itself after what was delivered."""
        self._ahead = None
        self._part = iter(())

    def __len__(self) -> int:
        """Samples, or batches, of this rank."""
        size = self._config.batch_size or 1
        return sum(-(-(end - begin) // size) for begin, end in self._ranges)

    def next(self) -> Any:
        """The next sample, or batch; :data:`~stoker.pipeline.prefetch_buffer.END` at the end."""
        for sample in self._part:
            self.delivered += 1
            return sample
        if self.finished:
            return END
        try:
            item = self._buffer().take()
        except BaseException:
            self.close()
            raise
        if item is None:
            self.finished = True
            self.close()
            return END
        found, count, whole = item
        if whole:
            self.delivered += count
            return found
        self._part = iter(found)
        return self.next()

    def prefetch(self, samples: int, timeout: float | None) -> int:
        """Have so many samples ready, or as many as the buffer holds; returns how many are."""
        if self.finished or not self._config.prefetch_buffer_size:
            return 0
        return self._buffer().wait_for(samples, timeout)

    def reset(self) -> None:
        """Raises ConfigError: an assignment is of one epoch."""
        raise ConfigError("a replay has one epoch, that which was recorded: make another loader for another assignment")

    def commit(self) -> None:
        """Nothing: a replay commits nothing."""

    def close(self) -> None:
        """Stop reading ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def checkpoint(self) -> Checkpoint:
        """What this rank has had."""
        done, left = [], self._skipped + self.delivered
        for begin, end in self._ranges:
            if left > 0:
                done.append((begin, min(end, begin + left)))
            left -= end - begin
        return Checkpoint(
            kind="replay",
            epoch=self.epoch,
            position=self._skipped + self.delivered,
            seed=self._sample_order.settings.seed,
            rank=self._config.rank,
            world_size=self._config.world_size,
            time=time.time(),
            processed=tuple(sorted(done)),
            state=self._state(),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was taken.

        Raises:
            StateError: it is of another kind, rank, dataset, order or assignment.
        """
        state = self._state()
        check_versions(checkpoint.state, state, stream_urls(self._sample_order), "checkpoint.state")
        ours = ("replay", self._config.rank, self._assignment.epoch, state)
        theirs = (checkpoint.kind, checkpoint.rank, checkpoint.epoch, with_versions_of(checkpoint.state, state))
        for name, its, mine in zip(("kind", "rank", "epoch", "state"), theirs, ours, strict=True):
            if its != mine:
                raise StateError(f"the checkpoint's {name} is {its!r}, that of this loader is {mine!r}")
        self.close()
        self._begin(checkpoint.epoch, checkpoint.position)

    def _state(self) -> dict[str, Any]:
        return {
            **self._sample_order.as_dict(),
            "batch_size": self._config.batch_size,
            "ranges": [list(r) for r in self._ranges],
        }

    def _begin(self, epoch: int, skip: int) -> None:
        self._splits = Splits(self._sample_order, epoch, self._config.world_size)
        config = self._config
        self._ranges = replayed(
            self._assignment, self._sample_order, self._splits, config.batch_size, config.rank, config.world_size
        )
        self._skipped = skip
        self._part = iter(())
        self.epoch = epoch
        self.delivered = 0
        self.finished = False

    def _buffer(self) -> PrefetchBuffer[tuple[Any, int, bool]]:
        if self._ahead is None:
            room = self._config.prefetch_buffer_size
            skip = self._skipped + self.delivered
            items = _items(self._rows, self._splits, self._ranges, self._config.batch_size, skip)
            self._ahead = PrefetchBuffer(items, lambda item: item[1], room, self._rows.counts)
        return self._ahead


def _items(
    rows: SampleSource, splits: Splits, ranges: list[tuple[int, int]], size: int | None, skip: int
) -> Iterator[tuple[Any, int, bool]]:
    """Samples, how many they are, and whether they are a batch."""
    step = size or _PIECE
    for first, last in ranges:
        for begin in range(first, last, step):
            end = min(last, begin + step)
            taken, skip = min(skip, end - begin), max(0, skip - (end - begin))
            if begin + taken == end:
                continue
            places = splits.locate(begin + taken, end)
            if size is None:
                yield rows.samples(*places), end - begin - taken, False
            else:
                yield rows.batch(*places), end - begin - taken, True
