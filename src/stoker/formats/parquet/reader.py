"""Parquet as a format: row groups as shards, and an open row group."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.base import FilePart, ReadOptions, ShardInfo
from stoker.formats.common.checks import check_indexed, check_memory, check_rows
from stoker.formats.common.container import OpenShard, read_gathered
from stoker.formats.common.entries import FLOATS
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, Partition
from stoker.formats.format import Format
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.decode import as_arrays, column_batches, decode_column, in_place
from stoker.formats.parquet.facts import (
    COMPRESSED,
    DATA_PAGE,
    DICTIONARY_PAGE,
    START,
    UNCOMPRESSED,
    VALUES,
    RowGroup,
    describe_row_groups,
)
from stoker.formats.parquet.footer import KnownSchema, read_facts, read_footer
from stoker.formats.parquet.lists import decode_equal, decode_lists, last_lists, list_shape
from stoker.formats.parquet.pages import OtherPagesError, bad_pages
from stoker.formats.parquet.schema import ColumnSchema
from stoker.formats.parquet.values import AddressedValues, ColumnValues, Constant, EncodedValues, Fixed, gather_alike
from stoker.formats.unstacked import iterate_rows
from stoker.types import Array, Batch, Buffer, Ids

# Bytes of a map that are decoded before they are taken out of this process's memory.
_LET_GO: Final = 2 << 20
_MOST_SCHEMAS: Final = 256


class ParquetReader(OpenShard):
    """An open row group: decodes a column when it is first asked for, and keeps it while there is room.

    ``info``: the index's entry; its detail is a :class:`~stoker.formats.parquet.facts.RowGroup`. ``files``: the
    bytes of its chunks; kept, never closed here.
    """

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        (file,), group = files, info.detail
        if not isinstance(group, RowGroup):
            raise FormatError(f"{where}: not a row group of an indexed Parquet dataset")
        (description,) = info.raw
        part = description.part
        assert part is not None  # all makers of a RowGroup describe its file so
        expected = part.window[1] - part.window[0] if part.in_place else description.bytes
        check_indexed(f"{where}: its chunks have", len(file), expected, "bytes")
        super().__init__(info, f"{where}: row group {group.number}", options, info.spec["layout"])
        self._group = group
        self._constants = dict(group.constants)
        self._buffer = file
        self._part = part

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """See :class:`~stoker.formats.base.ShardReader`; for types of values :mod:`stoker.formats.parquet.values`."""
        wanted = self.wanted(columns)
        check_rows(rows, self.samples)
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

    def values(self, name: str) -> ColumnValues:
        """A column, decoded now or before."""
        if name in self._constants:
            return Constant(self._constants[name])
        found: ColumnValues = self.kept(name, partial(self._decode, name))
        encoding = self.encodings.get(name)
        if encoding is None:
            return found
        return EncodedValues(found, encoding, name, self.where)

    def array(self, name: str) -> Any:
        """A column as a ``pyarrow.Array``, decoded now and not kept.

        CorruptDataError if its bytes are no such column; names file, row group and column. FormatError if there is no such
        column in the file.
        """
        column, chunks = self._find(name)
        self._check_size(name, chunks)
        schema = self._group.file.schema
        array = decode_column(column, self.samples, chunks, schema.created_by, self._buffer, self.where)
        for start, size in chunks[:, [START, COMPRESSED]].tolist():
            _let_go(self._buffer, start, start + size)
        return array

    def batches(self, name: str, values: int) -> Iterator[Any]:
        """A column as ``pyarrow.Array`` of about so many values at a time, in less memory than all at once.

        CorruptDataError or FormatError: as :meth:`array`.
        """
        column, chunks = self._find(name)
        created_by = self._group.file.schema.created_by
        rows = max(1, values * self.samples // max(1, int(chunks[0, VALUES])))
        done = 0
        for array in column_batches(column, self.samples, chunks, created_by, self._buffer, self.where, at_a_time=rows):
            yield array
            done += len(array)
            for start, size in chunks[:, [START, COMPRESSED]].tolist():
                _let_go(self._buffer, start, start + size * done // max(1, self.samples))

    def lists(self, name: str) -> Iterator[tuple[Array, Ids]]:
        """A column of lists of integers, about a page at a time; see :mod:`stoker.formats.parquet.lists`.

        OtherPagesError if what has not been yielded yet is for :meth:`batches`. FormatError if there is no such column in the
        file. Gives values end to end, good until the next are asked for, and int64 offsets of the lists in them.
        """
        column, chunks = self._find(name)
        shape = list_shape(column)
        if shape is None or shape.dtype.kind == "f":
            raise OtherPagesError(f"it holds {column.type}")
        start = int(chunks[0, START])
        stop = start + int(chunks[0, COMPRESSED])
        for values, offsets, end in decode_lists(shape, self.samples, chunks[0], self._buffer):
            yield values, offsets
            if end - start >= _LET_GO or end >= stop:
                _let_go(self._buffer, start, end)
                start = end

    def last_lists(self, name: str) -> tuple[Array, Ids] | None:
        """The lists of a column that begin behind its last damaged page; see
        :func:`~stoker.formats.parquet.lists.last_lists`."""
        column, chunks = self._find(name)
        shape = list_shape(column)
        if shape is None or shape.dtype.kind == "f":
            return None
        return last_lists(shape, chunks[0], self._buffer)

    def _find(self, name: str) -> tuple[ColumnSchema, NDArray[np.int64]]:
        """A column of the file, and facts of its chunks, with offsets in the buffer."""
        found = self._group.file.schema.find(name)
        if found is None:
            raise FormatError(f"{self.where} has no column {name!r}; it has {', '.join(self.columns)}")
        column, first = found
        return column, self._shifted(self._group.file.chunks[self._group.index, first : first + len(column.paths)])

    def _check_size(self, name: str, chunks: NDArray[np.int64]) -> None:
        """Refuse a column that takes too much memory: by what its chunks say, or its values, a byte each at least."""
        size = max(int(chunks[:, UNCOMPRESSED].sum()), int(chunks[:, VALUES].sum()))
        stored = int(chunks[:, COMPRESSED].sum())
        check_memory(size, stored, self.options.decoded_bytes, f"{self.where}, column {name!r}")

    def _decode(self, name: str) -> ColumnValues:
        column, chunks = self._find(name)
        self._check_size(name, chunks)
        shape = list_shape(column)
        try:
            if shape is None:
                return in_place(column, self.samples, chunks[0], self._buffer)
            values = Fixed(decode_equal(shape, self.samples, chunks[0], self._buffer))
        except OtherPagesError:
            array = self.array(name)
            try:
                return as_arrays(column, array, self.where)
            except CorruptDataError:
                raise
            except ValueError as error:
                raise FormatError(f"{self.where}, column {name!r}: {error}") from None
        _let_go(self._buffer, int(chunks[0, START]), int(chunks[0, START] + chunks[0, COMPRESSED]))
        return values

    def _shifted(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chunks' facts, with offsets in the buffer instead of the file."""
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


