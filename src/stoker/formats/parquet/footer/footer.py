"""What an index needs of the footers of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.parquet.arrow import pyarrow, pyarrow_parquet
from stoker.formats.parquet.footer import thrift
from stoker.formats.parquet.footer.bounds import FooterBounds
from stoker.formats.parquet.footer.facts import FIELDS, MAGIC, FileFacts
from stoker.formats.parquet.footer.predicate import Predicate
from stoker.formats.parquet.footer.schema import ARROW_KEY, FileSchema, leaves_below, read_schema
from stoker.formats.parquet.footer.single_column import open_limits

__all__ = ["TAIL", "column_names", "footer_length", "read_facts"]

TAIL: Final = 8
"""Bytes after the footer: its length and the magic."""

# Uncompressed, Snappy, gzip, Brotli, LZ4 as Hadoop frames it, zstd, LZ4: all but LZO.
_CODECS: Final = frozenset([0, 1, 2, 4, 5, 6, 7])
_MOST_ROWS: Final = 1 << 31
# Place of the number of values in a chunk as thrift.py has it.
_VALUES: Final = 2


def footer_length(tail: bytes, size: int) -> int:
    """Bytes of a file's footer, from the file's last bytes.

    Raises:
        CorruptDataError: this is not the end of a Parquet file of ``size`` bytes.
    """
    if size == 0:
        raise CorruptDataError("the file is empty (0 bytes), so it is no Parquet file")
    if tail[-4:] == b"PARE":
        raise FormatError("the file's footer is encrypted; encrypted Parquet is not supported")
    if len(tail) < TAIL or tail[-4:] != MAGIC:
        raise CorruptDataError("the file does not end as Parquet files do: it is cut off, or no Parquet file")
    length = int.from_bytes(tail[-TAIL:-4], "little")
    if not 0 < length <= size - TAIL - len(MAGIC):
        raise CorruptDataError(f"its footer of {length} bytes does not fit into a file of {size} bytes")
    return length


def read_facts(
    footer: bytes,
    *,
    key: str,
    size: int,
    version: str,
    columns: Sequence[str] | None,
    predicate: Predicate | None,
    constants: Mapping[str, Any],
    schemas: dict[tuple[bytes, bytes, str], tuple[FileSchema, FileSchema]],
) -> FileFacts:
    """What an index needs of a footer.

    Args:
        footer: the footer without its tail.
        key, size, version: of the file; see :class:`FileFacts`.
        columns: columns to read; ``None`` for all.
        predicate: which row groups to read; ``None`` for all.
        constants: values that the file's directory tells, which hide columns of the file.
        schemas: schemas that were met, whole and as chosen, which equal ones are taken from. To be shared by files of one
            dataset only, as it does not tell ``columns`` apart.

    Raises:
        CorruptDataError: the footer contradicts itself or the file's size; names row group and column.
        FormatError: the file needs what is not supported.
        ConfigError: the predicate does not fit the file's columns.
    """
    needed = None if columns is None else {*columns, *(predicate.columns if predicate is not None else ())}
    parsed = thrift.parse_footer(footer, partial(leaves_below, names=needed))
    known = (
        b"".join(element.data for element in parsed.schema),
        parsed.metadata.get(ARROW_KEY, b""),
        parsed.created_by,
    )
    found = schemas.get(known)
    if found is None:
        whole_schema = read_schema(parsed, _opened(footer).schema_arrow)
        found = schemas.setdefault(known, (whole_schema, _chosen(whole_schema, columns, constants)))
    whole_schema, schema = found
    leaves = [
        (leaf, kind, column.name, column.flat)
        for column in schema.columns
        for leaf, kind in zip(column.leaves, column.kinds, strict=True)
    ]
    count = sum(len(column.paths) for column in whole_schema.columns)
    filled = [number for number, group in enumerate(parsed.groups) if group.rows]
    for number, group in enumerate(parsed.groups):
        if not 0 <= group.rows < _MOST_ROWS:
            raise CorruptDataError(f"row group {number} claims {group.rows} rows")
        if group.rows and len(group.chunks) != count:
            raise CorruptDataError(
                f"row group {number} has {len(group.chunks)} column chunks, the schema {count} columns"
            )
        if not group.rows and (values := max((chunk[_VALUES] for chunk in group.chunks if chunk), default=0)) > 0:
            raise CorruptDataError(f"row group {number} claims 0 rows, and {values} values in a column")
    if parsed.rows != (total := sum(group.rows for group in parsed.groups)):
        raise CorruptDataError(f"its footer claims {parsed.rows} rows, and {total} in its row groups")
    possible = [True] * len(filled)
    if predicate is not None:
        bounds = FooterBounds(footer, [parsed.groups[number] for number in filled], whole_schema, constants)
        possible = [predicate.possible(partial(bounds.of, place)) for place in range(len(filled))]
    chunks: list[Sequence[int]] = []
    end = size - TAIL - len(footer)
    for number in filled:
        group = parsed.groups[number]
        for leaf, kind, name, flat in leaves:
            try:
                chunks.append(_chunk(group.chunks[leaf], kind, end, group.rows if flat else None))
            except ValueError as error:
                raise CorruptDataError(f"row group {number}, column {name!r}: {error}") from None
    numbers, rows = filled, [parsed.groups[number].rows for number in filled]
    sizes = [parsed.groups[number].bytes for number in filled]
    return FileFacts(
        key,
        size,
        version,
        schema,
        np.array(numbers, dtype=np.int64),
        np.array(rows, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array(chunks, dtype=np.int64).reshape(len(rows), len(leaves), FIELDS),
        np.array(possible, dtype=np.bool_),
    )


def _chosen(schema: FileSchema, columns: Sequence[str] | None, constants: Mapping[str, Any]) -> FileSchema:
    """The columns to read of a file."""
    names = [column.name for column in schema.columns]
    wanted = [name for name in (names if columns is None else columns) if name not in constants]
    for name in wanted:
        if names.count(name) > 1:
            raise FormatError(f"it has two columns called {name!r}: rename one, or leave it out with columns=")
    return schema.select(wanted)


def column_names(footer: bytes) -> list[str]:
    """Names of all top-level columns of a footer that :func:`read_facts` has read."""
    return list(_opened(footer).schema_arrow.names)


def _opened(footer: bytes) -> Any:
    """The footer as pyarrow has it."""
    pa, pq = pyarrow(), pyarrow_parquet()
    whole = footer + len(footer).to_bytes(4, "little") + MAGIC
    try:
        file = pq.ParquetFile(pa.BufferReader(whole), **open_limits(len(footer)))
        file.schema_arrow  # noqa: B018 - made when it is asked for
    except (NotImplementedError, pa.ArrowNotImplementedError) as error:
        raise FormatError(f"it can not be read: {error}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"its footer can not be read: {error}") from None
    return file


def _chunk(chunk: thrift.Chunk, expected: int, end: int, rows: int | None) -> list[int]:
    """Facts of a chunk. ValueError if it is impossible, or does not lie in the first ``end`` bytes of the file.

    ``rows``: as many values as there must be; ``None`` where footers do not tell.
    """
    kind, codec, values, uncompressed, compressed, data, dictionary, nulls, *_ = chunk
    if kind != expected:
        raise ValueError(f"its type is {kind} here and {expected} in the schema")
    if not 0 < dictionary < data:
        dictionary = -1
    start = data if dictionary < 0 else dictionary
    if not (len(MAGIC) <= start <= data < start + max(1, compressed) and 0 <= compressed <= end - start):
        raise ValueError(f"{compressed} bytes from {start} on do not lie in the file's {end} bytes of data")
    if values < 0 or uncompressed < 0 or max(values, uncompressed) >> 48:
        raise ValueError(f"{values} values in {uncompressed} bytes are impossible")
    if rows is not None and values != rows:
        raise ValueError(f"it has {values} values for {rows} rows")
    if codec not in _CODECS:
        raise ValueError(f"its compression, codec {codec}, is not supported")
    return [start, data, dictionary, compressed, uncompressed, values, nulls if 0 <= nulls <= values else -1, codec]
