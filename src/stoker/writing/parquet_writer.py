"""Write a dataset of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

from stoker.arguments import checked, must_be
from stoker.catalog.unindexed.inspect_headers import StoreSource
from stoker.errors import ConfigError, CorruptDataError, MissingPackageError, StokerError
from stoker.formats.common.inspect_header import ByteSourceFile
from stoker.formats.common.records import batch_length, blame, check_sample
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.columns import ParquetColumn, read_declared, schema_of, stored, stored_to_arrow, to_arrow
from stoker.storage import Store
from stoker.writing.base import FileSetWriter, WriterOptions, check_encoding
from stoker.writing.destination import OutPath

_GROUP_BYTES: Final = 16 << 20
_CODECS: Final = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy", "lz4": "lz4"}


def check_compression(given: str | None) -> tuple[str, int | None]:
    """Codec and level as ``pyarrow`` has them."""
    if given is None:
        return "none", None
    name, _, level = given.partition(":")
    if name not in _CODECS or (level and not level.isdigit()):
        raise ConfigError(f"compression={given!r}: Parquet has {', '.join(_CODECS)}, some with a level, like 'zstd:3'")
    return _CODECS[name], int(level) if level else None


# Samples that are added one by one wait for so many of them, or bytes.
_MOST_WAITING: Final = 1 << 12
_MOST_BYTES: Final = 4 << 20


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
        must_be("a dict with at least one column", bool(columns), columns=columns)
        self._begin_columns([ParquetColumn(name, columns[name]) for name in sorted(columns)], out, remote, options)

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
            check_encoding(column.name, column.encoding)
        compression = options.get("compression") or None
        self._codec = check_compression(compression)
        declared = {column.name: column.encoding for column in self._columns}
        super().__init__(out, remote, {"columns": declared}, options, compression)
        self._schema = schema_of(self._columns)
        self._names = [column.name for column in self._columns]
        self._rows: dict[str, list[Any]] = {name: [] for name in self._names}  # added one by one
        self._row_bytes = 0
        self._tables: list[Any] = []  # of the row group to come
        self._table_bytes = 0
        self._buffer: Any = None  # of the file, once it has a row group
        self._parquet: Any = None
        self._file_bytes = self._file_samples = 0

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
            self._rows[name].append(value)
            self._row_bytes += len(value) if isinstance(value, bytes) else value.nbytes
        self._samples += 1
        if self._row_bytes >= _MOST_BYTES or len(self._rows[self._names[0]]) >= _MOST_WAITING:
            self._add_rows()

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
        self._add_rows()
        self._add(arrays)
        self._samples += count

    def _add_rows(self) -> None:
        """Have the samples that were added one by one join the others."""
        if not self._rows[self._names[0]]:
            return
        arrays = {column.name: stored_to_arrow(self._rows[column.name], column) for column in self._columns}
        self._rows = {name: [] for name in self._names}
        self._row_bytes = 0
        self._add(arrays)

    def _add(self, arrays: Mapping[str, Any]) -> None:
        """Add samples, as Arrow's columns."""
        table = pyarrow().Table.from_arrays([arrays[name] for name in self._names], schema=self._schema)
        while table.num_rows:
            rows = self._rows_until_full(table)
            part, table = table.slice(0, rows), table.slice(rows)
            self._tables.append(part)
            self._table_bytes += part.nbytes
            if self._table_bytes >= _GROUP_BYTES:
                self._write_group()
            if self._file_bytes + self._table_bytes >= self._limit:
                self._close_file()

    def _rows_until_full(self, table: Any) -> int:
        """Number of a table's rows that about fill the row group or the file, at least one."""
        left = min(_GROUP_BYTES - self._table_bytes, self._limit - self._file_bytes - self._table_bytes)
        rows: int = table.num_rows
        return rows if table.nbytes <= left else max(1, rows * max(0, left) // table.nbytes)

    def _write_group(self) -> None:
        if self._parquet is None:
            self._buffer = pyarrow().BufferOutputStream()
            codec, level = self._codec
            self._parquet = pyarrow("parquet").ParquetWriter(
                self._buffer, self._schema, compression=codec, compression_level=level, store_schema=True
            )
        if self._tables:
            table = pyarrow().concat_tables(self._tables)
            self._parquet.write_table(table, row_group_size=max(1, table.num_rows))
            self._file_samples += table.num_rows
            self._file_bytes += self._table_bytes
            self._tables, self._table_bytes = [], 0

    def _close_file(self) -> None:
        self._write_group()
        self._parquet.close()
        data, samples = memoryview(self._buffer.getvalue()), self._file_samples
        self._parquet = self._buffer = None
        self._file_bytes = self._file_samples = 0
        self._put([data], samples)

    def _end_file(self, *, empty: bool) -> None:
        self._add_rows()
        if self._tables or self._parquet is not None or (empty and self._number == 0):  # a dataset has its columns
            self._close_file()

    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        found = read_parquet_footer(store, key, sizes[".parquet"])
        return found.metadata.num_rows, {"columns": read_declared(found.schema_arrow.metadata)}


def read_parquet_footer(store: Store, key: str, size: int) -> Any:
    """A ``pyarrow.parquet.ParquetFile`` of an object, of which the footer is read."""
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
