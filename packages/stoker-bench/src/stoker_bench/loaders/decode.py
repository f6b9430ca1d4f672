"""Samples of whole files, decoded by each format's usual library: what a plain loader does, and what it costs."""

from __future__ import annotations

import io
import mmap
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.concurrency.request_observer import observer
from stoker.errors import ConfigError, CorruptDataError, MissingPackageError
from stoker.formats.mds.encodings.images import open_image
from stoker.storage.files.mapped import MappedFile, await_pages
from stoker.types import Array


@dataclass(frozen=True, slots=True)
class FileSamples:
    """The samples of a decoded file.

    Attributes:
        count: how many there are.
        get: sample by number: an array, bytes, or a dict of arrays.
    """

    count: int
    get: Callable[[int], Any]


def open_samples(format: str, data: Any, samples: int, where: str, columns: Sequence[str] | None) -> FileSamples:  # noqa: A002
    """Decode a file.

    Args:
        format: of :data:`FORMATS`.
        data: the file: bytes, or a buffer of them.
        samples: how many samples it should hold, which tells whether the first or the last axis of an array counts them.
        where: the file, for messages.
        columns: of a table, those to decode; ``None`` for all.

    Raises:
        ConfigError: there is no such format here.
        CorruptDataError: the file is none of the format, or holds less.
        MissingPackageError: the format's library is not installed.
    """
    if format not in FORMATS:
        raise ConfigError(f"plain files of {format!r} are not read by this loader; those of {', '.join(FORMATS)} are")
    try:
        found = FORMATS[format](data, samples, columns)
    except ImportError as error:
        raise MissingPackageError(f"decoding {format} needs {error.name}: pip install {error.name}") from error
    except (ConfigError, MissingPackageError):
        raise
    except Exception as error:  # whatever a library raises at bytes that are none of its
        raise CorruptDataError(
            f"{where}: not a {format} file that can be decoded: {type(error).__name__}: {error}"
        ) from error
    if found.count < samples:
        raise CorruptDataError(f"{where}: holds {found.count} samples, the workload says {samples}")
    return found


def _rows(array: Array, samples: int) -> FileSamples:
    """Along the first axis, or the last, as DLIO's generator has it; one sample may be all of the array."""
    if array.ndim and array.shape[0] == samples:
        return FileSamples(samples, lambda row: array[row])
    if array.ndim and array.shape[-1] == samples:
        return FileSamples(samples, lambda row: array[..., row])
    if samples == 1:
        return FileSamples(1, lambda row: array)  # noqa: ARG005
    return FileSamples(array.shape[0] if array.ndim else 1, lambda row: array[row])


def samples_axis(data: bytes, samples: int) -> int | None:
    """The axis along which arrays of an NPZ or NPY file have their samples: the first (0), or the last (-1), as DLIO has it.

    Args:
        data: the file.
        samples: how many it holds. Where the first axis has as many, it is the first.

    Returns:
        ``None`` where neither has, and a file is a sample.
    """
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
        arrays = [found] if isinstance(found, np.ndarray) else [found[name] for name in found.files]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        return 0  # who opens the data says what is wrong with it
    first = all(array.ndim and array.shape[0] == samples for array in arrays)
    last = all(array.ndim and array.shape[-1] == samples for array in arrays)
    return 0 if first or (samples > 1 and not last) else -1 if last else None


