"""Blocks of documents and the batches that are made of them, a way for each layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from stoker.errors import CorruptDataError
from stoker.integers import ranges
from stoker.order.shuffle.bijection import permute
from stoker.tokens.batch import Extents, LMBatch
from stoker.tokens.layouts.assemble import DocumentRuns, assemble, full_lengths
from stoker.tokens.layouts.bin_packing import PackedPieces, TooLong, place
from stoker.tokens.layouts.layouts import pad
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Array, Ids

__all__ = ["DocumentBlock", "BlockInput", "TokenLayout", "Packed", "Padded", "order_of"]


@dataclass(frozen=True, slots=True, eq=False)
class DocumentBlock:
    """Documents of some cells in memory, ready to be made into batches.

    Attributes:
        documents: all of them, none empty, as they lie in the files.
        numbers: number of each document; int64.
        order: the order in which documents, or packed rows, come; ``None``: as they lie.
        starts: where documents, or packed rows, begin in amounts, in that order, and the total; int64.
        placed: packed rows.
        whole: every document is as long as a row, and nothing is put behind it.
        rows: the order in which rows come that are cut of the joined documents and lie in the block; ``None``: as they lie.
    """

    documents: Ragged
    numbers: Ids
    order: Ids | None
    starts: Ids
    placed: PackedPieces | None = None
    whole: bool = False
    rows: Ids | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockInput:
    """What was read for a block.

    Attributes:
        documents: all of them, none empty.
        numbers: number of each; int64.
        bounds: first document of each cell, and their number; int64.
        amounts: what each cell should have; int64.
        before: amounts before the block on its track.
        key: shuffles; ``None``: order of files.
        where: names the block in errors.
    """

    documents: Ragged
    numbers: Ids
    bounds: Ids
    amounts: Ids
    before: int
    key: int | None
    where: str


class TokenLayout(Protocol):
    """How documents become rows of batches."""

    def block(self, found: BlockInput) -> DocumentBlock:
        """Prepare a block of what was read."""
        ...

    def batch(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> LMBatch:
        """Some rows of blocks that follow each other, from amount ``inside`` of the first on."""
        ...

    @property
    def parts(self) -> bool:
        """Whether rows may be made together and then shared out: not where a batch tells what was cut off its documents."""
        ...


class Padded:
    """A document a row.

    Args:
        settings: see :class:`LMSettings`.
        truncate: cut documents that are too long; otherwise they are an error.
    """

    def __init__(self, settings: LMSettings, *, truncate: bool) -> None:
        self._settings = settings
        self._truncate = truncate

    def block(self, found: BlockInput) -> DocumentBlock:
        """See :class:`TokenLayout`."""
        count = len(found.documents)
        return DocumentBlock(
            found.documents, found.numbers, order_of(count, found.key), np.arange(count + 1, dtype=np.int64)
        )

    @property
    def parts(self) -> bool:
        """See :class:`TokenLayout`."""
        return not self._truncate

    def batch(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> LMBatch:
        """See :class:`TokenLayout`."""
        return _by_rows(blocks, inside, count, self._rows)

    def _rows(self, block: DocumentBlock, rows: Ids) -> LMBatch:
        made = pad(block.documents.take(rows), self._settings, too_long="truncate" if self._truncate else "error")
        found = made.extents
        return replace(made, made=Extents(found.starts, found.lengths, block.numbers[rows][found.documents]))


class Packed:
    """Documents side by side in rows, as :func:`~stoker.tokens.layouts.bin_packing.place` puts those of each cell.

    Args:
        settings: see :class:`LMSettings`.
        too_long: what becomes of documents longer than a row.
    """

    def __init__(self, settings: LMSettings, too_long: TooLong) -> None:
        self._settings = settings
        self._too_long: TooLong = too_long

    def block(self, found: BlockInput) -> DocumentBlock:
        """See :class:`TokenLayout`."""
        parts = []
        bounds = found.bounds.tolist()
        for first, stop, rows in zip(bounds[:-1], bounds[1:], found.amounts.tolist(), strict=True):
            placed = place(found.documents[first:stop], self._settings, self._too_long)
            if placed.count != rows:
                raise CorruptDataError(
                    f"{found.where}: its documents fill {placed.count} rows, and filled {rows} when they were counted: the "
                    "file was replaced, or what was kept beside it is of another version: remove the cache directory"
                )
            parts.append(placed)
        placed = parts[0] if len(parts) == 1 else _joined(parts, found.bounds)
        starts = np.arange(placed.count + 1, dtype=np.int64)
        return DocumentBlock(found.documents, found.numbers, order_of(placed.count, found.key), starts, placed)

    @property
    def parts(self) -> bool:
        """See :class:`TokenLayout`."""
        return self._too_long != "truncate"

    def batch(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> LMBatch:
        """See :class:`TokenLayout`."""
        return _by_rows(blocks, inside, count, self._rows)

    def _rows(self, block: DocumentBlock, rows: Ids) -> LMBatch:
        placed, width = block.placed, self._settings.seq_len
        assert placed is not None
        low = placed.bounds[rows]
        counts = placed.bounds[rows + 1] - low
        which = ranges(low, counts)
        starts = np.repeat(np.arange(rows.size, dtype=np.int64) * width, counts) + placed.columns[which]
        documents = placed.documents[which]
        pieces = DocumentRuns(documents, placed.firsts[which], placed.lengths[which], starts)
        cut = (0, 0)
        if self._too_long == "truncate":
            over = full_lengths(block.documents.lengths[documents], self._settings) - width
            over = over[over > 0]
            cut = over.size, int(over.sum())
        shape = rows.size, width
        return assemble(block.documents, pieces, shape, self._settings, first_document=block.numbers, cut=cut)


def order_of(count: int, key: int | None) -> Ids | None:
    """A random order by a key; ``None`` where there is no key."""
    if key is None:
        return None
    return permute(np.arange(count, dtype=np.int64), count, key) if count else np.zeros(0, dtype=np.int64)


def _by_rows(blocks: Sequence[DocumentBlock], inside: int, count: int, make: Any) -> LMBatch:
    """Rows that are a unit each, of blocks one after the other."""
    parts = []
    for block in blocks:
        stop = min(inside + count, int(block.starts[-1]))
        rows = np.arange(inside, stop, dtype=np.int64) if block.order is None else block.order[inside:stop]
        if rows.size:
            parts.append(make(block, rows))
        count -= stop - inside
        inside = 0
    return LMBatch.concat(parts)


def _joined(parts: Sequence[PackedPieces], bounds: Ids) -> PackedPieces:
    """Packed rows of several cells as those of one."""
    documents = [part.documents + first for part, first in zip(parts, bounds[:-1].tolist(), strict=True)]
    sizes = np.cumsum([0, *(part.documents.size for part in parts)]).tolist()
    ends = [part.bounds[1:] + size for part, size in zip(parts, sizes, strict=False)]

    def together(arrays: Sequence[Array]) -> Ids:
        return np.concatenate(arrays)

    return PackedPieces(
        together(documents),
        together([part.firsts for part in parts]),
        together([part.lengths for part in parts]),
        together([part.columns for part in parts]),
        together([np.zeros(1, dtype=np.int64), *ends]),
        (sum(part.cut[0] for part in parts), sum(part.cut[1] for part in parts)),
    )
