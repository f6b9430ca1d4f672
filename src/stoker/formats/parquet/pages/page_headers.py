"""The heads of the pages of a column chunk, and whether the pages are those that the footer tells of.

For that only heads are read, and the bytes of pages that carry a checksum, whatever they are encoded and compressed with.
Source: ``parquet.thrift`` and ``README.md`` of Apache parquet-format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.parquet.footer.facts import COMPRESSED, DATA_PAGE, DICTIONARY_PAGE, START, VALUES
from stoker.formats.parquet.footer.thrift import struct_numbers
from stoker.types import Buffer

DATA, INDEX, DICTIONARY, DATA_V2 = 0, 1, 2, 3
"""Kinds of pages."""

# Bytes of a page's head that are looked at, and then at most: what makes it longer are statistics.
_HEAD: Final = 256
_LONGEST_HEAD: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class PageHead:
    """The fields of a page's header.

    Attributes:
        kind: of the page, as ``parquet.thrift`` numbers them.
        at: where its head begins in the buffer.
        start: where its bytes begin there.
        size: how many there are.
        unpacked: how many they are when decompressed; -1 if it does not say.
        numbers: integers and booleans of the kind's own head, by their fields.
        crc: CRC-32 of its bytes, if it carries one.
    """

    kind: int
    at: int
    start: int
    size: int
    unpacked: int
    numbers: Mapping[int, int]
    crc: int | None

    @property
    def entries(self) -> int:
        """Values, and entries of empty and null lists: the first field of each kind's head. -1 if it does not say."""
        return self.numbers.get(1, -1)


def page_heads(buffer: Buffer | memoryview, start: int, size: int) -> Iterator[PageHead]:
    """The heads of the pages that follow each other in ``size`` bytes of a buffer, from ``start`` on.

    Raises:
        CorruptDataError: there is no page, or one that is cut off.
    """
    view, at, end = memoryview(buffer), start, start + size
    raw, head = b"", None
    while at < end:
        # Pages of one size have the same head, which tells its own length: it is not parsed again.
        if head is None or at + len(raw) > end or view[at : at + len(raw)] != raw:
            head = _read(view, at, end)
            raw = bytes(view[at : head.start])
        else:
            head = replace(head, at=at, start=at + len(raw))
        if head.size > end - head.start:
            raise CorruptDataError(
                f"a page of {head.size} bytes begins {end - head.start} bytes before the end of its chunk"
            )
        yield head
        at = head.start + head.size


def bad_pages(buffer: Buffer | memoryview, facts: NDArray[np.int64], shift: int) -> Iterator[str]:
    """Yields what is wrong with the pages of a chunk.

    Args:
        buffer: bytes that hold the chunk.
        facts: of the chunk as :mod:`stoker.formats.parquet.footer.facts` has them, int64 of shape ``(FIELDS,)``; offsets are
            the file's.
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
            page = f"page {number} at byte {head.at + shift}"
            if dictionary and number == 0 and head.kind != DICTIONARY:
                yield f"{page} is no dictionary, as the footer says"
            if dictionary and number == 1 and head.at + shift != int(facts[DATA_PAGE]):
                yield f"{page} is the first one of data; the footer says that this begins at byte {facts[DATA_PAGE]}"
            if head.kind == DICTIONARY and number:
                yield f"{page} is a dictionary behind other pages"
            if head.crc is not None and zlib.crc32(view[head.start : head.start + head.size]) != head.crc:
                yield f"{page} does not have its checksum"
            if head.kind in (DATA, DATA_V2):
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
        try:
            head = _parse(bytes(view[at : min(at + length, end)]), at)
        except IndexError:
            if at + length >= end or length >= _LONGEST_HEAD:
                raise CorruptDataError("its head is cut off, or is none") from None
            length *= 16
            continue
        except CorruptDataError:
            raise CorruptDataError("its head is damaged") from None
        if head.kind not in (DATA, INDEX, DICTIONARY, DATA_V2):
            raise CorruptDataError(f"its head says that it is of kind {head.kind}, which there is not")
        if head.size < 0 or (head.kind != INDEX and head.entries < 0):
            raise CorruptDataError("its head lacks its size")
        return head


def _parse(data: bytes, at: int) -> PageHead:
    """The header that ``data`` begins with, which lies at ``at`` in the buffer."""
    inner: dict[int, dict[int, int]] = {}
    found, length = struct_numbers(data, 0, inner)
    numbers = next((inner[field] for field in (8, 7, 5) if field in inner), {})
    crc = found[4] & 0xFFFFFFFF if 4 in found else None
    return PageHead(found.get(1, -1), at, at + length, found.get(3, -1), found.get(2, -1), numbers, crc)
