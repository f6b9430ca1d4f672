"""Write a dataset of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from stoker.formats.parquet.columns import ParquetColumn, read_declared, stored, stored_to_arrow, to_arrow
from stoker.storage import Store
from stoker.writing.base import WriterOptions
from stoker.writing.destination import OutPath
from stoker.writing.file_sets import FileSetWriter
from stoker.writing.parquet_parts import ParquetParts, check_compression

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