def _shift(part: FilePart, starts_in_file: Ids, sizes: Ids) -> Ids:
    """The distance by which bytes of the file are moved in the buffer that holds the part."""
    if part.in_place:
        return np.full(len(starts_in_file), -part.window[0], dtype=np.int64)
    starts, ends = np.array(part.starts, dtype=np.int64), np.array(part.ends, dtype=np.int64)
    before = np.cumsum(ends - starts) - (ends - starts)
    which = np.searchsorted(starts, starts_in_file, side="right") - 1
    assert (which >= 0).all()
    assert (starts_in_file + sizes <= ends[which]).all()  # the part was made of these chunks
    shift: Ids = len(part.head) + before[which] - starts[which]
    return shift


class ParquetFormat(Format):
    """Row groups as shards, decoded by pyarrow."""

    name = "parquet"
    shard = "a row group"
    reader = ParquetReader
    magic = (b"PAR1",)
    views = "runs of rows"
    suffixes = (".parquet", ".parq", ".pq")
    row_groups = True
    settings = ("filters", "hive")
    types = FLOATS
    unlisted = 'Parquet is not listed in an index.json: open the directory that holds the files with format="parquet"'
    iterate = staticmethod(iterate_rows)  # rows of array columns are arrays

    def __init__(self) -> None:
        self._schemas: dict[Any, KnownSchema] = {}

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`stoker.formats.format.Format`: the header is the footer.

        MissingPackageError if pyarrow is not installed.
        """
        columns = settings.get("columns")
        if len(self._schemas) > _MOST_SCHEMAS:
            self._schemas.clear()
        return read_facts(
            read_footer(source),
            source.size,
            columns=None if columns is None else tuple(columns),
            predicate=settings.get("predicate"),
            partition=settings.get("partition", {}),
            schemas=self._schemas,
        )

    def describe_shards(
        self,
        files: Sequence[UnindexedFile],
        spec: Mapping[str, Any],
        *,
        in_place: bool,
        partitions: Mapping[str, Partition] | None = None,
        apart: bool = False,
    ) -> Iterator[ShardInfo]:
        """See :class:`stoker.formats.format.Format`: row groups, without those that the predicate leaves out.

        Small ones of a file that follow each other are fetched together.
        """
        encodings = {name: kind for name, kind in spec.get("encodings", {}).items() if name in spec["columns"]}
        return describe_row_groups(files, spec["columns"], encodings, partitions or {}, in_place=in_place, apart=apart)

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`stoker.formats.format.Format`; how columns are stored may differ."""
        one, two = ({**spec["columns"], **spec.get("encodings", {})} for spec in (first, other))
        return first if one == two else super().agree({"columns": one}, {"columns": two})

    def bad_checksums(self, info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002
        """Pages of each chunk of a row group: that they are there, as many values, and CRC-32 where they carry it."""
        group, part = info.detail, info.raw[0].part
        assert isinstance(group, RowGroup)
        assert part is not None  # all makers of a RowGroup describe its file so
        paths = [path for column in group.file.schema.columns for path in column.paths]
        for path, facts in zip(paths, group.file.chunks[group.index], strict=True):
            for message in bad_pages(data, facts, part.window[0]):
                yield None, f"row group {group.number}, column {'.'.join(path)!r}: {message}"

    def read_many(
        self, shards: Sequence[ParquetReader], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        return read_gathered(shards, which, rows, columns, partial(_gather, shards, which, rows))


def _gather(shards: Sequence[ParquetReader], which: Ids, rows: Ids, name: str) -> Array | None:
    """A fixed-width column of several row groups in one copy; ``None`` where it is none, or not all of them fit in memory."""
    first = shards[0].values(name)
    if not isinstance(first, AddressedValues) or first.nbytes * len(shards) > shards[0].options.decoded_bytes:
        return None
    return gather_alike([first, *(shard.values(name) for shard in shards[1:])], which, rows)
