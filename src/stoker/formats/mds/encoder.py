"""Write MDS records and lay out MDS shards."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import must_be
from stoker.errors import ConfigError, EncodingError, FormatError, MissingPackageError
from stoker.formats.common.records import BytesLike, RecordEncoder, Records, batch_length, blame
from stoker.formats.mds.encodings import Encoding, mds_encoding
from stoker.formats.mds.encodings.arrays import FixedArray
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.types import Ids

# Records up to this size are put together before they are copied once more; larger ones are copied chunk by chunk.
_JOIN_BELOW = 8192
_CHUNK = 8 << 20


class MDSEncoder(RecordEncoder):
    """Samples to MDS records: the sizes of the variable columns, then all values, columns sorted by name.

    ``settings``: ``compression``, ``hashes`` and ``size_limit`` as the index holds them. ConfigError for no columns, or an
    encoding is unknown.
    """

    format = "mds"
    roles = ("data",)

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        names = sorted(columns)
        must_be("a dict with at least one column", bool(names), columns=columns)
        self._encodings: dict[str, Encoding] = {}
        for name in names:
            try:
                self._encodings[name] = mds_encoding(columns[name])
            except FormatError as error:
                raise ConfigError(f"column {name!r}: {error}") from None
        sizes = [encoding.size for encoding in self._encodings.values()]
        super().__init__(
            {
                **settings,
                "format": self.format,
                "column_names": names,
                "column_encodings": [columns[name] for name in names],
                "column_sizes": sizes,
            },
            sample_cost=4,
            overhead=len(str(settings["hashes"])),  # which may not count
        )
        self.shard_cost = 8 + len(self.config)
        self.encode = _encode_function(self._encodings)

    @property
    def columns(self) -> Sequence[str]:
        return list(self._encodings)

    def encode_column_value(self, column: str, value: Any) -> Any:
        return _checked(self._encodings[column])(value)

    def encode_batch(self, columns: Mapping[str, Any], first: int) -> Records:
        count = batch_length(columns, self.columns, first)
        raw: list[NDArray[np.uint8] | list[bytes]] = []
        for name, encoding in self._encodings.items():
            try:
                encoded = encoding.encode_column(columns[name])
            except MissingPackageError:
                raise
            except Exception as error:
                row = getattr(error, "row", None) or 0
                raise blame(name, first + row, error) from error
            if len(encoded) != count:
                raise EncodingError(f"column {name!r}: {count} values encoded as {len(encoded)}")
            raw.append(encoded)
        if all(isinstance(column, np.ndarray) for column in raw):
            return _FixedRecords(raw, count)  # type: ignore[arg-type]
        return _MixedRecords(raw, count)

    def files(self, body: memoryview, ends: Ids) -> list[list[BytesLike]]:
        first = 4 + 4 * (len(ends) + 1) + len(self.config)
        return [[self.offsets(first, ends) + self.config, body]]


class _FixedRecords(Records):
    """Records whose columns all have a fixed width."""

    def __init__(self, columns: list[NDArray[np.uint8]], count: int) -> None:
        self._columns = columns
        self._width = sum(column.shape[1] for column in columns)
        self.sizes = np.full(count, self._width, np.int64)

    def fill(self, out: NDArray[np.uint8], start: int, stop: int) -> None:
        rows = out.reshape(stop - start, self._width)
        at = 0
        for column in self._columns:
            width = column.shape[1]
            rows[:, at : at + width] = column[start:stop]
            at += width


class _MixedRecords(Records):
    """Records with columns of variable width."""

    def __init__(self, columns: list[NDArray[np.uint8] | list[bytes]], count: int) -> None:
        lengths = [np.fromiter(map(len, column), np.int64, count) for column in columns if isinstance(column, list)]
        if any(count and int(length.max()) >= 1 << 32 for length in lengths):
            raise EncodingError("a value of 4 GiB or more does not fit an MDS shard")
        heads = np.stack(lengths, axis=1).astype(np.uint32).view(np.uint8)
        self._columns = [heads, *columns]
        self.sizes = sum(lengths) + sum(c.shape[1] for c in self._columns if isinstance(c, np.ndarray))

    def fill(self, out: NDArray[np.uint8], start: int, stop: int) -> None:
        # By chunks, so that joining needs little memory beside the batch itself.
        ends = np.cumsum(self.sizes[start:stop])
        row, done = 0, 0
        while row < len(ends):
            following = max(row + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
            end = int(ends[following - 1])
            cells = [_cells(column, start + row, start + following) for column in self._columns]
            _copy(chain.from_iterable(zip(*cells, strict=True)), out[done:end], following - row)
            row, done = following, end


def _cells(column: NDArray[np.uint8] | list[bytes], start: int, stop: int) -> Sequence[bytes]:
    """The values of rows ``[start, stop)``."""
    if isinstance(column, list):
        return column[start:stop]
    width = column.shape[1]
    data = column[start:stop].tobytes()
    return [data[at : at + width] for at in range(0, len(data), width)]


def _copy(cells: Any, out: NDArray[np.uint8], records: int) -> None:
    if len(out) < _JOIN_BELOW * records:
        out[:] = np.frombuffer(b"".join(cells), np.uint8)
        return
    view = out.data
    at = 0
    for cell in cells:
        end = at + len(cell)
        view[at:end] = cell
        at = end


def _encode_function(encodings: Mapping[str, Encoding]) -> Callable[[Mapping[str, Any]], Any]:
    """A function from a sample to its record, made for these columns: as little work for each sample as can be."""
    fields = [(name, _checked(encoding)) for name, encoding in encodings.items()]
    variable = [number for number, encoding in enumerate(encodings.values()) if encoding.size is None]
    pack = struct.Struct(f"<{len(variable)}I").pack

    if len(fields) == 1 and not variable:
        ((only, encode_only),) = fields
        (encoding,) = encodings.values()
        if isinstance(encoding, FixedArray):
            return _array_function(only, encoding)
        return lambda sample: encode_only(sample[only])

    def encode_fixed(sample: Mapping[str, Any]) -> Any:
        return b"".join([encode(sample[name]) for name, encode in fields])

    def encode_mixed(sample: Mapping[str, Any]) -> Any:
        values = [encode(sample[name]) for name, encode in fields]
        sizes = list(map(len, values))
        head = pack(*[sizes[number] for number in variable])
        if sum(sizes) < _JOIN_BELOW:
            return head + b"".join(values)
        return [head, *values]

    return encode_mixed if variable else encode_fixed


def _array_function(name: str, encoding: FixedArray) -> Callable[[Mapping[str, Any]], Any]:
    """For rows of tokens: without a call for what is the rule, an array that fits as it is."""
    dtype, shape, other = encoding.dtype, encoding.shape, encoding.encode_view

    def encode(sample: Mapping[str, Any]) -> Any:
        value = sample[name]
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
            try:
                return value.data.cast("B")
            except TypeError:  # not C-contiguous
                return value.tobytes()
        return other(value)

    return encode


def _checked(encoding: Encoding) -> Callable[[Any], Any]:
    """The encoding's function; for an encoding from outside, with a check of what it returns."""
    if type(encoding).__module__.startswith("stoker."):
        return encoding.encode_view
    encode, size = encoding.encode, encoding.size

    def checked(value: Any) -> bytes:
        data = encode(value)
        if not isinstance(data, bytes):
            raise UnfitValueError(f"encoding {encoding.name!r} returned {type(data).__name__}, not bytes")
        if size is not None and len(data) != size:
            raise UnfitValueError(f"encoding {encoding.name!r} returned {len(data)} bytes, not {size}")
        return data

    return checked
