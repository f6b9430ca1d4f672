"""The samples of one step of a run: batches of any ranks, from the order alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.errors import ConfigError
from stoker.order.sample_order import Run
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


def samples_of_step(
    run_of: Callable[[int], Run], table: ShardTable, ranks: Sequence[int], step: int, epoch: str
) -> StepSamples:
    """The samples that ranks get in a step. Takes the same time for any step.

    Args:
        run_of: gives a rank's batches.
        table: where the ids of each shard begin.
        ranks: whose batches, at least one rank.
        step: batches before it.
        epoch: the epoch in words, for errors.

    Raises:
        ConfigError: none of these ranks has so many batches.
    """
    found: list[tuple[Ids, Ids, Ids]] = []
    for rank, run in runs_with_step(run_of, ranks, step, epoch):
        positions = next(run.plan.chunks(1, skip=step))[0]
        found.append((np.full(len(positions), rank, np.int64), *run.order.locate(positions)))
    numbers, shards, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return StepSamples(numbers, shards, rows, table.starts[shards] + rows)


def runs_with_step(
    run_of: Callable[[int], Run], ranks: Sequence[int], step: int, epoch: str
) -> Iterator[tuple[int, Run]]:
    """The ranks that have a batch in a step, with their batches; args and errors are those of :func:`samples_of_step`."""
    found, most = False, 0
    for rank in ranks:
        run = run_of(rank)
        most = max(most, len(run.plan))
        if step < len(run.plan):
            found = True
            yield rank, run
    if not found:
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else "every rank"
        raise ConfigError(f"step {step} is not in {epoch}: {whose} has {most} steps there, numbered from 0")
