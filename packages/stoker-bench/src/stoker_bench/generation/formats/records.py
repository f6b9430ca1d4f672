"""Files of records with a frame around each: TFRecord, and tar as WebDataset reads it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.tar.writer import member_headers
from stoker.formats.tfrecord.example import BYTES, FLOATS, INTEGERS, crc32c_function, feature_head, mask
from stoker.integers import encode_varint
from stoker.types import Ids
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.ragged import BATCH, cells, column_sizes, one_value
from stoker_bench.generation.segments import NARROW, Finish, Segment, StreamBytes, record_segments
from stoker_bench.generation.spec import DatasetSpec

_HEAD: Final = 12
_FRAME: Final = 16
_BLOCK: Final = 512
_TRAILER: Final = bytes(2 * _BLOCK)
_KEY: Final = 9
# Headers that are made at a time.
_HEADERS: Final = 256

# Integers of a type as numbers of variable length, all of one: what of the last byte is random, and what is set.
_VARINTS: Final = {
    "bool": (1, 1, 0),
    "int8": (1, 0x7F, 0),
    "uint8": (2, 1, 1),
    "int16": (3, 1, 1),
    "uint16": (3, 3, 1),
    "int32": (5, 7, 1),
    "uint32": (5, 0xF, 1),
    "int64": (9, 0x7F, 1),
    "uint64": (9, 0x7F, 1),
}


class TFRecordLayout(GeneratedLayout):
    """Records of ``tf.train.Example``. Features are lists of floats (float32), of integers (scalars, and int64), or the bytes
    of a value. Integers in lists have the highest bits that make all of a type as long."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__(spec)
        crc32c_function()
        self._fixed = all(column.width is not None for column in spec.fields)
        self._head = lru_cache(maxsize=1 << 14)(feature_head)

    def size(self, number: int) -> int:
        rows, content = self.spec.samples_per_file, FileContent(self.spec, number)
        if self._fixed:
            sizes = [_stored(column, column.width or 0) for column in self.spec.fields]
            return rows * (_FRAME + sum(sizes) + sum(map(len, self._heads(sizes))))
        total = 0
        for first in range(0, rows, BATCH):
            here = min(BATCH, rows - first)
            drawn = [column_sizes(content, column, first, here).tolist() for column in self.spec.fields]
            for row in zip(*drawn, strict=True):
                sizes = [_stored(column, size) for column, size in zip(self.spec.fields, row, strict=True)]
                total += _FRAME + sum(sizes) + sum(map(len, self._heads(sizes)))
        return total

    def segments(self, number: int) -> Iterator[Segment]:
        content, rows = FileContent(self.spec, number), self.spec.samples_per_file
        if self._fixed:
            values = [[_feature(content, column) or one_value(content, column)] for column in self.spec.fields]
            parts = self._example([list[Segment](segments) for segments in values])
            size = sum(map(len, parts))
            if size <= NARROW:
                yield from record_segments([_frame_head(size), *parts, bytes(4)], rows, _seal)
                return
        crc = _Checksum()
        for row in cells(content, rows):
            values_here: list[list[Segment]] = []
            for column, cell in zip(self.spec.fields, row, strict=True):
                feature = _feature(content, column)
                values_here.append([feature] if feature is not None else cell.segments)
            parts = self._example(values_here)
            yield _frame_head(sum(map(len, parts)))
            for segment in parts:
                if isinstance(segment, StreamBytes):
                    yield StreamBytes(segment.size, segment.stream, segment.finish, crc.add)
                else:
                    crc.add(memoryview(segment))
                    yield segment
            yield crc.end()

    def _example(self, values: list[list[Segment]]) -> list[Segment]:
        """An Example of a value a column."""
        parts: list[Segment] = []
        heads = self._heads([sum(map(len, segments)) for segments in values])
        parts.append(heads[0])
        for head, segments in zip(heads[1:], values, strict=True):
            parts += [head, *segments]
        return parts

    def _heads(self, sizes: list[int]) -> list[bytes]:
        """The bytes before all features, and before each value of these sizes."""
        heads = [
            self._head(column.name.encode(), _kind(column), size)
            for column, size in zip(self.spec.fields, sizes, strict=True)
        ]
        return [b"\x0a" + encode_varint(sum(sizes) + sum(map(len, heads))), *heads]


def _kind(column: Column) -> int:
    """The list of an Example that holds a column."""
    if column.dtype == "float32":
        return FLOATS
    if column.dtype in _VARINTS and not column.tokens and (not column.shape or column.dtype == "int64"):
        return INTEGERS
    return BYTES


def _stored(column: Column, size: int) -> int:
    """Bytes of a feature whose value has these bytes."""
    return math.prod(column.shape) * _VARINTS[column.dtype][0] if _kind(column) == INTEGERS else size


