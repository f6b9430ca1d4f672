"""Batches of rows of tokens of which some can not be made, because tokens of theirs can not be read; and the documents of
which a step's rows are made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeGuard

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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _CheckedBlock(DocumentBlock):
    """A block, of which some tokens may be lost: there are zeros in their places.

    Attributes:
        sequence, number: which one.
        lost: its documents of which tokens can not be read, rising.
        other: the same block with ones for the zeros in their places; ``None`` where nothing is lost. A row that the two make
            alike has nothing of what is lost.
    """

    sequence: int
    number: int
    lost: Sequence[LostDocuments] = ()
    other: DocumentBlock | None = None

    @classmethod
    def of(cls, block: DocumentBlock, **checked: Any) -> _CheckedBlock:
        """A block, and what else is known of it."""
        return cls(**{field.name: getattr(block, field.name) for field in fields(block)}, **checked)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of blocks that follow each other.

    Attributes:
        inside: amounts of the first block before the rows.
        rows: all rows, zeros in the bad ones.
        bad: number to error of those that are bad.
    """

    blocks: Sequence[_CheckedBlock]
    inside: int
    rows: TokenRows
    bad: Mapping[int, DecodeError]

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, layout: TokenLayout, first: int, count: int) -> TokenRows:
        """Some of the rows, none of which is bad."""
        inside = self.inside + first * layout.step
        blocks = list(self.blocks)
        while inside >= (total := int(blocks[0].starts[-1])):
            inside -= total
            del blocks[0]
        return layout.take(blocks, inside, count)


class GoodRowBuilder:
    """Makes the batches of a :class:`~stoker.tokens.layouts.block_builder.BlockBuilder`, and leaves out or replaces bad rows.

    A row is bad if its tokens or labels depend on what can not be read. Another row for its place is looked for near it in
    the order of its sequence.

    The builder's layout counts damaged documents: :attr:`~stoker.tokens.layouts.base.TokenLayout.salvage`.
    """

    def __init__(self, builder: BlockBuilder, on_bad_sample: OnBadSample, log: BadSampleSink) -> None:
        if builder.settings.limit < 2:
            raise ConfigError("on_bad_sample= needs two tokens to tell what can be read: vocab_size=1")
        self._builder, self._replace, self._log = builder, on_bad_sample == "replace", log

    def batch_lists(
        self, run: Run, worker: LoaderWorker, begun: int, batch_size: int, threads: int
    ) -> Generator[list[LMBatch], None, None]:
        """Read what is left of an epoch; arguments as those of the builder's method."""
        order, builder, log = run.order, self._builder, self._log
        assert isinstance(order, UnitOrder)
        epoch = _EpochRows(builder, order, order.last_blocks(run.plan), replaces=self._replace)
        steps = builder.steps(order, run.plan, worker, begun)
        builder.rest()
        try:
            for parts, delivered in read_ahead(steps, epoch.load, epoch.make, threads):
                if epoch.are_good(parts):
                    log.enter(sum(map(len, parts)))
                    batches = TokenRows.concat(parts, delivered).batches(batch_size, builder.settings)
                    parts.clear()  # its blocks may go
                    yield from batches
                    continue
                rows = [(part, number) for part in parts for number in range(len(part))]
                if delivered is not None:
                    rows = [rows[number] for number in delivered.tolist()]
                parts.clear()  # its blocks may go
                for first in range(0, len(rows), batch_size):
                    here = rows[first : first + batch_size]
                    made, bad = epoch.good_rows(here)
                    log.enter(len(here))
                    del here
                    for number, error in bad:
                        log.note(number, error)
                    yield [made.batch(builder.settings)]
                    del made
                del rows
        finally:
            builder.rest()


