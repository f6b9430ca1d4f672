"""Columns to Parquet files, row group by row group."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from stoker.convert.opening import KEY
from stoker.convert.values import ColumnPlan
from stoker.errors import ConfigError, EncodingError
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.formats.packing import fixed_kind
from stoker.formats.values import UnfitValueError
from stoker.types import Batch, Column

__all__ = ["ParquetFiles", "check_compression"]

_TEXT: Final = ("str", "json", "str_int", "str_float", "str_decimal")
_GROUP_BYTES: Final = 16 << 20
_CODECS: Final = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy", "lz4": "lz4"}


class ParquetFiles:
    """Files of the samples that are written, each put where it belongs as one piece when it is complete.

    Arrays of one shape are lists of fixed size; those of bytes, or of several dimensions, are fixed-size binary, which reads
    many times as fast, with data type and shape in the column's metadata. Columns that Parquet has no type for are the bytes
    of their encoding. The encodings' names are in the files' metadata, so that a conversion back gives the same columns.

    Args:
        plans: the columns.
        compression: as :func:`check_compression` returns it.
        size_limit: bytes of a file's columns in memory before it ends.
        samples_limit: most samples of a file; ``None`` for no limit.
        put: stores the file of a number.
    """

    def __init__(
        self,
        plans: Sequence[ColumnPlan],
        compression: tuple[str, int | None],
        size_limit: int,
        samples_limit: int | None,
        put: Callable[[int, memoryview], None],
    ) -> None:
        import pyarrow as pa

        self._plans = tuple(plans)
        self._compression = compression
        self._size_limit = size_limit
        self._samples_limit = samples_limit
        self._put = put
        about = json.dumps({"columns": {plan.name: plan.encoding for plan in self._plans}}, sort_keys=True)
        fields = [pa.field(plan.name, _arrow_type(plan), metadata=_declaration(plan)) for plan in self._plans]
        self._schema = pa.schema(fields, metadata={KEY: about.encode()})
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._writer: Any = None
        self._file: Any = None
        self._file_bytes = self._file_samples = 0
        self.sizes: list[tuple[int, int]] = []
        """Samples and bytes of each file that is stored."""

    def write(self, batch: Batch) -> None:
        """Add samples.

        Raises:
            UnfitValueError: a value does not fit its column; names it.
        """
        import pyarrow as pa

        arrays = [_to_arrow(batch[plan.name], plan) for plan in self._plans]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        while table.num_rows:
            room = table.num_rows
            if self._samples_limit is not None:
                room = self._samples_limit - self._file_samples - sum(one.num_rows for one in self._waiting)
            part, table = table.slice(0, room), table.slice(room)
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            if self._waiting_bytes >= _GROUP_BYTES:
                self._flush()
            waiting = sum(one.num_rows for one in self._waiting)
            full = self._samples_limit is not None and self._file_samples + waiting >= self._samples_limit
            if full or self._file_bytes + self._waiting_bytes >= self._size_limit:
                self._close()

    def finish(self, *, empty: bool) -> None:
        """Store what is left; with ``empty`` a file without samples, if there was none."""
        if self._waiting or self._writer is not None or (empty and not self.sizes):
            self._close()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._file = pa.BufferOutputStream()
            codec, level = self._compression
            self._writer = pq.ParquetWriter(
                self._file, self._schema, compression=codec, compression_level=level, store_schema=True
            )
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._file_samples += table.num_rows
            self._file_bytes += self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0

    def _close(self) -> None:
        self._flush()
        self._writer.close()
        data = memoryview(self._file.getvalue())
        self._put(len(self.sizes), data)
        self.sizes.append((self._file_samples, data.nbytes))
        self._writer = self._file = None
        self._file_bytes = self._file_samples = 0


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


def _arrow_type(plan: ColumnPlan) -> Any:
    import pyarrow as pa

    if plan.arrow is not None:
        return plan.arrow.storage_type if isinstance(plan.arrow, pa.BaseExtensionType) else plan.arrow
    encoding = get_encoding(plan.encoding)
    if encoding.name in _TEXT:
        return pa.string()
    if (dtype := _list_dtype(encoding)) is not None:
        return pa.list_(pa.from_numpy_dtype(dtype))
    if encoding.size is None:
        return pa.binary()
    kind, shape = fixed_kind(encoding)
    if _declaration(plan) is not None:
        return pa.binary(encoding.size)
    scalar = pa.from_numpy_dtype(kind)
    return scalar if shape == () else pa.list_(scalar, int(np.prod(shape, dtype=np.int64)))


def _declaration(plan: ColumnPlan) -> dict[str, str] | None:
    """What a field says of the arrays that its bytes are; ``None`` for other columns."""
    encoding = get_encoding(plan.encoding)
    if encoding.size is None or (plan.arrow is not None and not _is_fixed_binary(plan.arrow)):
        return None
    kind, shape = fixed_kind(encoding)
    if not shape or (len(shape) == 1 and kind.itemsize > 1) or kind.kind not in "biuf":
        return None
    return {"dtype": kind.name, "shape": ",".join(map(str, shape))}


def _is_fixed_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_fixed_size_binary(kind))


def _list_dtype(encoding: Encoding) -> np.dtype[Any] | None:
    """The dtype of arrays of any length, which become lists; ``None`` for other columns."""
    head, _, dtype = encoding.name.partition(":")
    return np.dtype(dtype) if head == "ndarray" and dtype and encoding.size is None and dtype != "bfloat16" else None


def _to_arrow(values: Column, plan: ColumnPlan) -> Any:
    import pyarrow as pa

    kind = _arrow_type(plan)
    try:
        if plan.arrow is not None and _declaration(plan) is None:
            return _kept(values, kind)
        encoding = get_encoding(plan.encoding)
        if encoding.name == "str":
            return pa.array(values, kind)
        if encoding.name in _TEXT:
            return pa.array([bytes(one).decode() for one in _encoded(encoding, values)], kind)
        if (dtype := _list_dtype(encoding)) is not None:
            return _lists(values, dtype, kind, plan)
        raw = encoding.encode_column(values)
        if encoding.size is None:
            return pa.array([bytes(one) for one in raw], kind)
        dtype, shape = fixed_kind(encoding)
        rows = np.ascontiguousarray(np.asarray(raw)).reshape(-1).view(dtype)
        if shape == ():
            return pa.array(rows, kind)
        if _is_fixed_binary(kind):
            return pa.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, pa.py_buffer(rows)])
        return pa.FixedSizeListArray.from_arrays(pa.array(rows), type=kind)
    except UnfitValueError as error:
        error.column = error.column or plan.name
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise EncodingError(f"column {plan.name!r} can not be stored as {kind}: {error}") from error


def _encoded(encoding: Encoding, values: Column) -> list[bytes]:
    raw = encoding.encode_column(values)
    return raw if isinstance(raw, list) else [row.tobytes() for row in raw]


def _lists(values: Column, dtype: np.dtype[Any], kind: Any, plan: ColumnPlan) -> Any:
    import pyarrow as pa

    arrays = [np.asarray(value) for value in values]
    for row, array in enumerate(arrays):
        if array.ndim != 1 or (array.size and array.dtype != dtype):
            raise UnfitValueError(
                f"expected a list of {dtype}, got an array of {array.dtype} of shape {array.shape}: declare the column with "
                f"its shape, or 'ndarray' for arrays of any kind, columns={{{plan.name!r}: 'ndarray'}}",
                row=row,
                column=plan.name,
            )
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UnfitValueError("more values in one batch than a list holds", row=0, column=plan.name)
    flat = np.concatenate([array.astype(dtype, copy=False) for array in arrays]) if arrays else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(flat), type=kind)


def _kept(values: Column, kind: Any) -> Any:
    """Values of a column that Arrow had already, in its own type again."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim > 1:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]).cast(kind)
    return pa.array(values, kind)
