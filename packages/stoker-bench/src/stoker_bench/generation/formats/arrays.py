"""Files of arrays: NPY, NPZ, HDF5 and Megatron's indexed dataset. Values lie end to end between what tells their shape."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.arrays.hdf5_skeleton import Skeleton, load_h5py, make_dataset
from stoker.formats.arrays.npy import npy_header
from stoker.formats.indexed_binary import index_bytes
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.segments import Segment, StreamBytes, assemble
from stoker_bench.generation.spec import DatasetSpec

_WIDE: Final = 1 << 32
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")
_FLAGS: Final = 8  # sizes and checksum follow the data
_DATE: Final = 0x21  # the first of January 1980, the earliest that there is
_PAD: Final = (
    0xD935  # an extra field of zeros, as archives for Android have it, so that values begin at a multiple of 64
)


def _shape(column: Column, rows: int) -> tuple[int, ...]:
    return (rows, *column.shape)


def _bytes(column: Column, rows: int) -> int:
    assert column.width is not None
    return column.width * rows


class NPYLayout(GeneratedLayout):
    """An array, a row a sample."""

    def segments(self, number: int) -> Iterator[Segment]:
        content = FileContent(self.spec, number)
        (column,) = content.columns
        yield npy_header(np.dtype(column.dtype), _shape(column, self.spec.samples_per_file))
        yield content.values(column, self.spec.samples_per_file)


class NPZLayout(GeneratedLayout):
    """A zip archive of arrays, stored or deflated, each at a multiple of 64 bytes. What is stored has its checksum behind it,
    so that values are made once."""

    def size(self, number: int) -> int | None:
        return None if self.spec.compression is not None else super().size(number)

    def segments(self, number: int) -> Iterator[Segment]:
        content = FileContent(self.spec, number)
        rows = self.spec.samples_per_file
        archive = _Archive(deflated=self.spec.compression is not None)
        for column in content.columns:
            head = npy_header(np.dtype(column.dtype), _shape(column, rows))
            checksum = _Checksum(head)
            values = content.values(column, rows)
            values = StreamBytes(values.size, values.stream, values.finish, checksum)
            yield archive.begin(column.name, len(head) + values.size)
            if archive.deflated:
                stored = 0
                for packed in _deflated((head, values)):
                    stored += len(packed)
                    yield packed
            else:
                stored = len(head) + values.size
                yield head
                yield values
            yield archive.end(len(head) + values.size, stored, checksum.value)
        yield archive.directory()

    def versions(self) -> dict[str, str]:
        return {} if self.spec.compression is None else {"zlib": zlib.ZLIB_RUNTIME_VERSION}


class _Checksum:
    def __init__(self, head: bytes) -> None:
        self.value = zlib.crc32(head)

    def __call__(self, data: memoryview) -> None:
        self.value = zlib.crc32(data, self.value)


def _deflated(segments: Iterable[Segment]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=-15)
    for chunk in assemble(segments):
        yield packer.compress(chunk)
    yield packer.flush()


class _Archive:
    """Headers of a zip archive's members, and its directory. Members of 4 GiB and more are told of in the fields of ZIP64.

    Attributes:
        at: bytes so far, members' data included.
    """

    def __init__(self, *, deflated: bool = False) -> None:
        self.deflated = deflated
        self.at = 0
        self._entries: list[bytes] = []
        self._member: tuple[bytes, int, bool] = (b"", 0, False)

    def begin(self, name: str, size: int) -> bytes:
        """The bytes before a member of about this size."""
        file = f"{name}.npy".encode()
        wide = size + (1 << 20) >= _WIDE
        extra = struct.pack("<2H2Q", 1, 16, 0, 0) if wide else b""
        pad = -(self.at + _LOCAL.size + len(file) + len(extra) + 4) % 64
        extra += struct.pack("<2H", _PAD, pad) + bytes(pad)
        sizes = 0xFFFFFFFF if wide else 0
        head = _LOCAL.pack(b"PK\3\4", *self._common(wide), 0, sizes, sizes, len(file), len(extra)) + file + extra
        self._member = (file, self.at, wide)
        self.at += len(head)
        return head

    def end(self, size: int, stored: int, crc: int) -> bytes:
        """The bytes behind a member: its checksum and sizes."""
        file, start, wide = self._member
        tail = struct.pack("<4sI2Q" if wide else "<4s3I", b"PK\7\x08", crc, stored, size)
        self.at += stored + len(tail)
        large = [value for value in (size, stored, start) if value >= _WIDE - 1 or (wide and value is not start)]
        if wide or start >= _WIDE - 1:
            large = [size, stored, *([start] if start >= _WIDE - 1 else [])] if wide else [start]
        else:
            large = []
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        told = (0xFFFFFFFF, 0xFFFFFFFF) if wide else (stored, size)
        offset = min(start, 0xFFFFFFFF)
        common = self._common(wide or bool(large))
        self._entries.append(
            _CENTRAL.pack(
                b"PK\1\2", 45 if large else 20, *common, crc, *told, len(file), len(extra), 0, 0, 0, 0, offset
            )
            + file
            + extra
        )
        return tail

    def directory(self) -> bytes:
        """The archive's end."""
        listed, count = b"".join(self._entries), len(self._entries)
        if self.at < _WIDE - 1:
            return listed + _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), self.at, 0)
        end64 = _END64.pack(b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, len(listed), self.at)
        locator = _LOCATOR.pack(b"PK\6\7", 0, self.at + len(listed), 1)
        return listed + end64 + locator + _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), 0xFFFFFFFF, 0)

    def _common(self, wide: bool) -> tuple[int, int, int, int, int]:
        return (45 if wide else 20, _FLAGS, 8 if self.deflated else 0, 0, _DATE)


