"""Finds an Arrow IPC file's record batches, their rows and how large they become in memory.

pyarrow tells neither without reading a batch whole, and takes memory for what a compressed buffer claims to hold. What is
read here are the few fields of the flatbuffers (Message.fbs and File.fbs of Apache Arrow) that tell it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stoker.errors import CorruptDataError
from stoker.formats.common.inspect_header import ByteSource

_MAGIC: Final = b"ARROW1"
_SCHEMA: Final = 1
_DICTIONARY: Final = 2
_BATCH: Final = 3
_CONTINUATION: Final = 0xFFFFFFFF
_MOST_METADATA: Final = 1 << 28
_MOST_UNPACKED: Final = 1 << 32
_MOST_RATIO: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ArrowFileLayout:
    """Facts that a file's messages tell.

    Attributes:
        stream: whether it is of the streaming format, without a footer.
        compressed: whether any buffer is.
        unpacked: bytes of all compressed buffers, unpacked, as they say.
    """

    stream: bool
    rows: tuple[int, ...]
    compressed: bool
    unpacked: int


class _Table:
    """A table of a flatbuffer; offsets are checked by the buffer's own bounds."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._number("<i", at)
        self._size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise struct.error("an offset before the buffer")
        number: int = struct.unpack_from(kind, self._data, at)[0]
        return number

    def _offset(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        offset = self._number("<H", self._fields + entry)
        return self._at + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        """A field's value, 0 where it is left out."""
        offset = self._offset(field)
        return 0 if offset is None else self._number(kind, offset)

    def table(self, field: int) -> _Table | None:
        """A table that a field leads to."""
        offset = self._offset(field)
        return None if offset is None else _Table(self._data, offset + self._number("<I", offset))

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """A vector of structs."""
        offset = self._offset(field)
        if offset is None:
            return []
        start = offset + self._number("<I", offset)
        count, size = self._number("<I", start), struct.calcsize(layout)
        if start + 4 + count * size > len(self._data):
            raise struct.error(f"a vector of {count} entries leaves the buffer")
        return list(struct.iter_unpack(layout, self._data[start + 4 : start + 4 + count * size]))


def arrow_layout(source: ByteSource) -> ArrowFileLayout:
    """Read a file's messages, without their bodies.

    CorruptDataError if it is no Arrow IPC file, or a compressed buffer claims to hold an absurd amount.
    """
    try:
        return _layout(source)
    except (struct.error, ValueError, OverflowError) as error:
        raise CorruptDataError(f"{source.where}: not an Arrow IPC file: {error}") from None


def _layout(source: ByteSource) -> ArrowFileLayout:
    size = source.size
    if size < 8:
        raise ValueError(f"{size} bytes")
    stream = source.read(0, 6) != _MAGIC
    rows: list[int] = []
    compressed, unpacked = False, 0
    for start, body in _walk(source) if stream else _listed(source):
        message, begin, end = _message(source, start)
        kind = message.number(1, "<B")
        header = message.table(2)
        length = message.number(3, "<q")
        if header is None or length != body or not 0 <= length <= size - end or begin > size:
            raise ValueError(f"the message at byte {start} leaves the file")
        batch = header.table(1) if kind == _DICTIONARY else header
        if kind == _SCHEMA or batch is None:
            continue
        if kind not in (_BATCH, _DICTIONARY):
            raise ValueError(f"the message at byte {start} is of the unknown kind {kind}")
        if batch.table(3) is not None:
            compressed = True
            unpacked += _unpacked(source, batch, end, length)
        if kind == _BATCH:
            rows.append(batch.number(0, "<q"))
            if rows[-1] < 0:
                raise ValueError(f"a batch of {rows[-1]} rows")
    return ArrowFileLayout(stream, tuple(rows), compressed, unpacked)


def _listed(source: ByteSource) -> Iterator[tuple[int, int]]:
    """Begin and body's size of the messages that a footer lists."""
    size = source.size
    tail = source.read(max(0, size - 10), size)
    if not tail.endswith(_MAGIC) or len(tail) < 10:
        raise ValueError("it does not end as one: cut off?")
    length = struct.unpack_from("<i", tail)[0]
    if not 0 < length <= min(size - 10, _MOST_METADATA):
        raise ValueError(f"its footer claims {length} bytes")
    footer = _Table.root(source.read(size - 10 - length, size - 10))
    for field in (2, 3):
        for start, metadata, _, body in footer.structs(field, "<qiiq"):
            if start < 0 or metadata < 0 or body < 0:
                raise ValueError("a message before the file's beginning")
            yield start, body


def _walk(source: ByteSource) -> Iterator[tuple[int, int]]:
    """Begin and body's size of the messages of a stream, one after the other."""
    at = 0
    first = True
    while at + 8 <= source.size:
        word, length = struct.unpack("<II", source.read(at, at + 8))
        if not (length if word == _CONTINUATION else word):
            break
        message, _, end = _message(source, at)
        if first and message.number(1, "<B") != _SCHEMA:
            raise ValueError("it does not begin with a schema")
        body = message.number(3, "<q")
        if not 0 <= body <= source.size - end:
            raise ValueError(f"the message at byte {at} leaves the file")
        yield at, body
        at = end + -(-body // 8) * 8
        first = False
    if first:
        raise ValueError("it has no messages")


def _message(source: ByteSource, start: int) -> tuple[_Table, int, int]:
    """A message's table, where its metadata begin and end."""
    if not 0 <= start <= source.size - 8:
        raise ValueError(f"a message should begin at byte {start}, and the file has {source.size} bytes")
    word, length = struct.unpack("<II", source.read(start, start + 8))
    begin = start + 8
    if word != _CONTINUATION:  # before version 0.15 there was no such mark
        begin, length = start + 4, word
    if not 0 < length <= min(_MOST_METADATA, source.size - begin):
        raise ValueError(f"the message at byte {start} claims {length} bytes")
    return _Table.root(source.read(begin, begin + length)), begin, begin + length


def _unpacked(source: ByteSource, batch: _Table, start: int, length: int) -> int:
    """Bytes that a batch's buffers say they hold; too many are refused before pyarrow takes memory for them."""
    total = 0
    for offset, size in batch.structs(2, "<qq"):
        if offset < 0 or size < 0 or offset + size > length:
            raise ValueError(f"a buffer of {size} bytes leaves its batch")
        if size >= 8:
            claimed = struct.unpack("<q", source.read(start + offset, start + offset + 8))[0]
            if claimed > size * _MOST_RATIO or claimed < -1:
                raise ValueError(f"a compressed buffer of {size} bytes claims to hold {claimed}")
            total += max(0, claimed)
    if total > _MOST_UNPACKED:
        raise ValueError(f"a batch of {length} bytes claims to hold {total}")
    return total
