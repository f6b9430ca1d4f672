"""Chunks of a run: batches that are located, and then read, together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.order.sample_order import Plan, Run
from stoker.pipeline.chunks.chunk import Chunk
from stoker.reading.samples import distinct_shards
from stoker.types import Ids

if TYPE_CHECKING:
    from stoker.pipeline.ranks.outer_plan import OuterPlan, OuterRun

_LOCATE_SAMPLES: Final = 4096


def located_chunks(
    run: Run | OuterRun, shards: int, samples: int, worker: LoaderWorker, skip: int, *, in_groups: bool
) -> Iterator[Chunk]:
    """All chunks of a worker, in order.

    Args:
        run: the rank's batches, and where their samples lie.
        shards: number of shards of the dataset.
        samples: about how many samples a chunk has at most; it has one batch at least.
        worker: this process.
        skip: batches of this worker to leave out at the beginning.
        in_groups: whether the worker takes every ``worker.count``-th chunk; otherwise every such batch.
    """
    lists = _position_groups(run.plan, samples, worker, skip, in_groups=in_groups)
    first = next(lists, None)
    if first is None:
        return
    # The first batch waits for few others to be located: of many streams, each costs something when it is first met.
    pairs = (first[at : at + 2] for at in range(1, len(first), 2))
    for groups in chain([first[:1]], pairs, lists):
        positions = np.concatenate([batch for group in groups for batch in group])
        numbers, rows = run.order.locate(positions)
        start = 0
        for group in groups:
            lengths = [len(batch) for batch in group]
            here = slice(start, start + sum(lengths))
            start = here.stop
            present = tuple(distinct_shards(numbers[here], shards))
            yield Chunk(lengths, positions[here], numbers[here], rows[here], present)


def _position_groups(
    plan: Plan | OuterPlan, samples: int, worker: LoaderWorker, skip: int, *, in_groups: bool
) -> Iterator[list[list[Ids]]]:
    """Positions of the batches of each chunk, in lists of chunks that are located together."""
    most = max(1, samples // plan.batch_size)
    # Locating has a cost a call as well as a cost a sample, so it is done for many chunks at once: for whole ones, as
    # memory of one size is used again.
    whole = most * plan.batch_size
    together_located = whole * -(-_LOCATE_SAMPLES // whole)
    if in_groups:  # all workers cut all batches alike
        lists = plan.chunks(together_located * worker.count)
    else:
        lists = plan.chunks(together_located, worker.number, worker.count, skip)
    turns, turn = (worker.count, worker.number) if in_groups else (1, 0)
    # Chunks begin with one batch and double, so that the first batch waits for few shards and the rest is efficient.
    together, number = 1, 0
    for batches in lists:
        groups: list[list[Ids]] = []
        first = 0
        while first < len(batches):
            if number % turns == turn:
                groups.append(batches[first : first + together])
            first += together
            number += 1
            if number % turns == 0:
                together = min(2 * together, most)
        if groups:
            yield groups
