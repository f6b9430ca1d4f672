"""A token column of a row group, decoded some rows at a time: faster than the whole at once, and in less memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from stoker.formats.parquet.pages.pages import OtherPagesError
from stoker.formats.parquet.reader import ParquetReader
from stoker.tokens.sources.arrow import from_arrow
from stoker.tokens.sources.ragged import Ragged

__all__ = ["decode_pieces"]

logger = logging.getLogger(__name__)

# What is decoded at a time stays in the processor's cache until it has been copied.
_PIECE_TOKENS: Final = 1 << 18


def decode_pieces(reader: ParquetReader, column: str, where: str) -> Iterator[Ragged]:
    """The documents of a row group, some at a time. What is yielded holds until the next are asked for.

    Args:
        reader: the row group.
        column: of lists of integers.
        where: names the row group in errors.

    Raises:
        CorruptDataError: the bytes are no such column.
        FormatError: it does not hold lists of integers, or a token is null.
    """
    done = 0
    try:
        for values, offsets in reader.lists(column):
            yield Ragged(values, offsets, column=column, where=where, rows=done)
            done += offsets.size - 1
        return
    except OtherPagesError as reason:
        logger.debug("%s, column %r: decoded by pyarrow from row %d on: %s", where, column, done, reason)
    first = 0
    for array in reader.batches(column, _PIECE_TOKENS):
        piece = from_arrow(array, column=column, where=where, first_row=first)
        first += len(piece)
        if first > done:
            yield piece[max(0, done - first + len(piece)) :]
