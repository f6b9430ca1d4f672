"""The samples of one step of a run: batches of any ranks, from the order alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.errors import ConfigError
from stoker.order.sample_order import EpochPosition, Run
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The samples of a step, one rank after the other; int64 arrays of shape ``(n,)``.

    Attributes:
        ranks: the rank that gets each.
        shards: number of the shard that holds it.
        rows: row in that shard.
        ids: its id in the dataset.
    """

    ranks: Ids
    shards: Ids
    rows: Ids
    ids: Ids


def ranks_asked(rank: int | None, world_size: int) -> Sequence[int]:
    """The ranks that are asked about, ``None``: all. ConfigError for one that is not in the world."""
    if rank is not None and not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank}: expected 0 to {world_size - 1}, the ranks that read different samples")
    return range(world_size) if rank is None else [rank]


def samples_of_step(
    run_of: Callable[[EpochPosition, int], Run],
    table: ShardTable,
    ranks: Sequence[int],
    point: EpochPosition,
    step: int,
    *,
    since_resume: bool = False,
) -> StepSamples:
    """The samples that ranks get in a step. Takes the same time for any step.

    Args:
        run_of: gives the batches of a rank from a position on.
        table: where the ids of each shard begin.
        ranks: whose batches, at least one rank.
        point: where the epoch was begun or resumed.
        step: its number: of steps as this world takes them, from the epoch's beginning.
        since_resume: it is counted from ``point`` on instead.

    Raises:
        ConfigError: none of these ranks has so many batches; or the epoch was resumed between two such steps, and the step
            is not before them.
    """
    found: list[tuple[Ids, Ids, Ids]] = []
    for rank, run, before in runs_with_step(run_of, ranks, point, step, since_resume=since_resume):
        positions = next(run.plan.chunks(1, skip=before))[0]
        found.append((np.full(len(positions), rank, np.int64), *run.order.locate(positions)))
    numbers, shards, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return StepSamples(numbers, shards, rows, table.ids(shards, rows))


def runs_with_step(
    run_of: Callable[[EpochPosition, int], Run],
    ranks: Sequence[int],
    point: EpochPosition,
    step: int,
    *,
    since_resume: bool = False,
) -> Iterator[tuple[int, Run, int]]:
    """The ranks that have a batch in a step, with the batches of each, and how many of these come before the step.

    Args and errors are those of :func:`samples_of_step`.
    """
    first = 0 if since_resume else _steps_before(run_of, point, step)
    if step < first:
        point, first = point.epoch_begin(), 0
    found, most = False, 0
    for rank in ranks:
        run = run_of(point, rank)
        most = max(most, len(run.plan))
        if step - first < len(run.plan):
            found = True
            yield rank, run, step - first
    if not found:
        epoch = f"epoch {point.epoch}"
        if since_resume and point.position:
            epoch += f" from position {point.position} on, where it was resumed"
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else "every rank"
        raise ConfigError(f"step {step} is not in {epoch}: {whose} has {first + most} steps there, numbered from 0")


def _steps_before(run_of: Callable[[EpochPosition, int], Run], point: EpochPosition, step: int) -> int:
    """The number of an epoch's steps before a position in it; more than ``step``, where that one is before the position.

    ConfigError if the position is between two steps, and ``step`` is not before them.
    """
    if not point.position:
        return 0
    begin = point.epoch_begin()
    plan = run_of(begin, run_of(begin, 0).plan.longest).plan
    before = bisect_left(range(len(plan) + 1), point.position, key=plan.position_after)
    if plan.position_after(before) == point.position or step < before - 1:
        return before
    each = plan.batch_size * plan.world_size
    raise ConfigError(
        f"step {step}: epoch {point.epoch} was resumed at position {point.position}, which is not a whole number of steps of "
        f"{plan.world_size} ranks with batch_size {plan.batch_size} ({each} samples): the run before it took others. So "
        "steps from there on have no number from the epoch's beginning; since_resume=True counts them from there"
    )
