"""Bounds of columns in a footer's row groups, by the statistics that it holds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.footer import parse
from stoker.formats.parquet.footer import thrift_writer as compact
from stoker.formats.parquet.footer.facts import FIELDS
from stoker.formats.parquet.footer.predicate import Bounds
from stoker.formats.parquet.footer.schema import ColumnSchema, FileSchema
from stoker.formats.parquet.footer.single_column import ColumnPart, column_footer, open_limits

# Fields of Statistics. The first two are from before orders were defined, and pyarrow knows when they can be relied on.
_OLD_MAX, _OLD_MIN, _MAX, _MIN, _MAX_EXACT, _MIN_EXACT = 1, 2, 5, 6, 7, 8
# Bytes of values of the physical types that have a width: boolean, int32, int64, int96, float, double.
_WIDTHS: Final = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}


class FooterBounds:
    """Bounds of columns in row groups.

    Statistics are taken out of the footer and checked, and handed to pyarrow in a footer of their own: it ends the process
    on some that are damaged, and it knows how writers have erred.

    Args:
        footer: the footer.
        groups: its row groups that have rows.
        schema: the file's columns.
        constants: values that the file's directory tells, which hide columns of the file.
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

        Raises:
            ConfigError: there is no such column, or none that has an order.
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
            ColumnPart(group.rows, [[0, 4, -1, 0, 0, chunk[2], -1, 0][:FIELDS]], _struct_of(found))
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
