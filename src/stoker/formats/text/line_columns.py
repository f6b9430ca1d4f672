"""Many lines of text as columns at once, by pyarrow, where it gives what reading line by line gives.

Reading line by line defines the values of a line, and which lines are wrong. What pyarrow reads otherwise is found in
the text before, or in the columns afterwards: both functions here return ``None`` then, and the caller reads line by line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.parquet.arrow import pyarrow
from stoker.types import Batch, Column, Ids

# Text that is read in one step is one block, mostly: what lies across two blocks is copied. A line has to fit into a block.
_BLOCK: Final = 1 << 20
_LARGEST: Final = 1 << 29
_NEWLINE: Final = 10
_RETURN: Final = 13
# Keys that are not read may hold numbers of more digits than Python takes, or objects nested too deeply for it.
_DIGITS_STEP: Final = 64
_BRACKETS: Final = 200
_NOT_FINITE: Final = re.compile(rb"(?:Inf(?:inity)?|NaN)\s*[,\]}]")
# A whole number that a float may not hold: those below have at most 15 digits.
_LONG_WHOLE: Final = re.compile(rb"(?<![0-9.])[0-9]{16,}(?![0-9.eE])")
_LARGE: Final = 1e15
_WHOLE_ZERO: Final = re.compile(rb"-0[\s,}]")


@dataclass(frozen=True)
class LineText:
    """Lines, with what was between them, or a newline between each two.

    ``text``: the bytes; of any size. ``begins``, ``ends``: where each line begins and ends in them, its newline not included;
    int64, shape ``(n,)``. No line is empty, and between a line and the next there are newlines alone.
    """

    text: bytes
    begins: Ids
    ends: Ids

    @property
    def octets(self) -> NDArray[np.uint8]:
        """The bytes as an array."""
        return np.frombuffer(self.text, np.uint8)

    @property
    def longest(self) -> int:
        """Bytes of the longest line."""
        return int((self.ends - self.begins).max())

    def is_plain(self) -> bool:
        """Whether the text is UTF-8 without null characters, and of a size that is worth it."""
        text = self.text
        if len(text) > _LARGEST or b"\0" in text:
            return False
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError:
                return False
        return True


@dataclass(frozen=True)
class JSONColumns:
    """Reads lines that are JSON objects.

    ``kinds``: name and kind of each column. ``whole``: whether these are all keys that a line may have.
    """

    kinds: tuple[tuple[str, str], ...]
    whole: bool

    def read(self, lines: LineText, columns: Sequence[str]) -> Batch | None:
        """The columns' values, or ``None`` where they have to be read line by line."""
        read = self.kinds if self.whole else tuple(pair for pair in self.kinds if pair[0] in columns)
        if not columns or any(kind == "json" for _, kind in read) or not self._is_regular(lines):
            return None
        pa, pj = pyarrow(), pyarrow("json")
        block = max(_BLOCK, 2 * lines.longest)
        try:
            table = pj.read_json(
                pa.BufferReader(lines.text),
                pj.ReadOptions(use_threads=False, block_size=block),
                pj.ParseOptions(
                    explicit_schema=_schema(read), unexpected_field_behavior="error" if self.whole else "ignore"
                ),
            )
            if table.num_rows != len(lines.begins):
                return None
            exact = lines.text if self.whole else b""
            batch = {name: _values(table.column(name), exact) for name in columns}
        except (pa.ArrowException, UnicodeError):
            return None
        if any(map(_has_negative_zero, batch.values())) and _WHOLE_ZERO.search(lines.text):
            return None  # Python reads -0 as an integer, which has no sign then
        return _complete(batch)

    def _is_regular(self, lines: LineText) -> bool:
        """Whether each line is an object if the text is a row of as many objects, and nothing is read that Python refuses.

        A newline within an object can not have ``}`` before and ``{`` behind it, so all of them are between two objects.
        """
        octets = lines.octets
        if (
            not lines.is_plain()
            or (octets[lines.begins] != ord("{")).any()
            or (octets[lines.ends - 1] != ord("}")).any()
        ):
            return False
        if lines.longest > 512 and _has_long_number(octets):
            return False
        if self.whole:
            return True
        text = lines.text
        if (b"Inf" in text or b"NaN" in text) and _NOT_FINITE.search(text):
            return False
        if text.count(b"[") + text.count(b"{") <= len(lines.begins) + _BRACKETS:
            return True
        brackets = (octets == ord("[")) | (octets == ord("{"))
        return int(np.add.reduceat(brackets, lines.begins, dtype=np.int64).max()) <= _BRACKETS


