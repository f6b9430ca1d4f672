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
from stoker.formats.common.checks import packed_as
from stoker.formats.common.gather import cut
from stoker.formats.common.inspect_header import ByteSource, ShardSpan
from stoker.types import Ids

# What is noted of bytes stays in the processor's cache.
_STEP: Final = 1 << 18
_MOST_BLOCKS: Final = 64
_ZERO: Final = ord("0")


class OddCells:
    """Looks for such cells in lines, block by block.

    ``columns``: for each column of numbers, by its place in a line, whether a text is one of its numbers. ``separator``: what
    stands between two values; one ASCII character. ``quote``: the character that quotes, if any.

    ``found``: the columns that have such cells, or may have.
    """

    def __init__(self, columns: Mapping[int, Callable[[str], bool]], separator: str, quote: int | None) -> None:
        self.found: set[int] = set()
        self._columns = dict(columns)
        self._separator = ord(separator)
        self._quote = quote
        self._blanks = [blank for blank in b" \t" if blank != self._separator]
        self._rest: list[bytes] = []  # of a line that goes on

    def look(self, data: NDArray[np.uint8], ends: Ids) -> None:
        """Looks at a block. ``ends``: where lines end in it."""
        if not self._columns:
            return
        if not len(ends):
            self._rest.append(data.tobytes())
            if len(self._rest) > _MOST_BLOCKS:  # any may be in it
                self.found.update(self._columns)
                self._columns.clear()
                self._rest.clear()
            return
        at, whole = int(ends[0]) + 1, int(ends[-1]) + 1
        line = b"".join([*self._rest, data[:at].tobytes()])
        self._look(np.frombuffer(line, np.uint8), ends[:1] + len(line) - min(at, len(data)))
        self._rest = [data[whole:].tobytes()]
        first = 1
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, at + _STEP)))
            end = int(ends[last - 1]) + 1
            self._look(data[at:end], ends[first:last] - at)
            first, at = last, end

    def _look(self, data: NDArray[np.uint8], ends: Ids) -> None:
        """Looks at whole lines. The last may be without its newline."""
        marks = data == self._separator
        marks[ends[ends < len(data)]] = True
        at = np.concatenate([self._begins(data, marks), self._trailed(data, marks)])
        if not len(at):
            return
        borders = np.flatnonzero(marks)
        if self._quote is not None:
            quotes = np.flatnonzero(data == self._quote)
            borders = borders[np.searchsorted(quotes, borders) % 2 == 0]
        begins = np.concatenate([np.zeros(1, np.int64), ends + 1])[np.searchsorted(ends, at)]
        before = np.searchsorted(borders, at)
        places = before - np.searchsorted(borders, begins)
        for place, is_number in [*self._columns.items()]:
            for border in np.unique(before[places == place]).tolist():
                begin = int(borders[border - 1]) + 1 if border else 0
                cell = data[begin : int(borders[border]) if border < len(borders) else len(data)].tobytes()
                text = cell.removesuffix(b"\r").decode("utf-8", "replace")
                if self._quote is not None:
                    text = text.removeprefix(chr(self._quote)).removesuffix(chr(self._quote))
                if text and not is_number(text):
                    self.found.add(place)
                    del self._columns[place]
                    break

    def _begins(self, data: NDArray[np.uint8], marks: NDArray[np.bool_]) -> Ids:
        """Places where cells begin with a zero or a sign in front of a number, or with a blank."""
        at = np.flatnonzero(marks[:-1] & (data[1:] <= _ZERO)) + 1
        if data[0] <= _ZERO:
            at = np.append(at, 0)
        last = len(data) - 1
        if self._quote is not None:
            at = at + ((data[at] == self._quote) & (at < last))
        one, two = data[at], data[np.minimum(at + 1, last)]
        bad = (one == _ZERO) & (two - _ZERO < 10)
        bad |= (one == ord("-")) & (two == _ZERO) & (data[np.minimum(at + 2, last)] != ord("."))
        bad |= one == ord("+")
        for blank in self._blanks:
            bad |= (one == blank) & (two <= ord("9"))
        found: Ids = at[bad]
        return found

    def _trailed(self, data: NDArray[np.uint8], marks: NDArray[np.bool_]) -> Ids:
        """Places where cells end with a blank behind a number."""
        found = np.zeros(0, np.int64)
        for blank in self._blanks:
            blanks = data == blank
            if not blanks.any():
                continue
            ending = marks[1:] | (data[1:] == _RETURN)
            if self._quote is not None:
                ending |= data[1:] == self._quote
            at = np.flatnonzero(blanks[:-1] & ending)
            if blanks[-1]:
                at = np.append(at, len(data) - 1)
            before = data[np.maximum(at - 1, 0)]
            found = np.append(found, at[(before - _ZERO < 10) | (before == blank) | (before == ord("."))])
        return found


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

    ``data``: whole lines; uint8, shape ``(n,)``. ``quote``: the character that quotes, if any. ``newline``: the character
    that ends a line. Gives two arrays of int64, shape ``(lines,)``.
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

    CorruptDataError if these are of more than 256 MiB, or the file is compressed or UTF-16. ``quote``: the character that
    quotes, if any. ``count``: how many lines to read, at most. ``least``: how many to read also where they end behind the
    first MiB, which is all that is looked at else.
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
            return FirstLines(start, second, cut(head[start:], begins[:count], ends[:count]), newline)
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

    CorruptDataError if a quote is not closed, or some lines end with newlines and others with carriage returns.

    Args:
        quote: the character that quotes, if any.
        piece_bytes: how many bytes a span has at least, but for the last.
        look: gets each block, and where lines end in it.
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
                spans.append((begin, end, samples))
            begin, samples, at = end, 0, last + 1
        samples += int(counted[-1] - counted[at])
        if stop == source.size and samples:
            spans.append((begin, stop, samples))
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
    """Check that the lines of two files end alike, as their specs say. ValueError if they do not."""
    if first.get("newline") != other.get("newline"):
        raise ValueError("lines of one end with newlines, those of the other with carriage returns alone")