def _feature(content: FileContent, column: Column) -> StreamBytes | None:
    """One value of integers as a list; ``None`` for columns whose values are stored as they are."""
    if _kind(column) != INTEGERS:
        return None
    width, last, least = _VARINTS[column.dtype]
    finish = Finish(b"\xff" * (width - 1) + bytes((last,)), b"\x80" * (width - 1) + bytes((least,)))
    return StreamBytes(math.prod(column.shape) * width, content.noise, finish)


@lru_cache(maxsize=1 << 12)
def _frame_head(size: int) -> bytes:
    length = size.to_bytes(8, "little")
    return length + mask(_crc_function()(memoryview(length), 0)).to_bytes(4, "little")


def _seal(rows: NDArray[np.uint8], _: int) -> None:
    """Write the checksums of records."""
    extend, data, width = _crc_function(), rows.reshape(-1).data, rows.shape[1]
    for end in range(width, len(data) + 1, width):
        crc = extend(data[end - width + _HEAD : end - 4], 0)
        data[end - 4 : end] = mask(crc).to_bytes(4, "little")


class _Checksum:
    """CRC-32C of a record's parts."""

    def __init__(self) -> None:
        self._extend = _crc_function()
        self._value = 0

    def add(self, data: memoryview) -> None:
        self._value = self._extend(data, self._value)

    def end(self) -> bytes:
        """The checksum as the file holds it; the next begins."""
        value, self._value = self._value, 0
        return mask(value).to_bytes(4, "little")


@cache
def _crc_function() -> Callable[[memoryview, int], int]:
    """CRC-32C of data behind data of which the checksum is given."""
    try:
        direct: Callable[[memoryview, int], int] = importlib.import_module("crc32c").crc32c
    except ImportError:
        extend: Callable[[int, bytes], int] = importlib.import_module("google_crc32c").extend
        return lambda data, value: extend(value, bytes(data))
    return direct


class TarLayout(GeneratedLayout):
    """An archive in ustar format, with a file a column: ``000000017.data`` is column ``data`` of the sample 17, counted over
    all files."""

    def size(self, number: int) -> int:
        content, rows = FileContent(self.spec, number), self.spec.samples_per_file
        total = len(_TRAILER)
        for first in range(0, rows, BATCH):
            for column in self.spec.fields:
                drawn = column_sizes(content, column, first, min(BATCH, rows - first))
                total += int((_BLOCK + -(-drawn // _BLOCK) * _BLOCK).sum())
        return total

    def segments(self, number: int) -> Iterator[Segment]:
        content, rows = FileContent(self.spec, number), self.spec.samples_per_file
        before = number * rows
        if all(column.width is not None for column in self.spec.fields):
            parts: list[Segment] = []
            for column in self.spec.fields:
                parts += [bytes(_BLOCK), one_value(content, column), bytes(-(column.width or 0) % _BLOCK)]
            if sum(map(len, parts)) <= NARROW:
                yield from record_segments(parts, rows, self._sealed(before))
                yield _TRAILER
                return
        for first in range(0, rows, BATCH):
            here = min(BATCH, rows - first)
            drawn = [column_sizes(content, column, first, here) for column in self.spec.fields]
            heads = [
                self._headers(column, before + first, sizes)
                for column, sizes in zip(self.spec.fields, drawn, strict=True)
            ]
            for number_here, row in enumerate(cells(content, here, first)):
                for head, cell in zip(heads, row, strict=True):
                    yield head[number_here].tobytes()
                    yield from cell.segments
                    yield bytes(-cell.size % _BLOCK)
        yield _TRAILER

    def _sealed(self, before: int) -> Callable[[NDArray[np.uint8], int], None]:
        ready: list[NDArray[np.uint8]] = []
        begin = 0

        def seal(rows: NDArray[np.uint8], first: int) -> None:
            nonlocal ready, begin
            if not ready or first + len(rows) > begin + len(ready[0]):
                begin, count = first, max(len(rows), _HEADERS)
                widths = [np.full(count, column.width, np.int64) for column in self.spec.fields]
                ready = [
                    self._headers(*one) for one in zip(self.spec.fields, repeat(before + first), widths, strict=False)
                ]
            at = 0
            for column, headers in zip(self.spec.fields, ready, strict=True):
                rows[:, at : at + _BLOCK] = headers[first - begin : first - begin + len(rows)]
                at += _BLOCK + -(-(column.width or 0) // _BLOCK) * _BLOCK

        return seal

    def _headers(self, column: Column, first: int, sizes: Ids) -> NDArray[np.uint8]:
        """Headers of a column's files, of samples from the number ``first`` on; uint8, shape ``(n, 512)``."""
        keys = [str(number).zfill(_KEY).encode() for number in range(first, first + len(sizes))]
        return member_headers(keys, column.name.lower().encode(), sizes)
