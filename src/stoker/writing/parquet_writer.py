"""Write a dataset of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from stoker.arguments import checked
from stoker.catalog.unindexed.inspect_headers import StoreSource
from stoker.errors import ConfigError, CorruptDataError, FormatError, MissingPackageError, StokerError
from stoker.formats.common.byte_source import ByteSourceFile
from stoker.formats.common.records import batch_length, blame, check_sample
from stoker.formats.common.values import UnfitValueError
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.columns import ParquetColumn, read_declared, schema_of, stored, stored_to_arrow, to_arrow
from stoker.storage import Store
from stoker.types import Batch
from stoker.writing.base import FileSetWriter, WriterOptions
from stoker.writing.destination import OutPath

_GROUP_BYTES: Final = 16 << 20
_CODECS: Final = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy", "lz4": "lz4"}


class ParquetParts:
    """Files of the samples that are written, each handed over as one piece when it is complete; see
    :mod:`stoker.formats.parquet.columns` for what their columns are.

    Args:
        columns: the columns.
        compression: as :func:`check_compression` returns it.
        size_limit: bytes of a file's columns in memory before it ends.
        samples_limit: most samples of a file; ``None`` for no limit.
        put: stores a file: gets its number, from 0 on, its bytes and its samples.

    Attributes:
        schema: the files' ``pyarrow.Schema``.
        sizes: samples and bytes of each file that was handed over.
    """

    def __init__(
        self,
        columns: Sequence[ParquetColumn],
        compression: tuple[str, int | None],
        size_limit: int,
        samples_limit: int | None,
        put: Callable[[int, memoryview, int], None],
    ) -> None:
        self._columns = tuple(columns)
        self._compression = compression
        self._size_limit = size_limit
        self._samples_limit = samples_limit
        self._put = put
        self.schema = schema_of(self._columns)
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._writer: Any = None
        self._file: Any = None
        self._file_bytes = self._file_samples = 0
        self.sizes: list[tuple[int, int]] = []

    def write(self, batch: Batch) -> None:
        """Add samples.

        Raises:
            EncodingError, UnfitValueError: a value does not fit its column; names it.
        """
        self.write_arrow({column.name: to_arrow(batch[column.name], column) for column in self._columns})

    def write_arrow(self, arrays: Mapping[str, Any]) -> None:
        """Add samples whose columns are Arrow's already."""
        table = pyarrow().Table.from_arrays([arrays[column.name] for column in self._columns], schema=self.schema)
        while table.num_rows:
            rows = self._rows_until_full(table)
            if self._samples_limit is not None:
                left = self._samples_limit - self._file_samples - sum(one.num_rows for one in self._waiting)
                rows = min(rows, left)
            part, table = table.slice(0, rows), table.slice(rows)
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            if self._waiting_bytes >= _GROUP_BYTES:
                self._flush()
            waiting = sum(one.num_rows for one in self._waiting)
            full = self._samples_limit is not None and self._file_samples + waiting >= self._samples_limit
            if full or self._file_bytes + self._waiting_bytes >= self._size_limit:
                self._close()

    def _rows_until_full(self, table: Any) -> int:
        """Number of a table's rows that about fill the row group or the file, at least one."""
        left = min(_GROUP_BYTES - self._waiting_bytes, self._size_limit - self._file_bytes - self._waiting_bytes)
        rows: int = table.num_rows
        return rows if table.nbytes <= left else max(1, rows * max(0, left) // table.nbytes)

    def end_file(self) -> None:
        """End the file with the last sample that was added, if there is one."""
        if self._waiting or self._writer is not None:
            self._close()

    def finish(self, *, empty: bool) -> None:
        """Hand over what is left; with ``empty`` a file without samples, if there was none."""
        self.end_file()
        if empty and not self.sizes:
            self._close()

    def _flush(self) -> None:
        if self._writer is None:
            self._file = pyarrow().BufferOutputStream()
            codec, level = self._compression
            self._writer = pyarrow("parquet").ParquetWriter(
                self._file, self.schema, compression=codec, compression_level=level, store_schema=True
            )
        if self._waiting:
            table = pyarrow().concat_tables(self._waiting)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._file_samples += table.num_rows
            self._file_bytes += self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0

    def _close(self) -> None:
        self._flush()
        self._writer.close()
        data, samples = memoryview(self._file.getvalue()), self._file_samples
        self._writer = self._file = None
        self._file_bytes = self._file_samples = 0
        self._put(len(self.sizes), data, samples)
        self.sizes.append((samples, data.nbytes))


def check_compression(given: str | None) -> tuple[str, int | None]:
    """Codec and level as ``pyarrow`` has them.

    Raises:
        ConfigError: Parquet has no such codec.
    """
    if given is None:
        return "none", None
    name, _, level = given.partition(":")
    if name not in _CODECS or (level and not level.isdigit()):
        raise ConfigError(f"compression={given!r}: Parquet has {', '.join(_CODECS)}, some with a level, like 'zstd:3'")
    return _CODECS[name], int(level) if level else None


# Samples that are added one by one wait for so many of them, or bytes.
_MOST_WAITING: Final = 1 << 12
_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _Column:
    """A column; see :class:`~stoker.formats.parquet.columns.ParquetColumn`."""

    name: str
    encoding: str
    arrow: Any = None


class ParquetWriter(FileSetWriter):
    """Writes a dataset of Parquet files, ``part-00000.parquet`` and so on, in row groups of about 16 MiB.

    Numbers, text and arrays have Parquet types of their own (see :mod:`stoker.formats.parquet.columns`); all else is the
    bytes of its encoding. There is no index: the dataset is read with ``format="parquet"``, and by whatever reads Parquet.

    Args:
        columns: column name to encoding: ``{"tokens": "ndarray:uint16", "text": "str"}``.
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        **options: see :class:`~stoker.writing.base.WriterOptions`, but ``hashes``. ``compression``: ``zstd``, ``gz``,
            ``br``, ``snappy`` or ``lz4``. ``size_limit``: bytes of a file's columns in memory.

    Raises:
        ConfigError: an argument makes no sense, or what is there is in the way.
    """

    ends = (".parquet",)

    @checked(columns="give an encoding's name, such as 'int', 'float32', 'str' or 'ndarray:uint16'")
    def __init__(
        self,
        columns: Mapping[str, str],
        out: OutPath,
        remote: str | os.PathLike[str] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        if not columns:
            raise ConfigError("columns is empty: give at least one column")
        self._begin_columns([_Column(name, columns[name]) for name in sorted(columns)], out, remote, options)

    @classmethod
    def check_compression(cls, compression: str | None) -> None:
        check_compression(compression)

    def _begin_columns(
        self,
        columns: Sequence[ParquetColumn],
        out: OutPath,
        remote: str | os.PathLike[str] | None,
        options: WriterOptions,
    ) -> None:
        self._columns = tuple(columns)
        for column in self._columns:
            try:
                get_encoding(column.encoding)
            except FormatError as error:
                raise ConfigError(f"column {column.name!r}: {error}") from None
        compression = options.get("compression") or None
        codec = check_compression(compression)
        declared = {column.name: column.encoding for column in self._columns}
        super().__init__(out, remote, {"columns": declared}, options, compression)
        self._parts = ParquetParts(
            self._columns, codec, self._limit, None, lambda _, data, rows: self._put([data], rows)
        )
        self._names = [column.name for column in self._columns]
        self._waiting: dict[str, list[Any]] = {name: [] for name in self._names}
        self._bytes = 0

    def write(self, sample: Mapping[str, Any]) -> None:
        self._check_open()
        number = self._samples
        check_sample(sample, self._names, number)
        row: list[Any] = []
        for column in self._columns:
            try:
                row.append(stored(sample[column.name], column))
            except MissingPackageError:
                raise
            except Exception as error:
                raise blame(column.name, number, error) from error
        for name, value in zip(self._names, row, strict=True):
            self._waiting[name].append(value)
            self._bytes += len(value) if isinstance(value, bytes) else value.nbytes
        self._samples += 1
        if self._bytes >= _MOST_BYTES or len(self._waiting[self._names[0]]) >= _MOST_WAITING:
            self._flush()

    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """See :class:`~stoker.writing.base.Writer`. Where a value does not fit, nothing of the batch is written."""
        self._check_open()
        first = self._samples
        count = batch_length(columns, self._names, first)
        arrays: dict[str, Any] = {}
        for column in self._columns:
            try:
                arrays[column.name] = to_arrow(columns[column.name], column)
            except UnfitValueError as error:
                raise blame(column.name, first + (error.row or 0), error) from error
        self._flush()
        self._parts.write_arrow(arrays)
        self._samples += count

    def _flush(self) -> None:
        """Have the samples that were added one by one join the others."""
        if not self._waiting[self._names[0]]:
            return
        arrays = {column.name: stored_to_arrow(self._waiting[column.name], column) for column in self._columns}
        self._waiting = {name: [] for name in self._names}
        self._bytes = 0
        self._parts.write_arrow(arrays)

    def _end_file(self, *, empty: bool) -> None:
        self._flush()
        if empty:  # one file at least, so that a dataset without samples has its columns
            self._parts.finish(empty=True)
        else:
            self._parts.end_file()

    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        found = read_parquet_footer(store, key, sizes[".parquet"])
        return found.metadata.num_rows, {"columns": read_declared(found.schema_arrow.metadata)}


def read_parquet_footer(store: Store, key: str, size: int) -> Any:
    """A ``pyarrow.parquet.ParquetFile`` of an object, of which the footer is read.

    Raises:
        CorruptDataError: it is no Parquet file.
        StorageError: it can not be read.
    """
    file = ByteSourceFile(StoreSource(store, key, size, store.url_of(key)))
    pa = pyarrow()
    try:
        return pyarrow("parquet").ParquetFile(pa.PythonFile(file, "r"))
    except StokerError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(file.failure, StokerError):
            raise file.failure from None
        raise CorruptDataError(f"{store.url_of(key)}: not a Parquet file, or damaged: {str(error)[:200]}") from None
