"""The run of a reader from a position on, the progress of its iteration, and where another would resume."""

from __future__ import annotations

import logging
import operator
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stoker.errors import ConfigError, StateError
from stoker.order.sample_order import DataRank, EpochPosition, Plan, Run, SampleOrder
from stoker.pipeline.state.epoch_counter import EpochCounter
from stoker.reading.samples import SampleRun
from stoker.reading.steps import LEFT_OUT, SeveralSamples

logger = logging.getLogger(__name__)


class Progress:
    """The progress of one iteration: the samples that the consumer has taken.

    ``point``: where it began. ``plan``: the batches of this rank. ``begun``: batches of this loader worker that were
    delivered before it began. ``clock``: in a DataLoader's worker, tells of states that its parent process loads.
    """

    def __init__(self, point: EpochPosition, plan: Plan, begun: int = 0, clock: EpochCounter | None = None) -> None:
        self.point = point
        self.plan = plan
        self.finished = False
        self._superseded = False
        self._clock = clock
        self._loads = 0 if clock is None else clock.parent_loads
        self._entered = begun * plan.batch_size
        self._remaining: Iterator[Any] = iter(())
        self._among = False

    def enter(self, run: SampleRun) -> None:
        """Note that samples are about to be taken one by one."""
        self._entered += operator.length_hint(run.remaining)
        self._remaining = run.remaining
        self.check()

    def supersede(self) -> None:
        """End the iteration, as a state was loaded: no sample is delivered any more, and :meth:`check` raises an error."""
        self._superseded = True
        deque(self._remaining, maxlen=0)  # a check for each sample would cost more than the sample

    def check(self) -> None:
        """Called after each batch, and before and after each run of samples.

        StateError if a state was loaded since this iteration began.
        """
        if self._superseded or (self._clock is not None and self._clock.parent_loads > self._loads):
            raise superseded_error()

    def present(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Samples without what stands for those that are left out, and those of which several come for one, each."""
        for sample in samples:
            if isinstance(sample, SeveralSamples):
                for left, one in zip(range(len(sample) - 1, -1, -1), sample, strict=True):
                    self._among = left > 0
                    yield one
            elif sample is not LEFT_OUT:
                yield sample

    def batch(self, count: int = 1) -> None:
        """Note that a whole batch was taken, or so many of them."""
        self._entered += count * self.plan.batch_size

    def failed(self) -> None:
        """Note that the sample that was taken last was not delivered, as it has an error."""
        self._entered -= 1

    @property
    def samples(self) -> int:
        """Samples that were taken, of this rank."""
        return self._entered - operator.length_hint(self._remaining)

    def here(self) -> EpochPosition:
        """The position to resume from. StateError if it lies between samples that a chain made of one."""
        if self._among:
            raise among_error()
        return resume_point(self.point, self.plan, self.samples)


def among_error() -> StateError:
    """The error of a state that is taken between samples that were made of one."""
    return StateError(
        "this iterator is between samples that flat_map() made of one sample, and a state cannot describe that: take it "
        "after the last of them, between batches(), or from a StreamingDataLoader"
    )


def superseded_error() -> StateError:
    """The error of an iteration that asks for its next item after a state was loaded, or another epoch named."""
    return StateError(
        "this iterator has ended: load_state_dict() or set_epoch() was called after its last item (trainers call set_epoch() "
        "when they start to read a loader). Create a new iterator, which starts at the new position. To read the same data "
        "for something else meanwhile, such as evaluation, use another dataset object"
    )


def resume_point(point: EpochPosition, plan: Plan, samples: int) -> EpochPosition:
    """The position to resume from after ``samples`` samples of this rank in a run of ``plan`` that began at ``point``."""
    if not samples:
        return point
    full, inside = divmod(samples, plan.batch_size)
    if inside and full == plan.full_batches and samples >= plan.samples:
        full, inside = len(plan), 0  # all of the last, partial batch
    position = plan.position_after(full)
    if position >= plan.end and not inside:
        return point.next_epoch()
    return replace(point, position=position, partial=inside)


def run_from(sample_order: SampleOrder, point: EpochPosition, data_rank: DataRank) -> Run:
    """The samples of a reader from ``point`` to the end of its epoch.

    StateError if this world can not resume from a state at ``point``; says why. ConfigError for settings that do not go
    together, or an epoch whose samples are all left out.
    """
    try:
        run = sample_order.run(point, data_rank)
    except ConfigError as error:
        if not point.position:
            raise
        raise StateError(
            f"the state was taken at position {point.position} of epoch {point.epoch}, from which {data_rank.world_size} "
            f"ranks with batch_size {data_rank.batch_size} can not resume: {error}"
        ) from error
    check_not_empty(sample_order, point, run, data_rank)
    return run


def others_have_more(plan: Plan) -> bool:
    """Whether other ranks still have batches when this one has taken all of its own."""
    return plan.position_after(len(plan)) < plan.end


def check_not_empty(sample_order: SampleOrder, point: EpochPosition, run: Run, data_rank: DataRank) -> None:
    """Check that an epoch which begins has something for some rank; otherwise a loop over epochs would never end.

    ConfigError if all of its samples are left out. If it has none at all, that is logged.
    """
    if point.position or run.plan:  # to count all of its batches may take time
        return
    if not sample_order.epoch_size:
        logger.warning(
            "epoch %d has no samples: there are none in the dataset, or subset=, filters= or the streams' weights leave none",
            point.epoch,
        )
    elif not sample_order.run(point, replace(data_rank, rank=run.plan.longest)).plan:
        raise ConfigError(
            f"epoch {point.epoch} has no batches: there is too little data to fill one batch of {data_rank.batch_size} on "
            f"each of {data_rank.world_size} ranks, and the rest is dropped (by remainder='drop', by batching_method=, or as "
            "an incomplete row of tokens). Use a smaller batch_size, fewer ranks, more data, remainder='pad', or pad_id="
        )
