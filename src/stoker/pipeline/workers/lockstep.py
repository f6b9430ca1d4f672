"""A loader whose part follows from rank and world alone: global batches, parts of a static strategy, arrays or shards."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from stoker.concurrency.forks import reset_in_children
from stoker.errors import StateError
from stoker.order.capabilities import settled
from stoker.order.native import NativeOrder
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.pipeline.prefetch_buffer import END, PrefetchBuffer
from stoker.pipeline.state.checkpoint import Checkpoint
from stoker.pipeline.state.resume import Progress, check_not_empty, others_have_more, run_from
from stoker.pipeline.state.state import make_state, read_state
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.reading.samples import SampleRun
from stoker.types import Batch

__all__ = ["FILLER", "Lockstep"]

FILLER: Final = "_filler"
"""Column of batches of ``ends="join"``: bool, shape ``(n,)``; true where the samples only keep a rank in step."""

_PART = 64


@dataclass(frozen=True, slots=True)
class _Item:
    """Some samples, or a batch, on their way to the consumer."""

    samples: list[Any] | None = None
    batch: Batch | None = None
    count: int = 0
    filler: bool = False


@dataclass(frozen=True, slots=True)
class _Reader:
    """All that the reading thread needs. It knows nothing of the loader, so that a forgotten loader ends its thread."""

    rows: SampleSource
    sample_order: SampleOrder
    config: StreamingConfig
    data_rank: DataRank
    point: EpochPosition
    run: Run

    def items(self) -> Iterator[_Item]:
        """What is left of the rank's part."""
        config = self.config
        if config.batch_size is None:
            room = config.prefetch_buffer_size or _PART
            for part in self.rows.runs(self.run, self.point.partial, max(1, min(_PART, room // 4))):
                yield _Item(samples=part, count=len(part))
            return
        joined = config.ends == "join"
        batch: Batch | None = None
        steps = 0
        for batch in self.rows.batches(self.run):
            steps += 1
            count = _length(batch)
            yield _Item(batch={**batch, FILLER: np.zeros(count, dtype=np.bool_)} if joined else batch, count=count)
        if joined:
            for _ in range(steps, _most_steps(self.sample_order, self.point, self.data_rank)):
                if batch is None:
                    batch = self._any_batch()
                flags = np.ones(_length(batch), dtype=np.bool_)
                yield _Item(batch={**batch, FILLER: flags}, count=len(flags), filler=True)

    def _any_batch(self) -> Batch:
        """A batch of some other rank, for one that has none at all."""
        for rank in range(self.data_rank.world_size):
            run = self.sample_order.run(self.point, replace(self.data_rank, rank=rank))
            for places in run.plan.chunks(1):
                return self.rows.batch(*run.order.locate(places[0]))
        raise AssertionError("some rank has a batch")


def _most_steps(sample_order: SampleOrder, point: EpochPosition, data_rank: DataRank) -> int:
    """Steps of the rank that has most."""
    point = settled(sample_order, point, data_rank)
    longest = sample_order.run(point, data_rank).plan.longest
    return len(sample_order.run(point, replace(data_rank, rank=longest)).plan)


class Lockstep:
    """See :class:`~stoker.loaders.shard_loader.StreamingShardLoader`.

    Args:
        rows: where samples come from.
        sample_order: which sample comes when.
        config: this worker's place.
        batch_size: samples in a batch of one rank, by which the sample order deals; also where samples come one by one.
    """

    def __init__(self, rows: SampleSource, sample_order: SampleOrder, config: StreamingConfig, batch_size: int) -> None:
        self._rows = rows
        self._sample_order = sample_order
        self._config = config
        self._data_rank = DataRank(config.rank, config.world_size, 1, batch_size)
        self._ahead: PrefetchBuffer[_Item] | None = None
        self._lock = threading.Lock()
        self._forked = False
        self._part: Iterator[Any] = iter(())
        self._fillers = 0
        self.delivered = 0
        self.finished = False
        self._begin(EpochPosition(0))
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: the child goes on by itself after what was delivered."""
        self._lock = threading.Lock()
        self._ahead = None
        self._forked = True

    # -- delivering ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that is delivered."""
        return self._point.epoch

    @property
    def in_step(self) -> bool:
        """Whether all ranks take the same number of steps."""
        if self._config.ends is not None:
            return self._config.ends != "uneven"
        return not isinstance(self._sample_order, NativeOrder) or self._sample_order.settings.remainder != "uneven"

    def __len__(self) -> int:
        """Batches, or samples, that :meth:`next` gives in a whole epoch."""
        begin = settled(self._sample_order, self._point.epoch_begin(), self._data_rank)
        plan = self._sample_order.run(begin, self._data_rank).plan
        if self._config.batch_size is None:
            return plan.samples
        if self._config.ends == "join":
            return _most_steps(self._sample_order, begin, self._data_rank)
        return len(plan)

    def next(self) -> Any:
        """The next sample, or batch; :data:`~stoker.pipeline.prefetch_buffer.END` at the epoch's end."""
        while True:
            for sample in self._part:
                self.delivered += 1
                return sample
            if self.finished:
                return END
            item = self._take()
            if item is None:
                with self._lock:
                    self.finished = True
                self._close_ahead()
                return END
            if item.batch is not None:
                if item.filler:
                    self._fillers += 1
                else:
                    self._delivery.batch()
                self.delivered += item.count
                return item.batch
            assert item.samples is not None
            run = SampleRun.of(item.samples)
            self._delivery.enter(run)
            self._part = run.samples

    def prefetch(self, samples: int, timeout: float | None) -> int:
        """Have so many samples ready, or as many as the buffer holds; returns how many are."""
        if not self._config.prefetch_buffer_size:
            return 0
        with self._lock:
            if self.finished:
                return 0
            buffer = self._buffer()
        return buffer.wait_for(samples, timeout)

    def reset(self) -> None:
        """Begin the next epoch."""
        self._close_ahead()
        self._begin(self._point.next_epoch())

    def commit(self) -> None:
        """Nothing: in lockstep there is nobody to tell."""

    def close(self) -> None:
        """Stop reading ahead."""
        self._close_ahead()

    def _take(self) -> _Item | None:
        with self._lock:
            buffer = self._buffer()
        try:
            return buffer.take()
        except BaseException:
            # What was not delivered is read again when it is asked for again.
            with self._lock:
                self._point = self._here()
                self._restart()
            raise

    def _buffer(self) -> PrefetchBuffer[_Item]:
        if self._forked:
            self._point = self._here()
            self._restart()
        if self._ahead is None:
            check_not_empty(self._sample_order, self._point, self._run, self._data_rank)
            reader = _Reader(self._rows, self._sample_order, self._config, self._data_rank, self._point, self._run)
            room = self._config.prefetch_buffer_size
            self._ahead = PrefetchBuffer(reader.items(), lambda item: item.count, room, self._rows.counts)
        return self._ahead

    # -- where it is -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Where to go on after all that was delivered."""
        point = self._here()
        state = make_state(self._sample_order, point, self._data_rank)
        position = int(state["position"])
        order = state["order"]
        if self._ended_first:
            state["ended"] = True
        return Checkpoint(
            kind="lockstep",
            epoch=int(state["epoch"]),
            position=position,
            seed=int(order.get("seed", order.get("shuffle_seed", 0))),
            rank=self._config.rank,
            world_size=self._config.world_size,
            time=time.time(),
            processed=((0, position),) if position else (),
            state=state,
        )

    def restore(self, checkpoint: Checkpoint, *, any_rank: bool) -> None:
        """Go on where a checkpoint was taken.

        Raises:
            StateError: it is another rank's, or of another dataset, order or kind; says what differs.
        """
        if checkpoint.kind != "lockstep":
            raise StateError(
                f"the checkpoint is of kind {checkpoint.kind!r}, this loader's partition makes 'lockstep': use the partition "
                "that it was taken with"
            )
        if not any_rank and (checkpoint.rank, checkpoint.world_size) != (self._config.rank, self._config.world_size):
            ours = f"{self._config.rank} of {self._config.world_size}"
            raise StateError(
                f"the checkpoint is of rank {checkpoint.rank} of {checkpoint.world_size}, this loader is rank {ours}: pass "
                "any_rank=True if all ranks were in step when it was taken"
            )
        point, sample_order = read_state(checkpoint.state, self._sample_order, self._data_rank, "checkpoint.state")
        if (checkpoint.epoch, checkpoint.position) != (point.epoch, point.position):
            raise StateError(
                f"the checkpoint says epoch {checkpoint.epoch}, position {checkpoint.position}, and its state epoch "
                f"{point.epoch}, position {point.position}: it was changed"
            )
        own = (checkpoint.rank, checkpoint.world_size) == (self._config.rank, self._config.world_size)
        if checkpoint.state.get("ended") and not own:
            raise StateError(
                f"the checkpoint is of rank {checkpoint.rank}, which had ended epoch {point.epoch} before others, and does "
                "not know how far they were: use that of the rank that has most samples, or each rank's own"
            )
        run_from(sample_order, settled(sample_order, point, self._data_rank), self._data_rank)
        self._sample_order = sample_order
        self._close_ahead()
        self._begin(point)
        if point.position and not self._run.plan.samples:
            # Nothing is left for this rank: what comes next is the next epoch.
            self.finished = self._config.ends != "join" or not _most_steps(sample_order, self._point, self._data_rank)

    @property
    def _ended_first(self) -> bool:
        """Whether this rank has ended the epoch, and others have more."""
        return self.finished and self._config.ends != "join" and others_have_more(self._run.plan)

    def _here(self) -> EpochPosition:
        if self._ended_first:
            return replace(self._point, position=self._run.plan.position_after(len(self._run.plan)), partial=0)
        if self.finished:
            return self._point.next_epoch()
        if self._fillers:
            position = self._run.plan.position_after(len(self._run.plan) + self._fillers)
            return replace(self._point, position=position, partial=0)
        return self._delivery.here()

    def _begin(self, point: EpochPosition) -> None:
        self.delivered = 0
        self._point = point
        self._restart()

    def _restart(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
        self._forked = False
        self.finished = False
        self._point = settled(self._sample_order, self._point, self._data_rank)
        self._run: Run = self._sample_order.run(self._point, self._data_rank)
        self._delivery = Progress(self._point, self._run.plan)
        if self._point.partial:
            # What was delivered of the first batch before counts as delivered.
            before = iter(range(self._point.partial))
            self._delivery.enter(SampleRun(iter(()), before))
            deque(before, maxlen=0)
        self._part = iter(())
        self._fillers = 0

    def _close_ahead(self) -> None:
        with self._lock:
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())))
