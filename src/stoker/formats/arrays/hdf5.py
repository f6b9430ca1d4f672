"""HDF5: datasets, each a column with a row a sample.

h5py reads the structure. Contiguous datasets are then mapped where they lie; chunked ones are decoded whole, from where their
chunks lie. libhdf5 trusts what a file says of its chunks: one of no bytes with a checksum makes it read other memory, and one
that unpacks to more than a chunk holds takes as much memory as that wants. Here each chunk is checked against the file and
its own size. Chunks of several datasets are also decoded at the same time, by several threads, which libhdf5 does not do.

Filters are those that most files have: deflate, shuffle and Fletcher's checksum (HDF5 File Format Specification, version 3,
"Filter Pipeline Message"). Others, which h5py has to decode, need consent: LZF takes memory without end, scale-offset reads
memory of others.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError, UnsafeDataError
from stoker.formats.arrays.array_shards import (
    ArrayFormat,
    ArrayShard,
    check_decoded,
    check_kind,
    describe_kind,
    map_array,
)
from stoker.formats.arrays.hdf5_skeleton import Skeleton, hdf5_file, load_h5py, make_dataset
from stoker.formats.arrays.npz import check_rows
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import DECODE_ERRORS, check_memory
from stoker.formats.common.container import PackedEncoder, read_offsets
from stoker.formats.common.inspect_header import (
    ByteSource,
    ByteSourceFile,
    HeaderFacts,
    MappedSource,
    check_count,
    check_range,
)
from stoker.formats.common.records import BytesLike
from stoker.types import Array, Buffer, Ids

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
    ``trusted``: let libhdf5 decode what only it can, though it trusts the file. Gives the chunks; ``None`` where h5py has to
    read the dataset, and may.
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
                raise ValueError(f"{len(raw)} bytes are too few to hold a checksum")
            if not _sum_fits(raw[:-_CHECKSUM], bytes(raw[-_CHECKSUM:])):
                raise ValueError("its checksum does not match")
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


_MOST_DATASETS: Final = 4096
_MOST_DEPTH: Final = 32
_MOST_LINKS: Final = 1 << 16
_BLOCK: Final = 1 << 16
_MOST_BLOCKS: Final = 16
# Whatever h5py makes of damaged files.
_ERRORS: Final = (*DECODE_ERRORS, RuntimeError, MemoryError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Dataset:
    """A dataset of a file.

    ``start``: where its values begin, if they lie in one piece as they are in memory; ``None`` otherwise. ``problem``: why it
    can not be read, or empty.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int | None
    problem: str = ""


class _NotReadError(StokerError):
    """These bytes were not read before."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"bytes {start} to {end} were not read before")
        self.range = start, end


class _ReadBefore:
    """A source as far as it was read before: so that no thread waits for a store while it has the lock of HDF5.

    Who reads begins anew when something is missing. So only a few blocks are read that way, and the rest as it comes.
    """

    def __init__(self, source: ByteSource) -> None:
        self.where = source.where
        self.size = source.size
        self._source = source
        self._blocks: list[tuple[int, bytes]] = []

    def read(self, start: int, end: int) -> bytes:
        check_range(self, start, end)
        for first, block in self._blocks:
            if first <= start and end <= first + len(block):
                return block[start - first : end - first]
        if end - start <= _BLOCK and len(self._blocks) < _MOST_BLOCKS:
            raise _NotReadError(start, end)
        return self._source.read(start, end)

    def read_now(self, start: int, end: int) -> None:
        """Read a block with these bytes, for later."""
        stop = min(self.size, max(end, start + _BLOCK))
        begin = max(0, min(start, stop - _BLOCK))
        self._blocks.append((begin, self._source.read(begin, stop)))


def _datasets(source: ByteSource) -> dict[str, _Dataset]:
    """The datasets of a file by path.

    Links to other files are not followed: a dataset must not make its reader open files elsewhere. CorruptDataError if it is
    no HDF5 file.
    """
    h5py, known = load_h5py(), source if isinstance(source, MappedSource) else _ReadBefore(source)
    while True:
        read, found = ByteSourceFile(known), dict[str, _Dataset]()
        try:
            with hdf5_file(read) as file:
                _walk(h5py, file.id, "", found, [_MOST_LINKS])
        except (*_ERRORS, StokerError) as error:
            if read.failure is None:
                raise CorruptDataError(
                    f"{source.where}: not an HDF5 file: {type(error).__name__}: {str(error)[:200]}"
                ) from None
        failure = read.failure
        if isinstance(failure, _NotReadError) and isinstance(known, _ReadBefore):
            known.read_now(*failure.range)
        elif failure is not None:
            raise failure
        else:
            break
    if not found or len(found) > _MOST_DATASETS:
        raise CorruptDataError(
            f"{source.where}: the HDF5 file has {len(found)} datasets, and 1 to {_MOST_DATASETS} are read"
        )
    return found


def _walk(h5py: ModuleType, group: Any, prefix: str, found: dict[str, _Dataset], left: list[int]) -> None:
    """Add a group's datasets, and those of groups in it. ``left`` is how many links may still be followed.

    Links can lead in circles, and to one group by very many ways.
    """
    for raw in group:
        left[0] -= 1
        if left[0] < 0 or prefix.count("/") > _MOST_DEPTH:
            raise ValueError(f"groups within groups, with more than {_MOST_LINKS} links or in a circle")
        if group.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
            continue
        name, item = prefix + raw.decode("utf8", "surrogateescape"), h5py.h5o.open(group, raw)
        if isinstance(item, h5py.h5g.GroupID):
            _walk(h5py, item, f"{name}/", found, left)
        elif isinstance(item, h5py.h5d.DatasetID):
            found[name] = _describe(h5py, item)


def _describe(h5py: ModuleType, item: Any) -> _Dataset:
    created = item.get_create_plist()
    layout, shape = created.get_layout(), tuple(item.shape or ())
    problem, start = "", None
    if created.get_external_count() or layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED, h5py.h5d.COMPACT):
        problem = "its values lie in other files"
    try:
        dtype = item.dtype
        if dtype.hasobject:
            problem = problem or f"values of type {dtype} have no fixed size, or are references"
        elif dtype.metadata:  # of an enumeration, a text's encoding, an opaque type: the values are the plain type's
            dtype = np.dtype(dtype.str)
    except (TypeError, ValueError) as error:
        dtype, problem = np.dtype(np.uint8), str(error)
    if not problem and layout == h5py.h5d.CONTIGUOUS and is_as_stored(h5py, item):
        start = item.get_offset()  # None for values that were never written
        if not math.prod(shape):
            start = 0
    return _Dataset(dtype, shape, start, problem)


class HDF5Shard(ArrayShard):
    """An open HDF5 file."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        read_offsets(info, files, where)
        self._data = files[0]
        datasets = _datasets(MappedSource(self._data, where))
        kinds = info.spec.get("columns")
        arrays: dict[str, Array | None] = {}
        for name in kinds if kinds is not None else info.spec["column_names"]:
            here = f"{where}: dataset {name!r}"
            dataset = datasets.get(name)
            if dataset is None:
                raise CorruptDataError(f"{here} is missing")
            if dataset.problem or not dataset.shape:
                raise FormatError(f"{here} can not be read: {dataset.problem or 'it has no rows'}")
            check_kind(describe_kind(dataset.dtype, dataset.shape[1:]), kinds and kinds[name], here)
            if dataset.start is None:
                arrays[name] = None
            else:
                arrays[name] = map_array(self._data, dataset.dtype, dataset.shape, dataset.start, False, here)
        super().__init__(info, where, options, arrays)

    def decode(self, name: str) -> Array:
        here = f"{self.where}: dataset {name!r}"
        try:
            with hdf5_file(ByteSourceFile(MappedSource(self._data, here))) as file:
                dataset = file[name]
                size = math.prod(dataset.shape) * dataset.dtype.itemsize
                check_decoded(size, len(self._data), here)
                check_memory(size, dataset.id.get_storage_size(), self.options.decoded_bytes, here)
                chunks = find_chunks(load_h5py(), dataset, self._data, here, trusted=self.options.allow_unsafe_types)
                values = dataset[()] if chunks is None else None
            if chunks is not None:  # other threads use HDF5 meanwhile
                values = chunks.decode()
            if values is None:
                with hdf5_file(ByteSourceFile(MappedSource(self._data, here))) as file:
                    values = file[name][()]
        except StokerError:
            raise
        except _ERRORS as error:
            raise CorruptDataError(f"{here} does not decode: {str(error)[:200]}") from None
        if not isinstance(values, np.ndarray) or values.dtype.hasobject:
            raise CorruptDataError(f"{here} does not decode to an array")
        return values


