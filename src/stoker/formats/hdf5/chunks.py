"""Chunked datasets of HDF5 files, decoded from where their chunks lie in the file.

libhdf5 trusts what a file says of its chunks: one of no bytes with a checksum makes it read other memory, and one that
unpacks to more than a chunk holds takes as much memory as that wants. Here each chunk is checked against the file and its own
size. Chunks of several datasets are also decoded at the same time, by several threads, which libhdf5 does not do.

Filters are those that most files have: deflate, shuffle and Fletcher's checksum (HDF5 File Format Specification, version 3,
"Filter Pipeline Message"). Others, which h5py has to decode, need consent: LZF takes memory without end, scale-offset reads
memory of others.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

import numpy as np

from stoker.errors import CorruptDataError, UnsafeDataError
from stoker.formats.arrays.array_shards import check_decoded
from stoker.types import Array, Buffer

_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_CHECKSUM: Final = 4
_ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a dataset, found in its file: what decodes them needs HDF5 no more.

    Attributes:
        dtype: of its values; ``None`` where they are not in the file as in memory, so that h5py has to read them.
        fill: what values are of which there is no chunk.
        parts: of each chunk where it begins, its filters and its bytes as they are stored.
    """

    where: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any] | None
    fill: Any
    width: int
    parts: list[tuple[tuple[int, ...], list[int], Any]]

    def decode(self) -> Array | None:
        """The values, of the dataset's shape. ``None`` where h5py has to read them, and can: the chunks are whole.

        CorruptDataError if a chunk has not its checksum, or does not unpack to its size.
        """
        values: Array | None = None
        if self.dtype is not None:
            values = np.zeros(self.shape, self.dtype)
            if self.fill is not None:
                values[...] = self.fill
        size = math.prod(self.chunk) * self.width
        for low, filters, stored in self.parts:
            try:
                raw = _unfiltered(stored, filters, self.width, size)
            except (ValueError, zlib.error) as error:
                raise CorruptDataError(f"{self.where} does not decode: the chunk at {low}: {error}") from None
            if values is not None:
                inside = values[tuple(slice(at, at + step) for at, step in zip(low, self.chunk, strict=True))]
                part = tuple(slice(0, extent) for extent in inside.shape)
                inside[...] = np.frombuffer(raw, values.dtype).reshape(self.chunk)[part]
        return values


def find_chunks(h5py: ModuleType, dataset: Any, data: Buffer, where: str, *, trusted: bool) -> Chunks | None:
    """The chunks of a dataset, checked against its file.

    CorruptDataError if a chunk leaves the file, or is not one of the dataset's, UnsafeDataError for a filter that only
    libhdf5 decodes, and the file is not trusted. ``dataset``: an open ``h5py.Dataset`` whose size was found possible.
    ``trusted``: let libhdf5 decode what only it can, though it trusts the file.

    Returns:
        The chunks; ``None`` where h5py has to read the dataset, and may.
    """
    created, dtype, width = dataset.id.get_create_plist(), dataset.dtype, dataset.id.get_type().get_size()
    if created.get_layout() != h5py.h5d.CHUNKED:
        return None
    filters = [created.get_filter(index) for index in range(created.get_nfilters())]
    codes = [one[0] for one in filters]
    shape, chunk = tuple(dataset.shape), tuple(dataset.chunks)
    check_decoded(math.prod(chunk) * width, len(data), f"{where}: a chunk")
    found = _found(dataset.id, shape, chunk, len(data), where)
    if not set(codes) <= {_DEFLATE, _SHUFFLE, _FLETCHER}:
        if not trusted:
            name = next(one[3] for one in filters if one[0] not in (_DEFLATE, _SHUFFLE, _FLETCHER))
            raise UnsafeDataError(
                f"{where}: its filter {name.decode(errors='replace')!r} is decoded by HDF5's library, which a forged file "
                "can crash or worse. Pass allow_unsafe_types=True if you trust the file's author, or write it with gzip"
            )
        return None
    fill = None
    as_stored = dtype.kind in "biufc" and is_as_stored(h5py, dataset.id)
    if as_stored:
        offsets = {tuple(info.chunk_offset) for info in found}
        # libhdf5 trusts what the file says of the fill value: it is asked only where there is one, and it is needed.
        if len(offsets) < _count(shape, chunk) and created.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
            fill = dataset.fillvalue
    view = memoryview(data)
    shifted = dataset.file.userblock_size > 0  # versions of libhdf5 differ in whether offsets count it
    parts: list[tuple[tuple[int, ...], list[int], Any]] = []
    for info in found:
        low, begin = tuple(info.chunk_offset), info.byte_offset
        used = [one for index, one in enumerate(codes) if not info.filter_mask >> index & 1]
        stored = dataset.id.read_direct_chunk(low)[1] if shifted else view[begin : begin + info.size]
        parts.append((low, used, stored))
    return Chunks(where, shape, chunk, np.dtype(dtype.str) if as_stored else None, fill, width, parts)


