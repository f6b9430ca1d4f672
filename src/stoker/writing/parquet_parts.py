"""Columns to Parquet files, row group by row group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stoker.errors import ConfigError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.columns import ParquetColumn, schema_of, to_arrow
from stoker.types import Batch

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
