"""A document a row."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stoker.errors import ConfigError
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
    _too_long: Literal["error", "truncate"] = "error"

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
        return pad(documents, self.settings, too_long=self._too_long, first_document=first)

    def rows_of(self, block: DocumentBlock, rows: Ids) -> TokenRows:
        documents, numbers = block.documents.take(rows), block.numbers[rows]
        return _pad_rows(documents, self.settings, numbers, self._too_long)


class TruncateLayout(PadLayout):
    """A document a row, filled up with padding; one that is too long is cut."""

    name = "truncate"
    parts = False
    _too_long = "truncate"


def pad(
    documents: Ragged,
    settings: LMSettings,
    *,
    too_long: Literal["error", "truncate"] = "error",
    side: Literal["right", "left"] = "right",
    longest: bool = False,
    multiple: int = 1,
    first_document: int = 0,
) -> LMBatch:
    """One document a row.

    Args:
        documents: the batch's documents, of which each gets a row.
        settings: see :class:`LMSettings`; needs ``pad_id``.
        too_long: what becomes of a document longer than ``seq_len``, its eos counted: an error, or its end is cut off and
            counted in ``cut_documents`` and ``cut_tokens``.
        side: where padding goes.
        longest: rows are as wide as the longest document, not ``seq_len``.
        multiple: rows are as wide as a multiple of this, where ``longest``.
        first_document: the number of the first document.

    Raises:
        FormatError: a document is too long, or an id is not in the vocabulary.
        ConfigError: there is no ``pad_id``, or an argument is unknown.
    """
    return _pad_rows(documents, settings, first_document, too_long, side, longest, multiple).batch(settings)


def _pad_rows(
    documents: Ragged,
    settings: LMSettings,
    first_document: int | Ids,
    too_long: Literal["error", "truncate"] = "error",
    side: Literal["right", "left"] = "right",
    longest: bool = False,
    multiple: int = 1,
) -> TokenRows:
    settings.padding("layout='pad'")
    if too_long not in ("error", "truncate") or side not in ("right", "left") or multiple < 1:
        raise ConfigError(
            f"too_long={too_long!r}, side={side!r}, multiple={multiple}: too_long is 'error' or 'truncate', side is "
            "'right' or 'left', multiple is at least 1"
        )
    whole = full_lengths(documents.lengths, settings)
    lengths = np.minimum(whole, settings.seq_len)
    cut = np.flatnonzero(whole > lengths)
    if cut.size and too_long == "error":
        raise too_long_error(documents, int(cut[0]), int(whole[cut[0]]), settings, "layout='truncate'")
    width = settings.seq_len
    if longest:
        width = min(width, -(-max(int(lengths.max(initial=0)), 1) // multiple) * multiple)
    rows = np.flatnonzero(lengths)
    lengths = lengths[rows]
    starts = rows * width
    if side == "left":
        starts += width - lengths
    spans = DocumentSpans(rows, np.zeros(rows.size, dtype=np.int64), lengths, starts)
    told = (cut.size, int(whole.sum() - lengths.sum()))
    return assemble(documents, spans, (len(documents), width), settings, first_document=first_document, cut=told)
