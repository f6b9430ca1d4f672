"""A rank's batches of an epoch: row groups decoded ahead, their rows made into batches of the size asked for."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.order.partition.part_plan import PartPlan
from stoker.order.protocols import Plan
from stoker.order.sample_order import Run
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.block_builder import BlockBuilder
from stoker.tokens.order.prefetch import join_steps, read_ahead
from stoker.tokens.order.token_order import TokenOrder, block_spans


def epoch_batches(
    builder: BlockBuilder,
    run: Run,
    worker: LoaderWorker,
    begun: int,
    batch_size: int,
    threads: int,
) -> Generator[LMBatch, None, None]:
    """Read what is left of an epoch.

    Args:
        builder: reads blocks of documents.
        run: order and plan of this rank, which a :class:`~stoker.tokens.order.token_order.TokenSampleOrder` made.
        worker: this DataLoader worker, which reads every ``worker.count``-th batch.
        begun: batches of this worker that were delivered before.
        batch_size: rows in a batch; the last of a block may have fewer.
        threads: blocks that are decoded at once.
    """
    order, layout = run.order, builder.layout
    assert isinstance(order, TokenOrder)
    steps = block_spans(order, run.plan, worker.number, worker.count, begun)
    if layout.parts:
        settings = builder.settings
        row_bytes = settings.seq_len * settings.output.itemsize * (1 if settings.labels == "none" else 2)
        steps = join_steps(steps, batch_size, order.settings.step, row_bytes)

    load = partial(builder.load, order, _last_blocks(order, run.plan))
    builder.source.rest()
    try:
        for parts in read_ahead(steps, load, layout.batch, threads):
            yield from LMBatch.concat(parts).split(batch_size)
    finally:
        builder.source.rest()


def _last_blocks(order: TokenOrder, plan: Plan) -> Mapping[int, int]:
    """Sequence number to the last block of it that this rank reads, where it reads one alone."""
    if not isinstance(plan, PartPlan):
        return {}
    size = plan.rounds.size(plan.rank)
    if not size:
        return {}
    position = np.array([order.part_position(plan.rank, size - 1)], dtype=np.int64)
    sequence, block = order.split(order.last_block(position))
    return {int(sequence[0]): int(block[0])}
