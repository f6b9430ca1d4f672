"""Files of records, and files that tell where each begins: Megatron's indexed datasets, and DLIO's indexed binary files.

Megatron's are a ``.bin`` of tokens, and an ``.idx`` of the sequences' lengths and offsets in it, all little-endian: 9 bytes
``MMIDIDX\\0\\0``, u64 version 1, u8 code of the dtype, u64 number of sequences, u64 number of document borders, i32 lengths
of the sequences, i64 offsets of their first bytes in the ``.bin``, i64 document borders (numbers of sequences, from 0 to
their number), and sometimes an i8 mode for each sequence.

DLIO's are records end to end. Beside ``x.indexed_binary`` lie ``x.indexed_binary.off.idx`` and ``x.indexed_binary.sz.idx``,
of a little-endian u64 a record each: its first byte, and its bytes. As DLIO's own reader takes them, records may overlap: its
generator begins to count from 0 again where a file is larger than its buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.container import PackedFormat, PackedShard
from stoker.formats.common.file_shards import SpanDetail, span_bytes
from stoker.formats.common.gather import cut
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, ShardSpan, check_count, piece_bytes, whole
from stoker.integers import first_true
from stoker.types import Array, Buffer, Column, Ids

_WIDTH = 8


class IndexedBinaryShard(PackedShard):
    """The three open files of a data file."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        begins, sizes = (
            _numbers(file, f"{where}: {name}")
            for file, name in zip(files, ("its .off.idx", "its .sz.idx"), strict=False)
        )
        if len(begins) != info.samples or len(sizes) != info.samples:
            raise CorruptDataError(
                f"{where}: its .off.idx has {len(begins)} records, its .sz.idx {len(sizes)}, and {info.samples} were "
                "indexed. Were the files written together?"
            )
        self._begins, self._sizes = begins, sizes
        self._data = memoryview(files[2]).cast("B")

    def take(self, name: str, rows: Ids) -> Column:  # noqa: ARG002 - there is one column
        """See :class:`~stoker.formats.common.container.PackedShard`: the bytes of each record, or a view of them.

        CorruptDataError if a record does not lie in the data file; names its row.
        """
        begins, sizes, total = self._begins[rows], self._sizes[rows], len(self._data)
        wrong = (begins > total) | (sizes > total - np.minimum(begins, total))
        if (at := first_true(wrong)) is not None:
            raise CorruptDataError(
                f"{self.where}: record {int(rows[at])} of {int(sizes[at])} bytes begins at byte {int(begins[at])} of {total}"
                ". Were the files written together?"
            )
        values = cut(self._data, begins, begins + sizes)
        return values if self.options.views else list(map(bytes, values))


