"""Counts that only the lengths of documents tell: one pass over the data, several groups at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.concurrency.threads import Threads
from stoker.errors import FormatError
from stoker.tokens.layouts.bin_packing import TooLong, pack_documents, split
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.block_buffer import Gathered, add_group
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import TokenSource, describe_row
from stoker.types import Ids

_AHEAD: Final = 4


def measure(
    source: TokenSource,
    groups: Sequence[int],
    what: Callable[[Ids], Any],
    lengths_of: Callable[[int], Ids] | None = None,
) -> Iterator[Any]:
    """Results of a function of the lengths of each group's documents that are not empty, in order.

    Args:
        source: the groups.
        groups: numbers of those to measure.
        what: from int64 lengths to anything; called on threads.
        lengths_of: gives the lengths of a group; default: ``source.lengths``.
    """
    threads = Threads(min(8, os.cpu_count() or 1), "measure")
    running: deque[Future[Any]] = deque()
    try:
        for turn, group in enumerate(groups):
            source.fetch(groups[turn : turn + threads.count + _AHEAD])
            running.append(threads.submit(partial(_measured, lengths_of or source.lengths, group, what)))
            if len(running) > threads.count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        threads.close()


def _measured(lengths_of: Callable[[int], Ids], group: int, what: Callable[[Ids], Any]) -> Any:
    return what(lengths_of(group))


def good_lengths(source: TokenSource, limit: int, group: int) -> Ids:
    """Tokens in each document of a group that is not empty, also where some can not be read; int64.

    Args:
        source: the groups.
        limit: one more than the largest id that is allowed.
        group: the group; see :meth:`~stoker.tokens.sources.block_buffer.Gathered.add_good`.
    """
    gathered = Gathered(int(source.groups.tokens[group]), limit)
    add_group(gathered, source, group, salvage=True)
    return gathered.finish(str)[0].lengths


def packed_rows(
    source: TokenSource, bounds: Ids, settings: LMSettings, too_long: TooLong, *, salvage: bool = False
) -> Ids:
    """The number of rows that the documents of each cell fill when they are packed.

    Args:
        source: the groups.
        bounds: first group of each cell, and their number; int64, shape ``(cells + 1,)``.
        settings: see :class:`LMSettings`.
        too_long: what becomes of documents longer than a row.
        salvage: whether documents that can not be read are counted as :func:`good_lengths` has them.

    Returns:
        int64, shape ``(cells,)``.

    Raises:
        FormatError: a document is too long, where that is an error.
    """
    lengths_of = partial(good_lengths, source, settings.limit) if salvage else None
    found = measure(source, range(int(bounds[-1])), lambda lengths: lengths, lengths_of)
    counts = np.empty(bounds.size - 1, dtype=np.int64)
    for cell, (first, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        lengths = np.concatenate([next(found) for _ in range(first, stop)])
        try:
            counts[cell] = pack_documents(_lengths_only(lengths), settings, too_long).count
        except FormatError as error:
            raise _named(error, source, range(first, stop), settings) from None
    return counts


def _named(error: FormatError, source: TokenSource, groups: Sequence[int], settings: LMSettings) -> FormatError:
    """The error of the first document of some groups that is too long, with its row.

    The groups are decoded again for it: lengths without those of empty documents do not tell a row's number.
    """
    where = partial(describe_row, source)
    for group in groups:
        row = int(source.groups.first_rows[group])
        for chunk in source.chunks(group):
            documents = Ragged(chunk.values, chunk.offsets, column=chunk.column, where=where, rows=row)
            try:
                split(documents, settings, "error")
            except FormatError as found:
                return found
            row += len(chunk)
    return error


def _lengths_only(lengths: Ids) -> Ragged:
    """Documents of which nothing but their lengths is of interest, without memory for tokens."""
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Ragged(np.broadcast_to(np.zeros((), dtype=np.uint8), (int(offsets[-1]),)), offsets)