class HDF5Format(ArrayFormat):
    """Datasets of as many rows a shard."""

    name = "hdf5"
    aliases = ("h5",)
    shard = "a file of datasets"
    magic = (b"\x89HDF\r\n\x1a\n",)
    reader = HDF5Shard
    views = "runs of rows"
    extra = "hdf5"
    suffixes = (".h5", ".hdf5", ".he5")
    settings = ("columns",)
    encoder = "stoker.formats.arrays.hdf5:HDF5Encoder"

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``columns`` (paths of the datasets to read, default all that can be).
        """
        datasets = _datasets(source)
        readable = {name: one for name, one in datasets.items() if not one.problem and one.shape}
        chosen = settings.get("columns") or sorted(readable)
        for name in chosen:
            if name not in readable:
                problem = datasets[name].problem or "it has no rows" if name in datasets else "it is not there"
                raise ConfigError(
                    f"{source.where}: dataset {name!r} can not be read ({problem}); readable are {', '.join(readable)}"
                )
        if not chosen:
            told = "; ".join(f"{name}: {one.problem or 'it has no rows'}" for name, one in list(datasets.items())[:5])
            raise FormatError(f"{source.where}: no dataset can be read ({told})")
        rows = {name: readable[name].shape[0] for name in chosen}
        check_rows(rows, source.where)
        for name in chosen:
            one = readable[name]
            size = math.prod(one.shape) * one.dtype.itemsize
            if one.start is not None and one.start + size > source.size:
                raise CorruptDataError(f"{source.where}: dataset {name!r} ends past the file's {source.size} bytes")
        kinds = {name: describe_kind(readable[name].dtype, readable[name].shape[1:]) for name in chosen}
        return HeaderFacts(check_count(rows[chosen[0]], source.where), {"columns": kinds})


class HDF5Encoder(PackedEncoder):
    """Samples to contiguous datasets, one a column.

    ConfigError for a column whose values differ in size, MissingPackageError if h5py is not installed.
    """

    format = "hdf5"
    fixed_only = "HDF5"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        super().__init__(columns, settings)
        load_h5py()
        for name in columns:
            if not name or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
                raise ConfigError(f"column {name!r} can not be the path of a dataset")

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        skeleton = Skeleton()
        located: list[tuple[int, memoryview]] = []
        with skeleton.open() as file:
            for name, array in self.arrays(body, ends).items():
                made = make_dataset(file, name, array.dtype, array.shape)
                if array.size:
                    located.append((made.get_offset(), array.reshape(-1).view(np.uint8).data))
        return [*skeleton.around(located)], None