class HDF5Layout(GeneratedLayout):
    """Datasets, contiguous or in chunks of whole rows, without compression; their offsets are h5py's."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__(spec)
        load_h5py()
        self._skeleton = lru_cache(maxsize=2)(_skeleton)

    def segments(self, number: int) -> Iterator[Segment]:
        content = FileContent(self.spec, number)
        for segment in self._skeleton(content.columns, self.spec.samples_per_file, self.spec.hdf5_chunks):
            if isinstance(segment, _ColumnRows):
                yield content.values(segment.column, segment.rows)
            else:
                yield segment

    def versions(self) -> dict[str, str]:
        h5py = load_h5py()
        return {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}


class _ColumnRows:
    """Rows of a column, as a segment of a skeleton."""

    def __init__(self, column: Column, rows: int) -> None:
        self.column = column
        self.rows = rows

    def __len__(self) -> int:
        return _bytes(self.column, self.rows)


def _skeleton(columns: tuple[Column, ...], rows: int, chunk: int) -> list[Any]:
    """A file's bytes, with a :class:`_ColumnRows` where values lie."""
    skeleton = Skeleton()
    located: list[tuple[int, Any]] = []
    with skeleton.open() as file:
        for column in columns:
            per_chunk = min(chunk, rows)
            if chunk and _bytes(column, per_chunk) >= _WIDE:
                raise ConfigError(f"hdf5_chunks={chunk}: a chunk of {column.name!r} has 4 GiB or more")
            made = make_dataset(
                file,
                column.name,
                np.dtype(column.dtype),
                _shape(column, rows),
                (per_chunk, *column.shape) if chunk else None,
            )
            if not chunk:
                located.append((made.get_offset(), _ColumnRows(column, rows)))
                continue
            found: list[int] = []
            made.chunk_iter(lambda info, found=found: found.append(info.byte_offset))
            if len(found) != math.ceil(rows / per_chunk):
                raise ConfigError(f"hdf5_chunks={chunk}: this version of HDF5 does not lay out chunks beforehand")
            located += [(start, _ColumnRows(column, per_chunk)) for start in found]
    return skeleton.around(located)


class IndexedBinaryLayout(GeneratedLayout):
    """DLIO's records end to end, and in two files their offsets and their sizes."""

    def segments(self, number: int) -> Iterator[Segment]:
        records, part = divmod(number, 3)
        content = FileContent(self.spec, records)
        (column,) = content.columns
        rows = self.spec.samples_per_file
        if part == 0:
            yield content.values(column, rows)
            return
        size = _bytes(column, 1)
        yield (np.arange(rows, dtype="<u8") * size if part == 1 else np.full(rows, size, "<u8")).tobytes()


class MegatronLayout(GeneratedLayout):
    """Sequences of integers in a ``.bin``, each a document, and their offsets in an ``.idx``."""

    def segments(self, number: int) -> Iterator[Segment]:
        pair, part = divmod(number, 2)
        content = FileContent(self.spec, pair)
        (column,) = content.columns
        rows = self.spec.samples_per_file
        if part == 0:
            yield content.values(column, rows)
            return
        length = math.prod(column.shape)
        lengths = np.full(rows, length, np.int64)
        yield from index_bytes(np.dtype(column.dtype), lengths, np.arange(rows + 1, dtype=np.int64))
