"""Arrow IPC files: record batches whose metadata are pyarrow's, and whose bodies are columns one after the other."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stoker.errors import FormatError
from stoker.formats.parquet.arrow import pyarrow
from stoker.lazy import cached_property
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent, mean_width
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.ragged import column_cells
from stoker_bench.generation.segments import Segment, gather
from stoker_bench.generation.spec import DatasetSpec

_BATCH: Final = 16 << 20
_START: Final = b"ARROW1\0\0"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
_BLOCK: Final = struct.Struct("<qi4xq")


class ArrowLayout(GeneratedLayout):
    """Record batches of as many rows. Arrays are fixed-size lists, ``bytes`` of one size fixed-size binary."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__(spec)
        width = sum(mean_width(column) for column in spec.fields)
        self._rows = min(spec.samples_per_file, spec.row_group_size or max(1, _BATCH // max(1, width)))
        self._fixed = spec.compression is None and all(
            column.width is not None and column.dtype not in ("str", "bool") for column in spec.fields
        )
        self._message = lru_cache(maxsize=2)(self._fixed_message)

    def size(self, number: int) -> int | None:
        return super().size(number) if self._fixed else None

    def segments(self, number: int) -> Iterator[Segment]:
        content = FileContent(self.spec, number)
        blocks: list[tuple[int, int, int]] = []
        head = _START + self._schema_message
        yield head
        at = len(head)
        for first in range(0, self.spec.samples_per_file, self._rows):
            rows = min(self._rows, self.spec.samples_per_file - first)
            if self._fixed:
                message = self._message(rows)
                yield message
                size = 0
                for column in content.columns:
                    values = (
                        content.values(column, rows) if column.numeric else content.sized(column, column.size * rows)
                    )
                    yield values
                    yield bytes(-values.size % 8)
                    size += values.size + -values.size % 8
                blocks.append((at, len(message), size))
            else:
                whole = self._encoded(self._batch(content, first, rows))
                yield whole
                length = 8 + int.from_bytes(whole[4:8], "little")
                blocks.append((at, length, len(whole) - length))
            at += sum(blocks[-1][1:])
        yield _END_OF_STREAM
        yield self._footer(blocks)

    def versions(self) -> dict[str, str]:
        return {"pyarrow": pyarrow().__version__, **super().versions()}

    @cached_property
    def _schema(self) -> Any:
        pa = pyarrow()
        return pa.schema([pa.field(column.name, _type(column), nullable=False) for column in self.spec.fields])

    @cached_property
    def _schema_message(self) -> bytes:
        message: bytes = self._schema.serialize().to_pybytes()
        return message

    def _fixed_message(self, rows: int) -> bytes:
        """The metadata of a batch of so many rows, which are the same whatever its values are."""
        pa = pyarrow()
        columns = []
        for column in self.spec.fields:
            size = (column.width or 0) * rows
            columns.append(_array(column, pa.py_buffer(np.zeros(size, np.uint8)), rows))
        whole = self._encoded(pa.record_batch(columns, schema=self._schema))
        length = 8 + int.from_bytes(whole[4:8], "little")
        body = sum(-(-(column.width or 0) * rows // 8) * 8 for column in self.spec.fields)
        if len(whole) - length != body:
            raise FormatError(
                f"pyarrow {pa.__version__} lays out batches otherwise than stoker knows: set a compression"
            )
        return whole[:length]

    def _encoded(self, batch: Any) -> bytes:
        """A batch as a message."""
        ipc = pyarrow().ipc
        sink = io.BytesIO()
        options = ipc.IpcWriteOptions(compression=self.spec.compression)
        with ipc.new_stream(sink, self._schema, options=options) as writer:
            writer.write_batch(batch)
            return sink.getvalue()[len(self._schema_message) :]

    def _batch(self, content: FileContent, first: int, rows: int) -> Any:
        pa = pyarrow()
        columns = []
        for column in content.columns:
            if column.numeric:
                values = np.frombuffer(gather([content.values(column, rows)]), np.uint8)
                if column.dtype == "bool":
                    values = np.packbits(values, bitorder="little")
                columns.append(_array(column, pa.py_buffer(values), rows))
                continue
            found = list(column_cells(content, column, first, rows))
            offsets = np.zeros(rows + 1, np.int64)
            np.cumsum([cell.size for cell in found], out=offsets[1:])
            data = gather(segment for cell in found for segment in cell.segments)
            if column.width is not None and column.dtype != "str":
                columns.append(_array(column, pa.py_buffer(data), rows))
                continue
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            columns.append(pa.Array.from_buffers(_type(column), rows, buffers))
        return pa.record_batch(columns, schema=self._schema)

    def _footer(self, blocks: list[tuple[int, int, int]]) -> bytes:
        """The end of a file. pyarrow writes one of as many empty batches, in which the offsets are replaced."""
        ipc = pyarrow().ipc
        empty = pyarrow().record_batch([pyarrow().array([], one.type) for one in self._schema], schema=self._schema)
        sink = io.BytesIO()
        offsets: list[int] = []
        with ipc.new_file(sink, self._schema) as writer:
            for _ in blocks:
                offsets.append(sink.tell())
                writer.write_batch(empty)
            offsets.append(sink.tell())
        data = sink.getvalue()
        tail = data[offsets[-1] + len(_END_OF_STREAM) :]
        first = len(_START) + len(self._schema_message)
        length = 8 + int.from_bytes(data[first + 4 : first + 8], "little")
        step = (offsets[-1] - first) // len(blocks)
        told = [(first + number * step, length, step - length) for number in range(len(blocks))]
        old = b"".join(_BLOCK.pack(*block) for block in told)
        if tail.count(old) != 1:
            raise FormatError(f"pyarrow {pyarrow().__version__} writes footers otherwise than stoker knows")
        return tail.replace(old, b"".join(_BLOCK.pack(*block) for block in blocks))


def _type(column: Column) -> Any:
    pa = pyarrow()
    if not column.numeric:
        if column.dtype == "str":
            return pa.large_string()
        return pa.binary(column.size) if column.width is not None else pa.large_binary()
    kind = pa.from_numpy_dtype(np.dtype(column.dtype))
    if not column.shape:
        return kind
    return pa.list_(pa.field("item", kind, nullable=False), math.prod(column.shape))


def _array(column: Column, values: Any, rows: int) -> Any:
    """An Arrow array of values that lie end to end."""
    pa = pyarrow()
    if column.numeric and column.shape:
        count = rows * math.prod(column.shape)
        flat = pa.Array.from_buffers(pa.from_numpy_dtype(np.dtype(column.dtype)), count, [None, values])
        return pa.FixedSizeListArray.from_arrays(flat, type=_type(column))
    return pa.Array.from_buffers(_type(column), rows, [None, values])
