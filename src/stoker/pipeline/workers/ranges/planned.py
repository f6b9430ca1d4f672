"""``PlannedSource``: a rank's part of each global batch by a plan, so that unlike machines get unlike parts.

The plan (:mod:`stoker.coordination.plan_log`) says which ranks take part from which position on, and with which
weights. All ranks have the same one, so they need not communicate. It is changed only from its horizon on, which is a fixed
number of steps ahead of what is delivered, and the reading thread never goes beyond that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.coordination.plan_log import Generation, PlanLog, apportion
from stoker.errors import ConfigError, StateError
from stoker.order.global_batches import WorkerRemainder
from stoker.order.native import NativeOrder
from stoker.order.step import ranks_asked
from stoker.pipeline.state.state import check_same_order
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.range_source import (
    STEPS_AHEAD,
    RangePart,
    RangeReader,
    RangeSource,
    RestoreRequest,
    SampleChunk,
    WorkerProgress,
)
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.types import Ids


@dataclass
class _CurrentPlan:
    """The plan as it stands: the consumer changes it, and the reading thread follows, which knows no more than this."""

    plan: PlanLog


class PlannedSource(RangeSource):
    """One rank's parts of an epoch's global batches, numbered by the positions of the whole batches.

    ``sample_source``: where samples come from. ``sample_order``: see :func:`~stoker.pipeline.workers.adaptive.planned_order`.
    ``config``: the worker's settings; it has a ``global_batch_size``.
    """

    kind = "planned"

    def __init__(self, sample_source: SampleSource, sample_order: NativeOrder, config: StreamingConfig) -> None:
        assert config.global_batch_size is not None
        super().__init__(sample_source, sample_order, config)
        self._order = sample_order
        self._step = config.global_batch_size
        self._steps = max(1, -(-config.prefetch_buffer_size * config.world_size // self._step))
        self._ahead = 0  # steps that processes have
        self._splits: Splits
        self._current: _CurrentPlan
        self._begin(0, Generation(0, *_equal_or_given(config)))

    def _begin(self, epoch: int, last: Generation, plan: PlanLog | None = None) -> None:
        """Go to an epoch, by a plan, or by one with the ranks and weights of a generation."""
        self._splits = Splits(self._order, epoch, self._config.world_size)
        end = self._end(self._splits)
        if end == 0:
            raise ConfigError(
                f"global_batch_size={self._step} is more than the {self._splits.total} samples of an epoch: lower it"
            )
        self._current = _CurrentPlan(plan or PlanLog(end, self._step, (Generation(0, last.ranks, last.weights),)))
        self.epoch = epoch

    def _end(self, splits: Splits) -> int:
        return splits.total // self._step * self._step

    def __len__(self) -> int:
        """Steps of an epoch, by the plan as it stands."""
        return sum(steps for generation, steps in self._current.plan.counts() if self._config.rank in generation.ranks)

    @property
    def remainder(self) -> WorkerRemainder:
        return "drop"

    @property
    def capacity(self) -> int:
        # What processes have is as good as in the buffer: both together end at the horizon.
        return self._steps - self._ahead if self._config.prefetch_buffer_size else 0

    @staticmethod
    def cost(chunk: SampleChunk) -> int:  # noqa: ARG004
        """One for each step, however many samples it has: so none beyond the horizon is read."""
        return 1

    def chunks(self, at: int, closing: threading.Event) -> Iterator[SampleChunk]:  # noqa: ARG002 - waits for nobody
        most = self._steps - 1 if self._config.prefetch_buffer_size else 0
        reader = RangeReader(self._sample_source, self._splits, self._config, batched=True, most_ahead=most)
        self._ahead = reader.ahead
        return reader.chunks(_parts(reader, self._current, self._config.rank, at))

    def advance(self) -> None:
        self._begin(self.epoch + 1, self._current.plan.generations[-1])

    def ended(self, at: int) -> bool:
        return at >= self._current.plan.end

    def step_samples(self, step: int, rank: int | None, epoch: int | None, *, since_resume: bool = False) -> Ids:
        """See the base class: by the plan as it stands, from the epoch's beginning."""
        ranks, plan = ranks_asked(rank, self._config.world_size), self._current.plan
        if since_resume:
            raise ConfigError("ids_of: since_resume: by a plan steps are counted from the epoch's beginning alone")
        if epoch is not None and epoch != self.epoch:
            raise ConfigError(
                f"ids_of: epoch={epoch}: the plan is that of epoch {self.epoch}, and may be changed before another"
            )
        left = step
        for generation, count in plan.counts():
            if left < count:
                parts = [plan.part(one, generation.start + left * plan.step) for one in ranks]
                positions = np.concatenate([self._splits.positions(begin, last) for begin, last in parts])
                shards, rows = self._splits.run.order.locate(positions)
                return self._sample_source.table.ids(shards, rows)
            left -= count
        raise ConfigError(
            f"step {step} is not in epoch {self.epoch}: the plan has {step - left} steps, numbered from 0"
        )

    # -- the plan ----------------------------------------------------------------------------------------------------

    def plan(self, at: int) -> PlanLog:
        """The plan when all before position ``at`` is delivered: its horizon moves with that, and with nothing else."""
        self._current.plan = self._current.plan.grant(at + self._steps * self._step)
        return self._current.plan

    def change(self, at: int, weights: Sequence[int], ranks: Sequence[int] | None) -> int:
        """Divide global batches anew, from the horizon on; returns the position from which.

        ConfigError if the ranks or weights make no sense, or nothing of the epoch is left beyond the horizon.
        """
        chosen = tuple(range(self._config.world_size)) if ranks is None else tuple(ranks)
        _check_step_sizes(self._step, chosen, weights, self._config.world_size)
        plan = self.plan(at)
        gone = set(chosen) - set(plan.generations[-1].ranks)
        if gone and at > 0:
            raise ConfigError(
                f"rank {min(gone)} was left out of the plan from position {plan.generations[-1].start} on, and is not where "
                "the others are: take it in again at an epoch's beginning, right after reset()"
            )
        if plan.horizon >= plan.end:
            raise ConfigError(
                f"the plan of epoch {self.epoch} is granted to its end at {plan.end}: there is nothing left to "
                "divide; begin the next epoch with reset(), and change the plan there"
            )
        self._current.plan = plan.append(Generation(plan.horizon, chosen, tuple(weights)))
        return plan.horizon

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def progress(self, at: int, *, finished: bool) -> WorkerProgress:
        """The position from which all ranks resume after the delivered steps, and the plan.

        StateError if this rank has ended, as it was left out of the plan, and others continue.
        """
        plan = self.plan(at)
        if finished and at < plan.end:
            raise StateError(
                f"rank {self._config.rank} was left out of the plan of epoch {self.epoch} from position {at} on, and "
                f"does not know how far the others are: take the checkpoint of rank {plan.generations[-1].ranks[0]}"
            )
        state = {**self._order.as_dict(), "plan": plan.as_dict()}
        return WorkerProgress(self.epoch, ((0, at),) if at else (), state)

    def restore(self, request: RestoreRequest) -> int:
        """Go to where a checkpoint was taken, by the plan in it. In a world of another size, all ranks of it take part from
        there on, with this config's weights."""
        checkpoint, config = request.checkpoint, self._config
        check_same_order(checkpoint.state, self._order, "checkpoint.state")
        position = checkpoint.position
        plan = PlanLog.from_dict(checkpoint.state.get("plan") or {}, position)
        end = self._end(Splits(self._order, checkpoint.epoch, config.world_size))
        if (plan.step, plan.end) != (self._step, end):
            raise StateError(
                f"the checkpoint's plan has global batches of {plan.step} up to position {plan.end}, this loader "
                f"{self._step} up to {end}: keep global_batch_size within an epoch"
            )
        if position > end or (position < end and plan.step_at(position)[0] != position):
            raise StateError(f"the checkpoint's position {position} is at no step of its plan: it was changed")
        if checkpoint.world_size != config.world_size and position < end:
            # What was appended for later positions was meant for the ranks that there were.
            kept = tuple([generation for generation in plan.generations if generation.start < position])
            plan = PlanLog(end, plan.step, (*kept, Generation(position, *_equal_or_given(config))), plan.horizon)
        self._begin(checkpoint.epoch, plan.generations[-1], plan)
        return position


