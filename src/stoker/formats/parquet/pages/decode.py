"""One column of one row group, from the bytes of its chunks to Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.footer.parse import HYBRID
from stoker.formats.parquet.footer.schema import ColumnSchema
from stoker.formats.parquet.footer.single_column import ColumnPart, column_footer, open_limits
from stoker.types import Buffer

_INT96: Final = 3
_UTC: Final = ("UTC", "Etc/UTC", "GMT", "Z")
# Largest string and list in a page's head, where writers put the page's least and greatest value.
_PAGE_HEAD_LIMITS: Final = {"thrift_string_size_limit": 64 << 20, "thrift_container_size_limit": 1 << 20}


def decode_column(
    column: ColumnSchema, rows: int, chunks: NDArray[np.int64], created_by: str, buffer: Buffer, where: str
) -> Any:
    """Decode a column of a row group.

    Args:
        column: the column.
        rows: rows of the row group.
        chunks: facts of the column's chunks, offsets counted from the buffer's start.
        created_by: what wrote the file.
        buffer: bytes that hold the chunks.
        where: names the row group in errors.

    Returns:
        A ``pyarrow.Array`` of ``rows`` values; text and lists in their large layout.

    Raises:
        CorruptDataError: the bytes are no such column; names ``where`` and the column.
        FormatError: they need what pyarrow does not support.
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

    Args:
        micro, nano: the column decoded as either. pyarrow cuts the one, and in the other lets times before 1677 and after
            2262 wrap.
        here: names row group and column in errors.
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
