"""Whether the pages of a column chunk are those that the footer tells of, whatever they are encoded and compressed with.

Only the heads of pages are read, and the bytes of those that carry a checksum. Source: ``parquet.thrift`` and ``README.md``
of Apache parquet-format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.parquet.facts import COMPRESSED, DATA_PAGE, DICTIONARY_PAGE, START, VALUES
from stoker.formats.parquet.thrift import Reader
from stoker.types import Buffer

__all__ = ["PageHead", "bad_pages", "page_heads"]

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
# Bytes of a page's head that are looked at, and then at most: what makes it longer are statistics.
_HEAD: Final = 256
_LONGEST_HEAD: Final = 1 << 26
_STRUCT: Final = 12


@dataclass(frozen=True, slots=True)
class PageHead:
    """What the head of a page says.

    Attributes:
        kind: of the page, as ``parquet.thrift`` numbers them.
        at: where its head begins in the buffer.
        start: where its bytes begin there.
        size: how many there are.
        entries: values, and entries of empty and null lists.
        crc: CRC-32 of its bytes, if it carries one.
    """

    kind: int
    at: int
    start: int
    size: int
    entries: int
    crc: int | None


def page_heads(buffer: Buffer | memoryview, start: int, size: int) -> Iterator[PageHead]:
    """The heads of the pages that follow each other in ``size`` bytes of a buffer, from ``start`` on.

    Raises:
        CorruptDataError: what lies there is no page, or is cut off.
    """
    view, at, end = memoryview(buffer), start, start + size
    while at < end:
        head = _read(view, at, end)
        if head.size > end - head.start:
            raise CorruptDataError(
                f"a page of {head.size} bytes begins {end - head.start} bytes before the end of its chunk"
            )
        yield head
        at = head.start + head.size


def bad_pages(buffer: Buffer | memoryview, facts: NDArray[np.int64], shift: int) -> Iterator[str]:
    """What is wrong with the pages of a chunk, if anything.

    Args:
        buffer: bytes that hold the chunk.
        facts: of the chunk as :mod:`stoker.formats.parquet.facts` has them, int64 of shape ``(FIELDS,)``; places are the
            file's.
        shift: byte of the file that the buffer begins with.
    """
    view = memoryview(buffer)
    begin, size = int(facts[START]) - shift, int(facts[COMPRESSED])
    if begin < 0 or begin + size > len(view):
        yield "its bytes are not all there"
        return
    entries = number = 0
    dictionary = int(facts[DICTIONARY_PAGE]) >= 0
    try:
        for head in page_heads(view, begin, size):
            place = f"page {number} at byte {head.at + shift}"
            if dictionary and number == 0 and head.kind != _DICTIONARY:
                yield f"{place} is no dictionary, as the footer says"
            if dictionary and number == 1 and head.at + shift != int(facts[DATA_PAGE]):
                yield f"{place} is the first one of data; the footer says that this begins at byte {facts[DATA_PAGE]}"
            if head.kind == _DICTIONARY and number:
                yield f"{place} is a dictionary behind other pages"
            if head.crc is not None and zlib.crc32(view[head.start : head.start + head.size]) != head.crc:
                yield f"{place} does not have its checksum"
            if head.kind in (_DATA, _DATA_V2):
                entries += head.entries
            number += 1
    except CorruptDataError as error:
        yield f"page {number}: {error}"
        return
    if entries != facts[VALUES]:
        yield f"its {number} pages hold {entries} values, the footer says {facts[VALUES]}"


def _read(view: memoryview, at: int, end: int) -> PageHead:
    length = _HEAD
    while True:
        reader = Reader(bytes(view[at : min(at + length, end)]))
        try:
            kind, size, entries, crc = _parse(reader)
        except IndexError:
            if at + length >= end or length >= _LONGEST_HEAD:
                raise CorruptDataError("its head is cut off, or is none") from None
            length *= 16
            continue
        except CorruptDataError:
            raise CorruptDataError("its head is damaged") from None
        if kind not in (_DATA, _INDEX, _DICTIONARY, _DATA_V2):
            raise CorruptDataError(f"its head says that it is of kind {kind}, which there is not")
        if size < 0 or (kind != _INDEX and entries < 0):
            raise CorruptDataError("its head lacks its size")
        return PageHead(kind, at, at + reader.at, size, entries, crc)


def _parse(reader: Reader) -> tuple[int, int, int, int | None]:
    """Kind, bytes, entries and checksum of a page."""
    kind = size = entries = -1
    crc: int | None = None
    for field, type_ in reader.fields():
        if field == 1:
            kind = reader.integer(type_)
        elif field == 3:
            size = reader.integer(type_)
        elif field == 4:
            crc = reader.integer(type_) & 0xFFFFFFFF
        elif field in (5, 7, 8) and type_ == _STRUCT:
            entries = _first_number(reader)
        else:
            reader.skip(type_)
    return kind, size, entries, crc


def _first_number(reader: Reader) -> int:
    """The first field of a struct, which is the number of values in each of them."""
    found = -1
    for field, type_ in reader.fields():
        if field == 1:
            found = reader.integer(type_)
        else:
            reader.skip(type_)
    return found
