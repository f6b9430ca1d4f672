"""Facts of a Parquet file's row groups that are kept, so that its footer need not be read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.parquet.footer.schema import FileSchema
from stoker.types import Ids

MAGIC: Final = b"PAR1"
"""The first and last bytes of a Parquet file."""

# Facts of a chunk, in this order. Offsets are bytes from the file's start; -1 where there is none.
START, DATA_PAGE, DICTIONARY_PAGE, COMPRESSED, UNCOMPRESSED, VALUES, NULLS, CODEC = range(8)
FIELDS: Final = 8

GROUP_FIELDS: Final = 4
"""Count of the numbers of a row group before the facts of its chunks: its index in the file, its rows, its uncompressed
bytes with all columns, and whether a row of it may fulfil the predicate."""


@dataclass(frozen=True, slots=True, eq=False)
class FileFacts:
    """Facts of a file's row groups; those without rows are left out.

    Attributes:
        key: the file, relative to the dataset's root.
        size: bytes of the file.
        version: see :class:`~stoker.formats.base.FilePart`.
        schema: the columns that are read, in the file's order.
        numbers: index of each row group in the file; int64, shape ``(row groups,)``.
        rows: rows of each; int64.
        bytes: uncompressed bytes of each with all columns; int64.
        chunks: facts of the column chunks; int64, shape ``(row groups, leaves, FIELDS)``, leaves in the schema's order.
        possible: whether a row of the group may fulfil the predicate; bool, shape ``(row groups,)``.
    """

    key: str
    size: int
    version: str
    schema: FileSchema
    numbers: Ids
    rows: Ids
    bytes: Ids
    chunks: NDArray[np.int64]
    possible: NDArray[np.bool_]

    @classmethod
    def of(cls, file: UnindexedFile, schema: FileSchema) -> FileFacts:
        """The facts that :func:`~stoker.formats.parquet.footer.footer.read_facts` found, by its numbers of each row group."""
        groups, leaves = file.spans, sum(len(column.paths) for column in schema.columns)
        return cls(
            file.key,
            file.file.size,
            file.file.version,
            schema,
            groups[:, 0],
            groups[:, 1],
            groups[:, 2],
            groups[:, GROUP_FIELDS:].reshape(len(groups), leaves, FIELDS),
            groups[:, 3].astype(np.bool_),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """One row group: the detail of a shard.

    Attributes:
        file: the file that it lies in.
        index: its index in the file's facts.
        constants: names and values of the columns that its directory's name tells.
    """

    file: FileFacts
    index: int
    constants: tuple[tuple[str, Any], ...]

    @property
    def number(self) -> int:
        """Its number in the file."""
        return int(self.file.numbers[self.index])

    @property
    def bytes(self) -> int:
        """Compressed bytes of the columns that are read."""
        return int(self.file.chunks[self.index, :, COMPRESSED].sum())

    @property
    def identity(self) -> str:
        return f"{self.file.key}\0{self.file.size}\0{self.number}\0{int(self.file.bytes[self.index])}"
