"""An open row group."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.base import FilePart, ReadOptions, ShardInfo
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.decode import decode_column
from stoker.formats.parquet.facts import COMPRESSED, DATA_PAGE, DICTIONARY_PAGE, START, RowGroup
from stoker.formats.parquet.memory import Shelf, memory_of
from stoker.formats.parquet.values import Values, as_values, constant
from stoker.types import Batch, Buffer, Ids

__all__ = ["ParquetReader"]


class ParquetReader:
    """An open row group: decodes a column when it is first asked for, and keeps it while there is room.

    Args:
        info: the index's entry; its detail is a :class:`~stoker.formats.parquet.facts.RowGroup`.
        file: the bytes of its chunks; kept, never closed here.
        where: names the file in errors.
        options: how samples are handed out.
    """

    __slots__ = (
        "_buffer",
        "_constants",
        "_group",
        "_part",
        "_shelf",
        "columns",
        "layout",
        "options",
        "samples",
        "where",
    )

    def __init__(self, info: ShardInfo, file: Buffer, where: str, options: ReadOptions) -> None:
        group = info.detail
        if not isinstance(group, RowGroup):
            raise FormatError(f"{where}: not a row group of an indexed Parquet dataset")
        (description,) = info.raw
        part = description.part
        assert part is not None  # whoever makes a RowGroup describes its file so
        expected = part.window[1] - part.window[0] if part.in_place else description.bytes
        if len(file) != expected:
            raise CorruptDataError(f"{where}: {len(file)} bytes are there, the index says {expected}")
        self.where = f"{where}: row group {group.number}"
        self.samples = info.samples
        self.columns: tuple[str, ...] = tuple(info.spec["columns"])
        self.layout: Hashable = info.spec["layout"]
        self.options = options
        self._group = group
        self._constants = dict(group.constants)
        self._buffer = file
        self._part = part
        self._shelf = Shelf()

    @property
    def format(self) -> str:
        """See :class:`~stoker.formats.base.ShardReader`."""
        return "parquet"

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """See :class:`~stoker.formats.base.ShardReader`; what comes as what, see :mod:`stoker.formats.parquet.values`."""
        wanted = self.wanted(columns)
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self.samples):
            raise IndexError("row outside its shard")
        batch: Batch = {}
        for name in wanted:
            values = self.values(name)
            try:
                batch[name] = values.take(rows, views=self.options.views)
            except (UnicodeDecodeError, pyarrow().ArrowException) as error:
                raise CorruptDataError(
                    f"{self.where}, column {name!r}: a value does not fit its type (text that is not UTF-8?): {error}"
                ) from None
        return batch

    def wanted(self, columns: Sequence[str] | None) -> list[str]:
        """Names of the columns to read, in the shard's order.

        Raises:
            FormatError: there is no such column.
        """
        chosen = set(self.columns if columns is None else columns)
        if unknown := chosen.difference(self.columns):
            raise FormatError(f"{self.where} has no column {min(unknown)!r}; it has {', '.join(self.columns)}")
        return [name for name in self.columns if name in chosen]

    def values(self, name: str) -> Values:
        """A column, decoded now or before."""
        if name in self._constants:
            return constant(self._constants[name])
        found: Values = memory_of(self.options.decoded_limit).get(self._shelf, name, partial(self._decode, name))
        return found

    def array(self, name: str) -> Any:
        """A column as a ``pyarrow.Array``, decoded now and not kept.

        Raises:
            CorruptDataError: its bytes are no such column; names file, row group and column.
            FormatError: there is no such column in the file.
        """
        schema, first = self._group.file.schema, 0
        for column in schema.columns:
            if column.name == name:
                chunks = self._placed(self._group.file.chunks[self._group.place, first : first + len(column.paths)])
                array = decode_column(column, self.samples, chunks, schema.created_by, self._buffer, self.where)
                for start, size in chunks[:, [START, COMPRESSED]].tolist():
                    _let_go(self._buffer, start, start + size)
                return array
            first += len(column.paths)
        raise FormatError(f"{self.where} has no column {name!r}; it has {', '.join(self.columns)}")

    def _decode(self, name: str) -> Values:
        return as_values(self.array(name))

    def _placed(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chunks' facts, with places in the buffer instead of the file."""
        moved = chunks.copy()
        shift = _shift(self._part, chunks[:, START], chunks[:, COMPRESSED])
        moved[:, START] += shift
        moved[:, DATA_PAGE] += shift
        moved[:, DICTIONARY_PAGE] += np.where(chunks[:, DICTIONARY_PAGE] >= 0, shift, 0)
        return moved


def _let_go(buffer: Buffer, start: int, end: int) -> None:
    """Take pages of a map out of this process's memory, where they count although they are the page cache's."""
    if isinstance(buffer, mmap.mmap):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError, ValueError):
            buffer.madvise(mmap.MADV_DONTNEED, first, end - first)


def _shift(part: FilePart, places: Ids, sizes: Ids) -> Ids:
    """How far bytes of the file are moved in the buffer that holds the part."""
    if part.in_place:
        return np.full(len(places), -part.window[0], dtype=np.int64)
    starts, ends = np.array(part.starts, dtype=np.int64), np.array(part.ends, dtype=np.int64)
    before = np.cumsum(ends - starts) - (ends - starts)
    which = np.searchsorted(starts, places, side="right") - 1
    assert (which >= 0).all()
    assert (places + sizes <= ends[which]).all()  # the part was made of these chunks
    shift: Ids = len(part.head) + before[which] - starts[which]
    return shift
