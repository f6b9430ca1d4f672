"""The format MDS: its shards, open, and columns of rows of many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from mmap import mmap
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import (
    DECODE_ERRORS,
    check_indexed,
    check_rows,
    cut_error,
    mds_spec,
    undecodable,
    unsafe_columns,
    wanted_columns,
)
from stoker.formats.common.gather import address_of, gather_rows, gather_u32, record_bounds
from stoker.formats.format import Format
from stoker.formats.mds.encodings import Encoding, RawColumn, UnknownEncoding, mds_encoding, registered
from stoker.integers import first_true
from stoker.types import Batch, Buffer, Column, Ids, Sample

_PAIR: Final = Struct("<2I")
# Samples are gathered in chunks of this size where they are taken one by one.
_CHUNK_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The layout of a sample's bytes: u32 sizes of the variable columns, then all payloads in order.

    Attributes:
        names: columns in the file's (sorted) order.
        sizes: their fixed widths in bytes, ``None`` for variable ones.
        width: bytes of a whole sample where all columns are fixed, else ``None``.
        head: the sizes of the variable columns.
        ends: where the columns end in a sample, if that is the same in all samples, else ``None``.
    """

    names: tuple[str, ...]
    encodings: tuple[Encoding, ...]
    sizes: tuple[int | None, ...]
    variable: int
    width: int | None
    unsafe: Mapping[str, str] = field(hash=False)  # follows from the encodings
    head: Struct = field(hash=False, compare=False)
    ends: tuple[int, ...] | None = field(hash=False)

    @classmethod
    def of(cls, info: ShardInfo) -> RecordLayout:
        """The layout that an index entry describes. Shards of one dataset share one object."""
        spec = info.spec
        encodings = tuple(zip(spec["column_encodings"], spec["column_sizes"], strict=True))
        return _layout(tuple(spec["column_names"]), encodings, registered())


@lru_cache(maxsize=256)
def _layout(names: tuple[str, ...], told: tuple[tuple[str, int | None], ...], _: int) -> RecordLayout:
    encodings = tuple(mds_encoding(name, size) for name, size in told)
    sizes = tuple(encoding.size for encoding in encodings)
    fixed = [size for size in sizes if size is not None]
    return RecordLayout(
        names,
        encodings,
        sizes,
        len(sizes) - len(fixed),
        sum(fixed) if len(fixed) == len(sizes) else None,
        unsafe_columns(dict(zip(names, encodings, strict=True))),
        Struct(f"<{len(sizes) - len(fixed)}I"),
        tuple(accumulate(fixed)) if len(fixed) == len(sizes) else None,
    )


class MDSShard:
    """One open MDS shard: its header checked against the index and against itself.

    ``files``: the shard's one; kept, never closed here. ``cut``: whether it may end before its last samples, which are then
    errors.

    ``addresses``: address of its bytes, number of samples that can be read, address of the u32 offsets.
    """

    format = "mds"

    def __init__(
        self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions, *, cut: bool = False
    ) -> None:
        (data,) = files
        self.where = where
        self.data = data
        self.array: NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)
        self.address = address_of(self.array)
        # In memory of our own once they are checked: the file may be written over later.
        self._offsets = self.array[4 : 4 + 4 * (info.samples + 1)].copy()
        self.layout = RecordLayout.of(info)
        self.columns = self.layout.names
        self.unsafe = self.layout.unsafe
        self.samples = info.samples
        self.options = options
        # For single samples: the columns that were last asked for, and which fields these are.
        self._fields: tuple[Sequence[str] | None, Sequence[tuple[int, str]]] | None = None
        whole = info.raw[0].bytes
        self._check(whole, cut=cut)
        ends = self._offsets.view("<u4")[1:]
        self.intact = info.samples if self.array.size == whole else int(np.searchsorted(ends, self.array.size, "right"))
        self.addresses = self.address, self.intact, address_of(self._offsets)

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        return read_many([self], np.zeros(len(rows), dtype=np.int64), rows, columns)

    def one(self, row: int, columns: Sequence[str] | None) -> Sample:
        """One sample."""
        fields = self._fields  # other threads may read other columns
        if fields is None or fields[0] is not columns:
            fields = self._fields = columns, _wanted(self.layout, columns, self)
        if row >= self.intact:
            raise self.cut_error(row)
        layout, data, array = self.layout, self.data, self.array
        begin, end = _PAIR.unpack_from(self._offsets.data, 4 * row)
        ends = layout.ends
        if ends is None:
            found = iter(layout.head.unpack_from(data, begin))
            begin += 4 * layout.variable
            ends = tuple(accumulate([next(found) if size is None else size for size in layout.sizes]))
            if begin + ends[-1] != end:
                raise CorruptDataError(f"{self.where}: sample {row}: its columns' sizes do not add up")
        sample: Sample = {}
        for k, name in fields[1]:
            encoding, start = layout.encodings[k], begin + ends[k - 1] if k else begin
            if encoding.unpack_from is not None:
                (sample[name],) = encoding.unpack_from(data, start)
                continue
            stop = begin + ends[k]
            if encoding.size is not None:
                sample[name] = encoding.decode_row(array[start:stop].copy())
            elif encoding.verbatim and self.options.views:
                sample[name] = memoryview(data)[start:stop]
            else:
                sample[name] = encoding.decode(data[start:stop])
        return sample

    def cut_error(self, row: int) -> CorruptDataError:
        """The error of a sample that lies where the file has ended."""
        return cut_error(self.where, row, self.array.size, int(self._offsets.view("<u4")[-1]))

    def _check(self, expected: int, *, cut: bool) -> None:
        size = self.array.size
        if size > expected or not cut:
            check_indexed(f"{self.where}: the file has", size, expected, "bytes")
        head = 4 + 4 * (self.samples + 1)
        if size < head:
            raise CorruptDataError(f"{self.where}: {size} bytes can not hold a header for {self.samples} samples")
        count = int(self.array[:4].view("<u4")[0])
        check_indexed(f"{self.where}: the file holds", count, self.samples, "samples")
        offsets = self._offsets.view("<u4").astype(np.int64)
        lengths = offsets[1:] - offsets[:-1]
        if int(offsets[0]) < head or int(offsets[-1]) != expected or (lengths.size and int(lengths.min()) < 0):
            bad = int(np.argmin(lengths)) if lengths.size and int(lengths.min()) < 0 else 0
            raise CorruptDataError(
                f"{self.where}: sample offsets leave the file or run backwards (first {offsets[0]}, last {offsets[-1]}, "
                f"file {expected} bytes, near sample {bad})"
            )
        width = self.layout.width
        least = 4 * self.layout.variable
        if (row := first_true(lengths < least if width is None else lengths != width)) is not None:
            raise CorruptDataError(
                f"{self.where}: sample {row} has {lengths[row]} bytes, its columns need "
                f"{width if width is not None else f'at least {least}'}"
            )


