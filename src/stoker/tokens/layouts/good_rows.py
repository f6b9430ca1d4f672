"""Batches of rows of tokens of which some can not be made, because tokens of theirs can not be read; and the documents of
which a step's rows are made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

import numpy as np

from stoker.cluster import LoaderWorker
from stoker.errors import ConfigError, DecodeError, SampleError
from stoker.order.sample_order import EpochPosition, Run, Spans
from stoker.order.step import runs_with_step
from stoker.reading.bad_samples import BadSampleNotes, BadSampleSink, OnBadSample
from stoker.reading.replacement import Replacements, none_is_good
from stoker.reading.sample_errors import SampleLocation
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.assemble import TokenRows
from stoker.tokens.layouts.base import DocumentBlock, TokenLayout
from stoker.tokens.layouts.block_builder import BlockBuilder
from stoker.tokens.order.prefetch import read_ahead
from stoker.tokens.order.token_order import UnitOrder
from stoker.tokens.sources.block_buffer import LostDocuments
from stoker.tokens.sources.source import describe_row
from stoker.types import Ids

# Blocks that are kept for rows that come in the place of others.
_KEPT: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of blocks that follow each other.

    Attributes:
        inside: amounts of the first block before the rows.
        rows: all rows, zeros in the bad ones.
        bad: number to error of those that are bad.
    """

    blocks: Sequence[DocumentBlock]
    inside: int
    rows: TokenRows
    bad: Mapping[int, DecodeError]

    def part(self, layout: TokenLayout, first: int, count: int) -> TokenRows:
        """Some of the rows, none of which is bad."""
        if not self.bad:
            return self.rows if count == len(self.rows) else self.rows.part(first, first + count)
        inside = self.inside + first * layout.step
        blocks = list(self.blocks)
        while inside >= (total := int(blocks[0].starts[-1])):
            inside -= total
            del blocks[0]
        return layout.take(blocks, inside, count)


