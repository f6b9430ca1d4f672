"""Cells of numbers that pyarrow reads although they are no numbers as the first lines have them: 007, +7, -0, blanks around.

It says nothing of them, so they are looked for where a file is read through to count its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Ids

# What is noted of bytes stays in the processor's cache.
_STEP: Final = 1 << 18
_MOST_BLOCKS: Final = 64
_ZERO: Final = ord("0")
_RETURN: Final = 13


class OddCells:
    """Looks for such cells in lines, block by block.

    Args:
        columns: for each column of numbers, by its place in a line, whether a text is one of its numbers.
        separator: what stands between two values; one ASCII character.
        quote: the character that quotes, if any.

    Attributes:
        found: the columns that have such cells, or may have.
    """

    def __init__(self, columns: Mapping[int, Callable[[str], bool]], separator: str, quote: int | None) -> None:
        self.found: set[int] = set()
        self._columns = dict(columns)
        self._separator = ord(separator)
        self._quote = quote
        self._blanks = [blank for blank in b" \t" if blank != self._separator]
        self._rest: list[bytes] = []  # of a line that goes on

    def look(self, data: NDArray[np.uint8], ends: Ids) -> None:
        """Looks at a block.

        Args:
            data: its bytes.
            ends: where lines end in it.
        """
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
