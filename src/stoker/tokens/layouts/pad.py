"""A document a row."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stoker.arguments import must_know
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.assemble import DocumentSpans, TokenRows, assemble, full_lengths, too_long_error
from stoker.tokens.layouts.base import BlockInput, DocumentBlock, TokenLayout, order_of
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import TokenSource
from stoker.types import Ids


class PadLayout(TokenLayout):
    """A document a row, filled up with padding; one that is too long is an error."""

    name = "pad"
    document_rows = True
    _cuts = False

    def identity(self) -> dict[str, object]:
        # A row is a document, however long: which one comes next depends on no setting.
        return {}

    def amounts(self, source: TokenSource, bounds: Ids, tokens: Ids, rows: Ids) -> Ids:  # noqa: ARG002
        return rows

    def block(self, found: BlockInput) -> DocumentBlock:
        count = len(found.documents)
        return DocumentBlock(
            found.documents, found.numbers, order_of(count, found.key), np.arange(count + 1, dtype=np.int64)
        )

    def rows(self, documents: Ragged, first: int) -> LMBatch:
        return self._padded(documents, first).batch(self.settings)

    def rows_of(self, block: DocumentBlock, rows: Ids) -> TokenRows:
        return self._padded(block.documents.take(rows), block.numbers[rows])

    def _padded(self, documents: Ragged, numbers: int | Ids) -> TokenRows:
        """A row of each document; ``numbers``: that of the first, or those of all."""
        settings, width = self.settings, self.settings.seq_len
        whole = full_lengths(documents.lengths, settings)
        lengths = np.minimum(whole, width)
        long = np.flatnonzero(whole > lengths)
        if long.size and not self._cuts:
            raise too_long_error(documents, int(long[0]), int(whole[long[0]]), settings, "layout='truncate'")
        rows = np.flatnonzero(lengths)
        spans = DocumentSpans(rows, np.zeros(rows.size, dtype=np.int64), lengths[rows], rows * width)
        told = (long.size, int(whole.sum() - lengths.sum()))
        return assemble(documents, spans, (len(documents), width), settings, first_document=numbers, cut=told)


class TruncateLayout(PadLayout):
    """A document a row, filled up with padding; one that is too long is cut."""

    name = "truncate"
    parts = False
    _cuts = True


def pad(
    documents: Ragged,
    settings: LMSettings,
    *,
    too_long: Literal["error", "truncate"] = "error",
    first_document: int = 0,
) -> LMBatch:
    """One document a row, in the order of the documents.

    Args:
        documents: the batch's documents, of which each gets a row.
        settings: see :class:`LMSettings`; needs ``pad_id``.
        too_long: what becomes of a document longer than ``seq_len``, its eos counted: an error, or its end is cut off and
            counted in ``cut_documents`` and ``cut_tokens``.
        first_document: the number of the first document.

    Raises:
        FormatError: a document is too long, or an id is not in the vocabulary.
        ConfigError: there is no ``pad_id``, or an argument is unknown.
    """
    must_know("too_long", [too_long], ("error", "truncate"))
    layout = TruncateLayout if too_long == "truncate" else PadLayout
    return layout(settings, "split").rows(documents, first_document)