class GoodRows:
    """The batches of a run, without its bad rows or with others in their places.

    A row is bad if its tokens or labels depend on what can not be read. Another row for its place is looked for near it in
    the order of its sequence.

    The builder's layout counts damaged documents: :attr:`~stoker.tokens.layouts.base.TokenLayout.salvage`.
    """

    def __init__(self, builder: BlockBuilder, run: Run, on_bad_sample: OnBadSample, log: BadSampleSink) -> None:
        if builder.settings.limit < 2:
            raise ConfigError("on_bad_sample= needs two tokens to tell what can be read: vocab_size=1")
        assert isinstance(run.order, UnitOrder)
        self._builder, self._layout, self._order, self._plan = builder, builder.layout, run.order, run.plan
        self._replaces, self._log = on_bad_sample == "replace", log
        self._replacements: dict[int, Replacements] = {}
        self._kept = lru_cache(maxsize=_KEPT)(lambda place: self._load({place[0]: place[1]}, *place))

    def batch_lists(
        self, worker: LoaderWorker, begun: int, batch_size: int, threads: int
    ) -> Generator[list[LMBatch], None, None]:
        """Read what is left of the epoch; arguments as those of :meth:`BlockBuilder.batch_lists`."""
        builder, log = self._builder, self._log
        steps = builder.steps(self._order, self._plan, worker, begun)
        builder.rest()
        try:
            load = partial(self._load, self._order.last_blocks(self._plan))
            for parts, delivered in read_ahead(steps, load, self._make, threads):
                if not any(part.bad for part in parts):
                    log.enter(sum(len(part.rows) for part in parts))
                    batches = TokenRows.concat([part.rows for part in parts], delivered)
                    parts.clear()  # its blocks may go
                    yield from batches.batches(batch_size, builder.settings)
                    continue
                rows = [(part, number) for part in parts for number in range(len(part.rows))]
                if delivered is not None:
                    rows = [rows[number] for number in delivered.tolist()]
                parts.clear()  # its blocks may go
                for first in range(0, len(rows), batch_size):
                    here = rows[first : first + batch_size]
                    made, bad = self._good(here)
                    log.enter(len(here))
                    del here
                    for number, error in bad:
                        log.note(number, error)
                    yield [made.batch(builder.settings)]
                    del made
                del rows
        finally:
            self._kept.cache_clear()
            builder.rest()

    def _load(self, last: Mapping[int, int], sequence: int, number: int) -> DocumentBlock:
        """Decode a block, and find what of it is lost."""
        found = self._builder.gather(self._order, last, sequence, number, salvage=True)
        block = replace(self._layout.block(found), place=(sequence, number), lost=found.lost)
        if not found.lost:
            return block
        documents = found.documents
        values = documents.values.copy()
        for one in found.lost:
            begin, end = int(documents.offsets[one.first]), int(documents.offsets[one.stop])
            values[np.arange(begin, end) if one.tokens is None else begin + one.tokens] = 1
        return replace(block, other=replace(block, documents=documents.with_values(values)))

    def _make(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> _Rows:
        """Make rows, and find those that are bad."""
        rows = self._layout.take(blocks, inside, count)
        if all(one.other is None for one in blocks):
            return _Rows(blocks, inside, rows, {})
        settings = self._layout.settings
        batch = rows.batch(settings)
        other = self._layout.take([one.other or one for one in blocks], inside, count).batch(settings)
        differ = (batch.input_ids != other.input_ids).any(axis=1)
        if batch.given_labels is not None:
            differ |= (batch.labels != other.labels).any(axis=1)
        bad = {number: self._error(blocks, batch, number) for number in np.flatnonzero(differ).tolist()}
        return _Rows(blocks, inside, rows, bad)

    def _good(self, rows: Sequence[tuple[_Rows, int]]) -> tuple[TokenRows, Sequence[tuple[int, SampleError]]]:
        """A batch's rows without the bad ones, or with others in their places; and numbers and errors of the bad ones.

        Rows of a part that follow each other are made together.
        """
        parts: list[TokenRows] = []
        bad: list[tuple[int, SampleError]] = []
        number = 0
        while number < len(rows):
            part, first = rows[number]
            count = 1
            if (error := part.bad.get(first)) is not None:
                bad.append((number, error))
                if self._replaces:
                    parts.append(self._instead(part, first, error))
            else:
                while rows[number + count : number + count + 1] == [(part, first + count)]:
                    if first + count in part.bad:
                        break
                    count += 1
                parts.append(part.part(self._layout, first, count))
            number += count
        return TokenRows.concat(parts or [rows[0][0].rows.part(0, 0)]), bad

    # -- other rows ------------------------------------------------------------------------------------------------

    def _instead(self, part: _Rows, number: int, error: DecodeError) -> TokenRows:
        """Another row of the epoch for the place of a bad one.

        Where all that were tried are bad, too, the error says so.
        """
        (sequence, block), step = part.blocks[0].place, self._layout.step
        way = self._order.sequence(sequence)
        units = -(-way.total // step) if self._layout.partial else way.total // step
        finder = self._replacements.get(sequence)
        if finder is None:
            finder = self._replacements[sequence] = Replacements(Spans.one(units))
        at_hand = {one.place: one for one in part.blocks}
        unit = (int(way.starts[block]) + part.inside) // step + number
        found = finder.find(unit, partial(self._row, sequence, at_hand))
        if found is None:
            raise none_is_good(error)
        made: TokenRows = found[0]
        return made

    def _row(self, sequence: int, at_hand: Mapping[tuple[int, int], DocumentBlock], unit: int) -> TokenRows:
        """One row of a sequence, by its number."""
        way, step = self._order.sequence(sequence), self._layout.step
        amount = unit * step
        end = min(amount + step + self._layout.reach, way.total)
        first, last = way.find(np.array([amount, end - 1], dtype=np.int64)).tolist()
        places = [(sequence, number) for number in range(first, last + 1)]
        blocks = [at_hand.get(place) or self._kept(place) for place in places]
        made = self._make(blocks, amount - int(way.starts[first]), 1)
        if made.bad:
            raise made.bad[0]
        return made.rows

    # -- errors ----------------------------------------------------------------------------------------------------

    def _error(self, blocks: Sequence[DocumentBlock], batch: LMBatch, number: int) -> DecodeError:
        """The error of a row, which names the first document in it that can not be read."""
        here = batch.extents.starts // batch.shape[1] == number
        present = set(batch.extents.documents[here].tolist())
        lost = [(block, one) for block in blocks for one in block.lost]
        for block, one in lost:
            documents = present.intersection(block.numbers[one.first : one.stop].tolist())
            if documents:
                return self._error_of(min(documents), block, one)
        # Its last label is of the document behind the row.
        block, one = lost[0]
        return self._error_of(int(block.numbers[one.first]), block, one)

    def _error_of(self, document: int, block: DocumentBlock, lost: LostDocuments) -> DecodeError:
        source, inside = self._builder.source_of(document)
        group, row, _ = source.groups.find(inside)
        error = DecodeError(
            f"{describe_row(source, inside)}: tokens of a row can not be read: {lost.reason}",
            url=source.groups.files[int(source.groups.file[group])],
            shard=group,
            row=row,
            column=block.documents.column,
            sample=document,
        )
        error.__cause__ = lost.reason
        return error


def documents_of_step(
    builder: BlockBuilder,
    run_of: Callable[[EpochPosition, int], Run],
    ranks: Sequence[int],
    point: EpochPosition,
    step: int,
    batch_size: int,
    on_bad_sample: OnBadSample | None,
    *,
    since_resume: bool,
) -> Ids:
    """Numbers of the documents of which ranks have tokens in a step: the row groups of these batches are decoded.

    ``run_of``, ``ranks``, ``point``, ``step`` and ``since_resume`` are as of :func:`~stoker.order.step.samples_of_step`.
    Numbers rise within a rank, one rank after the other.
    """
    found = []
    for _, run, before in runs_with_step(run_of, ranks, point, step, since_resume=since_resume):
        if on_bad_sample is None:
            read = builder.batch_lists(run, LoaderWorker(), before, batch_size, 1)
        else:  # nothing is delivered: what is bad is not counted
            good = GoodRows(builder, run, on_bad_sample, BadSampleNotes())
            read = good.batch_lists(LoaderWorker(), before, batch_size, 1)
        with closing(read) as batches:
            found.append(np.unique(next(batches)[0].extents.documents))
    return np.concatenate(found)


def document_location(builder: BlockBuilder, document: int) -> SampleLocation:
    """The file of a document, the number of its row group among those of its source, and its row there."""
    source, inside = builder.source_of(document)
    groups = source.groups
    last, first = len(groups) - 1, int(groups.first_rows[-1])
    # Of the last row group footers do not tell how many rows are empty.
    if inside >= first and inside - first >= (rows := sum(len(part) for part in source.chunks(last))):
        raise IndexError(f"document {document} is not among the {first + rows} rows of all files")
    group, row, _ = groups.find(inside)
    return SampleLocation(source.groups.files[int(source.groups.file[group])], group, row, document)
