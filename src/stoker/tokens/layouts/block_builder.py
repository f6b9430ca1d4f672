"""From token files and a layout to a sample order, and from a rank's part of the order to batches, a block at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import partial

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.recorder import Stage, span
from stoker.order.global_batches import Remainder
from stoker.order.part_plan import PartPlan
from stoker.order.sample_order import Plan, Run
from stoker.policy import TOKENS_AHEAD
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.base import BlockInput, DocumentBlock, TokenLayout
from stoker.tokens.order.division import Granularity, RowGroupRuns, join_groups
from stoker.tokens.order.prefetch import join_steps, read_ahead
from stoker.tokens.order.token_order import BlockSpan, TokenOrder, TokenSampleOrder, TokenSettings, block_spans
from stoker.tokens.sources.block_buffer import Gathered, LostDocuments
from stoker.tokens.sources.source import TokenSource, describe_row


class BlockBuilder:
    """Makes blocks of documents out of groups of files, and batches of the blocks."""

    def __init__(self, source: TokenSource, layout: TokenLayout) -> None:
        self.source = source
        self.settings = layout.settings
        self.layout = layout
        self._cells = self._make_cells()

    def sample_order(
        self, granularity: Granularity | None, seed: int | None, shuffle_tokens: int, remainder: Remainder
    ) -> TokenSampleOrder:
        """The sample order over these files; ``seed`` is ``None`` for the order of files."""
        layout = self.layout
        return TokenSampleOrder(
            self.source.name,
            self.source.about,
            self._cells,
            self.source.groups.files,
            TokenSettings(
                layout=layout.name,
                step=layout.step,
                partial=layout.partial,
                reach=layout.reach,
                seed=seed,
                granularity=granularity,
                block_tokens=shuffle_tokens,
                remainder=remainder,
                said=layout.identity(),
            ),
            self.source.url,
        )

    def batch_lists(
        self, run: Run, worker: LoaderWorker, begun: int, batch_size: int, threads: int
    ) -> Generator[list[LMBatch], None, None]:
        """Read what is left of an epoch: blocks are decoded ahead, their rows made into batches, some of them together.

        ``begun`` counts batches of this worker that were delivered before; ``threads`` blocks that are decoded at once. The
        last batch of a block may have fewer rows than ``batch_size``.
        """
        order = run.order
        assert isinstance(order, TokenOrder)
        steps = self.steps(order, run.plan, worker, begun, batch_size)
        load = partial(self.load, order, last_blocks(order, run.plan))
        self.source.rest()
        try:
            for parts in read_ahead(steps, load, self.layout.batch, threads):
                yield LMBatch.concat(parts).split(batch_size)
        finally:
            self.source.rest()

    def steps(
        self, order: TokenOrder, plan: Plan, worker: LoaderWorker, begun: int, batch_size: int
    ) -> Iterator[list[BlockSpan]]:
        """The batches that are left, as spans of sequences, some made together; arguments as :meth:`batch_lists`."""
        steps, settings = block_spans(order, plan, worker.number, worker.count, begun), self.settings
        if not self.layout.parts:
            return steps
        row_bytes = settings.seq_len * settings.output.itemsize * (1 if settings.labels == "none" else 2)
        return join_steps(steps, batch_size, order.settings.step, row_bytes)

    def load(self, order: TokenOrder, last: Mapping[int, int], sequence: int, block: int) -> DocumentBlock:
        """Decode a block.

        ``last``: sequence to the last block of it that is read; the others are read to their ends.
        """
        return self.layout.block(self.gather(order, last, sequence, block)[0])

    def gather(
        self, order: TokenOrder, last: Mapping[int, int], sequence: int, block: int, *, salvage: bool = False
    ) -> tuple[BlockInput, list[LostDocuments]]:
        """Decode the documents of a block; arguments as those of :meth:`load`.

        Where ``salvage``, documents that can not be read are no errors; they are listed.
        """
        way = order.sequence(sequence)
        self._fetch(order, sequence, block, last.get(sequence, way.blocks - 1))
        members = way.members(block)
        cells = self._cells
        gathered = Gathered(int(cells.tokens[members].sum()), self.settings.limit)
        bounds = [0]
        with span(Stage.DECODE, int(cells.tokens[members].sum())):
            for cell in members.tolist():
                for group in range(int(cells.bounds[cell]), int(cells.bounds[cell + 1])):
                    gathered.add(self.source, group, salvage=salvage)
                bounds.append(gathered.documents)
            documents, numbers = gathered.finish(partial(describe_row, self.source))
            documents.check(self.settings.limit)
        found = BlockInput(
            documents,
            numbers,
            np.array(bounds, dtype=np.int64),
            cells.amounts[members],
            int(way.starts[block]),
            order.key(sequence, block),
            self.source.where(int(cells.bounds[members[0]])),
        )
        return found, gathered.lost

    def _fetch(self, order: TokenOrder, sequence: int, block: int, last: int) -> None:
        """Begin to fetch this block and some of those that follow."""
        way = order.sequence(sequence)
        groups: list[int] = []
        tokens = 0
        for number in range(block, last + 1):
            for cell in way.members(number).tolist():
                groups += range(int(self._cells.bounds[cell]), int(self._cells.bounds[cell + 1]))
                tokens += int(self._cells.tokens[cell])
            if tokens > TOKENS_AHEAD and number > block:
                break
        self.source.fetch(groups)

    def _make_cells(self) -> RowGroupRuns:
        groups, layout = self.source.groups, self.layout
        bounds = join_groups(groups, layout.rows_a_cell * self.settings.seq_len or 1)
        tokens = np.add.reduceat(groups.tokens, bounds[:-1])
        rows = np.add.reduceat(groups.rows, bounds[:-1])
        amounts = layout.amounts(self.source, bounds, tokens, rows)
        return RowGroupRuns(bounds, groups.file[bounds[:-1]], tokens, amounts)


def last_blocks(order: TokenOrder, plan: Plan) -> Mapping[int, int]:
    """Sequence number to the last block of it that this rank reads, where it reads one alone."""
    if not isinstance(plan, PartPlan):
        return {}
    size = plan.rounds.size(plan.rank)
    if not size:
        return {}
    position = np.array([order.part_position(plan.rank, size - 1)], dtype=np.int64)
    sequence, block = order.split(order.last_block(position))
    return {int(sequence[0]): int(block[0])}
