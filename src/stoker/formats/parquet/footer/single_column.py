"""Footers of single columns.

A row group's column is decoded by a footer of its own, which says where its chunks lie in the buffer at hand. So pyarrow
reads parts of files as it reads files; no file's whole footer is kept or parsed again; and a row group of a file of many
thousands costs as much as one of a small file.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.formats.parquet.footer import thrift as compact
from stoker.formats.parquet.footer.facts import (
    CODEC,
    COMPRESSED,
    DATA_PAGE,
    DICTIONARY_PAGE,
    MAGIC,
    START,
    UNCOMPRESSED,
    VALUES,
)
from stoker.formats.parquet.footer.schema import ARROW_KEY, ColumnSchema

_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """A column in one row group.

    Attributes:
        chunks: facts of the column's chunks, one a leaf, offsets counted from the start of the buffer that holds them.
        statistics: statistics of a column with one leaf, made by :func:`~stoker.formats.parquet.footer.thrift.struct`.
    """

    rows: int
    chunks: Sequence[Sequence[int]]
    statistics: tuple[int, bytes] | None = None


def open_limits(length: int) -> dict[str, int]:
    """Arguments for pyarrow: what a footer of so many bytes can hold, so that a forged one takes no memory."""
    return {"thrift_string_size_limit": length, "thrift_container_size_limit": length}


def column_footer(column: ColumnSchema, parts: Sequence[ColumnPart], created_by: str) -> bytes:
    """The end of a Parquet file with one column: footer, length and magic."""
    root = compact.struct((4, compact.binary(b"schema")), (5, compact.integer(1, wide=False)))
    arrow = None
    if column.arrow:
        entry = compact.struct((1, compact.binary(ARROW_KEY)), (2, compact.binary(base64.b64encode(column.arrow))))
        arrow = compact.list_of([entry])
    # Without the orders readers take no notice of statistics.
    orders = compact.list_of([compact.struct((1, compact.struct()))] * len(column.paths))
    footer = compact.struct(
        (1, compact.integer(2, wide=False)),
        (2, _schema_list(root, column)),
        (3, compact.integer(sum(part.rows for part in parts))),
        (4, compact.list_of(_group(column, part) for part in parts)),
        (5, arrow),
        (6, compact.binary(created_by.encode())),
        (7, orders),
    )[1]
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def _group(column: ColumnSchema, part: ColumnPart) -> tuple[int, bytes]:
    encodings = compact.list_of(compact.integer(one, wide=False) for one in (_PLAIN, _RLE, _RLE_DICTIONARY))
    members = [
        compact.struct(
            (2, compact.integer(facts[START])),
            (
                3,
                compact.struct(
                    (1, compact.integer(kind, wide=False)),
                    (2, encodings),
                    (3, compact.list_of(compact.binary(name.encode()) for name in path)),
                    (4, compact.integer(facts[CODEC], wide=False)),
                    (5, compact.integer(facts[VALUES])),
                    (6, compact.integer(facts[UNCOMPRESSED])),
                    (7, compact.integer(facts[COMPRESSED])),
                    (9, compact.integer(facts[DATA_PAGE])),
                    (11, compact.integer(facts[DICTIONARY_PAGE]) if facts[DICTIONARY_PAGE] >= 0 else None),
                    (12, part.statistics),
                ),
            ),
        )
        for facts, kind, path in zip(part.chunks, column.kinds, column.paths, strict=True)
    ]
    return compact.struct(
        (1, compact.list_of(members)),
        (2, compact.integer(sum(facts[UNCOMPRESSED] for facts in part.chunks))),
        (3, compact.integer(part.rows)),
    )


def _schema_list(root: tuple[int, bytes], column: ColumnSchema) -> tuple[int, bytes]:
    # The head of a list tells how many elements follow; the column's lie end to end.
    kind, head = compact.list_of([root, *[(root[0], b"")] * column.count])
    return kind, head + column.elements
