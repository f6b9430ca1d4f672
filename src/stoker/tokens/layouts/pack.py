"""Whole documents side by side in rows, as full as can be; only what is longer than a row is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import CorruptDataError
from stoker.integers import ranges
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.assemble import DocumentSpans, assemble, full_lengths
from stoker.tokens.layouts.base import BlockInput, DocumentBlock, RowMaker, TokenLayout, batch_of_rows, order_of
from stoker.tokens.layouts.bin_packing import PackedRows, TooLong, pack_documents
from stoker.tokens.layouts.streaming_pack import Packer
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.measure import packed_rows
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import TokenSource
from stoker.types import Ids

# Written into what is kept of packing; another number makes it be counted anew.
_VERSION: Final = 1


class PackLayout(TokenLayout):
    """Documents side by side in rows, as :func:`~stoker.tokens.layouts.bin_packing.pack_documents` packs each cell."""

    name = "pack"
    rows_a_cell = 512  # of a group that is packed by itself about a row is wasted

    def __init__(self, settings: LMSettings, too_long: TooLong) -> None:
        super().__init__(settings, too_long)
        self.parts = too_long != "truncate"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "too_long": self.too_long}

    def amounts(self, source: TokenSource, bounds: Ids, tokens: Ids, rows: Ids) -> Ids:  # noqa: ARG002
        """See :class:`TokenLayout`; only the lengths of all documents tell, so it is counted once and kept."""
        recipe = {
            "seq_len": self.settings.seq_len,
            "eos": self.settings.eos_id is not None,
            "too_long": self.too_long,
            "rows": self.rows_a_cell,
            "version": _VERSION,
            **({"salvage": True, "limit": self.settings.limit} if self.salvage else {}),
        }

        def count() -> Ids:
            return packed_rows(source, bounds, self.settings, self.too_long, salvage=self.salvage)

        return source.keep("packed-rows", recipe, count)

    def block(self, found: BlockInput) -> DocumentBlock:
        parts = []
        bounds = found.bounds.tolist()
        for first, stop, rows in zip(bounds[:-1], bounds[1:], found.amounts.tolist(), strict=True):
            packed = pack_documents(found.documents[first:stop], self.settings, self.too_long)
            if packed.count != rows:
                raise CorruptDataError(
                    f"{found.where}: its documents fill {packed.count} rows, and filled {rows} when they were counted: the "
                    "file was replaced, or a side file of it is of another version: remove the cache directory"
                )
            parts.append(packed)
        packed = parts[0] if len(parts) == 1 else _concat(parts, found.bounds)
        starts = np.arange(packed.count + 1, dtype=np.int64)
        return DocumentBlock(found.documents, found.numbers, order_of(packed.count, found.key), starts, packed)

    def batch(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> LMBatch:
        return batch_of_rows(blocks, inside, count, self._rows)

    def _rows(self, block: DocumentBlock, rows: Ids) -> LMBatch:
        packed, width = block.packed, self.settings.seq_len
        assert packed is not None
        low = packed.bounds[rows]
        counts = packed.bounds[rows + 1] - low
        which = ranges(low, counts)
        starts = np.repeat(np.arange(rows.size, dtype=np.int64) * width, counts) + packed.columns[which]
        documents = packed.documents[which]
        spans = DocumentSpans(documents, packed.firsts[which], packed.lengths[which], starts)
        cut = (0, 0)
        if self.too_long == "truncate":
            over = full_lengths(block.documents.lengths[documents], self.settings) - width
            over = over[over > 0]
            cut = over.size, int(over.sum())
        shape = rows.size, width
        return assemble(block.documents, spans, shape, self.settings, first_document=block.numbers, cut=cut)

    def row_maker(
        self, batch_size: int, lookahead: int, state: Mapping[str, Any] | None, fetch: Callable[[Ids], Ragged]
    ) -> RowMaker:
        return Packer(self.settings, batch_size, lookahead=lookahead, too_long=self.too_long, state=state, fetch=fetch)


def _concat(parts: Sequence[PackedRows], bounds: Ids) -> PackedRows:
    """Packed rows of several cells as those of one."""
    documents = [part.documents + first for part, first in zip(parts, bounds[:-1].tolist(), strict=True)]
    sizes = np.cumsum([0, *(part.documents.size for part in parts)]).tolist()
    ends = [part.bounds[1:] + size for part, size in zip(parts, sizes, strict=False)]

    return PackedRows(
        np.concatenate(documents),
        np.concatenate([part.firsts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([np.zeros(1, dtype=np.int64), *ends]),
        (sum(part.cut[0] for part in parts), sum(part.cut[1] for part in parts)),
    )
