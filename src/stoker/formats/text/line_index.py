"""Lines of text that others wrote: where they are, and how a large file is cut into spans at their borders.

A line ends with a newline, before which a carriage return may stand; in a file that begins without newlines, with a carriage
return. Inside of quotes, where a format has them, neither ends a line. Empty lines are no samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.display import counted
from stoker.errors import CorruptDataError
from stoker.formats.common.byte_source import ByteSource
from stoker.formats.common.inspect_header import ShardSpan
from stoker.formats.content import packed_as
from stoker.types import Ids

PIECE_BYTES: Final = 32 << 20
"""A span ends with the first line that ends after so many bytes, if the caller says nothing else."""

_BLOCK: Final = 4 << 20
_HEAD: Final = 1 << 20
_MOST: Final = 1 << 28
NEWLINE: Final = 10
_RETURN: Final = 13
_BOM: Final = b"\xef\xbb\xbf"


LookAt = Callable[[NDArray[np.uint8], Ids], None]


def find_lines(data: NDArray[np.uint8], quote: int | None, newline: int = NEWLINE) -> tuple[Ids, Ids]:
    """Finds where lines begin and end, without their newlines; the last may have none.

    Args:
        data: whole lines; uint8, shape ``(n,)``.
        quote: the character that quotes, if any.
        newline: the character that ends a line.

    Returns:
        Two arrays of int64, shape ``(lines,)``.
    """
    found: list[Ids] = []
    quotes = 0
    for first in range(0, len(data), _BLOCK):  # what is noted of a byte takes memory of a block's only
        some, more = _borders(data[first : first + _BLOCK], quote, quotes & 1, newline)
        found.append(some + first)
        quotes += more
    ends = np.concatenate(found) if found else np.zeros(0, np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), ends + 1])
    if begins[-1] < len(data):
        ends = np.append(ends, len(data))
    else:
        begins = begins[:-1]
    if len(ends):
        returned = (ends > begins) & (data[np.maximum(ends - 1, 0)] == _RETURN)
        ends = ends - returned
        filled = ends > begins
        if not filled.all():
            begins, ends = begins[filled], ends[filled]
    return begins, ends


def _borders(data: NDArray[np.uint8], quote: int | None, inside: int, newline: int) -> tuple[Ids, int]:
    """Newlines that end lines, and the number of quotes; ``inside`` is 1 where the data begins between quotes."""
    newlines: Ids = np.flatnonzero(data == newline)
    if quote is None:
        return newlines, 0
    quotes = np.flatnonzero(data == quote)
    if len(quotes) or inside:
        newlines = newlines[(np.searchsorted(quotes, newlines) + inside) & 1 == 0]
    return newlines, len(quotes)


@dataclass(frozen=True)
class FirstLines:
    """The beginning of a file of text.

    Attributes:
        start: where text begins, behind a byte order mark.
        second: where the second line begins.
        lines: the first lines.
        newline: the character that ends a line.
    """

    start: int
    second: int
    lines: list[bytes]
    newline: int

    @property
    def spec(self) -> Mapping[str, str]:
        """The part of a shard's description that says how lines end; nothing of a usual newline."""
        return {} if self.newline == NEWLINE else {"newline": chr(self.newline)}


def _newline_of(data: NDArray[np.uint8], quote: int | None, *, whole: bool) -> int:
    """A carriage return, if one stands alone and there are no newlines; else a newline."""
    if len(_borders(data, quote, 0, NEWLINE)[0]):
        return NEWLINE
    returns, _ = _borders(data if whole else data[:-1], quote, 0, _RETURN)
    return _RETURN if len(returns) else NEWLINE


def first_lines(source: ByteSource, quote: int | None, count: int, least: int) -> FirstLines:
    """Reads the first lines of a file.

    Args:
        source: the file.
        quote: the character that quotes, if any.
        count: how many lines to read, at most.
        least: how many to read also where they end behind the first MiB, which is all that is looked at else.

    Raises:
        CorruptDataError: these are of more than 256 MiB, or the file is compressed or UTF-16.
    """
    head, size = b"", min(source.size, _HEAD)
    while True:
        head += source.read(len(head), size)
        if what := packed_as(head[:16]):
            raise CorruptDataError(f"{source.where}: not UTF-8 text, but {what}")
        start = len(_BOM) if head.startswith(_BOM) else 0
        data = np.frombuffer(head, np.uint8)[start:]
        newline = _newline_of(data, quote, whole=size == source.size)
        begins, ends = find_lines(data, quote, newline)
        second = start + int(begins[1]) if len(begins) > 1 else size
        if size < source.size:  # the last one may be cut off
            begins, ends = begins[:-1], ends[:-1]
        if len(begins) >= least or size == source.size:
            lines = [bytes(data[a:b]) for a, b in zip(begins[:count].tolist(), ends[:count].tolist(), strict=True)]
            return FirstLines(start, second, lines, newline)
        if size >= _MOST:
            raise CorruptDataError(
                f"{source.where}: its first {counted(least, 'line')} of more than {size >> 20} MiB: is it text, and are "
                "its quotes closed?"
            )
        size = min(source.size, 4 * size)


