"""Parquet files laid out page by page: values as they lie in memory, between headers that are known beforehand.

Columns are required, values are in the PLAIN encoding, and there are neither dictionaries nor statistics: random values
have no use for them, and pages are then the values themselves. (For DLIO there is an empty dictionary before them.)
Arrays and ``bytes`` of one size are of the type FIXED_LEN_BYTE_ARRAY, for lists of bytes would take a level, and an integer
of four bytes, for each. Token ids are lists. Source: ``parquet.thrift`` and ``Encodings.md`` of Apache Parquet.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import ConfigError
from stoker.formats.parquet import thrift as compact
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.facts import MAGIC
from stoker.formats.parquet.schema import ARROW_KEY
from stoker.lazy import cached_property
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent, mean_width
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.formats.parquet_pages import (
    PLAIN,
    RLE,
    arrow_schema,
    dictionary_header,
    is_list,
    page_header,
    page_values,
    physical_type,
    row_width,
    schema_elements,
)
from stoker_bench.generation.ragged import BATCH, column_sizes
from stoker_bench.generation.segments import Segment, gather
from stoker_bench.generation.spec import DatasetSpec

_ROW_GROUP: Final = 64 << 20
_MOST_PAGE: Final = (1 << 31) - (1 << 16)
_CODECS: Final = {"snappy": 1, "gzip": 2, "zstd": 6, "lz4": 7}


@dataclass(slots=True)
class _Chunk:
    """A column of a row group."""

    column: Column
    start: int
    values: int
    raw: int = 0
    stored: int = 0
    dictionary: int = 0


class ParquetLayout(GeneratedLayout):
    """Row groups of as many rows, each column in pages of about ``page_bytes``."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__(spec)
        width = sum(mean_width(column) for column in spec.fields)
        rows = max(1, _ROW_GROUP // max(1, width))
        # Whole pages of the widest column: what is left over would be a small page of each column.
        page = self._page_rows(max((row_width(column) or 0 for column in spec.fields), default=0))
        self._rows = min(spec.samples_per_file, spec.row_group_size or (rows // page * page or rows))
        self._codec: Any = None
        if spec.compression is not None:
            name, _, level = spec.compression.partition(":")
            # One for each page: they are not shared by threads.
            arrow = "lz4_raw" if name == "lz4" else name
            self._codec = lambda: pyarrow().Codec(arrow, compression_level=int(level) if level else None)
        self._compression = _CODECS[spec.compression.partition(":")[0]] if spec.compression else 0
        self._fixed = spec.compression is None and all(row_width(column) is not None for column in spec.fields)
        self._same_footer = b""  # of all files, where they are alike
        self._schema = schema_elements(spec.fields)
        for column in spec.fields:
            if (row_width(column) or 0) > _MOST_PAGE:
                raise ConfigError(f"column {column.name!r}: a value is larger than a Parquet page can be")

    def size(self, number: int) -> int | None:  # noqa: ARG002 - all are alike
        return self._same_size if self._fixed else None

    def segments(self, number: int) -> Iterator[Segment]:
        content = FileContent(self.spec, number)
        groups: list[tuple[int, list[_Chunk]]] = []
        at = len(MAGIC)
        yield MAGIC
        for first in range(0, self.spec.samples_per_file, self._rows):
            rows = min(self._rows, self.spec.samples_per_file - first)
            chunks: list[_Chunk] = []
            for column in self.spec.fields:
                chunk = _Chunk(column, at, rows * (math.prod(column.shape) if is_list(column) else 1))
                if self.spec.dlio:
                    packed = self._codec().compress(b"", asbytes=True) if self._codec is not None else b""
                    header = dictionary_header(len(packed))
                    yield header + packed
                    chunk.dictionary = len(header) + len(packed)
                    chunk.raw, chunk.stored = len(header), chunk.dictionary
                for start, count in self._cuts(content, column, first, rows):
                    page = page_values(content, column, start, count)
                    raw = sum(map(len, page))
                    stored = raw
                    if self._codec is not None:
                        packed = self._codec().compress(gather(page), asbytes=True)
                        page, stored = [packed], len(packed)
                    header = page_header(count * (math.prod(column.shape) if is_list(column) else 1), raw, stored)
                    yield header
                    yield from page
                    chunk.raw += len(header) + raw
                    chunk.stored += len(header) + stored
                at += chunk.stored
                chunks.append(chunk)
            groups.append((rows, chunks))
        footer = self._same_footer or self._footer(groups)
        if self._fixed:
            self._same_footer = footer
        yield footer

    @cached_property
    def _same_size(self) -> int:
        """Bytes of a file, where all are alike."""
        return sum(map(len, self.segments(0)))

    def versions(self) -> dict[str, str]:
        packed = {"pyarrow": pyarrow().__version__} if self.spec.compression else {}
        return {**packed, **super().versions()}

    def _page_rows(self, width: int) -> int:
        """Rows of a page; values take 1/8 of a byte where the width is 0, for booleans."""
        return max(1, self.spec.page_bytes // width if width else 8 * self.spec.page_bytes)

    def _cuts(self, content: FileContent, column: Column, first: int, rows: int) -> Iterator[tuple[int, int]]:
        """First row and rows of each page of a column chunk."""
        width = row_width(column)
        if width is not None:
            step = self._page_rows(width)
            for start in range(first, first + rows, step):
                yield start, min(step, first + rows - start)
            return
        start, size = first, 0
        for begin in range(first, first + rows, BATCH):
            sizes = column_sizes(content, column, begin, min(BATCH, first + rows - begin)) + 4
            for row, one in enumerate(sizes.tolist(), begin):
                if size and size + one > self.spec.page_bytes:
                    yield start, row - start
                    start, size = row, 0
                size += one
        if first + rows > start:
            yield start, first + rows - start

    def _footer(self, groups: list[tuple[int, list[_Chunk]]]) -> bytes:
        metadata = compact.struct(
            (1, compact.binary(ARROW_KEY)), (2, compact.binary(base64.b64encode(arrow_schema(self.spec))))
        )
        footer = compact.struct(
            (1, compact.integer(2, wide=False)),
            (2, compact.list_of(self._schema)),
            (3, compact.integer(sum(rows for rows, _ in groups))),
            (4, compact.list_of(self._group(rows, chunks) for rows, chunks in groups)),
            (5, compact.list_of([metadata])),
            (6, compact.binary(b"stoker")),
        )[1]
        return footer + len(footer).to_bytes(4, "little") + MAGIC

    def _group(self, rows: int, chunks: list[_Chunk]) -> tuple[int, bytes]:
        members = []
        for chunk in chunks:
            column = chunk.column
            path = [column.name, "list", "element"] if is_list(column) else [column.name]
            encodings = (PLAIN, RLE) if is_list(column) else (PLAIN,)
            metadata = compact.struct(
                (1, compact.integer(physical_type(column)[0], wide=False)),
                (2, compact.list_of(compact.integer(one, wide=False) for one in encodings)),
                (3, compact.list_of(compact.binary(name.encode()) for name in path)),
                (4, compact.integer(self._compression, wide=False)),
                (5, compact.integer(chunk.values)),
                (6, compact.integer(chunk.raw)),
                (7, compact.integer(chunk.stored)),
                (9, compact.integer(chunk.start + chunk.dictionary)),
                *(((11, compact.integer(chunk.start)),) if chunk.dictionary else ()),
            )
            members.append(compact.struct((2, compact.integer(chunk.start)), (3, metadata)))
        return compact.struct(
            (1, compact.list_of(members)),
            (2, compact.integer(sum(chunk.raw for chunk in chunks))),
            (3, compact.integer(rows)),
        )
