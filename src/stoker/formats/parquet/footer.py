"""Reads of the footers of Parquet files what an index needs, and the bounds of columns in row groups, by their statistics."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts
from stoker.formats.parquet import parse
from stoker.formats.parquet import thrift as compact
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.facts import (
    COMPRESSED,
    FIELDS,
    GROUP_FIELDS,
    MAGIC,
    START,
    ColumnPart,
    column_footer,
    open_limits,
)
from stoker.formats.parquet.predicate import Bounds, Predicate
from stoker.formats.parquet.schema import ARROW_KEY, DECLARED_KEY, ColumnSchema, FileSchema, leaves_below, read_schema
from stoker.types import Ids

# Fields of Statistics. The first two are from before orders were defined, and pyarrow knows when they can be relied on.
_OLD_MAX, _OLD_MIN, _MAX, _MIN, _MAX_EXACT, _MIN_EXACT = 1, 2, 5, 6, 7, 8
# Bytes of values of the physical types that have a width: boolean, int32, int64, int96, float, double.
_WIDTHS: Final = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}


class FooterBounds:
    """Bounds of columns in row groups.

    Statistics are taken out of the footer and checked, and handed to pyarrow in a footer of their own: it ends the process on
    some that are damaged, and it knows how writers have erred. ``groups``: its row groups that have rows. ``schema``: the
    file's columns. ``constants``: values that the file's directory tells, which hide columns of the file.
    """

    def __init__(
        self, footer: bytes, groups: Sequence[parse.Group], schema: FileSchema, constants: Mapping[str, Any]
    ) -> None:
        self._footer = footer
        self._groups = groups
        self._schema = schema
        self._constants = constants
        self._made: dict[str, list[Bounds | None]] = {}

    def of(self, number: int, name: str) -> Bounds | None:
        """Bounds of a column in row group ``number``; ``None`` where they are not known.

        ConfigError if there is no such column, or none that has an order.
        """
        if name in self._constants:
            value = self._constants[name]
            return Bounds(value, value, exact=True, empty=value is None, holes=value is None)
        if name not in self._made:
            found = self._schema.find(name)
            if found is None:
                names = ", ".join(column.name for column in self._schema.columns)
                raise ConfigError(f"filters= names {name!r}: it has {names}")
            column = found[0]
            if len(column.paths) != 1 or len(column.paths[0]) != 1:
                raise ConfigError(
                    f"filters= names {name!r}, which holds {column.type}: only plain columns have an order"
                )
            self._made[name] = self._make(column)
        return self._made[name][number]

    def _make(self, column: ColumnSchema) -> list[Bounds | None]:
        pa, pq = pyarrow(), pyarrow("parquet")
        chunks = [group.chunks[column.first] for group in self._groups]
        fields = [self._fields(chunk, column.kinds[0]) for chunk in chunks]
        parts = [
            ColumnPart(group.rows, [[0, 4, -1, 0, 0, chunk[2], -1, 0]], _struct_of(found))
            for group, chunk, found in zip(self._groups, chunks, fields, strict=True)
        ]
        if not parts:
            return []
        if parse.HYBRID in self._schema.created_by and column.type.startswith(("date", "timestamp")):
            return [None] * len(parts)
        footer = column_footer(column, parts, self._schema.created_by)
        try:
            meta = pq.ParquetFile(pa.BufferReader(footer), **open_limits(len(footer))).metadata
        except (pa.ArrowException, OSError):
            return [None] * len(parts)
        made: list[Bounds | None] = []
        for number, (chunk, found) in enumerate(zip(chunks, fields, strict=True)):
            values, nulls = chunk[2], chunk[7]
            if 0 <= values == nulls:
                made.append(Bounds(None, None, exact=True, empty=True))
                continue
            statistics = meta.row_group(number).column(0).statistics if found else None
            made.append(_bounds(statistics, found, nulls != 0, column.type))
        return made

    def _fields(self, chunk: parse.Chunk, kind: int) -> dict[int, bytes | int]:
        """Fields of the chunk's statistics; none where they are damaged."""
        start, end = chunk[8:10]
        if start < 0:
            return {}
        try:
            fields = parse.parse_statistics(self._footer[start:end])
        except CorruptDataError:
            return {}
        width = _WIDTHS.get(kind)
        ends = [fields.get(field) for field in (_OLD_MAX, _OLD_MIN, _MAX, _MIN)]
        if any(isinstance(one, bytes) and width is not None and len(one) != width for one in ends):
            return {}
        return fields


