"""``LockstepSource``: a rank's part of global batches or of a static partition, by its rank and the world size alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from stoker.errors import ConfigError, StateError, TransformError
from stoker.order.capabilities import with_epoch_start
from stoker.order.global_batches import WorkerRemainder
from stoker.order.native import NativeOrder
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.order.step import ranks_asked, samples_of_step
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.columns import batch_length
from stoker.pipeline.state.resume import check_not_empty, others_have_more, resume_point, run_from
from stoker.pipeline.state.state import make_state, read_state
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.range_source import (
    RangeSource,
    RestoreRequest,
    SampleChunk,
    WorkerProgress,
    chunk_size,
)
from stoker.pipeline.workers.sample_source import EpochRun, ReadPart, SampleSource
from stoker.types import Batch, Ids

FILLER: Final = "_filler"
"""Column of batches of ``remainder="join"``: bool, shape ``(n,)``; true where the samples only keep a rank in step."""


class LockstepSource(RangeSource):
    """The samples of one rank, numbered from its run's beginning; each batch counts as a full one.

    ``sample_source``: where samples come from. ``sample_order``: which sample comes when. ``config``: the worker's settings.
    ``batch_size``: samples in a batch of one rank, by which the sample order deals; also where samples come one by one.
    """

    kind = "lockstep"

    def __init__(
        self, sample_source: SampleSource, sample_order: SampleOrder, config: StreamingConfig, batch_size: int
    ) -> None:
        super().__init__(sample_source, sample_order, config)
        self._data_rank = DataRank(config.rank, config.world_size, 1, batch_size)
        self._begin(EpochPosition(0))
        self._origin = self._point

    def _begin(self, point: EpochPosition) -> None:
        self._point = with_epoch_start(self.sample_order, point, self._data_rank)
        self._run: Run = self.sample_order.run(self._point, self._data_rank)
        self.epoch = point.epoch

    @property
    def remainder(self) -> WorkerRemainder:
        if self._config.remainder is not None:
            return self._config.remainder
        return self.sample_order.settings.remainder if isinstance(self.sample_order, NativeOrder) else "pad"

    def __len__(self) -> int:
        begin = with_epoch_start(self.sample_order, self._point.epoch_begin(), self._data_rank)
        plan = self.sample_order.run(begin, self._data_rank).plan
        if self._config.batch_size is None:
            return plan.samples
        if self._config.remainder == "join":
            return _most_steps(self.sample_order, begin, self._data_rank)
        return len(plan)

    def reopen(self, at: int) -> int:
        if at != self._point.partial:
            self._begin(self._here(at))
        return self._point.partial

    def chunks(self, at: int, closing: threading.Event) -> Iterator[SampleChunk]:  # noqa: ARG002 - waits for nobody
        check_not_empty(self.sample_order, self._point, self._run, self._data_rank)
        reader = _LockstepReader(
            self._sample_source, self.sample_order, self._config, self._data_rank, self._point, self._run, at
        )
        return reader.samples() if self._config.batch_size is None else reader.batches()

    def advance(self) -> None:
        self._begin(self._point.next_epoch())
        self._origin = self._point

    def step_samples(self, step: int, rank: int | None, epoch: int | None, *, since_resume: bool = False) -> Ids:
        """See the base class."""
        if self._config.batch_size is None:
            raise ConfigError(
                "ids_of() needs batches, and this loader delivers single samples: set batch_size= in the config, or let the "
                "dataset add a column of ids, read=ReadOptions(ids=...)"
            )
        ranks, point = ranks_asked(rank, self._config.world_size), self._origin
        if epoch is not None and epoch != point.epoch:
            point = EpochPosition(epoch)
        point = with_epoch_start(self.sample_order, point, self._data_rank)
        return samples_of_step(
            lambda at, number: self.sample_order.run(at, replace(self._data_rank, rank=number)),
            self._sample_source.table,
            ranks,
            point,
            step,
            since_resume=since_resume,
        ).ids

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def progress(self, at: int, *, finished: bool) -> WorkerProgress:
        point, ended_first = self._here(at), False
        if finished:
            plan = self._run.plan
            ended_first = self._config.remainder != "join" and others_have_more(plan)
            if ended_first:
                point = replace(self._point, position=plan.position_after(len(plan)), partial=0)
            else:
                point = self._point.next_epoch()
        state = make_state(self.sample_order, point, self._data_rank)
        if ended_first:
            state["ended"] = True
        position = int(state["position"])
        return WorkerProgress(int(state["epoch"]), ((0, position),) if position else (), state)

    def _here(self, at: int) -> EpochPosition:
        plan = self._run.plan
        steps = at // plan.batch_size
        if steps > len(plan):  # fillers
            return replace(self._point, position=plan.position_after(steps), partial=0)
        return resume_point(self._point, plan, at)

    def restore(self, request: RestoreRequest) -> int:
        checkpoint = request.checkpoint
        point, sample_order = read_state(checkpoint.state, self.sample_order, self._data_rank, "checkpoint.state")
        if (checkpoint.epoch, checkpoint.position) != (point.epoch, point.position):
            raise StateError(
                f"the checkpoint says epoch {checkpoint.epoch}, position {checkpoint.position}, and its state epoch "
                f"{point.epoch}, position {point.position}: it was changed"
            )
        if point.partial and self._config.batch_size is not None:
            raise StateError(
                f"the checkpoint was taken {point.partial} samples into a batch, where samples come one by one, and this "
                "loader delivers batches: resume without batch_size= in the config, and begin with batches in the next epoch"
            )
        own = (checkpoint.rank, checkpoint.world_size) == (self._config.rank, self._config.world_size)
        if checkpoint.state.get("ended") and not own:
            raise StateError(
                f"the checkpoint is of rank {checkpoint.rank}, which had ended epoch {point.epoch} before others, and does "
                "not know how far they were: use that of the rank that has most samples, or each rank's own"
            )
        run_from(sample_order, with_epoch_start(sample_order, point, self._data_rank), self._data_rank)
        self.sample_order = sample_order
        self._begin(point)
        self._origin = self._point
        if self.ended(self._point.partial):  # before other ranks: this one's next item is of the next epoch
            self.advance()
        return self._point.partial

    def ended(self, at: int) -> bool:  # noqa: ARG002 - a run's beginning tells
        if not self._point.position or self._run.plan.samples:
            return False
        return self._config.remainder != "join" or not _most_steps(self.sample_order, self._point, self._data_rank)


@dataclass(frozen=True, slots=True)
class _LockstepReader:
    """All that the reading thread needs; it knows nothing of the source."""

    sample_source: SampleSource
    sample_order: SampleOrder
    config: StreamingConfig
    data_rank: DataRank
    point: EpochPosition
    run: Run
    at: int

    def samples(self) -> Iterator[SampleChunk]:
        """The rest of the rank's part, some samples at a time."""
        begin = self.at
        for some in self.sample_source.chunks(self._of(self.run), begin, chunk_size(self.config)):
            end = begin + some.places
            yield SampleChunk(begin, end, some.places, samples=some.values, bad=some.bad)
            begin = end

    def batches(self) -> Iterator[SampleChunk]:
        """The rest of the rank's part, batch by batch; then fillers, if ranks are to end together."""
        joined = self.config.remainder == "join"
        filler: Batch | None = None
        steps = 0
        for found in self.sample_source.batches(self._of(self.run)):
            batch: Batch = found.values
            if joined:
                filler = batch if batch_length(batch) else filler
                found = found._replace(values={**batch, FILLER: _flags(batch, of=False)})  # noqa: PLW2901
            yield self._chunk(steps, found)
            steps += 1
        if joined:
            for step in range(steps, _most_steps(self.sample_order, self.point, self.data_rank)):
                if filler is None:
                    filler = self._any_batch()
                some = {**filler, FILLER: _flags(filler, of=True)}
                yield self._chunk(step, ReadPart(some, batch_length(some)))

    def _of(self, run: Run) -> EpochRun:
        return EpochRun(run, self.point.epoch, partial(self.sample_order.run, self.point, self.data_rank))

    def _chunk(self, step: int, found: ReadPart) -> SampleChunk:
        size = self.run.plan.batch_size
        begin = self.at + step * size
        return SampleChunk(begin, begin + size, found.places, batch=found.values, bad=found.bad)

    def _any_batch(self) -> Batch:
        """A batch of some other rank, for one that has none at all, or none with samples.

        TransformError if all samples of the epoch are bad, or left out.
        """
        for rank in range(self.data_rank.world_size):
            run = self.sample_order.run(self.point, replace(self.data_rank, rank=rank))
            read = self.sample_source.reader(self._of(run), batched=True)
            for batches in run.plan.chunks(1):
                found = read(Chunk.at(*run.order.locate(batches[0]), batches[0]))
                if self.sample_source.bad_samples is None:
                    found.check()
                if found.kept is None or len(found.kept):
                    batch: Batch = found.values
                    return batch
        raise TransformError(
            f"epoch {self.point.epoch}: all samples are bad or left out, and remainder='join' needs one for its fillers"
        )


def _most_steps(sample_order: SampleOrder, point: EpochPosition, data_rank: DataRank) -> int:
    """Steps of the rank that has most."""
    point = with_epoch_start(sample_order, point, data_rank)
    longest = sample_order.run(point, data_rank).plan.longest
    return len(sample_order.run(point, replace(data_rank, rank=longest)).plan)


def _flags(batch: Batch, *, of: bool) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.full(batch_length(batch), of, dtype=np.bool_)