class IndexedBinaryFormat(PackedFormat):
    """A file of records with its two indexes, as DLIO writes and reads them."""

    name = "indexed_binary"
    shard = "a file of DLIO's records"
    reader = IndexedBinaryShard
    views = "bytes"
    suffixes = (".indexed_binary.off.idx",)
    beside = (".indexed_binary.sz.idx", ".indexed_binary")
    settings = ("column",)

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`: of the offsets, only how many there are is looked at.

        Settings: ``column`` (the column's name, ``"data"``).
        """
        if source.size % _WIDTH or not source.size:
            raise CorruptDataError(
                f"{source.where} has {source.size} bytes, which are not the u64 offsets of one or more records. Was it "
                "written to the end?"
            )
        count = check_count(source.size // _WIDTH, source.where)
        return HeaderFacts(count, {"columns": {str(settings.get("column", "data")): "bytes"}})


def _numbers(file: Buffer, where: str) -> Array:
    if memoryview(file).nbytes % _WIDTH:
        raise CorruptDataError(f"{where} has {memoryview(file).nbytes} bytes, which are not a whole number of u64")
    return np.frombuffer(file, "<u8")


DTYPES: Final[Mapping[int, str]] = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Codes of dtypes of integers, and their names."""

_FLOATS: Final = {6: "float64", 7: "float32"}
_MAGIC: Final = b"MMIDIDX\x00\x00"
_HEAD: Final = struct.Struct("<9sQBQQ")
_SPAN: Final = 64 << 20
_FARTHEST: Final = 1 << 56
_UNITS: Final = ("sequence", "document")


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """The content of an ``.idx``.

    Attributes:
        lengths: tokens in each sequence; int64, shape ``(sequences,)``.
        byte_offsets: of each sequence in the ``.bin``, multiples of the dtype's width; int64, shape ``(sequences,)``.
        borders: sequence with which each document begins, and their number; int64, shape ``(documents + 1,)``.
    """

    dtype: np.dtype[Any]
    lengths: Ids
    byte_offsets: Ids
    borders: Ids

    @property
    def ends(self) -> Ids:
        """The byte after the last of each sequence; int64, shape ``(sequences,)``."""
        ends: Ids = self.byte_offsets + self.lengths * self.dtype.itemsize
        return ends

    def tokens(self, data: NDArray[np.uint8]) -> Array:
        """The tokens in the bytes of a ``.bin``, without a copy; behind them may be a part of one more."""
        return data[: data.size // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)


def _layout(data: NDArray[np.uint8], where: str) -> tuple[np.dtype[Any], Array, Array, Array]:
    """The dtype, and the three arrays where they lie in an ``.idx``.

    CorruptDataError if the header is not what the format says.
    """
    if data.size < _HEAD.size or bytes(data[:9]) != _MAGIC:
        raise CorruptDataError(
            f"{where} does not begin as an index of Megatron's does. Give the path of the .idx or .bin file"
        )
    _, version, code, sequences, borders = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if version != 1:
        raise CorruptDataError(f"{where} has version {version}; only version 1 is known")
    if code not in DTYPES:
        what = f"holds {_FLOATS[code]}, which are not tokens" if code in _FLOATS else f"has an unknown dtype {code}"
        raise CorruptDataError(f"{where} {what}")
    size = _HEAD.size + 12 * sequences + 8 * borders
    if data.size not in (size, size + sequences):
        raise CorruptDataError(
            f"{where} has {data.size} bytes, but its {sequences} sequences and {borders} borders need {size}. Was it written "
            "to the end?"
        )
    at = _HEAD.size
    lengths = np.frombuffer(data, "<i4", sequences, at)
    byte_offsets = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
    found = np.frombuffer(data, "<i8", borders, at + 12 * sequences)
    return np.dtype(DTYPES[code]).newbyteorder("<"), lengths, byte_offsets, found


def read_index(data: NDArray[np.uint8], where: str) -> MegatronIndex:
    """Read an ``.idx``. CorruptDataError if it is not what the format says."""
    dtype, raw_lengths, raw_offsets, raw_borders = _layout(data, where)
    lengths, byte_offsets = _checked(dtype, raw_lengths, raw_offsets, 0, where)
    found: Ids = raw_borders.astype(np.int64)
    sequences = lengths.size
    if found.size and (found[0] != 0 or found[-1] != sequences or bool((found[1:] < found[:-1]).any())):
        raise CorruptDataError(f"{where} has document borders that do not rise from 0 to its {sequences} sequences")
    if not found.size:
        if sequences:
            raise CorruptDataError(f"{where} has no document borders")
        found = np.zeros(1, dtype=np.int64)
    return MegatronIndex(dtype, lengths, byte_offsets, found)


def _checked(dtype: np.dtype[Any], lengths: Array, byte_offsets: Array, first: int, where: str) -> tuple[Ids, Ids]:
    """Lengths and byte offsets, checked; ``first`` is the number of the first of them."""
    wrong = (lengths < 0) | (byte_offsets < 0) | (byte_offsets % dtype.itemsize != 0) | (byte_offsets > _FARTHEST)
    if (row := first_true(wrong)) is not None:
        raise CorruptDataError(
            f"{where} says that sequence {first + row} of {int(lengths[row])} tokens begins at byte "
            f"{int(byte_offsets[row])}, which is impossible"
        )
    return lengths.astype(np.int64), byte_offsets.astype(np.int64)


def _read_part(data: NDArray[np.uint8], document: bool, first: int, count: int, where: str) -> MegatronIndex:
    """An ``.idx`` of the sequences of some samples alone; the rest of it is not touched.

    CorruptDataError if it is not what the format says.
    """
    dtype, lengths, byte_offsets, found = _layout(data, where)
    low, high = first, first + count
    borders: Ids = np.zeros(1, np.int64)
    if document:
        borders = found[first : first + count + 1].astype(np.int64)
        if len(borders) != count + 1 or (borders[1:] < borders[:-1]).any():
            raise CorruptDataError(f"{where} does not have the document borders that it had when its header was read")
        low, high = int(borders[0]), int(borders[-1])
    if not 0 <= low <= high <= len(lengths):
        raise CorruptDataError(f"{where} has {len(lengths)} sequences, and had {high} or more when its header was read")
    return MegatronIndex(dtype, *_checked(dtype, lengths[low:high], byte_offsets[low:high], low, where), borders - low)


def index_bytes(dtype: np.dtype[Any], lengths: Ids, borders: Ids) -> list[bytes]:
    """An ``.idx`` of sequences that lie end to end, as spans.

    ``dtype``: of the tokens, one of :data:`DTYPES`. ``lengths``: tokens in each sequence. ``borders``: sequence with which
    each document begins, and their number.
    """
    code = next(code for code, name in DTYPES.items() if name == dtype.name)
    byte_offsets = (np.cumsum(lengths) - lengths) * dtype.itemsize
    arrays = lengths.astype("<i4"), byte_offsets.astype("<i8"), borders.astype("<i8")
    head = _HEAD.pack(_MAGIC, 1, code, lengths.size, borders.size)
    return [head, *(array.tobytes() for array in arrays)]


def _samples_of(index: MegatronIndex, document: bool, where: str, start: int = 0) -> tuple[Ids, Ids]:
    """First and end byte of each sample in the ``.bin``; no empty document is before ``start``.

    CorruptDataError if a document's sequences do not lie end to end.
    """
    ends = index.ends
    if not document:
        return index.byte_offsets, ends
    low, high = index.borders[:-1], index.borders[1:]
    inner = np.ones(max(0, len(ends) - 1), np.bool_)
    starts = low[(low > 0) & (low < len(ends))]
    inner[starts - 1] = False
    if (row := first_true(inner & (ends[:-1] != index.byte_offsets[1:]))) is not None:
        raise CorruptDataError(
            f"{where}: sequences {row} and {row + 1} are of one document but do not follow each other: read them with "
            'format_options={"unit": "sequence"}'
        )
    filled = high > low
    begins, stops = np.full(len(low), start, np.int64), np.full(len(low), start, np.int64)
    begins[filled], stops[filled] = index.byte_offsets[low[filled]], ends[high[filled] - 1]
    if not filled.all():  # empty documents begin where the one before ended
        np.maximum.accumulate(stops, out=stops)
        begins[~filled] = stops[~filled]
    return begins, stops


class MegatronShard(PackedShard):
    """An open pair of files, or a span of their data."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        data = span_bytes(info, np.frombuffer(files[-1], np.uint8), where)
        detail, part = info.detail, info.raw[-1].part
        first: int = detail.first if isinstance(detail, SpanDetail) else 0
        start = part.starts[0] if detail is not None and part is not None else 0
        document = info.spec["unit"] == "document"
        there = f"{where}: its .idx"
        index = _read_part(np.frombuffer(files[0], np.uint8), document, first, info.samples, there)
        begins, ends = _samples_of(index, document, there, start)
        self._begins: Ids = begins - start
        self._ends: Ids = ends - start
        if index.dtype.name != next(iter(info.spec["columns"].values())).rpartition(":")[2]:
            raise CorruptDataError(
                f"{there} now says that tokens are {index.dtype.name}, which it did not when the dataset was opened"
            )
        wrong = (self._begins < 0) | (self._ends > len(data))  # lengths are not negative
        if (row := first_true(wrong)) is not None:
            raise CorruptDataError(
                f"{where}: sample {row} lies at bytes {int(self._begins[row])} to {int(self._ends[row])} of {len(data)}. "
                "Were the .idx and the .bin written together?"
            )
        self._tokens = index.tokens(data)

    def take(self, name: str, rows: Ids) -> Column:  # noqa: ARG002 - there is one column
        """See :class:`~stoker.formats.common.container.PackedShard`: an array a sample, a view of the file if asked for."""
        width = self._tokens.itemsize
        values = cut(self._tokens, self._begins[rows] // width, self._ends[rows] // width)
        return values if self.options.views else [value.copy() for value in values]


class MegatronFormat(PackedFormat):
    """A pair of files, in spans of about 64 MiB of tokens."""

    name = "megatron"
    shard = "64 MiB of an indexed dataset's tokens"
    magic = (_MAGIC,)
    reader = MegatronShard
    views = "tokens"
    suffixes = (".idx",)
    beside = (".bin",)
    whole = True
    settings = ("column", "piece_bytes", "unit")

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``unit`` (what a sample is: ``"sequence"`` or ``"document"``), ``column`` (its name, ``"tokens"``),
        ``piece_bytes`` (size of the shards, 64 MiB).
        """
        unit = settings.get("unit", "sequence")
        if unit not in _UNITS:
            raise ConfigError(f"unit={unit!r}: a sample is a {' or a '.join(_UNITS)}")
        index = read_index(np.frombuffer(whole(source), np.uint8), source.where)
        begins, ends = _samples_of(index, unit == "document", source.where)
        count = check_count(len(begins), source.where)
        spec = {"columns": {str(settings.get("column", "tokens")): f"tokens:{index.dtype.name}"}, "unit": unit}
        return HeaderFacts(count, spec, _spans(begins, ends, piece_bytes(settings, _SPAN)))


def _spans(begins: Ids, ends: Ids, size: int) -> list[ShardSpan]:
    """Samples in spans, where they lie in their order; else none, for one shard."""
    if not len(begins) or (begins[1:] < ends[:-1]).any() or (ends < begins).any():
        return []
    spans: list[ShardSpan] = []
    first = 0
    while first < len(begins):
        stop = max(first + 1, int(np.searchsorted(ends, int(begins[first]) + size, side="right")))
        spans.append((int(begins[first]), int(ends[stop - 1]), stop - first))
        first = stop
    return spans
