"""HDF5: datasets, each a column with a row a sample.

h5py reads the structure. Contiguous datasets are then mapped where they lie; chunked ones are decoded whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError
from stoker.formats.arrays.array_shards import (
    ArrayFormat,
    ArrayShard,
    check_decoded,
    describe_kind,
    fits_kind,
    map_array,
)
from stoker.formats.arrays.npz import check_rows
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.byte_source import ByteSource, ByteSourceFile, MappedSource, check_range
from stoker.formats.common.checks import DECODE_ERRORS, check_memory
from stoker.formats.common.container import PackedEncoder, read_offsets
from stoker.formats.common.inspect_header import HeaderFacts, check_count, only_settings
from stoker.formats.common.records import BytesLike
from stoker.formats.hdf5.chunks import find_chunks, is_as_stored
from stoker.formats.hdf5.skeleton import Skeleton, hdf5_file, load_h5py, make_dataset
from stoker.types import Array, Buffer, Ids

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

    Attributes:
        start: where its values begin, if they lie in one piece as they are in memory; ``None`` otherwise.
        problem: why it can not be read, or empty.
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
        raise CorruptDataError(f"{source.where}: an HDF5 file of {len(found)} datasets")
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
            if kinds is not None and not fits_kind(describe_kind(dataset.dtype, dataset.shape[1:]), kinds[name]):
                raise CorruptDataError(f"{here} is not {kinds[name]} as when it was indexed")
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

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``columns`` (paths of the datasets to read, default all that can be).
        """
        only_settings(settings, self.settings, self.name)
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
        self.sample_cost = 0
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