def read_many(shards: Sequence[MDSShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
    """See :meth:`stoker.formats.format.Format.read_many`: there is no step for each shard.

    Columns of fixed width are arrays of shape ``(n, ...)``, fresh and writable, the others lists. CorruptDataError if sizes
    inside a sample contradict its length, or a value does not decode, UnsafeDataError for a pickled column and no consent.
    """
    layout = shards[0].layout
    wanted = _wanted(layout, columns, shards[0])
    base, begins, lengths = _find(shards, which, rows)
    batch: Batch = {}
    for k, name in wanted:
        encoding, size = layout.encodings[k], layout.sizes[k]
        decode: Callable[[Any], Column]
        stored: Any
        if size is not None:
            at_once = not any(isinstance(shard.data, mmap) for shard in shards)
            decode, stored = encoding.decode_fixed, _fixed(base + begins[k], size, at_once=at_once)
        else:
            decode, stored = encoding.decode_values, list(_slices(shards, which, begins[k], lengths[k], encoding))
        try:
            batch[name] = decode(stored)
        except DECODE_ERRORS as error:
            raise _blame(shards, which, rows, encoding, stored, name, error) from error
    return batch


def iterate_many(
    shards: Sequence[MDSShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
) -> dict[str, Iterable[Any]]:
    """Like :func:`read_many`, for taking samples one by one: each column's values as they are asked for.

    Nothing is decoded, and little is copied, before the consumer wants it, so memory stays small and in the processor's
    cache however large the samples are. Errors come when the sample that has them is reached.
    """
    layout = shards[0].layout
    wanted = _wanted(layout, columns, shards[0])
    base, begins, lengths = _find(shards, which, rows)
    values: dict[str, Iterable[Any]] = {}
    for k, name in wanted:
        size = layout.sizes[k]
        if size is not None:
            values[name] = chain.from_iterable(
                _fixed_items(shards, which, rows, layout.encodings[k], name, base + begins[k], size)
            )
        else:
            encoding = layout.encodings[k]
            slices = _slices(shards, which, begins[k], lengths[k], encoding)
            values[name] = slices if encoding.verbatim else _decoded(shards, which, rows, encoding, name, slices)
    return values


def _fixed_items(
    shards: Sequence[MDSShard], which: Ids, rows: Ids, encoding: Encoding, name: str, addresses: Ids, size: int
) -> Iterator[list[Any]]:
    step = max(1, _CHUNK_BYTES // max(1, size))
    for first in range(0, len(addresses), step):
        chunk = slice(first, first + step)
        raw = _fixed(addresses[chunk], size)
        try:
            items = encoding.items(encoding.decode_fixed(raw))
        except DECODE_ERRORS as error:
            raise _blame(shards, which[chunk], rows[chunk], encoding, raw, name, error) from error
        yield items


def _decoded(
    shards: Sequence[MDSShard], which: Ids, rows: Ids, encoding: Encoding, name: str, slices: Iterator[bytes]
) -> Iterator[Any]:
    decode = encoding.decode
    number = 0
    data = b""
    try:
        for number, data in enumerate(slices):  # noqa: B007 - for the error below
            yield decode(data)
    except DECODE_ERRORS as error:
        here = slice(number, number + 1)
        raise _blame(shards, which[here], rows[here], encoding, [data], name, error) from error


def _slices(shards: Sequence[MDSShard], which: Ids, first: Ids, length: Ids, encoding: Encoding) -> Iterator[bytes]:
    """The bytes ``[first, first + length)`` of each sample's shard; views of them where that is asked for and possible."""
    buffers: list[Any] = [shard.data for shard in shards]
    if encoding.verbatim and shards[0].options.views:
        buffers = [memoryview(buffer) for buffer in buffers]
    ends = (first + length).tolist()
    if len(buffers) == 1:
        data = buffers[0]
        return (data[a:b] for a, b in zip(first.tolist(), ends, strict=True))
    return (buffers[s][a:b] for s, a, b in zip(which.tolist(), first.tolist(), ends, strict=True))


def _fixed(addresses: Ids, size: int, *, at_once: bool = False) -> NDArray[np.uint8]:
    return gather_rows(addresses, size, at_once=at_once) if size else np.zeros((len(addresses), 0), np.uint8)


def _find(shards: Sequence[MDSShard], which: Ids, rows: Ids) -> tuple[Ids, list[Ids], dict[int, Ids]]:
    """Address of each sample's shard; offsets in it of the columns, and lengths, by number, of those of no fixed one."""
    base, samples, offsets = np.array([shard.addresses for shard in shards], dtype=np.int64).T.take(which, axis=1)
    # The gather below reads memory by address: nothing unchecked may reach it.
    try:
        check_rows(rows, samples)
    except IndexError:
        for shard, row in zip(which.tolist(), rows.tolist(), strict=True):
            if shards[shard].intact <= row < shards[shard].samples:
                raise shards[shard].cut_error(row) from None
        raise
    start, end = gather_u32(offsets + 4 * rows, 2).T
    begins, lengths, cursor = record_bounds(shards[0].layout.sizes, base + start, start)
    # Sizes are unsigned, so the cursor never runs backwards: one check at the end bounds every column.
    if lengths and (bad := first_true(cursor != end)) is not None:
        raise CorruptDataError(
            f"{shards[int(which[bad])].where}: sample {int(rows[bad])}: its columns' sizes add up to "
            f"{int(cursor[bad] - start[bad])} bytes, the sample has {int(end[bad] - start[bad])}"
        )
    return base, begins, lengths


def _wanted(layout: RecordLayout, columns: Sequence[str] | None, shard: MDSShard) -> list[tuple[int, str]]:
    """Number and name of the columns to read."""
    names = wanted_columns(columns, layout.names, shard.where, shard.options, layout.unsafe)
    wanted = [(layout.names.index(name), name) for name in names]
    for number, name in wanted:
        encoding = layout.encodings[number]
        if isinstance(encoding, UnknownEncoding):
            raise ConfigError(f"{shard.where}: column {name!r}: {encoding.refusal}")
    return wanted


def _blame(
    shards: Sequence[MDSShard],
    which: Ids,
    rows: Ids,
    encoding: Encoding,
    stored: RawColumn,
    name: str,
    error: Exception,
) -> Exception:
    """The error for the first sample of a column that does not decode. Errors of missing packages pass unchanged."""
    return undecodable(encoding, stored, rows, name, lambda index: shards[int(which[index])].where, error)


# The count of samples and the end of the last one, and where each sample begins.
_HEADER: Final = 8
_OFFSET: Final = 4


class MDSFormat(Format):
    """One file a shard: a header of offsets, the writer's configuration, then the samples."""

    name = "mds"
    shard = "a file"
    reader = MDSShard
    views = "bytes"

    def least_bytes(self, spec: Mapping[str, Any]) -> tuple[int, int]:
        columns = (spec["column_names"], spec["column_encodings"], spec["column_sizes"])
        _, width = mds_spec(*columns, spec["hashes"], spec["size_limit"])
        return _HEADER, _OFFSET + width

    def open_cut(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> MDSShard:
        return MDSShard(info, files, where, options, cut=True)

    read_many = staticmethod(read_many)
    iterate_many = staticmethod(iterate_many)

    def read_one(self, shard: MDSShard, row: int, columns: Sequence[str] | None = None) -> Sample:
        """See :class:`~stoker.formats.format.Format`: several times as fast as :func:`iterate_many`."""
        return shard.one(row, columns)
