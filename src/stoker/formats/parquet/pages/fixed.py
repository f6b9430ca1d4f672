"""Values of one size that lie in the file as they are: their offsets are enough, nothing is decoded or copied.

Taken are columns of ``FIXED_LEN_BYTE_ARRAY`` without nulls whose pages are PLAIN and not compressed; all else is left to
pyarrow. A field of such values that the file's Arrow schema gives the metadata ``dtype`` (NumPy's name) and ``shape``
(numbers with commas between) is one of arrays, little-endian; stoker's own generator writes it so.

Source: ``Encodings.md`` of Apache parquet-format.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.formats.common.rows.gather import address_of
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.footer.facts import CODEC, VALUES
from stoker.formats.parquet.footer.schema import ColumnSchema
from stoker.formats.parquet.footer.thrift import ThriftReader
from stoker.formats.parquet.pages.arrow_values import as_values
from stoker.formats.parquet.pages.pages import OtherPagesError, read_pages
from stoker.formats.parquet.pages.rle_bitpacked import exceptions
from stoker.formats.parquet.pages.values import AddressedValues, ColumnValues, Fixed, gather
from stoker.types import Buffer, Column, Ids

_FIXED: Final = 7
_REQUIRED, _OPTIONAL = 0, 1
_ARRAYS: Final = re.compile(r"(\w+)\[([\d, ]+)\]")
_BYTES: Final = re.compile(r"fixed_size_binary\[(\d+)\]")


class _Bytes(ColumnValues):
    """Bytes in the file.

    Args:
        buffer: the file; kept.
        starts: where each row's value begins in it; int64, shape ``(rows,)``.
        width: bytes of a value.
    """

    def __init__(self, buffer: Buffer, starts: Ids, width: int) -> None:
        self._view = memoryview(buffer).toreadonly()
        self._starts, self._width = starts, width
        self.nbytes = starts.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:
        values = (self._view[start : start + self._width] for start in self._starts[rows].tolist())
        return list(values if views else map(bytes, values))


class _Arrays(AddressedValues):
    """Arrays in the file.

    Args:
        buffer: the file; kept.
        starts: where each row's value begins in it; int64, shape ``(rows,)``.
        dtype, shape: of a value.
    """

    def __init__(self, buffer: Buffer, starts: Ids, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file = np.frombuffer(buffer, np.uint8)
        self._addresses = starts + address_of(self._file)
        self.dtype, self.shape = dtype, shape
        self.nbytes = starts.nbytes

    def __len__(self) -> int:
        return len(self._addresses)

    def addresses(self, rows: Ids) -> Ids:
        found: Ids = self._addresses[rows]
        return found

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002 - rows do not lie end to end
        return gather([self], np.zeros(len(rows), np.int64), rows)


def in_place(column: ColumnSchema, rows: int, facts: NDArray[np.int64], buffer: Buffer) -> ColumnValues:
    """The values of a column chunk, where they lie.

    Args:
        column: the column.
        rows: rows of the row group.
        facts: of the chunk, offsets counted from the buffer's start.
        buffer: bytes that hold it; kept.

    Raises:
        OtherPagesError: they do not lie there as they are, or are damaged.
    """
    found = _kind(column)
    if found is None or facts[CODEC] or facts[VALUES] != rows:
        raise OtherPagesError(f"it holds {column.type}")
    width, dtype, shape = found
    optional = _optional(column)
    dictionary, pages = read_pages(buffer, facts)
    if dictionary is not None:
        raise OtherPagesError("a dictionary")
    view = memoryview(buffer)
    starts: list[int] = []
    counts: list[int] = []
    for page in pages:
        body = view[page.start : page.start + page.size]
        if page.crc is not None and zlib.crc32(body) != page.crc:
            raise OtherPagesError("a page's checksum is wrong")
        skipped, levels = 0, body[:0]
        if page.levels is not None:
            skipped = sum(page.levels)
            levels = body[page.levels[0] : skipped]
        elif optional:
            skipped = 4 + int.from_bytes(body[:4], "little")
            levels = body[4:skipped]
        if skipped + page.entries * width != page.size or (optional and exceptions(levels, page.entries, 1, 1)[0].size):
            raise OtherPagesError("nulls, or a page that is not of the size that it says")
        starts.append(page.start + skipped)
        counts.append(page.entries)
    number = np.array(counts, np.int64)
    begins = np.repeat(np.array(starts, np.int64) - (np.cumsum(number) - number) * width, number)
    begins += np.arange(rows, dtype=np.int64) * width
    return _Bytes(buffer, begins, width) if dtype is None else _Arrays(buffer, begins, dtype, shape)


def as_arrays(column: ColumnSchema, array: Any, where: str) -> ColumnValues:
    """A decoded column, ready for rows to be taken from it; as arrays where it is declared so.

    Args:
        column: the column.
        array: a ``pyarrow.Array`` of it.
        where: names the row group in errors.

    Raises:
        CorruptDataError: an array is null.
    """
    found = _kind(column)
    width, dtype, shape = found or (0, None, ())
    if dtype is None or not pyarrow().types.is_fixed_size_binary(array.type):
        return as_values(array)
    if array.null_count:
        raise CorruptDataError(f"{where}, column {column.name!r} has nulls, but is declared {column.type}")
    data = array.buffers()[1]
    flat = (
        np.frombuffer(data, np.uint8, width * len(array), width * array.offset) if len(array) else np.zeros(0, np.uint8)
    )
    return Fixed(flat.view(dtype).reshape(len(array), *shape))


def _kind(column: ColumnSchema) -> tuple[int, np.dtype[Any] | None, tuple[int, ...]] | None:
    """Bytes of a value, and dtype and shape where it is an array."""
    if column.kinds != (_FIXED,) or column.count != 1:
        return None
    if plain := _BYTES.fullmatch(column.type):
        return int(plain[1]), None, ()
    if declared := _ARRAYS.fullmatch(column.type):
        dtype, shape = np.dtype(declared[1]), tuple(map(int, declared[2].split(",")))
        return dtype.itemsize * math.prod(shape), dtype, shape
    return None


def _optional(column: ColumnSchema) -> bool:
    """Whether values may be null, and so have levels."""
    reader, repetition = ThriftReader(column.elements), -1
    try:
        for field, kind in reader.fields():
            if field == 3:
                repetition = reader.integer(kind)
            else:
                reader.skip(kind)
    except (IndexError, CorruptDataError):
        repetition = -1
    if repetition not in (_REQUIRED, _OPTIONAL):
        raise OtherPagesError("values of no level")
    return repetition == _OPTIONAL
