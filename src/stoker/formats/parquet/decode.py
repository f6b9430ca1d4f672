"""One column of one row group, from the bytes of its chunks: to Arrow by pyarrow, or as they lie in the file.

Values of one size that lie in the file as they are need no decoding: their offsets are enough. Taken so are columns of
``FIXED_LEN_BYTE_ARRAY`` without nulls whose pages are PLAIN and not compressed; all else is left to pyarrow. A field of such
values that the file's Arrow schema gives the metadata ``dtype`` (NumPy's name) and ``shape`` (numbers with commas between) is
one of arrays, little-endian; stoker's own generator writes it so.

Source: ``Encodings.md`` of Apache parquet-format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.common.gather import address_of
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.facts import CODEC, VALUES, ColumnPart, column_footer, open_limits
from stoker.formats.parquet.pages import OtherPagesError, page_body, read_pages
from stoker.formats.parquet.parse import HYBRID
from stoker.formats.parquet.rle_bitpacked import exceptions
from stoker.formats.parquet.schema import ColumnSchema
from stoker.formats.parquet.values import AddressedValues, ColumnValues, Fixed, SlicedBytes, as_values, gather
from stoker.types import Buffer, Column, Ids

_FIXED: Final = 7
_REQUIRED, _OPTIONAL = 0, 1
_ARRAYS: Final = re.compile(r"(\w+)\[([\d, ]+)\]")
_BYTES: Final = re.compile(r"fixed_size_binary\[(\d+)\]")


class _Arrays(AddressedValues):
    """Arrays in the file.

    ``starts``: where each row's value begins in it; int64, shape ``(rows,)``. ``dtype``, ``shape``: of a value.
    """

    def __init__(self, buffer: Buffer, starts: Ids, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file = np.frombuffer(buffer, np.uint8)
        self._addresses = starts + address_of(self._file)
        self.dtype, self.shape = dtype, shape
        self.nbytes = starts.nbytes

    def addresses(self, rows: Ids) -> Ids:
        found: Ids = self._addresses[rows]
        return found

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002 - rows do not lie end to end
        return gather([self], np.zeros(len(rows), np.int64), rows)


def in_place(column: ColumnSchema, rows: int, facts: NDArray[np.int64], buffer: Buffer) -> ColumnValues:
    """The values of a column chunk, where they lie.

    ``facts``: of the chunk, offsets counted from the buffer's start. OtherPagesError if they do not lie there as they are, or
    are damaged.
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
        body = page_body(view, page)
        skipped, levels = 0, body[:0]
        if (told := page.levels) is not None:
            skipped = sum(told)
            levels = body[told[0] : skipped]
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
    if dtype is None:
        return SlicedBytes(view.toreadonly(), begins, begins + width)
    return _Arrays(buffer, begins, dtype, shape)


def as_arrays(column: ColumnSchema, array: Any, where: str) -> ColumnValues:
    """A decoded column, ready for rows to be taken from it; as arrays where it is declared so.

    CorruptDataError if an array is null.
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
    (repetition,) = column.repetitions()  # of one element, as :func:`_kind` has seen
    if repetition not in (_REQUIRED, _OPTIONAL):
        raise OtherPagesError("values of no level")
    return repetition == _OPTIONAL


_INT96: Final = 3
_UTC: Final = ("UTC", "Etc/UTC", "GMT", "Z")
# Largest string and list in a page's head, where writers put the page's least and greatest value.
_PAGE_HEAD_LIMITS: Final = {"thrift_string_size_limit": 64 << 20, "thrift_container_size_limit": 1 << 20}


def decode_column(
    column: ColumnSchema, rows: int, chunks: NDArray[np.int64], created_by: str, buffer: Buffer, where: str
) -> Any:
    """Decode a column of a row group.

    CorruptDataError if the bytes are no such column; names ``where`` and the column. FormatError if they need what pyarrow
    does not support. ``chunks``: facts of the column's chunks, offsets counted from the buffer's start. Gives a
    ``pyarrow.Array`` of ``rows`` values; text and lists in their large layout.
    """
    with _explained(column, where):
        # Several row groups are decoded at once by several threads, each with its own.
        made = [
            _open(column, rows, chunks, created_by, buffer, unit).read_row_group(0, use_threads=False).column(0)
            for unit in (("us", "ns") if _INT96 in column.kinds else ("us",))
        ]
    _check_rows(column, where, len(made[0]), rows)
    micro, *nano = (one.chunk(0) if one.num_chunks == 1 else one.combine_chunks() for one in made)
    here = f"{where}, column {column.name!r}"
    if HYBRID in created_by:
        _check_calendar(micro, created_by.partition(HYBRID)[2], here)
    return _int96(micro, nano[0], here) if nano else micro


def _int96(micro: Any, nano: Any, here: str) -> Any:
    """Times of INT96 in microseconds, which is what Spark has; in nanoseconds where some are no whole microseconds.

    ``micro``, ``nano``: the column decoded as either. pyarrow cuts the one, and in the other lets times before 1677 and after
    2262 wrap.
    """
    far = cut = False
    for one, other in zip(_times(micro), _times(nano), strict=True):
        cut |= bool((other - one * 1000).any())  # right where the other has wrapped, as this does, too
        far |= bool((np.abs(one) > np.iinfo(np.int64).max // 1000).any())
    if cut and far:
        raise FormatError(
            f"{here} holds nanoseconds, and times before 1677 or after 2262, which no type has both: write it with "
            "timestamps of microseconds"
        )
    return nano if cut else micro


def _check_calendar(array: Any, zone: str, here: str) -> None:
    """FormatError for times of the hybrid calendar that are others in today's."""
    for one in _leaves(array):
        date = pyarrow().types.is_date(one.type)
        days = _numbers(one) // (1 if date else np.timedelta64(1, "D") // np.timedelta64(1, one.type.unit))
        first = np.datetime64("1582-10-15" if date or zone in _UTC else "1900-01-01")
        if (days < first.astype(np.int64)).any():
            raise FormatError(
                f"{here} holds times before {first}, which Spark wrote in the calendar of that time: write the file again "
                "with spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite set to CORRECTED"
            )


