"""Files of lines: CSV and JSON lines. Numbers are digits, bytes are letters that need no escapes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Final

from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import LETTERS, FileContent
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.ragged import cells, sizes
from stoker_bench.generation.segments import Finish, Segment, StreamBytes, record_segments

_DIGITS: Final = Finish(table=bytes(ord("0") + byte % 10 for byte in range(256)))
_BIT: Final = Finish(table=bytes(ord("0") + byte % 2 for byte in range(256)))

# Numbers of a type: what they begin with, and how many random digits follow.
_NUMBERS: Final = {
    "bool": (b"", 1),
    "int8": (b"1", 1),
    "uint8": (b"1", 2),
    "int16": (b"1", 4),
    "uint16": (b"1", 4),
    "int32": (b"1", 9),
    "uint32": (b"1", 9),
    "int64": (b"1", 17),
    "uint64": (b"1", 17),
    "float16": (b"0.", 4),
    "float32": (b"0.", 8),
    "float64": (b"0.", 16),
}


class _LineLayout(GeneratedLayout):
    """Base of the layouts of lines."""

    quote = b'"'

    def top(self) -> bytes:
        """The file's first line."""
        return b""

    @abstractmethod
    def marks(self) -> list[bytes]:
        """The bytes before each value, and behind the last."""

    def size(self, number: int) -> int | None:
        rows, content = self.spec.samples_per_file, FileContent(self.spec, number)
        line = sum(map(len, self.marks()))
        line += sum(sum(map(len, _value(content, column, 0))) for column in content.columns if _is_number(column))
        texts = [column for column in content.columns if not _is_number(column)]
        fixed = len(self.top()) + rows * (line + 2 * len(self.quote) * len(texts))
        numbers = rows * sum(column.width or 0 for column in content.columns if _is_number(column))
        total = sum(int(sizes(content, first, min(1 << 16, rows - first)).sum()) for first in range(0, rows, 1 << 16))
        return fixed + total - numbers

    def segments(self, number: int) -> Iterator[Segment]:
        content, rows = FileContent(self.spec, number), self.spec.samples_per_file
        marks = self.marks()
        yield self.top()
        if all(column.width is not None for column in content.columns):
            yield from record_segments(
                self._line(content, marks, [column.width or 0 for column in content.columns]), rows
            )
            return
        for row in cells(content, rows):
            yield from self._line(content, marks, [cell.size for cell in row])

    def _line(self, content: FileContent, marks: list[bytes], lengths: list[int]) -> list[Segment]:
        line: list[Segment] = []
        for mark, column, length in zip(marks, content.columns, lengths, strict=False):
            values = _value(content, column, length)
            line += [mark, *values] if _is_number(column) else [mark + self.quote, *values, self.quote]
        return [*line, marks[-1]]


def _is_number(column: Column) -> bool:
    return column.numeric and not column.shape


def _value(content: FileContent, column: Column, length: int) -> list[Segment]:
    if not _is_number(column):
        if column.dtype == "str":
            return [content.sized(column, length)]
        return [StreamBytes(length, content.noise, LETTERS)]
    first, digits = _NUMBERS[column.dtype]
    return [first, StreamBytes(digits, content.noise, _BIT if column.dtype == "bool" else _DIGITS)]


class JSONLayout(_LineLayout):
    """An object a line."""

    def marks(self) -> list[bytes]:
        names = [column.name.encode() for column in self.spec.fields]
        return [(b"{" if not number else b", ") + b'"%b": ' % name for number, name in enumerate(names)] + [b"}\n"]


class CSVLayout(_LineLayout):
    """Comma-separated values, with the columns' names in the first line."""

    quote = b""

    def top(self) -> bytes:
        return b",".join(column.name.encode() for column in self.spec.fields) + b"\n"

    def marks(self) -> list[bytes]:
        return [b""] + [b","] * (len(self.spec.fields) - 1) + [b"\n"]
