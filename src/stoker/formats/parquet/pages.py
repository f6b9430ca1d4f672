"""The pages of a column chunk: what their heads say, and their bytes, decompressed.

Source: ``parquet.thrift`` and ``README.md`` of Apache parquet-format.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.compression import parse_compression
from stoker.formats.parquet.facts import CODEC, COMPRESSED, START, UNCOMPRESSED, VALUES
from stoker.formats.parquet.thrift import Reader
from stoker.types import Buffer

__all__ = ["PLAIN", "OtherPagesError", "Page", "Unpacker", "read_pages"]

PLAIN: Final = 0
_DICTIONARIES: Final = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_RLE: Final = 3

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
_CODECS: Final = {1: "snappy", 2: "gz", 6: "zstd"}
# Bytes of a page's head that are looked at, and then at most: what makes it longer are statistics.
_HEAD: Final = 256
_LONGEST_HEAD: Final = 1 << 20


class OtherPagesError(Exception):
    """These pages are damaged, or made in a way that is left to pyarrow, which says what is wrong with them, if anything."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of values.

    Attributes:
        start: where its bytes begin in the buffer.
        size: how many there are.
        unpacked: how many they are when decompressed.
        entries: values, and entries of empty and null lists.
        coded: values are numbers of entries of the dictionary; otherwise ``PLAIN``.
        levels: bytes of its repetition and definition levels, which come first and are not compressed; ``None`` where they
            tell their lengths themselves, and are compressed as all the rest.
        packed: whether it is compressed.
        crc: checksum of its bytes.
    """

    start: int
    size: int
    unpacked: int
    entries: int
    coded: bool = False
    levels: tuple[int, int] | None = None
    packed: bool = True
    crc: int | None = None


def read_pages(buffer: Buffer, facts: NDArray[np.int64]) -> tuple[Page | None, Sequence[Page]]:
    """The dictionary page of a chunk, if there is one, and its data pages.

    Args:
        buffer: bytes that hold the chunk.
        facts: of the chunk, places counted from the buffer's start.

    Raises:
        OtherPagesError: pages are encoded or compressed in another way, or do not fill the chunk.
    """
    view = memoryview(buffer)
    start = int(facts[START])
    end = start + int(facts[COMPRESSED])
    if start < 0 or end > len(view) or (facts[CODEC] and int(facts[CODEC]) not in _CODECS):
        raise OtherPagesError(f"codec {facts[CODEC]}")
    dictionary: Page | None = None
    pages: list[Page] = []
    at = start
    entries, unpacked = 0, int(facts[UNCOMPRESSED])
    head, kind, fresh = b"", -1, Page(0, 0, 0, 0)
    while at < end:
        # Pages of one size have the same head, which tells its own length: it is not parsed again.
        if not head or at + len(head) > end or view[at : at + len(head)] != head:
            begin = at
            kind, fresh, at = _read_head(view, at, end)
            head = bytes(view[begin:at])
        else:
            at += len(head)
        page = fresh
        if page.size > end - at or not 0 <= page.unpacked <= unpacked:
            raise OtherPagesError("a page is larger than its chunk")
        page = replace(page, start=at, packed=page.packed and facts[CODEC] != 0)
        at += page.size
        if kind == _DICTIONARY and dictionary is None and not pages:
            dictionary = page
        elif kind in (_DATA, _DATA_V2):
            entries += page.entries
            pages.append(page)
        elif kind != _INDEX:
            raise OtherPagesError(f"a page of kind {kind}")
    if entries != facts[VALUES] or (dictionary is None and any(page.coded for page in pages)):
        raise OtherPagesError(f"{entries} entries, not {facts[VALUES]}")
    return dictionary, pages


def _read_head(view: memoryview, at: int, end: int) -> tuple[int, Page, int]:
    """Kind of the page whose head begins at ``at``, what the head says, and its end."""
    length = _HEAD
    while True:
        reader = Reader(bytes(view[at : min(at + length, end)]))
        try:
            kind, page = _parse(reader)
            return kind, page, at + reader.at
        except IndexError:
            if at + length >= end or length >= _LONGEST_HEAD:
                raise OtherPagesError("a page's head is cut off") from None
            length *= 16
        except CorruptDataError as error:
            raise OtherPagesError(str(error)) from None


def _parse(reader: Reader) -> tuple[int, Page]:
    found = {1: -1, 2: -1, 3: -1}
    crc: int | None = None
    head: dict[int, int] = {}
    for field, kind in reader.fields():
        if field in found:
            found[field] = reader.integer(kind)
        elif field == 4:
            crc = reader.integer(kind) & 0xFFFFFFFF
        elif field in (5, 7, 8) and kind == 12:
            head = _numbers(reader)
        else:
            reader.skip(kind)
    page = Page(0, found[3], found[2], head.get(1, -1), crc=crc)
    if page.size < 0 or (found[1] != _INDEX and page.entries < 0):
        raise OtherPagesError("a page's head lacks its size")
    encoding = head.get(4 if found[1] == _DATA_V2 else 2, -1)
    if found[1] != _INDEX and encoding != PLAIN and encoding not in _DICTIONARIES:
        raise OtherPagesError(f"encoding {encoding}")
    if found[1] == _DATA:
        if (head.get(3), head.get(4)) != (_RLE, _RLE):
            raise OtherPagesError("levels of an encoding that is not used any more")
    elif found[1] == _DATA_V2:
        levels = head.get(6, -1), head.get(5, -1)
        if min(levels) < 0 or sum(levels) > min(page.size, page.unpacked):
            raise OtherPagesError("levels are larger than their page")
        page = replace(page, levels=levels, packed=bool(head.get(7, 1)))
    return found[1], replace(page, coded=encoding != PLAIN)


def _numbers(reader: Reader) -> dict[int, int]:
    """Integers and booleans of a struct."""
    found: dict[int, int] = {}
    for field, kind in reader.fields():
        if kind in (1, 2):
            found[field] = 2 - kind
        elif kind in (5, 6):
            found[field] = reader.integer(kind)
        else:
            reader.skip(kind)
    return found


class Unpacker:
    """Bytes of pages, decompressed into memory that is used again for the next.

    Args:
        buffer: bytes that hold the chunk.
        codec: of the chunk.
    """

    def __init__(self, buffer: Buffer, codec: int) -> None:
        self._view = memoryview(buffer)
        self._compression = parse_compression(_CODECS[codec]) if codec else None
        self._memory = np.empty(0, dtype=np.uint8)

    def __call__(self, page: Page) -> tuple[memoryview, memoryview, memoryview]:
        """Repetition levels, definition levels and values of a page; they hold until the next page is asked for.

        Raises:
            OtherPagesError: the bytes are not what the head says.
        """
        body = self._view[page.start : page.start + page.size]
        if page.crc is not None and zlib.crc32(body) != page.crc:
            raise OtherPagesError("a page's checksum is wrong")
        if page.levels is not None:
            repetition, both = page.levels[0], sum(page.levels)
            return body[:repetition], body[repetition:both], self._unpack(body[both:], page, page.unpacked - both)
        data = self._unpack(body, page, page.unpacked)
        repetitions, data = _prefixed(data)
        definitions, data = _prefixed(data)
        return repetitions, definitions, data

    def values(self, page: Page) -> memoryview:
        """The bytes of a dictionary page.

        Raises:
            OtherPagesError: they are not what the head says.
        """
        body = self._view[page.start : page.start + page.size]
        if page.crc is not None and zlib.crc32(body) != page.crc:
            raise OtherPagesError("a page's checksum is wrong")
        return self._unpack(body, page, page.unpacked)

    def _unpack(self, data: memoryview, page: Page, size: int) -> memoryview:
        if not page.packed or self._compression is None:
            if len(data) != size:
                raise OtherPagesError("a page is not of the size that it says")
            return data
        if not size:
            return data[:0]
        if self._memory.size < size:
            # Memory that is never written to costs nothing: so a page may say that it is larger than it is.
            self._memory = np.empty(size, dtype=np.uint8)
        out = self._memory[:size].data
        try:
            self._compression.decompress_into(data, out)
        except CorruptDataError as error:
            raise OtherPagesError(str(error)) from None
        return out


def _prefixed(data: memoryview) -> tuple[memoryview, memoryview]:
    """Levels, whose length stands in front of them, and what follows."""
    length = int.from_bytes(data[:4], "little")
    if len(data) < 4 + length:
        raise OtherPagesError("levels are larger than their page")
    return data[4 : 4 + length], data[4 + length :]