@dataclass(frozen=True)
class CSVColumns:
    """Reads lines of separated values.

    Attributes:
        kinds: name and kind of each value of a line, in order.
        quote: the character that quotes; empty for none.
        empty: whether an empty value of a ``float`` column is NaN.
        found: columns of numbers whose kind the first lines told.
        odd: those of them that hold other text somewhere, which pyarrow takes for numbers.
    """

    kinds: tuple[tuple[str, str], ...]
    separator: str
    quote: str
    empty: bool
    found: tuple[str, ...] = ()
    odd: frozenset[str] = frozenset()

    def read(self, lines: LineText, columns: Sequence[str]) -> Batch | None:
        """The columns' values, or ``None`` where they have to be read line by line."""
        kinds = dict(self.kinds)
        quoted = bool(self.quote) and self.quote.encode() in lines.text
        if not columns or not self.odd.isdisjoint(columns) or not self._is_regular(lines):
            return None
        if quoted and not self._is_quoted_well(lines):
            return None
        if any(kinds[name] == "int" for name in columns) and _has_hexadecimal(lines):
            return None  # pyarrow takes 0x1F for a number
        pa, pc = pyarrow(), pyarrow("csv")
        block = max(_BLOCK, 2 * lines.longest)
        read = tuple((name, kinds[name]) for name in columns)
        try:
            reader = pc.open_csv(  # sooner begun than read_csv
                pa.BufferReader(lines.text),
                pc.ReadOptions(use_threads=False, block_size=block, column_names=list(kinds)),
                pc.ParseOptions(
                    delimiter=self.separator, quote_char=self.quote if quoted else False, newlines_in_values=quoted
                ),
                pc.ConvertOptions(
                    column_types=_schema(read),
                    include_columns=list(columns),
                    null_values=[""] if self.empty else [],
                    true_values=[],
                    false_values=[],
                    check_utf8=False,  # all of the text is, and what divides it is ASCII
                ),
            )
            table = reader.read_all()
            if table.num_rows != len(lines.begins):
                return None
            batch = {
                name: _values(table.column(name), lines.text if name in self.found else b"", empty=self.empty)
                for name in columns
            }
        except (pa.ArrowException, UnicodeError):
            return None
        return _complete(batch)

    def _is_regular(self, lines: LineText) -> bool:
        """Whether what ends a line for pyarrow does so, and nothing else does."""
        octets = lines.octets
        if len(self.separator) != 1 or not self.separator.isascii() or not lines.is_plain():
            return False
        if lines.text.startswith(b"\xef\xbb\xbf"):
            return False
        if b"\r" not in lines.text:
            return True
        # Mostly each line ends with one, and there is no other.
        if np.count_nonzero(octets == _RETURN) == np.count_nonzero(octets[lines.ends[:-1]] == _RETURN):
            return True
        if (octets[lines.ends - 1] == _RETURN).any():
            return False
        returns = np.flatnonzero(octets == _RETURN)
        return bool(returns[-1] < len(octets) - 1 and (octets[returns + 1] == _NEWLINE).all())

    def _is_quoted_well(self, lines: LineText) -> bool:
        """Whether quotes are around whole values or doubled, and closed where a line ends."""
        octets = lines.octets
        quote, separator = ord(self.quote), ord(self.separator)
        quotes = np.flatnonzero(octets == quote)
        if len(quotes) % 2 or (np.searchsorted(quotes, lines.begins) % 2).any():
            return False
        before = octets[quotes[::2] - 1]
        opened = (quotes[::2] == 0) | (before == separator) | (before == _NEWLINE) | (before == quote)
        last = len(octets) - 1
        behind = octets[np.minimum(quotes[1::2] + 1, last)]
        closed = (quotes[1::2] == last) | (behind == separator) | (behind == _NEWLINE) | (behind == _RETURN)
        return bool(opened.all() and (closed | (behind == quote)).all())


@lru_cache(maxsize=64)
def _schema(kinds: tuple[tuple[str, str], ...]) -> Any:
    pa = pyarrow()
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in kinds])


def _values(column: Any, exact: bytes, *, empty: bool = False) -> Column | None:
    """A column as line by line reading gives it; ``None`` where that may be otherwise.

    ``column``: a ``pyarrow.ChunkedArray``. ``exact``: the text, if a float may stand for no whole number that it does not
    hold. ``empty``: whether null stands for a NaN.
    """
    types, kind, nulls = pyarrow().types, column.type, column.null_count
    if nulls and not (empty and types.is_floating(kind)):
        return None
    if types.is_string(kind):
        texts: list[Any] = []
        for chunk in column.chunks:  # each by itself takes two thirds of the time of all of them together
            texts += chunk.to_numpy(zero_copy_only=False).tolist()
        return texts
    values: NDArray[Any] = column.to_numpy()
    filled = len(values) - nulls
    large = types.is_floating(kind) and int((np.abs(values) < _LARGE).sum()) != filled
    if large and (int(np.isfinite(values).sum()) != filled or _LONG_WHOLE.search(exact)):
        return None
    return values if values.flags.writeable and values.flags.owndata else values.copy()


def _complete(batch: Mapping[str, Column | None]) -> Batch | None:
    """The batch, if no column is missing."""
    found = {name: values for name, values in batch.items() if values is not None}
    return found if len(found) == len(batch) else None


def _has_negative_zero(values: Column | None) -> bool:
    if not isinstance(values, np.ndarray) or values.dtype != np.float64:
        return False
    return bool((np.signbit(values) & (values == 0)).any())


def _has_hexadecimal(lines: LineText) -> bool:
    """Whether there is a number such as 0x1F, or text with such a beginning."""
    octets = lines.octets
    for letter in b"xX":
        if letter not in lines.text:
            continue
        # Two characters are one number, of which every other one begins at an even place.
        for first in (0, 1):
            pairs = octets[first : first + (len(octets) - first) // 2 * 2].view("<u2")
            if (pairs == ord("0") + (letter << 8)).any():
                return True
    return False


def _has_long_number(octets: NDArray[np.uint8]) -> bool:
    """Whether there may be more digits in a row than Python takes for a number."""
    limit = sys.get_int_max_str_digits()
    if not limit:
        return False
    digits = octets[::_DIGITS_STEP] - ord("0") < 10
    row = limit // _DIGITS_STEP - 1
    if len(digits) < row:
        return False
    return bool(np.lib.stride_tricks.sliding_window_view(digits, row).all(axis=1).any())