def _whole(low: int, high: int, kind: str) -> tuple[dt.datetime, dt.datetime]:
    """The whole microseconds around bounds of nanoseconds: pyarrow would ask whether pandas is installed."""
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if "tz=" in kind else None)
    return start + dt.timedelta(microseconds=low // 1000), start - dt.timedelta(microseconds=-high // 1000)


def _struct_of(fields: Mapping[int, bytes | int]) -> tuple[int, bytes] | None:
    ends = [(field, fields[field]) for field in (_OLD_MAX, _OLD_MIN, _MAX, _MIN) if field in fields]
    given = [(field, compact.binary(value)) for field, value in ends if isinstance(value, bytes)]
    return compact.struct(*given) if given else None


def _bounds(statistics: Any, fields: Mapping[int, bytes | int], holes: bool, kind: str) -> Bounds | None:
    if statistics is None or kind == "time64[ns]":  # which Python has no type for
        return None
    try:
        if not statistics.has_min_max:
            return None
        if kind.startswith("timestamp[ns"):
            around = _whole(statistics.min_raw, statistics.max_raw, kind)
            return Bounds(*around, exact=False, empty=False, holes=holes)
        low, high = statistics.min, statistics.max
        if kind == "halffloat":  # of which pyarrow hands out the bytes
            low, high = (float(np.frombuffer(one, "<f2")[0]) for one in (low, high))
    except (ValueError, OverflowError, NotImplementedError, OSError, pyarrow().ArrowException):
        return None
    if low is None or high is None:
        return None
    # Long texts are cut, where a writer does not say otherwise; and NaN is left out.
    exact = fields.get(_MAX_EXACT) == 1 == fields.get(_MIN_EXACT) or not isinstance(low, str | bytes)
    return Bounds(low, high, exact=exact and not isinstance(low, float), empty=False, holes=holes)


# Bytes after the footer: its length and the magic.
_TAIL: Final = 8
# Uncompressed, Snappy, gzip, Brotli, LZ4 as Hadoop frames it, zstd, LZ4: all but LZO.
_CODECS: Final = frozenset([0, 1, 2, 4, 5, 6, 7])
_MOST_ROWS: Final = 1 << 31
# parquet-mr before 1.2.9 (PARQUET-816), and the longest head of a dictionary's page, both as pyarrow has them.
_SHORT: Final = re.compile(r"parquet-mr version (0\.|1\.[01]\.|1\.2\.[0-8]\b|1\.2\b(?!\.))")
_LONGEST_HEAD: Final = 100
# Index of the number of values in a chunk as parse.py has it.
_VALUES: Final = 2


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A schema that was met.

    ``whole``: of all columns. ``chosen``: of those that are read. ``spec``: the chosen one in JSON values.
    """

    whole: FileSchema
    chosen: FileSchema
    spec: Mapping[str, Any]


def read_footer(source: ByteSource) -> bytes:
    """The footer of a file, without its length and the magic.

    CorruptDataError if it is no Parquet file, or it is cut off, FormatError if the footer is encrypted, StorageError if it
    can not be read.
    """
    size = source.size
    if size == 0:
        raise CorruptDataError("the file is empty (0 bytes), so it is not a Parquet file")
    tail = source.read(max(0, size - _TAIL), size)
    if tail[-4:] == b"PARE":
        raise FormatError("the file's footer is encrypted; encrypted Parquet is not supported")
    if len(tail) < _TAIL or tail[-4:] != MAGIC:
        raise CorruptDataError("the file does not end with a Parquet footer: it is truncated, or not a Parquet file")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= size - _TAIL - len(MAGIC):
        raise CorruptDataError(f"its footer of {length} bytes does not fit into a file of {size} bytes")
    return source.read(size - _TAIL - length, size - _TAIL)


def read_facts(
    footer: bytes,
    size: int,
    *,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    partition: Mapping[str, Any] = MappingProxyType({}),
    schemas: dict[Any, KnownSchema],
) -> HeaderFacts:
    """Reads of a footer what an index needs; ``spans`` are the row groups with rows.

    CorruptDataError if the footer contradicts itself or the file's size; names row group and column. FormatError if the file
    needs what is not supported. ConfigError if the predicate does not fit the file's columns, or a file with rows lacks a
    column.

    Args:
        footer: the footer without its tail.
        columns: columns to read; ``None`` for all.
        predicate: which row groups to read; ``None`` for all.
        partition: values that the file's folders tell, which hide columns of the file.
        schemas: schemas that were met, which equal ones are taken from.
    """
    needed = None if columns is None else {*columns, *(predicate.columns if predicate is not None else ())}
    parsed = parse.parse_footer(footer, partial(leaves_below, names=needed))
    met = (
        b"".join(element.data for element in parsed.schema),
        parsed.metadata.get(ARROW_KEY, b""),
        parsed.metadata.get(DECLARED_KEY, b""),
        parsed.created_by,
        columns,
        frozenset(partition),
    )
    schema = schemas.get(met)
    if schema is None:
        whole = read_schema(parsed, _opened(footer).schema_arrow)
        chosen = _chosen(whole, columns, partition)
        spec = chosen.as_spec() | _declared(parsed.metadata, chosen)
        schema = schemas.setdefault(met, KnownSchema(whole, chosen, spec))
    _check_rows(parsed, sum(len(column.paths) for column in schema.whole.columns))
    filled = [number for number, group in enumerate(parsed.groups) if group.rows]
    if filled:
        for name in columns or ():
            if name not in schema.spec["columns"] and name not in partition:
                there = [*_opened(footer).schema_arrow.names, *partition]
                raise ConfigError(f"no column {name!r}; it has {', '.join(there)}")
    possible = [True] * len(filled)
    if predicate is not None:
        for name, encoding in _declared(parsed.metadata, schema.whole).get("encodings", {}).items():
            if name in predicate.columns:
                raise ConfigError(f"filters= names {name!r}, which holds {encoding}: only plain columns have an order")
        bounds = FooterBounds(footer, [parsed.groups[number] for number in filled], schema.whole, partition)
        possible = [predicate.possible(partial(bounds.of, index)) for index in range(len(filled))]
    leaves = [
        (leaf, kind, column.name, column.flat)
        for column in schema.chosen.columns
        for leaf, kind in zip(column.leaves, column.kinds, strict=True)
    ]
    end = size - _TAIL - len(footer)
    groups: list[Sequence[int]] = []
    for number, wanted in zip(filled, possible, strict=True):
        group = parsed.groups[number]
        facts = [number, group.rows, group.bytes, int(wanted)]
        for leaf, kind, name, flat in leaves:
            try:
                facts += _chunk(group.chunks[leaf], kind, end, group.rows if flat else None)
            except ValueError as error:
                raise CorruptDataError(f"row group {number}, column {name!r}: {error}") from None
        groups.append(facts)
    table = np.array(groups, dtype=np.int64).reshape(len(groups), GROUP_FIELDS + FIELDS * len(leaves))
    if _SHORT.match(parsed.created_by):
        _lengthen(table[:, GROUP_FIELDS:].reshape(-1, FIELDS), end)
    return HeaderFacts(parsed.rows, schema.spec, table)


def _lengthen(chunks: Ids, end: int) -> None:
    """Let chunks end where the head of a dictionary's page, which their sizes leave out, may: where the next begins at most.

    ``chunks``: facts of all chunks. ``end``: of the file's data.
    """
    starts = np.append(np.sort(chunks[:, START]), end)
    after = starts[np.searchsorted(starts[:-1], chunks[:, START], side="right")]
    chunks[:, COMPRESSED] = np.minimum(chunks[:, COMPRESSED] + _LONGEST_HEAD, after - chunks[:, START])


def _declared(metadata: Mapping[bytes, bytes], schema: FileSchema) -> dict[str, dict[str, str]]:
    """The ``encodings`` of columns, where values are to be decoded."""
    if DECLARED_KEY not in metadata:
        return {}
    from stoker.formats.parquet.columns import encoded_columns  # loads the encodings

    encodings = encoded_columns(metadata, schema.columns)
    return {"encodings": encodings} if encodings else {}


def _check_rows(parsed: parse.Footer, leaves: int) -> None:
    """Check that row groups have as many chunks as the schema has leaves, and together the footer's number of rows."""
    for number, group in enumerate(parsed.groups):
        if not 0 <= group.rows < _MOST_ROWS:
            raise CorruptDataError(f"row group {number} claims {group.rows} rows")
        if group.rows and len(group.chunks) != leaves:
            raise CorruptDataError(
                f"row group {number} has {len(group.chunks)} column chunks, the schema {leaves} columns"
            )
        if not group.rows and (values := max((chunk[_VALUES] for chunk in group.chunks if chunk), default=0)) > 0:
            raise CorruptDataError(f"row group {number} claims 0 rows, and {values} values in a column")
    if parsed.rows != (total := sum(group.rows for group in parsed.groups)):
        raise CorruptDataError(f"its footer claims {parsed.rows} rows, and {total} in its row groups")


def _chosen(schema: FileSchema, columns: Sequence[str] | None, partition: Mapping[str, Any]) -> FileSchema:
    """The columns to read of a file."""
    names = [column.name for column in schema.columns]
    wanted = [name for name in (names if columns is None else columns) if name not in partition]
    times = Counter(names)
    for name in wanted:
        if times[name] > 1:
            remedy = "rename one"
            if columns is None:
                remedy += ", or name the columns to read without it (columns=, of a StreamingParquetLoader column=)"
            raise FormatError(f"it has two columns called {name!r}: {remedy}")
    return schema.select(wanted)


def _opened(footer: bytes) -> Any:
    """The footer as pyarrow has it."""
    pa, pq = pyarrow(), pyarrow("parquet")
    whole = footer + len(footer).to_bytes(4, "little") + MAGIC
    try:
        file = pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit="us", **open_limits(len(footer)))
        file.schema_arrow  # noqa: B018 - made when it is asked for
    except (NotImplementedError, pa.ArrowNotImplementedError) as error:
        raise FormatError(f"it can not be read: {error}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"its footer can not be read: {error}") from None
    return file


def _chunk(chunk: parse.Chunk, expected: int, end: int, rows: int | None) -> list[int]:
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