def line_spans(
    source: ByteSource,
    start: int,
    quote: int | None,
    piece_bytes: int,
    look: LookAt | None = None,
    newline: int = NEWLINE,
) -> list[ShardSpan]:
    """A file's lines from a byte on, as spans of about so many bytes. The file is read once through, in blocks.

    Args:
        source: the file.
        start: where its first line begins.
        quote: the character that quotes, if any.
        piece_bytes: how many bytes a span has at least, but for the last.
        look: gets each block, and where lines end in it.
        newline: the character that ends a line.

    Raises:
        CorruptDataError: a quote is not closed, or some lines end with newlines and others with carriage returns.
    """
    spans: list[ShardSpan] = []
    begin, samples = start, 0
    for stop, ends, filled in _counted(source, start, quote, look, newline):
        counted = np.concatenate([np.zeros(1, np.int64), np.cumsum(filled)])
        at = 0
        while at < len(ends):
            # The first line whose end, newline included, makes the span large enough.
            last = int(np.searchsorted(ends, begin + piece_bytes - 1))
            if last >= len(ends):
                break
            samples += int(counted[last + 1] - counted[at])
            end = min(int(ends[last]) + 1, source.size)
            if samples:
                spans.append(ShardSpan(begin, end, samples))
            begin, samples, at = end, 0, last + 1
        samples += int(counted[-1] - counted[at])
        if stop == source.size and samples:
            spans.append(ShardSpan(begin, stop, samples))
    return spans


def _counted(
    source: ByteSource, start: int, quote: int | None, look: LookAt | None, newline: int
) -> Iterator[tuple[int, Ids, NDArray[np.bool_]]]:
    """For each block where it ends, its lines' ends in the file, and whether each line has anything in it.

    A last line without a newline ends with the file.
    """
    quotes = samples = 0
    previous = start - 1  # the newline before the line that goes on
    held = 0  # the byte before the block
    for first in range(start, source.size, _BLOCK):
        stop = min(first + _BLOCK, source.size)
        data = np.frombuffer(source.read(first, stop), np.uint8)
        ends, more = _borders(data, quote, quotes & 1, newline)
        if newline != NEWLINE and len(others := _borders(data, quote, quotes & 1, NEWLINE)[0]):
            raise CorruptDataError(
                f"{source.where}: its first lines end with carriage returns, and at byte {first + int(others[0]):,} is a "
                "newline: let all lines end alike, such as with `tr '\\r' '\\n' < FILE > NEW`"
            )
        quotes += more
        there = ends + first
        if stop == source.size and (not len(there) or int(there[-1]) != stop - 1):
            there = np.append(there, stop)
        if look is not None:
            look(data, there - first)
        if len(there):
            before = np.concatenate([np.array([previous], np.int64), there[:-1]])
            lengths = there - before - 1
            last = np.where(there > first, data[np.maximum(there - first - 1, 0)], held)
            filled = (lengths > 1) | ((lengths == 1) & (last != _RETURN))
            previous = int(there[-1])
            if stop == source.size and quotes & 1:  # so the last line is without its end
                raise CorruptDataError(
                    f"{source.where}: a quote ({chr(quote or 0)!r}) is not closed: all from sample "
                    f"{samples + int(filled[:-1].sum()):,} on, at byte {int(before[-1]) + 1:,}, is one line. If the file "
                    'quotes nothing, say so with format_options={"quote": ""}'
                )
            samples += int(filled.sum())
        else:
            filled = np.zeros(0, np.bool_)
        held = int(data[-1])
        yield stop, there, filled


def check_newlines(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check that the lines of two files end alike, as their specs say.

    Raises:
        ValueError: they do not.
    """
    if first.get("newline") != other.get("newline"):
        raise ValueError("lines of one end with newlines, those of the other with carriage returns alone")