def _npz(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        names = [name for name in archive.files if columns is None or name in columns]
        parts = {name: _rows(archive[name], samples) for name in names}
    if len(parts) == 1:
        return next(iter(parts.values()))
    return FileSamples(
        min(part.count for part in parts.values()), lambda row: {n: one.get(row) for n, one in parts.items()}
    )


def _npy(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:  # noqa: ARG001
    return _rows(np.load(io.BytesIO(data), allow_pickle=False), samples)


def _image(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:  # noqa: ARG001
    with open_image(io.BytesIO(data)) as image:
        pixels = np.asarray(image)
    return FileSamples(1, lambda row: pixels)  # noqa: ARG005


def _hdf5(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:
    from stoker.formats.arrays.hdf5_skeleton import hdf5_file

    arrays: dict[str, Array] = {}
    with hdf5_file(io.BytesIO(data)) as file:
        for name in file:
            if columns is None or name in columns:
                arrays[name] = file[name][()]
    parts = {name: _rows(array, samples) for name, array in arrays.items()}
    return FileSamples(
        min(part.count for part in parts.values()), lambda row: {n: one.get(row) for n, one in parts.items()}
    )


def _tfrecord(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:  # noqa: ARG001
    from stoker.formats.tfrecord.example import feature_values, split_example
    from stoker.formats.tfrecord.reader import read_frames

    offsets = read_frames(data, None, "the file")

    def get(row: int) -> Any:
        record = data[int(offsets[row]) + 12 : int(offsets[row + 1]) - 4]
        try:
            found = split_example(record)
            return {name.decode(): feature_values(record, *parts) for name, parts in found.items()}
        except Exception:  # noqa: BLE001 - no Example, so its bytes are the sample
            return record

    return FileSamples(len(offsets) - 1, get)


def _parquet(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:  # noqa: ARG001
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    starts = np.cumsum([0, *(file.metadata.row_group(at).num_rows for at in range(file.num_row_groups))])
    held: dict[int, Any] = {}

    def get(row: int) -> Any:
        group = int(np.searchsorted(starts, row, side="right")) - 1
        if group not in held:
            held.clear()
            table = file.read_row_group(group, columns=None if columns is None else list(columns), use_threads=False)
            held[group] = {name: table.column(name).combine_chunks() for name in table.column_names}
        at = row - int(starts[group])
        return {name: _arrow_value(column, at) for name, column in held[group].items()}

    return FileSamples(int(starts[-1]), get)


def _arrow_value(column: Any, row: int) -> Any:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        return column[row].values.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.frombuffer(column[row].as_buffer(), np.uint8)
    value = column[row]
    return value.as_py() if pa.types.is_string(kind) else np.asarray(value.as_py())


def _whole(data: bytes, samples: int, columns: Sequence[str] | None) -> FileSamples:  # noqa: ARG001
    return FileSamples(1, lambda row: data)  # noqa: ARG005


FORMATS: Final[dict[str, Callable[[bytes, int, Sequence[str] | None], FileSamples]]] = {
    "npz": _npz,
    "npy": _npy,
    "jpeg": _image,
    "png": _image,
    "hdf5": _hdf5,
    "tfrecord": _tfrecord,
    "parquet": _parquet,
    "files": _whole,
}
"""Formats that are decoded here, by name."""


def suffixes(format: str) -> tuple[str, ...]:  # noqa: A002
    """Ends of the names of a format's files; none for any file."""
    if format == "parquet":
        return (".parquet",)
    from stoker.formats.registry import format_name, get_format

    return get_format(format_name(format)).suffixes


def compare_checksums(format: str, data: Any, where: str) -> None:  # noqa: A002
    """Compare the checksums that a file carries with its bytes; nothing where its format has none.

    Args:
        format: a name of a workload; not ``parquet``, whose checksums are found by its footer.
        data: the file: bytes, or a buffer of them.
        where: the file, for messages.

    Raises:
        CorruptDataError: one differs.
    """
    from stoker.formats.base import ShardInfo
    from stoker.formats.registry import format_name, get_format

    name = format_name(format)
    for row, message in get_format(name).bad_checksums(ShardInfo(name, 1, (), (), None, {}), data, where):
        raise CorruptDataError(f"{where}: {'' if row is None else f'sample {row}: '}{message}")


def read_whole(data: Any) -> None:
    """Touch each page of what a sample holds, so that all of it has come from storage, whatever is used of it.

    Values of local files may be views of a mapping, of which the kernel reads what is touched and some pages around it.

    Args:
        data: bytes, buffers and arrays, in any nesting of dicts and lists.
    """
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for value in data:
            read_whole(value)
        return
    if isinstance(data, memoryview | mmap.mmap):
        flat = np.frombuffer(data, np.uint8)
    elif isinstance(data, np.ndarray) and data.nbytes and not data.dtype.hasobject:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    else:
        return  # a value of its own
    if flat.size:
        await_pages(flat)  # NumPy keeps Python's lock while it looks at less than 500 pages
        np.maximum.reduce(flat[:: mmap.PAGESIZE])
        flat[-1].item()


def read_counted(data: Any) -> None:
    """As :func:`read_whole`, of which each value that lies in a mapped file is counted as a request where any are."""
    counts = observer()
    if counts is None:
        read_whole(data)
    elif isinstance(data, dict):
        read_counted(list(data.values()))
    elif isinstance(data, list | tuple):
        for value in data:
            read_counted(value)
    elif (file := _mapped_file(data)) is None:
        read_whole(data)
    else:
        begun = file.begin_request(counts)
        read_whole(data)
        counts.end(begun, byte_count(data), ahead=file.fetched, copied=file.copied)


def _mapped_file(data: Any) -> MappedFile | None:
    """The file that a value is a view of."""
    while isinstance(data, np.ndarray | memoryview):
        data = data.base if isinstance(data, np.ndarray) else data.obj
    return data if isinstance(data, MappedFile) else None


def resized(sample: Any, size: int) -> Any:
    """A sample's bytes, cut or filled with zeros to ``size``: uint8 of shape ``(size,)``. All of it is read before.

    Of several values it is the largest, such as the record and not its label; of equal ones the first.
    """
    read_whole(sample)
    if isinstance(sample, dict):
        sample = max(sample.values(), key=byte_count)
    if isinstance(sample, list | tuple):
        sample = sample[0]
    if isinstance(sample, bytes | memoryview | bytearray):
        flat = np.frombuffer(sample, np.uint8)
    else:
        flat = np.ascontiguousarray(sample).reshape(-1).view(np.uint8)
    out = np.empty(size, np.uint8)
    out[: len(flat)] = flat[:size]
    out[len(flat) :] = 0
    return out


def byte_count(data: Any) -> int:
    """Bytes of what a batch holds: of arrays, tensors, bytes and texts, in any nesting."""
    if isinstance(data, dict):
        return sum(byte_count(value) for value in data.values())
    size = getattr(data, "nbytes", None)
    if size is not None and getattr(getattr(data, "dtype", None), "kind", "") != "O":
        return int(size)
    if isinstance(data, bytes | bytearray):
        return len(data)
    if isinstance(data, str):
        return len(data.encode())
    if isinstance(data, list | tuple):
        if data and isinstance(data[0], bytes):
            return sum(map(len, data))
        return sum(byte_count(value) for value in data)
    return 8 if isinstance(data, int | float) else 0
