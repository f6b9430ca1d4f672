"""From token sources and a layout to sample orders, and from a rank's part of the order to batches, a block at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.order.sample_order import Plan, Run
from stoker.policy import TOKENS_AHEAD
from stoker.tokens.batch import SOURCE_SHIFT, LMBatch
from stoker.tokens.layouts.assemble import TokenRows
from stoker.tokens.layouts.base import BlockInput, DocumentBlock, TokenLayout
from stoker.tokens.order.division import Granularity, ReadSequence, RowGroupRuns, join_groups
from stoker.tokens.order.prefetch import read_ahead
from stoker.tokens.order.token_order import BatchSpans, TokenSampleOrder, TokenSettings, UnitOrder
from stoker.tokens.sources.block_buffer import Gathered
from stoker.tokens.sources.source import TokenSource, describe_row


class BlockBuilder:
    """Makes blocks of documents out of groups of files of one or several sources, and batches of the blocks."""

    def __init__(self, sources: Sequence[TokenSource], layout: TokenLayout) -> None:
        self.sources = tuple(sources)
        self.settings = layout.settings
        self.layout = layout
        if layout.joins or self.settings.cross_document_labels:
            told = f"layout={layout.name!r}" if layout.joins else "cross_document_labels=True"
            for source in self.sources:
                if getattr(source, "has_loss_mask", False):  # which sources of a user's own need not have
                    raise ConfigError(
                        f"{source.name}: conversations are rows of their own: leave {told} out; layout='pack' fits"
                    )
        self._cells = [self._make_cells(source) for source in self.sources]

    def source_of(self, document: int) -> tuple[TokenSource, int]:
        """The source of a document, by the number that batches have, and its number there.

        IndexError if there is no such source.
        """
        number, inside = document >> SOURCE_SHIFT, document & ((1 << SOURCE_SHIFT) - 1)
        if not 0 <= number < len(self.sources):
            raise IndexError(f"document {document}: documents are numbered from 0, among the rows of all files")
        return self.sources[number], inside

    def sample_order(
        self,
        granularity: Granularity | None,
        seed: int | None,
        shuffle_tokens: int,
        remainder: Remainder,
        number: int = 0,
    ) -> TokenSampleOrder:
        """The sample order over the files of a source; ``seed`` is ``None`` for the order of files."""
        layout, source = self.layout, self.sources[number]
        groups, documents = source.groups, int(source.groups.rows.sum())
        return TokenSampleOrder(
            source.name,
            source.about,
            self._cells[number],
            groups.files,
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
            source.url,
            int(groups.tokens.sum()) + (documents if self.settings.eos_id is not None else 0),
            documents,
        )

    def batch_lists(
        self, run: Run, worker: LoaderWorker, begun: int, batch_size: int, threads: int
    ) -> Generator[list[LMBatch], None, None]:
        """Read what is left of an epoch: blocks are decoded ahead, their rows made into batches, some of them together.

        ``begun`` counts batches of this worker that were delivered before; ``threads`` blocks that are decoded at once. The
        last batch of a block may have fewer rows than ``batch_size``.
        """
        order = run.order
        assert isinstance(order, UnitOrder)
        steps = self.steps(order, run.plan, worker, begun)
        self.rest()
        try:
            load = partial(self.load, order, order.last_blocks(run.plan))
            for parts, rows in read_ahead(steps, load, self.layout.take, threads):
                batches = TokenRows.concat(parts, rows).batches(batch_size, self.settings)
                parts.clear()  # its blocks may go
                yield from batches
        finally:
            self.rest()

    def rest(self) -> None:
        """No group is needed soon: see :class:`TokenSource`."""
        for source in self.sources:
            source.rest()

    def steps(self, order: UnitOrder, plan: Plan, worker: LoaderWorker, begun: int) -> Iterator[BatchSpans]:
        """The batches that are left, some made together; arguments as those of :meth:`batch_lists`."""
        settings, together = self.settings, 1
        if self.layout.parts:
            row_bytes = settings.seq_len * settings.output.itemsize * (1 if settings.labels == "none" else 2)
            most, size = order.together
            together = max(1, min(most, size // (plan.batch_size * row_bytes)))
        return order.steps(plan, worker.number, worker.count, begun, together)

    def load(self, order: UnitOrder, last: Mapping[int, int], sequence: int, block: int) -> DocumentBlock:
        """Decode a block.

        ``last``: sequence to the last block of it that is read; the others are read to their ends.
        """
        return self.layout.block(self.gather(order, last, sequence, block))

    def gather(
        self, order: UnitOrder, last: Mapping[int, int], sequence: int, block: int, *, salvage: bool = False
    ) -> BlockInput:
        """Decode the documents of a block; arguments as those of :meth:`load`.

        Where ``salvage``, documents that can not be read are no errors: they are ``lost``.
        """
        way, number = order.sequence(sequence), order.source(sequence)
        source, cells = self.sources[number], self._cells[number]
        self._fetch(source, cells, way, block, last.get(sequence, way.blocks - 1))
        members = way.members(block)
        gathered = Gathered(int(cells.tokens[members].sum()), self.settings.limit)
        bounds = [0]
        with span(Stage.DECODE, int(cells.tokens[members].sum())):
            for cell in members.tolist():
                for group in range(int(cells.bounds[cell]), int(cells.bounds[cell + 1])):
                    gathered.add(source, group, salvage=salvage)
                bounds.append(gathered.documents)
            documents, numbers = gathered.finish(partial(describe_row, source))
            documents.check(self.settings.limit)
        return BlockInput(
            documents,
            numbers + (number << SOURCE_SHIFT) if number else numbers,
            np.array(bounds, dtype=np.int64),
            cells.amounts[members],
            int(way.starts[block]),
            order.key(sequence, block),
            source.where(int(cells.bounds[members[0]])),
            sorted(gathered.lost, key=lambda one: one.first),
        )

    @staticmethod
    def _fetch(source: TokenSource, cells: RowGroupRuns, way: ReadSequence, block: int, last: int) -> None:
        """Begin to fetch this block and some of those that follow."""
        groups: list[int] = []
        tokens = 0
        for number in range(block, last + 1):
            for cell in way.members(number).tolist():
                groups += range(int(cells.bounds[cell]), int(cells.bounds[cell + 1]))
                tokens += int(cells.tokens[cell])
            if tokens > TOKENS_AHEAD and number > block:
                break
        source.fetch(groups)

    def _make_cells(self, source: TokenSource) -> RowGroupRuns:
        groups, layout = source.groups, self.layout
        bounds = join_groups(groups, layout.rows_a_cell * self.settings.seq_len or 1)
        tokens = np.add.reduceat(groups.tokens, bounds[:-1])
        rows = np.add.reduceat(groups.rows, bounds[:-1])
        amounts = layout.amounts(source, bounds, tokens, rows)
        return RowGroupRuns(bounds, groups.file[bounds[:-1]], tokens, amounts)