class _EpochRows:
    """The rows of an epoch."""

    def __init__(self, builder: BlockBuilder, order: UnitOrder, last: Mapping[int, int], *, replaces: bool) -> None:
        self._builder, self._layout, self._order, self._last = builder, builder.layout, order, last
        self._replaces = replaces
        self._lossy = False
        self._replacements: dict[int, Replacements] = {}
        self._kept: OrderedDict[tuple[int, int], _CheckedBlock] = OrderedDict()

    def load(self, sequence: int, number: int) -> _CheckedBlock:
        """Decode a block."""
        return self._load(self._last, sequence, number)

    def _load(self, last: Mapping[int, int], sequence: int, number: int) -> _CheckedBlock:
        found, lost = self._builder.gather(self._order, last, sequence, number, salvage=True)
        block = self._layout.block(found)
        if not lost:
            return _CheckedBlock.of(block, sequence=sequence, number=number)
        self._lossy = True
        lost.sort(key=lambda one: one.first)
        documents = found.documents
        values = documents.values.copy()
        for one in lost:
            begin, end = int(documents.offsets[one.first]), int(documents.offsets[one.stop])
            values[np.arange(begin, end) if one.tokens is None else begin + one.tokens] = 1
        other = documents.with_values(values)
        other_block = replace(block, documents=other)
        return _CheckedBlock.of(block, sequence=sequence, number=number, lost=lost, other=other_block)

    def make(self, blocks: Sequence[_CheckedBlock], inside: int, count: int) -> TokenRows | _Rows:
        """Make rows, and find those that are bad; without more where there are none."""
        rows = self._layout.take(blocks, inside, count)
        if not self._lossy or all(one.other is None for one in blocks):
            return rows
        settings = self._layout.settings
        batch = rows.batch(settings)
        other = self._layout.take([one.other or one for one in blocks], inside, count).batch(settings)
        differ = (batch.input_ids != other.input_ids).any(axis=1)
        if batch.given_labels is not None:
            differ |= (batch.labels != other.labels).any(axis=1)
        bad = {number: self._error(blocks, batch, number) for number in np.flatnonzero(differ).tolist()}
        return _Rows(blocks, inside, rows, bad) if bad else rows

    def are_good(self, parts: list[TokenRows | _Rows]) -> TypeGuard[list[TokenRows]]:
        """Whether no row is bad of any of these, which :meth:`make` has made."""
        return not self._lossy or all(isinstance(part, TokenRows) for part in parts)

    def good_rows(
        self, rows: Sequence[tuple[TokenRows | _Rows, int]]
    ) -> tuple[TokenRows, Sequence[tuple[int, SampleError]]]:
        """A batch's rows without the bad ones, or with others in their places; and numbers and errors of the bad ones.

        Rows of a part that follow each other are made together.
        """
        parts: list[TokenRows] = []
        bad: list[tuple[int, SampleError]] = []
        number = 0
        while number < len(rows):
            part, first = rows[number]
            errors = {} if isinstance(part, TokenRows) else part.bad
            error = errors.get(first)
            if error is not None and isinstance(part, _Rows):
                bad.append((number, error))
                if self._replaces:
                    parts.append(self._instead(part, first, error))
                number += 1
                continue
            count = 1
            while rows[number + count : number + count + 1] == [(part, first + count)] and first + count not in errors:
                count += 1
            if isinstance(part, _Rows):
                parts.append(part.part(self._layout, first, count))
            else:
                whole = count == len(part)
                parts.append(part if whole else part.part(first, first + count))
            number += count
        none = rows[0][0].rows if isinstance(rows[0][0], _Rows) else rows[0][0]
        return TokenRows.concat(parts or [none.part(0, 0)]), bad

    # -- other rows ------------------------------------------------------------------------------------------------

    def _instead(self, part: _Rows, number: int, error: DecodeError) -> TokenRows:
        """Another row of the epoch for the place of a bad one.

        Where all that were tried are bad, too, the error says so.
        """
        first, step = part.blocks[0], self._layout.step
        way = self._order.sequence(first.sequence)
        units = -(-way.total // step) if self._layout.partial else way.total // step
        finder = self._replacements.get(first.sequence)
        if finder is None:
            finder = self._replacements[first.sequence] = Replacements(Spans.one(units))
        at_hand = {(one.sequence, one.number): one for one in part.blocks}
        unit = (int(way.starts[first.number]) + part.inside) // step + number
        found = finder.find(unit, partial(self._row, first.sequence, at_hand))
        if found is None:
            raise none_is_good(error)
        made: TokenRows = found[0]
        return made

    def _row(self, sequence: int, at_hand: Mapping[tuple[int, int], _CheckedBlock], unit: int) -> TokenRows:
        """One row of a sequence, by its number."""
        way, step = self._order.sequence(sequence), self._layout.step
        amount = unit * step
        end = min(amount + step + self._layout.reach, way.total)
        first, last = way.find(np.array([amount, end - 1], dtype=np.int64)).tolist()
        blocks = [
            at_hand.get((sequence, number)) or self._kept_block(sequence, number) for number in range(first, last + 1)
        ]
        made = self.make(blocks, amount - int(way.starts[first]), 1)
        if isinstance(made, _Rows):
            raise made.bad[0]
        return made

    def _kept_block(self, sequence: int, number: int) -> _CheckedBlock:
        found = self._kept.get((sequence, number))
        if found is None:
            found = self._load({sequence: number}, sequence, number)
            self._kept[sequence, number] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end((sequence, number))
        return found

    # -- errors ----------------------------------------------------------------------------------------------------

    def _error(self, blocks: Sequence[_CheckedBlock], batch: LMBatch, number: int) -> DecodeError:
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

    def _error_of(self, document: int, block: _CheckedBlock, lost: LostDocuments) -> DecodeError:
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
    since_resume: bool = False,
) -> Ids:
    """Numbers of the documents of which ranks have tokens in a step: the row groups of these batches are decoded.

    ``run_of``, ``ranks``, ``point``, ``step`` and ``since_resume`` are as of :func:`~stoker.order.step.samples_of_step`.
    Numbers rise within a rank, one rank after the other.
    """
    found = [
        np.unique(_batch(builder, run, before, batch_size, on_bad_sample).extents.documents)
        for _, run, before in runs_with_step(run_of, ranks, point, step, since_resume=since_resume)
    ]
    return np.concatenate(found)


def _batch(builder: BlockBuilder, run: Run, step: int, batch_size: int, on_bad_sample: OnBadSample | None) -> LMBatch:
    if on_bad_sample is None:
        with closing(builder.batch_lists(run, LoaderWorker(), step, batch_size, 1)) as batches:
            return next(batches)[0]
    # Nothing is delivered: what is bad is not counted.
    good = GoodRowBuilder(builder, on_bad_sample, BadSampleNotes())
    with closing(good.batch_lists(run, LoaderWorker(), step, batch_size, 1)) as batches:
        return next(batches)[0]


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
