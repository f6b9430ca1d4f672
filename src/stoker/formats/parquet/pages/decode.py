"""One column of one row group, from the bytes of its chunks to Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.footer.schema import ColumnSchema
from stoker.formats.parquet.footer.single_column import ColumnPart, column_footer, open_limits
from stoker.types import Buffer

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
        A ``pyarrow.Array`` of ``rows`` values; text and lists of more than 2**31 bytes or values in their large layout.

    Raises:
        CorruptDataError: the bytes are no such column; names ``where`` and the column.
        FormatError: they need what pyarrow does not support.
    """
    with _explained(column, where):
        # Several row groups are decoded at once by several threads, each with its own.
        table = _open(column, rows, chunks, created_by, buffer).read_row_group(0, use_threads=False)
    _check_rows(column, where, table.num_rows, rows)
    return _in_one(table.column(0))


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


def _open(column: ColumnSchema, rows: int, chunks: NDArray[np.int64], created_by: str, buffer: Buffer) -> Any:
    """A ``ParquetFile`` of the column alone."""
    pa, pq = pyarrow(), pyarrow("parquet")
    footer = column_footer(column, [ColumnPart(rows, chunks.tolist())], created_by)
    meta = pq.ParquetFile(pa.BufferReader(footer), **open_limits(len(footer))).metadata
    return pq.ParquetFile(
        pa.BufferReader(pa.py_buffer(buffer)),
        metadata=meta,
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


def _in_one(chunked: Any) -> Any:
    """All chunks as one array."""
    pa = pyarrow()
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    kind = chunked.type
    # pyarrow makes several chunks where offsets of 32 bits do not reach.
    if pa.types.is_string(kind):
        kind = pa.large_string()
    elif pa.types.is_binary(kind):
        kind = pa.large_binary()
    elif pa.types.is_list(kind):
        kind = pa.large_list(kind.value_field)
    return pa.concat_arrays(chunked.cast(kind).chunks) if chunked.num_chunks else pa.array([], kind)