def _parts(reader: RangeReader, current: _CurrentPlan, rank: int, position: int) -> Iterator[RangePart]:
    """A rank's part of each global batch from a position on."""
    expected = position
    while position < current.plan.end:
        plan = current.plan
        _, end = plan.step_at(position)
        begin, last = plan.part(rank, position)
        if position >= expected:
            ahead = range(position, min(plan.end, position + STEPS_AHEAD * plan.step), plan.step)
            reader.expect([plan.part(rank, start) for start in ahead])
            expected = position + STEPS_AHEAD // 2 * plan.step
        if last > begin:
            yield RangePart(begin, last, (position, end))
        position = end


def _equal_or_given(config: StreamingConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks and weights of a config."""
    assert config.global_batch_size is not None
    ranks = tuple(range(config.world_size))
    weights = config.weights or (1,) * len(ranks)
    _check_step_sizes(config.global_batch_size, ranks, weights, len(ranks))
    return ranks, weights


def _check_step_sizes(step: int, ranks: Sequence[int], weights: Sequence[int], world_size: int) -> None:
    if len(weights) != len(ranks):
        raise ConfigError(f"there are {len(ranks)} ranks and {len(weights)} weights: each rank needs one")
    outside = [rank for rank in ranks if not 0 <= rank < world_size]
    if outside:
        raise ConfigError(f"rank {outside[0]} is not in a world of {world_size}")
    sizes = apportion(step, weights)
    if min(sizes) == 0:
        rank = ranks[sizes.index(0)]
        raise ConfigError(
            f"rank {rank} with weight {weights[sizes.index(0)]} of {sum(weights)} gets nothing of a global batch of {step}, "
            "while the other ranks would wait for it: raise its weight or global_batch_size=, or run without this rank"
        )