def is_as_stored(h5py: ModuleType, dataset: Any) -> bool:
    """Whether a dataset's values are in its file as in memory: h5py converts those of types that NumPy does not have."""
    kind: bool = dataset.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))
    return kind


def _count(shape: Sequence[int], chunk: Sequence[int]) -> int:
    """The number of chunks of a shape."""
    return math.prod(-(-extent // step) for extent, step in zip(shape, chunk, strict=True))


def _found(dataset: Any, shape: Sequence[int], chunk: Sequence[int], size: int, where: str) -> list[Any]:
    """Offsets of the chunks, checked."""
    most = _count(shape, chunk)
    found: list[Any] = []

    def note(info: Any) -> bool | None:
        found.append(info)
        return True if len(found) > most else None

    dataset.chunk_iter(note)
    if len(found) > most:
        raise CorruptDataError(f"{where} does not decode: it has more than the {most} chunks of its shape")
    for info in found:
        begin, low = info.byte_offset, info.chunk_offset
        if not 0 <= begin < begin + info.size <= size:
            raise CorruptDataError(
                f"{where} does not decode: a chunk of {info.size} bytes at byte {begin} of a file of {size} bytes"
            )
        if any(not 0 <= at < extent or at % step for at, extent, step in zip(low, shape, chunk, strict=True)):
            raise CorruptDataError(f"{where} does not decode: there is no chunk at {tuple(low)}")
    return found


def _unfiltered(raw: Any, filters: Sequence[int], width: int, size: int) -> Any:
    """A chunk's values. ValueError or zlib.error if it is damaged."""
    for one in reversed(filters):
        if one == _FLETCHER:
            if len(raw) < _CHECKSUM:
                raise ValueError(f"{len(raw)} bytes have no checksum")
            if not _sum_fits(raw[:-_CHECKSUM], bytes(raw[-_CHECKSUM:])):
                raise ValueError("it does not have its checksum")
            raw = raw[:-_CHECKSUM]
        elif one == _DEFLATE:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(raw, size + _CHECKSUM + 1)
            if not unpacker.eof:
                raise ValueError(f"it does not unpack to {size} bytes")
        else:
            whole = len(raw) // width * width
            planes = np.frombuffer(raw, np.uint8, whole).reshape(width, -1)
            raw = memoryview(np.ascontiguousarray(planes.T).reshape(-1).tobytes() + bytes(raw[whole:]))
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes where {size} should be")
    return raw


def _sum_fits(data: Any, told: bytes) -> bool:
    """Whether this is Fletcher's checksum of 32 bits, over big-endian words of 16, an odd last byte the upper one's."""
    octets = np.frombuffer(bytes(data) + b"\0" * (len(data) & 1), ">u2").astype(np.uint64)
    first = second = 0
    for at in range(0, len(octets), 1 << 20):
        part = octets[at : at + (1 << 20)]
        # Each word counts as often in the second sum as there are words from it on.
        second += first * len(part) + int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        first += int(part.sum())
    expected = second % 65535, first % 65535
    words = [told[at : at + 2] for at in (2, 0)]
    # Versions before 1.6.3 wrote each word with its bytes turned.
    return any(tuple(int.from_bytes(word, order) % 65535 for word in words) == expected for order in _ORDERS)
