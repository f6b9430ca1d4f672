"""Arrow IPC files (Feather version 2), of the file format and of the streaming format.

Columns are mapped where they lie. Each batch of a column is checked in full when it is first used: offsets of a damaged file
would otherwise lead anywhere in memory. What is checked is in memory of our own, as the file may change later: offsets are
copied, and so are columns of nested types, whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.arrow_layout import arrow_layout
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import check_indexed, check_memory, decode_fixed, decode_values, wanted_columns
from stoker.formats.common.container import (
    PackedEncoder,
    PackedFormat,
    PackedShard,
    fixed_kind,
    read_gathered,
    read_offsets,
)
from stoker.formats.common.entries import FLOATS
from stoker.formats.common.inspect_header import ByteSource, ByteSourceFile, HeaderFacts, MappedSource, check_count
from stoker.formats.common.records import BytesLike
from stoker.formats.mds.encodings import Encoding
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.columns import TEXTS
from stoker.formats.parquet.values import ColumnValues, Fixed, SlicedBytes, as_values, gather_alike, take_each
from stoker.types import Array, Batch, Buffer, Column, Ids

# What pyarrow, and what is made of its arrays, raise for damaged files, beside its own errors.
_DAMAGE: Final = (ValueError, OSError, IndexError, KeyError, TypeError, MemoryError)


class ArrowShard(PackedShard):
    """An open Arrow file.

    ``compressed``: whether batches are decoded into memory. ``firsts``: first row of each batch, and the end of the last.
    """

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        read_offsets(info, files, where)
        self._source = MappedSource(files[0], where)
        self._layout = arrow_layout(self._source)
        self.compressed = self._layout.compressed
        self._buffer = pyarrow().py_buffer(files[0])
        self.firsts = np.cumsum([0, *self._layout.rows], dtype=np.int64)
        self._kinds: Mapping[str, str] = info.spec.get("columns", {})
        self._schema: Any = None
        check_indexed(f"{where}: the file holds", int(self.firsts[-1]), info.samples, "rows")

    def take(self, name: str, rows: Ids) -> Column:
        encoding = self.encodings.get(name)
        views = self.options.views and (encoding is None or encoding.verbatim)
        if not (parts := self.parts(name)):
            return []
        batch = self.batches(rows)
        try:
            taken = take_each(parts, batch, rows - self.firsts[batch], views=views)
        except (UnicodeDecodeError, ValueError, OverflowError, pyarrow().ArrowException) as error:
            raise CorruptDataError(f"{self.where}, column {name!r}: {error}") from None
        return self.finish(name, rows, taken)

    def batches(self, rows: Ids) -> Ids:
        """Number of the batch that each row is in."""
        return np.searchsorted(self.firsts, rows, side="right") - 1

    def parts(self, name: str, arrays: Sequence[Any] | None = None) -> list[ColumnValues]:
        """A column's batches, checked; ``arrays``: as they were read."""
        parts: list[ColumnValues] = self.kept(name, partial(_Parts, self, name, arrays)).parts
        return parts

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        self.read_together(self.wanted(columns))
        return super().read(rows, columns)

    def finish(self, name: str, rows: Ids, taken: Column) -> Column:
        """Values as they lie in the file, to values as users see them."""
        encoding = self.encodings.get(name)
        if encoding is None or (encoding.verbatim and isinstance(taken, list)):
            return taken
        if isinstance(taken, np.ndarray):
            return decode_fixed(encoding, taken, rows, name, self.where)
        if encoding.size is not None:
            raise CorruptDataError(f"{self.where}: column {name!r} has nulls, but is declared {encoding.name}")
        return decode_values(encoding, taken, rows, name, self.where)

    def read_parts(self, name: str, arrays: Sequence[Any] | None = None) -> list[ColumnValues]:
        """Read a column's batches from the file; ``arrays``: where they were read with others, and not checked yet.

        CorruptDataError if they are damaged; names shard and column.
        """
        here = f"{self.where}: column {name!r}"
        check_memory(self._layout.unpacked, self._source.size, self.options.decoded_bytes, self.where)
        try:
            found = [_own_offsets(array) for array in (self._read_arrays([name])[name] if arrays is None else arrays)]
            for array in found:
                _checked(array).validate(full=True)
            if [len(array) for array in found] != list(self._layout.rows):
                raise CorruptDataError(f"{here} is missing or has another number of rows than its batches")
            encoding = self.encodings.get(name)
            if encoding is not None:
                return [_declared(array, encoding, here) for array in found]
            kind = self._kinds[name]
            if any(str(array.type) != kind for array in found):
                raise CorruptDataError(f"{here} is not {kind} as when it was indexed")
            return [as_values(array) for array in found]
        except CorruptDataError:
            raise
        except (*_DAMAGE, pyarrow().ArrowException) as error:
            raise CorruptDataError(f"{here} does not decode: {str(error)[:200]}") from None

    def read_together(self, names: Sequence[str]) -> None:
        """Read columns that are not in memory at once: to open the file takes as long as its schema has columns."""
        missing = [name for name in names if name not in self._shelf.columns]
        if len(missing) < 2:
            return
        try:
            found = self._read_arrays(missing)
        except (*_DAMAGE, pyarrow().ArrowException):
            return  # each is read by itself, and the error names it
        for name in missing:
            self.parts(name, found.pop(name))

    def _read_arrays(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Batches of columns as they lie in the file, of which nothing is checked."""
        ipc = pyarrow("ipc")
        opener = ipc.open_stream if self._layout.stream else ipc.open_file
        if self._schema is None:
            self._schema = opener(self._buffer).schema
        found: dict[str, list[Any]] = {}
        places: dict[bool, dict[str, int]] = {}
        for name in names:
            indices = self._schema.get_all_field_indices(name)
            if len(indices) != 1:
                raise ValueError("there is no such column" if not indices else "there are several columns of that name")
            places.setdefault(_stays_mapped(self._schema.field(indices[0]).type), {})[name] = indices[0]
        for mapped, some in places.items():
            options = ipc.IpcReadOptions(included_fields=sorted(some.values()), use_threads=False)
            file = self._buffer if mapped else pyarrow().PythonFile(ByteSourceFile(self._source), "r")
            reader = opener(file, options=options)
            if self._layout.stream:
                batches = list(reader)
            else:
                batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            for name in some:
                found[name] = [batch.column(name) for batch in batches]
        return found


class _Parts:
    """A column's batches, as what decoded memory keeps."""

    def __init__(self, shard: ArrowShard, name: str, arrays: Sequence[Any] | None) -> None:
        self.parts = shard.read_parts(name, arrays)
        # What is mapped takes no memory of ours.
        self.nbytes = sum(part.nbytes for part in self.parts if shard.compressed or not _is_mapped(part))


def _is_plain(kind: Any) -> bool:
    """Whether an Arrow type is text or bytes."""
    types = pyarrow().types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _stays_mapped(kind: Any) -> bool:
    """Whether values of an Arrow type are read where they lie."""
    types = pyarrow().types
    if _is_plain(kind) or ((types.is_list(kind) or types.is_large_list(kind)) and types.is_primitive(kind.value_type)):
        return True
    while isinstance(kind, pyarrow().BaseExtensionType) or types.is_fixed_size_list(kind):
        kind = kind.value_type if types.is_fixed_size_list(kind) else kind.storage_type
    return bool(types.is_primitive(kind) or types.is_fixed_size_binary(kind))


def _own_offsets(array: Any) -> Any:
    """Text or bytes whose offsets, and bits that tell of nulls, do not lie in the file; all else as it is, as values of it
    have offsets of their own."""
    if not _is_plain(array.type):
        return array
    pa = pyarrow()
    offsets = [None if one is None else pa.py_buffer(one.to_pybytes()) for one in array.buffers()[:2]]
    return pa.Array.from_buffers(array.type, len(array), [*offsets, array.buffers()[2]], offset=array.offset)


def _checked(array: Any) -> Any:
    """View ``date64`` as ``timestamp[ms]``: JavaScript writes a time of day into it, which pyarrow's check refuses."""
    kind = _timed(array.type)
    return array if kind is array.type else array.view(kind)


def _timed(kind: Any) -> Any:
    pa, types = pyarrow(), pyarrow().types
    if types.is_date64(kind):
        return pa.timestamp("ms")
    inner = [kind.field(number) for number in range(kind.num_fields)]
    fields = [field.with_type(_timed(field.type)) for field in inner]
    if fields == inner:
        return kind
    if types.is_struct(kind):
        return pa.struct(fields)
    if types.is_map(kind):
        key, item = fields[0].type
        return pa.map_(key, item, kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.large_list if types.is_large_list(kind) else pa.list_)(fields[0])
    return kind


def _is_mapped(part: ColumnValues) -> bool:
    return isinstance(part, SlicedBytes) or (isinstance(part, Fixed) and not part.array.flags.owndata)


def _declared(array: Any, encoding: Encoding, here: str) -> ColumnValues:
    """A batch of a column that stoker wrote."""
    pa = pyarrow()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if array.null_count:
        raise CorruptDataError(f"{here} has nulls, but is declared {encoding.name}")
    if encoding.size is None:
        if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
            raise CorruptDataError(f"{here} is {array.type}, but is declared {encoding.name}")
        _, buffer, data = array.buffers()
        count = len(array)
        offsets = np.frombuffer(buffer, "<i8", count + 1, 8 * array.offset) if count else np.zeros(1, np.int64)
        return SlicedBytes(memoryview(b"" if data is None else data), offsets[:-1], offsets[1:])
    dtype, shape = fixed_kind(encoding)
    if pa.types.is_fixed_size_binary(array.type):
        _, data = array.buffers()
        width = array.type.byte_width
        flat = np.frombuffer(data, np.uint8, width * len(array), width * array.offset) if data is not None else None
        values = Fixed(np.zeros((0, width), np.uint8) if flat is None else flat.reshape(len(array), width))
    else:
        decoded = as_values(array)
        if not isinstance(decoded, Fixed):
            decoded = Fixed(np.zeros((0, *shape), dtype)) if not len(array) else decoded
        if not isinstance(decoded, Fixed):
            raise CorruptDataError(f"{here} is {array.type}, but is declared {encoding.name}")
        values = decoded
    if values.array.dtype != dtype or values.array.size != len(array) * int(np.prod(shape, dtype=np.int64)):
        raise CorruptDataError(f"{here} is {array.type}, but is declared {encoding.name}")
    return Fixed(values.array.reshape(len(array), *shape))


class ArrowFormat(PackedFormat):
    """Record batches of one file a shard."""

    name = "arrow"
    shard = "a file or stream of record batches"
    magic = (b"ARROW1", b"\xff\xff\xff\xff")  # a file, a stream
    reader = ArrowShard
    views = "bytes"
    types = FLOATS
    suffixes = (".arrow", ".feather", ".ipc")
    settings = ("columns",)
    encoder = "stoker.formats.arrow:ArrowEncoder"

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``columns`` (names of the columns to read, default all).
        """
        layout = arrow_layout(source)
        pa, ipc, file = pyarrow(), pyarrow("ipc"), ByteSourceFile(source)
        try:
            opener = ipc.open_stream if layout.stream else ipc.open_file
            schema = opener(pa.PythonFile(file, "r")).schema
            kinds = {field.name: str(field.type) for field in schema}
        except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
            if file.failure is not None:
                raise file.failure from None
            raise CorruptDataError(f"{source.where}: its schema can not be read: {str(error)[:200]}") from None
        if len(kinds) != len(schema):
            raise FormatError(f"{source.where}: two columns have the same name")
        chosen = wanted_columns(settings.get("columns"), kinds, source.where)
        return HeaderFacts(
            check_count(sum(layout.rows), source.where), {"columns": {name: kinds[name] for name in chosen}}
        )

    def read_many(
        self, shards: Sequence[ArrowShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        names = shards[0].wanted(columns)
        for shard in shards:
            shard.read_together(names)
        return read_gathered(shards, which, rows, columns, partial(_gather, shards, which, rows))


def _gather(shards: Sequence[ArrowShard], which: Ids, rows: Ids, name: str) -> Column | None:
    """A fixed-width column of several files in one copy; ``None`` where it is none."""
    parts: list[ColumnValues] = []
    number, row_in_batch = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for turn, shard in enumerate(shards):
        here = np.flatnonzero(which == turn)
        inside = shard.batches(rows[here])
        number[here] = len(parts) + inside
        row_in_batch[here] = rows[here] - shard.firsts[inside]
        parts += shard.parts(name)
        if not isinstance(parts[-1], Fixed):
            return None
    taken = gather_alike(parts, number, row_in_batch)
    return None if taken is None else shards[0].finish(name, rows, taken)


class ArrowEncoder(PackedEncoder):
    """Samples to one record batch. Numbers and arrays are Arrow's own, text is text, and all else is its encoded bytes."""

    format = "arrow"

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        pa, ipc = pyarrow(), pyarrow("ipc")
        arrays = self.arrays(body, ends)
        slices = self.slices(body, ends)
        columns = []
        for name, encoding in self.encodings.items():
            if encoding.size is not None:
                columns.append(_fixed_column(pa, encoding, arrays[name]))
                continue
            values = b"".join(slices[name].cut(body))
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(slices[name].lengths)])
            kind = pa.large_string() if encoding.name in TEXTS else pa.large_binary()
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
            columns.append(pa.Array.from_buffers(kind, len(ends), buffers))
        batch = pa.record_batch(columns, names=list(self.encodings))
        sink = pa.BufferOutputStream()
        with ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return [memoryview(sink.getvalue())], None


def _fixed_column(pa: Any, encoding: Encoding, array: Array) -> Any:
    if encoding.size and array.dtype == np.uint8 and getattr(encoding, "dtype", None) is None:
        return pa.Array.from_buffers(pa.binary(encoding.size), len(array), [None, pa.py_buffer(array.reshape(-1))])
    if array.ndim == 1:
        return pa.array(array)
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    flat = pa.array(array.reshape(-1))
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(flat, width)
    kind = pa.fixed_shape_tensor(flat.type, list(array.shape[1:]))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, width))
