"""The pages of a column chunk: what their heads say, whether they are those of the footer, and their bytes, decompressed.

For a check only heads are read, and the bytes of pages that carry a checksum, whatever they are encoded and compressed with.

Source: ``parquet.thrift`` and ``README.md`` of Apache parquet-format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.common.compression import parse_compression
from stoker.formats.parquet.facts import CODEC, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE, START, UNCOMPRESSED, VALUES
from stoker.formats.parquet.thrift import StructSpan, struct_numbers
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

    @property
    def coding(self) -> int:
        """Encoding of its values, as ``parquet.thrift`` numbers them."""
        return self.numbers.get(4 if self.kind == DATA_V2 else 2, -1)

    @property
    def levels(self) -> tuple[int, int] | None:
        """Bytes of its repetition and definition levels, which come first and are not compressed; ``None`` where they tell
        their lengths themselves, and are compressed as all the rest."""
        return (self.numbers.get(6, -1), self.numbers.get(5, -1)) if self.kind == DATA_V2 else None


def page_heads(buffer: Buffer | memoryview, start: int, size: int) -> Iterator[PageHead]:
    """The heads of the pages that follow each other in ``size`` bytes of a buffer, from ``start`` on.

    CorruptDataError if there is no page, or one that is cut off.
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

    ``facts``: of the chunk as :mod:`stoker.formats.parquet.facts` has them, int64 of shape ``(FIELDS,)``; offsets are
    the file's. ``shift``: byte of the file that the buffer begins with.
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
                yield f"{page} should be a dictionary, as the footer says, but is not"
            if dictionary and number == 1 and head.at + shift != int(facts[DATA_PAGE]):
                yield f"{page} is the first one of data; the footer says that this begins at byte {facts[DATA_PAGE]}"
            if head.kind == DICTIONARY and number:
                yield f"{page} is a dictionary behind other pages"
            if head.crc is not None and zlib.crc32(view[head.start : head.start + head.size]) != head.crc:
                yield f"{page} does not match its checksum"
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
                raise CorruptDataError("its header is cut off, or is missing") from None
            length *= 16
            continue
        except CorruptDataError:
            raise CorruptDataError("its header is damaged") from None
        if head.kind not in (DATA, INDEX, DICTIONARY, DATA_V2):
            raise CorruptDataError(f"its header has the unknown page kind {head.kind}")
        if head.size < 0 or (head.kind != INDEX and head.entries < 0):
            raise CorruptDataError("its header has no valid size")
        return head


def _parse(data: bytes, at: int) -> PageHead:
    """The header that ``data`` begins with, which lies at ``at`` in the buffer."""
    inner: dict[int, StructSpan] = {}
    found, length = struct_numbers(data, 0, inner)
    numbers = next((inner[field][0] for field in (8, 7, 5) if field in inner), {})
    crc = found[4] & 0xFFFFFFFF if 4 in found else None
    return PageHead(found.get(1, -1), at, at + length, found.get(3, -1), found.get(2, -1), numbers, crc)


PLAIN: Final = 0
_DICTIONARIES: Final = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_RLE: Final = 3
_CODECS: Final = {1: "snappy", 2: "gz", 6: "zstd"}


class OtherPagesError(Exception):
    """These pages are damaged, or made in a way that is left to pyarrow, which says what is wrong with them, if anything."""


def read_pages(buffer: Buffer, facts: NDArray[np.int64]) -> tuple[PageHead | None, Sequence[PageHead]]:
    """The dictionary page of a chunk, if there is one, and its data pages.

    ``facts``: of the chunk, offsets counted from the buffer's start. OtherPagesError if pages are encoded or compressed in
    another way, or do not fill the chunk.
    """
    view = memoryview(buffer)
    start = int(facts[START])
    end = start + int(facts[COMPRESSED])
    if start < 0 or end > len(view) or (facts[CODEC] and int(facts[CODEC]) not in _CODECS):
        raise OtherPagesError(f"codec {facts[CODEC]}")
    dictionary: PageHead | None = None
    pages: list[PageHead] = []
    entries, unpacked = 0, int(facts[UNCOMPRESSED])
    try:
        for page in page_heads(view, start, end - start):
            _check_coding(page)
            if not 0 <= page.unpacked <= unpacked:
                raise OtherPagesError("a page is larger than its chunk")
            if page.kind == DICTIONARY and dictionary is None and not pages:
                dictionary = page
            elif page.kind in (DATA, DATA_V2):
                entries += page.entries
                pages.append(page)
            elif page.kind != INDEX:
                raise OtherPagesError(f"a page of kind {page.kind}")
    except CorruptDataError as error:
        raise OtherPagesError(str(error)) from None
    if entries != facts[VALUES] or (dictionary is None and any(page.coding != PLAIN for page in pages)):
        raise OtherPagesError(f"{entries} entries, not {facts[VALUES]}")
    return dictionary, pages


def _check_coding(page: PageHead) -> None:
    """OtherPagesError where a page's values or levels are encoded in another way."""
    coding = page.coding
    if page.kind != INDEX and coding != PLAIN and coding not in _DICTIONARIES:
        raise OtherPagesError(f"encoding {coding}")
    if page.kind == DATA and (page.numbers.get(3), page.numbers.get(4)) != (_RLE, _RLE):
        raise OtherPagesError("levels of an encoding that is not used any more")
    levels = page.levels
    if levels is not None and (min(levels) < 0 or sum(levels) > min(page.size, page.unpacked)):
        raise OtherPagesError("levels are larger than their page")


def page_body(view: memoryview, page: PageHead) -> memoryview:
    """The bytes of a page as they are stored. OtherPagesError if they do not match its checksum."""
    body = view[page.start : page.start + page.size]
    if page.crc is not None and zlib.crc32(body) != page.crc:
        raise OtherPagesError("a page's checksum is wrong")
    return body


class Unpacker:
    """Bytes of pages, decompressed into memory that is used again for the next."""

    def __init__(self, buffer: Buffer, codec: int) -> None:
        self._view = memoryview(buffer)
        self._compression = parse_compression(_CODECS[codec]) if codec else None
        self._memory = np.empty(0, dtype=np.uint8)

    def __call__(self, page: PageHead) -> tuple[memoryview, memoryview, memoryview]:
        """Repetition levels, definition levels and values of a page; they hold until the next page is asked for.

        OtherPagesError if the bytes are not what the head says.
        """
        body = page_body(self._view, page)
        if (levels := page.levels) is not None:
            repetition, both = levels[0], sum(levels)
            return body[:repetition], body[repetition:both], self._unpack(body[both:], page, page.unpacked - both)
        data = self._unpack(body, page, page.unpacked)
        repetitions, data = _prefixed(data)
        definitions, data = _prefixed(data)
        return repetitions, definitions, data

    def values(self, page: PageHead) -> memoryview:
        """The bytes of a dictionary page. OtherPagesError if they are not what the head says."""
        return self._unpack(page_body(self._view, page), page, page.unpacked)

    def _unpack(self, data: memoryview, page: PageHead, size: int) -> memoryview:
        if self._compression is None or (page.kind == DATA_V2 and not page.numbers.get(7, 1)):
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