def _times(array: Any) -> Iterator[NDArray[np.int64]]:
    """The timestamps of an array, however deep in it, as numbers; 0 where they are null."""
    return (_numbers(one) for one in _leaves(array) if pyarrow().types.is_timestamp(one.type))


def _numbers(array: Any) -> NDArray[np.int64]:
    pa = pyarrow()
    numbers = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    return np.asarray(numbers.fill_null(0), np.int64)


def _leaves(array: Any) -> Iterator[Any]:
    """The timestamps and dates of an array, however deep in it."""
    pa, kind = pyarrow(), array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        yield array
    elif pa.types.is_nested(kind):
        map_, struct = pa.types.is_map(kind), pa.types.is_struct(kind)
        for part in (array.keys, array.items) if map_ else array.flatten() if struct else (array.values,):
            yield from _leaves(part)


def column_batches(
    column: ColumnSchema,
    rows: int,
    chunks: NDArray[np.int64],
    created_by: str,
    buffer: Buffer,
    where: str,
    *,
    at_a_time: int,
) -> Iterator[Any]:
    """Arrow arrays of a column of a row group, of about ``at_a_time`` rows each; otherwise as :func:`decode_column`."""
    with _explained(column, where):
        file = _open(column, rows, chunks, created_by, buffer)
        batches = file.iter_batches(at_a_time, row_groups=[0], use_threads=False)
    done = 0
    while True:
        with _explained(column, where):
            batch = next(batches, None)
        done += 0 if batch is None else batch.num_rows
        if batch is None or done > rows:
            _check_rows(column, where, done, rows)
            return
        yield batch.column(0)


def _check_rows(column: ColumnSchema, where: str, found: int, rows: int) -> None:
    if found != rows:
        raise CorruptDataError(
            f"{where}, column {column.name!r} holds {found} rows, the footer says {rows}. The file is damaged: write or copy "
            "it again"
        )


def _open(
    column: ColumnSchema, rows: int, chunks: NDArray[np.int64], created_by: str, buffer: Buffer, unit: str = "us"
) -> Any:
    """A ``ParquetFile`` of the column alone; ``unit``: of times of INT96."""
    pa, pq = pyarrow(), pyarrow("parquet")
    footer = column_footer(column, [ColumnPart(rows, chunks.tolist())], created_by)
    meta = pq.ParquetFile(pa.BufferReader(footer), **open_limits(len(footer))).metadata
    return pq.ParquetFile(
        pa.BufferReader(pa.py_buffer(buffer)),
        metadata=meta,
        binary_type=pa.large_binary(),  # where the file has no Arrow schema: offsets of 32 bits do not reach everywhere
        list_type=pa.LargeListType,
        coerce_int96_timestamp_unit=unit,
        pre_buffer=False,  # all is in memory: nothing to read ahead
        page_checksum_verification=True,  # of pages that have one
        **_PAGE_HEAD_LIMITS,
    )


@contextmanager
def _explained(column: ColumnSchema, where: str) -> Iterator[None]:
    """Turns errors of pyarrow into errors that name row group and column."""
    pa = pyarrow()
    try:
        yield
    except (NotImplementedError, pa.ArrowNotImplementedError) as error:
        raise FormatError(f"{where}, column {column.name!r}: {error}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDataError(
            f"{where}, column {column.name!r} can not be decoded: {error}. The file is damaged, or was replaced after it "
            "was indexed: write or copy it again"
        ) from None
