"""The shards that a node's ranks use at each step: the real order and the real plan, evaluated and reduced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stoker.errors import ConfigError
from stoker.order.sample_order import Order, Plan, Run
from stoker.types import Ids
from stoker_bench.simulate.settings import Shards

# Samples that are located in one call.
_TOGETHER = 1 << 16
# Steps from the first on that are evaluated on all ranks, so that the beginning is exact.
_HEAD = 16


@dataclass(frozen=True, slots=True)
class Sampling:
    """The batches that are evaluated.

    Attributes:
        steps: steps of the rank that takes the most.
        samples: samples of all ranks together.
        head: steps from the first on that are evaluated on all ranks.
        stride: after them each rank's every ``stride``-th batch is evaluated, those of a node's ranks in turn.
    """

    steps: int
    samples: int
    head: int
    stride: int

    @property
    def exact(self) -> bool:
        """Whether every batch is evaluated."""
        return self.stride == 1

    def __str__(self) -> str:
        if self.exact:
            return f"every batch of all {self.steps} steps"
        return (
            f"every batch of the first {self.head} steps, then one in {self.stride} of each rank's, the ranks of a node in "
            f"turn, to step {self.steps}"
        )


@dataclass(frozen=True, slots=True)
class NodeUses:
    """The shards that one node uses and the steps at which it does, each pair once, sorted by shard, then step.

    Attributes:
        shards: shard numbers; int64, shape ``(uses,)``.
        steps: steps; int64, shape ``(uses,)``.
        first_batches: the different shards of each of the node's ranks' first batch, rising.
    """

    shards: Ids
    steps: Ids
    first_batches: tuple[Ids, ...]


def choose_batches(runs: list[Run], budget: int) -> Sampling:
    """Decide what to evaluate so that about ``budget`` samples are.

    Raises:
        ConfigError: no rank has any sample.
    """
    steps = max(len(run.plan) for run in runs)
    samples = sum(run.plan.samples for run in runs)
    if not steps:
        raise ConfigError("there is nothing to simulate: no rank has a batch")
    stride = max(1, -(-samples // budget))
    return Sampling(steps, samples, steps if stride == 1 else min(_HEAD, steps), stride)


def node_uses(runs: list[Run], sampling: Sampling, shards: Shards) -> NodeUses:
    """Evaluate the ranks of one node."""
    keys: list[Ids] = []
    first_batches: list[Ids] = []
    for number, run in enumerate(runs):
        mine: Ids = np.zeros(0, dtype=np.int64)
        for positions, steps in _batches(run.plan, sampling, number * sampling.stride // len(runs)):
            found = _distinct(run.order, positions, steps, sampling.steps, len(shards))
            if steps[0] == 0:
                mine = found[found % sampling.steps == 0] // sampling.steps
            keys.append(found)
        first_batches.append(mine)
    # One sorted integer for a pair: the shard's number first.
    unique = _sorted_unique(np.concatenate(keys)) if keys else np.zeros(0, dtype=np.int64)
    numbers, at = np.divmod(unique, sampling.steps)
    return NodeUses(numbers, at, tuple(first_batches))


def _batches(plan: Plan, sampling: Sampling, phase: int) -> Iterator[tuple[list[Ids], Ids]]:
    """Lists of batches of positions, with the step of each."""
    chunks = plan.chunks
    if sampling.exact:
        yield from _numbered(chunks(_TOGETHER), 0, 1)
        return
    head = min(sampling.head, len(plan))
    left = head
    for batches, steps in _numbered(chunks(head * plan.batch_size), 0, 1):
        yield batches[:left], steps[:left]
        left -= len(batches)
        if left <= 0:
            break
    stride = sampling.stride
    skip = max(0, -(-(head - phase) // stride))
    yield from _numbered(chunks(_TOGETHER, phase, stride, skip), phase + skip * stride, stride)


def _numbered(chunks: Iterator[list[Ids]], first: int, stride: int) -> Iterator[tuple[list[Ids], Ids]]:
    for batches in chunks:
        steps = first + stride * np.arange(len(batches), dtype=np.int64)
        first += stride * len(batches)
        yield batches, steps


def _distinct(order: Order, positions: list[Ids], steps: Ids, all_steps: int, shards: int) -> Ids:
    """``shard * all_steps + step`` of the different shards of each batch."""
    numbers, _ = order.locate(positions[0] if len(positions) == 1 else np.concatenate(positions))
    # Only the last batch of a rank may be shorter than the others.
    width = len(positions[0])
    whole = len(positions) - (len(positions[-1]) != width)
    found = [_distinct_rows(numbers[: whole * width].reshape(whole, width), steps[:whole], all_steps, shards)]
    if whole < len(positions):
        found.append(_distinct_rows(numbers[None, whole * width :], steps[whole:], all_steps, shards))
    return found[0] if len(found) == 1 else np.concatenate(found)


def _distinct_rows(numbers: Ids, steps: Ids, all_steps: int, shards: int) -> Ids:
    """The same for batches of one size: ``numbers`` has shape ``(batches, size)``, ``steps`` ``(batches,)``."""
    rows = np.sort(numbers.astype(np.int32 if shards < 1 << 31 else np.int64), axis=1)
    new = np.ones(rows.shape, dtype=np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=new[:, 1:])
    batch, _ = np.nonzero(new)
    keys: Ids = rows[new].astype(np.int64) * all_steps + steps[batch]
    return keys


def _sorted_unique(values: Ids) -> Ids:
    values.sort()
    new = np.ones(values.shape, dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    unique: Ids = values[new]
    return unique
