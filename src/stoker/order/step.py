"""The samples of one step of a run: batches of any ranks, from the order alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stoker.errors import ConfigError
from stoker.order.sample_order import Run
from stoker.types import Ids


def samples_of_step(run_of: Callable[[int], Run], ranks: Sequence[int], step: int, epoch: str) -> tuple[Ids, Ids, Ids]:
    """Rank, shard and row of each sample of a step, one rank after the other; three int64 arrays of shape ``(n,)``.

    Takes the same time for any step.

    Args:
        run_of: gives a rank's batches.
        ranks: whose batches, at least one rank.
        step: batches before it.
        epoch: the epoch in words, for errors.

    Raises:
        ConfigError: none of these ranks has so many batches.
    """
    found: list[tuple[Ids, Ids, Ids]] = []
    most = 0
    for rank in ranks:
        run = run_of(rank)
        most = max(most, len(run.plan))
        if step < len(run.plan):
            positions = next(run.plan.chunks(1, skip=step))[0]
            found.append((np.full(len(positions), rank, np.int64), *run.order.locate(positions)))
    if not found:
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else "every rank"
        raise ConfigError(f"step {step} is not in {epoch}: {whose} has {most} steps there, numbered from 0")
    numbers, shards, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return numbers, shards, rows
