"""A loader whose part of each global batch follows from a plan: unlike machines get unlike parts, and it changes on the way.

The plan (:mod:`stoker.coordination.history.plan_log`) says which ranks take part from which position on, and with which
weights. All ranks have the same one, so nobody need be asked. It is changed only from its horizon on, which is a fixed
number of steps ahead of what is delivered, and the reading thread never goes beyond that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker.concurrency.forks import reset_in_children
from stoker.coordination.history.plan_log import Generation, PlanLog, apportion
from stoker.errors import ConfigError, StateError
from stoker.order.capabilities import stream_urls
from stoker.order.native import NativeOrder
from stoker.pipeline.prefetch_buffer import END, PrefetchBuffer
from stoker.pipeline.state.checkpoint import Checkpoint
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import SampleSource, in_order
from stoker.storage.recorded_versions import check_versions, with_versions_of
from stoker.types import Batch

__all__ = ["Planned"]

# Shards are fetched for so many steps ahead of the one that is read.
_EXPECTED = 64


class _Current:
    """The plan as it stands: the consumer changes it, and the reading thread follows, which knows no more than this."""

    def __init__(self, plan: PlanLog) -> None:
        self.plan = plan


class Planned:
    """See :class:`~stoker.loaders.shard_loader.StreamingShardLoader`.

    Args:
        rows: where samples come from.
        sample_order: see :func:`~stoker.pipeline.workers.adaptive.adaptive_order`.
        config: this worker's place; it has a ``global_batch_size``.

    Attributes:
        epoch: the epoch that is delivered.
        delivered: samples of it that this rank has had since it began or was restored.
        finished: whether nothing of it is left for this rank.
    """

    in_step = True

    def __init__(self, rows: SampleSource, sample_order: NativeOrder, config: StreamingConfig) -> None:
        assert config.global_batch_size is not None
        self._rows = rows
        self._sample_order = sample_order
        self._config = config
        self._step = config.global_batch_size
        self._steps = max(1, -(-config.prefetch_buffer_size * config.world_size // self._step))
        self._ahead: PrefetchBuffer[tuple[Batch, int, int]] | None = None
        self._lock = threading.Lock()
        self._splits: Splits
        self._current: _Current
        self._position: int
        self.epoch: int
        self.delivered: int
        self.finished: bool
        ranks, weights = _equal_or_given(config)
        self._begin(0, 0, Generation(0, ranks, weights))
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: the child goes on by itself after what was delivered."""
        self._lock = threading.Lock()
        self._ahead = None

    def __len__(self) -> int:
        """Steps of an epoch, by the plan as it stands."""
        plan = self._current.plan
        ends = [generation.start for generation in plan.generations[1:]] + [plan.end]
        return sum(
            -(-(end - generation.start) // plan.step)
            for generation, end in zip(plan.generations, ends, strict=True)
            if self._config.rank in generation.ranks
        )

    # -- delivering ------------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """This rank's part of the next global batch; :data:`~stoker.pipeline.prefetch_buffer.END` at the epoch's end."""
        if self.finished:
            return END
        with self._lock:
            buffer = self._buffer()
        try:
            item = buffer.take()
        except BaseException:
            self.close()
            raise
        if item is None:
            self.finished = True
            self.close()
            return END
        batch, count, end = item
        self.delivered += count
        self._position = end
        self._grant()
        return batch

    def prefetch(self, samples: int, timeout: float | None) -> int:
        """Have so many samples ready, or as many as the buffer holds or the horizon allows; returns how many are."""
        if not self._config.prefetch_buffer_size:
            return 0
        with self._lock:
            if self.finished:
                return 0
            buffer = self._buffer()
        return buffer.wait_for(samples, timeout)

    def change(self, weights: Sequence[int], ranks: Sequence[int] | None) -> int:
        """Divide global batches anew, from the horizon on; returns the position from which.

        Raises:
            ConfigError: the ranks or weights make no sense, or nothing of the epoch is left beyond the horizon.
        """
        chosen = tuple(range(self._config.world_size)) if ranks is None else tuple(ranks)
        _check_shares(self._step, chosen, weights, self._config.world_size)
        plan = self._current.plan
        gone = set(chosen) - set(plan.generations[-1].ranks)
        if gone and self._position > 0:
            raise ConfigError(
                f"rank {min(gone)} was left out of the plan from position {plan.generations[-1].start} on, and is not where "
                "the others are: take it in again at an epoch's beginning, right after reset()"
            )
        if plan.horizon >= plan.end:
            raise ConfigError(
                f"the plan of epoch {self.epoch} is granted to its end at {plan.end}: there is nothing left to be divided "
                "anew; begin the next epoch with reset(), and change the plan there"
            )
        self._current.plan = plan.append(Generation(plan.horizon, chosen, tuple(weights)))
        return plan.horizon

    @property
    def plan(self) -> PlanLog:
        """The plan as it stands."""
        return self._current.plan

    def reset(self) -> None:
        """Begin the next epoch, with the ranks and weights that the plan had last."""
        last = self._current.plan.generations[-1]
        self.close()
        self._begin(self.epoch + 1, 0, last)

    def commit(self) -> None:
        """Nothing: in lockstep there is nobody to tell."""

    def close(self) -> None:
        """Stop reading ahead."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _grant(self) -> None:
        """Allow the reading thread to go on: the horizon moves with what is delivered, and with nothing else."""
        self._current.plan = self._current.plan.grant(self._position + self._steps * self._step)

    def _buffer(self) -> PrefetchBuffer[tuple[Batch, int, int]]:
        if self._ahead is None:
            items = _items(self._rows, self._splits, self._current, self._config.rank, self._position)
            room = self._steps if self._config.prefetch_buffer_size else 0
            # A step takes one place, however many samples it has: so none beyond the horizon is read.
            self._ahead = PrefetchBuffer(items, lambda item: item[1], room, self._rows.counts, cost=lambda _: 1)
        return self._ahead

    # -- where it is -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Where all ranks go on after the steps that were delivered, and the plan.

        Raises:
            StateError: this rank has ended, as it was left out of the plan, and others go on.
        """
        position = self._position
        plan = self._current.plan
        if self.finished and position < plan.end:
            raise StateError(
                f"rank {self._config.rank} was left out of the plan of epoch {self.epoch} from position {position} on, and "
                f"does not know how far the others are: take the checkpoint of rank {plan.generations[-1].ranks[0]}"
            )
        return Checkpoint(
            kind="planned",
            epoch=self.epoch,
            position=position,
            seed=self._sample_order.settings.seed,
            rank=self._config.rank,
            world_size=self._config.world_size,
            time=time.time(),
            processed=((0, position),) if position else (),
            state={**self._sample_order.as_dict(), "plan": self._current.plan.as_dict()},
        )

    def restore(self, checkpoint: Checkpoint, *, any_rank: bool) -> None:
        """Go on where a checkpoint was taken, by the plan in it. In a world of another size, all ranks of it take part from
        there on, with this config's weights.

        Raises:
            StateError: it is of another kind, rank, dataset, order or global batch; says what differs.
        """
        config = self._config
        if checkpoint.kind != "planned":
            raise StateError(
                f"the checkpoint is of kind {checkpoint.kind!r}, global_batch_size= makes 'planned': use the config that it "
                "was taken with"
            )
        if not any_rank and (checkpoint.rank, checkpoint.world_size) != (config.rank, config.world_size):
            raise StateError(
                f"the checkpoint is of rank {checkpoint.rank} of {checkpoint.world_size}, this loader is rank {config.rank} "
                f"of {config.world_size}: pass any_rank=True, as all ranks of a plan are in step"
            )
        ours, theirs = self._sample_order.as_dict(), dict(checkpoint.state)
        check_versions(theirs, ours, stream_urls(self._sample_order), "checkpoint.state")
        theirs = with_versions_of(theirs, ours)
        written = theirs.pop("plan", None)
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                raise StateError(
                    f"the checkpoint's {name} is {theirs.get(name)!r}, that of this loader is {ours.get(name)!r}"
                )
        position = checkpoint.position
        plan = PlanLog.from_dict(written or {}, position)
        end = self._end(Splits(self._sample_order, checkpoint.epoch, config.world_size))
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
        self.close()
        self._begin(checkpoint.epoch, position, plan.generations[-1], plan)
        self.finished = position >= end

    def _end(self, splits: Splits) -> int:
        return splits.total // self._step * self._step

    def _begin(self, epoch: int, position: int, shares: Generation, plan: PlanLog | None = None) -> None:
        self._splits = Splits(self._sample_order, epoch, self._config.world_size)
        end = self._end(self._splits)
        if end == 0:
            raise ConfigError(
                f"global_batch_size={self._step} is more than the {self._splits.total} samples of an epoch: lower it"
            )
        self._current = _Current(plan or PlanLog(end, self._step, (Generation(0, shares.ranks, shares.weights),)))
        self._position = position
        self._grant()
        self.epoch = epoch
        self.delivered = 0
        self.finished = False


def _equal_or_given(config: StreamingConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks and weights of a config."""
    assert config.global_batch_size is not None
    ranks = tuple(range(config.world_size))
    weights = config.weights or (1,) * len(ranks)
    _check_shares(config.global_batch_size, ranks, weights, len(ranks))
    return ranks, weights


def _check_shares(step: int, ranks: Sequence[int], weights: Sequence[int], world_size: int) -> None:
    if len(weights) != len(ranks):
        raise ConfigError(f"there are {len(ranks)} ranks and {len(weights)} weights: each rank needs one")
    outside = [rank for rank in ranks if not 0 <= rank < world_size]
    if outside:
        raise ConfigError(f"rank {outside[0]} is not in a world of {world_size}")
    shares = apportion(step, weights)
    if min(shares) == 0:
        rank = ranks[shares.index(0)]
        raise ConfigError(
            f"rank {rank} with weight {weights[shares.index(0)]} of {sum(weights)} gets nothing of a global batch of {step}, "
            "and the others would wait for it: raise its weight or the batch, or leave the rank out"
        )


def _items(
    rows: SampleSource, splits: Splits, current: _Current, rank: int, position: int
) -> Iterator[tuple[Batch, int, int]]:
    """A rank's part of each global batch, how many samples it has, and where the global batch ends."""
    expected = position
    while position < current.plan.end:
        plan = current.plan
        _, end = plan.step_at(position)
        begin, last = plan.part(rank, position)
        if position >= expected:
            ahead = range(position, min(plan.end, position + _EXPECTED * plan.step), plan.step)
            places = [splits.locate(*plan.part(rank, start))[0] for start in ahead]
            rows.expect(in_order(np.concatenate(places)))
            expected = position + _EXPECTED // 2 * plan.step
        if last > begin:
            yield rows.batch(*splits.locate(begin, last)), last - begin, end
        position = end
    rows.expect(())
