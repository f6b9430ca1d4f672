"""The base of formats whose shards are files that other programs know: NPY, NPZ, HDF5, Arrow, tar, TFRecord.

Such a shard comes from one of two sources. One that stoker wrote has an entry in the index with columns and encodings as an
MDS shard has them, and a meta file next to its data file, which holds nothing that readers of the format need:

    u32 N | u32 offsets[N + 1] | config JSON

Offsets are where samples begin in the data file, the last of them its size. Where a sample's columns lie apart, they are the
samples' shares of the data file, in proportion to their own bytes. By the meta file a killed writer's work is continued and
a lost index is made anew, as for all formats of two files.

A shard that others wrote is described by ``inspect_header``, from its own headers. To write one, records are collected as for
MDS, and laid out when it is full.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import (
    MAX_OFFSET,
    check_indexed,
    check_rows,
    unsafe_columns,
    wanted_columns,
)
from stoker.formats.common.decoded_memory import Shelf, Sized, memory_of
from stoker.formats.common.entries import column_names
from stoker.formats.common.gather import address_of, cut, gather_rows, record_bounds
from stoker.formats.common.records import BytesLike
from stoker.formats.format import Format
from stoker.formats.mds.encoder import MDSEncoder
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.formats.unstacked import Unstacked, read_each, scalars_of, spread
from stoker.types import Array, Batch, Buffer, Column, Ids

# Most bytes of a data file's headers, which the records' own bytes do not count.
_HEADROOM: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Slices:
    """A column's values in a buffer of records.

    ``begins``: where each value begins; int64, shape ``(n,)``. ``lengths``: its bytes; int64, shape ``(n,)``.
    """

    begins: Ids
    lengths: Ids

    def cut(self, body: memoryview) -> list[memoryview]:
        """Views of the values."""
        return cut(body, self.begins, self.begins + self.lengths)


class PackedEncoder(MDSEncoder):
    """Base of encoders whose shards are a data file and a meta file, as said above.

    ConfigError for no columns, an unknown encoding, or one that the format can not hold.
    """

    roles = ("data", "meta")  # type: ignore[assignment]  # MDS has one
    fixed_only: ClassVar[str] = ""
    """Set where the format holds values of fixed width only: its name in messages."""

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        super().__init__(columns, settings)
        self.largest = MAX_OFFSET - _HEADROOM
        self.sample_cost = 0 if self.fixed_only else self.sample_cost
        self.encodings: dict[str, Encoding] = {name: get_encoding(columns[name]) for name in sorted(columns)}
        for name, encoding in self.encodings.items():
            if self.fixed_only and encoding.size is None:
                raise ConfigError(
                    f"column {name!r}: {self.fixed_only} holds values of one size, and {columns[name]!r} has no fixed one: "
                    "declare the shape (ndarray:float32:3,4), or write MDS, Arrow, tar or TFRecord"
                )

    @abstractmethod
    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        """The data file as pieces, and where samples end in it; ``None`` where their columns lie apart."""

    def files(self, body: memoryview, ends: Ids) -> list[list[BytesLike]]:
        parts, bounds = self.lay_out(body, ends)
        if bounds is None:
            size, total = sum(len(part) for part in parts), int(ends[-1]) if len(ends) else 0
            # Shares of the file: whole numbers that rise to its size, whatever the columns' layout adds or saves.
            bounds = ends * size // total if total else np.full(len(ends), size, np.int64)
        return [parts, [self.offsets(0, bounds) + self.config]]

    def slices(self, body: memoryview, ends: Ids) -> dict[str, Slices]:
        """Finds each column's values in the records."""
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else np.zeros(0, np.int64)
        sizes = [encoding.size for encoding in self.encodings.values()]
        begins, lengths, _ = record_bounds(sizes, address_of(np.frombuffer(body, np.uint8)) + starts, starts)
        fixed = {number: np.full(len(ends), size, np.int64) for number, size in enumerate(sizes) if size is not None}
        lengths.update(fixed)
        return {name: Slices(begins[number], lengths[number]) for number, name in enumerate(self.encodings)}

    def arrays(self, body: memoryview, ends: Ids) -> dict[str, Array]:
        """Columns of fixed width as arrays of shape ``(n, ...)``, in the dtypes that they are stored in."""
        found: dict[str, Array] = {}
        data = np.frombuffer(body, np.uint8)
        widths = [encoding.size or 0 for encoding in self.encodings.values()]
        records = None
        if all(encoding.size is not None for encoding in self.encodings.values()):
            records = data.reshape(len(ends), sum(widths)) if sum(widths) else None
        at = 0
        slices = {} if records is not None else self.slices(body, ends)
        for (name, encoding), width in zip(self.encodings.items(), widths, strict=True):
            if encoding.size is None:
                continue
            if records is not None:
                raw = np.ascontiguousarray(records[:, at : at + width])
            elif width and len(ends):
                raw = gather_rows(address_of(data) + slices[name].begins, width)
            else:
                raw = np.zeros((len(ends), width), np.uint8)
            dtype, shape = fixed_kind(encoding)
            found[name] = raw.view(dtype).reshape(len(ends), *shape)
            at += width
        return found


def fixed_kind(encoding: Encoding) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape in which a value of fixed width is stored."""
    assert encoding.size is not None
    shape: tuple[int, ...] = getattr(encoding, "shape", ())
    dtype = getattr(encoding, "dtype", None)
    if encoding.name == "bool":
        return np.dtype(np.bool_), ()
    if encoding.name == "bfloat16":
        return np.dtype("<u2"), ()
    if isinstance(dtype, np.dtype) and isinstance(shape, tuple):
        count = int(np.prod(shape, dtype=np.int64))
        if count * dtype.itemsize == encoding.size:
            return dtype, shape
    return np.dtype(np.uint8), (encoding.size,)  # an encoding of someone's own: its bytes


def read_gathered(
    shards: Sequence[Any],
    which: Ids,
    rows: Ids,
    columns: Sequence[str] | None,
    gather: Callable[[str], Column | None],
) -> Batch:
    """``read_many`` for formats that gather some columns of several shards at once. IndexError if a row is outside its shard.

    ``shards``: with ``wanted``, as :class:`PackedShard` has it. ``which``, ``rows``, ``columns``: see
    :meth:`stoker.formats.format.Format.read_many`. ``gather``: the chosen rows of a column; ``None`` where they are read
    shard by shard. It may read memory by address: no row outside its shard reaches it.
    """
    if len(shards) == 1 or not len(rows):
        return read_each(shards, which, rows, columns)
    counts = np.array([shard.samples for shard in shards], dtype=np.int64)
    check_rows(rows, counts[which])
    names = shards[0].wanted(columns)
    batch: Batch = {}
    for name in names:
        taken = gather(name)
        if taken is not None:
            batch[name] = taken
    if rest := [name for name in names if name not in batch]:
        batch.update(read_each(shards, which, rows, rest))
    return {name: batch[name] for name in names}


class PackedFormat(Format):
    """Base of formats whose shards are single files in a layout that others know, too.

    A format of a third party is a subclass with a ``name``, ``suffixes``, ``inspect_header`` (see
    :class:`~stoker.formats.format.Format`) and ``reader``, and an entry point of the group ``stoker.formats`` that leads to
    it under the same name.
    """

    roles = ("data", "meta")

    def iterate_many(
        self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        """See :class:`stoker.formats.format.Format`. Values are those that an MDS column of this encoding has."""
        batch = self.read_many(shards, which, rows, columns)
        encodings: Mapping[str, Encoding] = getattr(shards[0], "encodings", {})
        return {name: _items(column, encodings.get(name)) for name, column in batch.items()}


def _items(column: Column, encoding: Encoding | None) -> Iterable[Any]:
    """Values one by one, in the types that they have whatever else was read with them."""
    if encoding is None:
        return scalars_of(column)
    if not isinstance(column, Unstacked):
        return encoding.items(column)
    there = [number for number, value in enumerate(column) if value is not None]
    return spread(encoding.items(column.some(there).column()), there, len(column))


class OpenShard:
    """Base of open shards: what their descriptions tell of them, and which columns are to be read.

    Args:
        info: the index's entry.
        where: names the shard in errors.
        options: how samples are handed out.
        layout: see :class:`~stoker.formats.base.ShardReader`; by default the whole description.

    Attributes:
        encodings: encodings of the columns that have one.
        unsafe: see :class:`~stoker.formats.base.ShardReader`.
    """

    def __init__(self, info: ShardInfo, where: str, options: ReadOptions, layout: Hashable = None) -> None:
        self.format = info.format
        self.where = where
        self.samples = info.samples
        self.options = options
        self.encodings: Mapping[str, Encoding] = encodings_of(info.spec)
        self.unsafe = unsafe_columns(self.encodings)
        self.columns = column_names(info)
        self.layout: Hashable = (info.format, repr(info.spec)) if layout is None else layout
        self._shelf = Shelf()

    def kept(self, name: str, decode: Callable[[], Sized]) -> Any:
        """The value that is decoded under a name, now or before; it is kept as long as decoded memory has room."""
        return memory_of(self.options.decoded_bytes).get(self._shelf, name, decode)

    def wanted(self, columns: Sequence[str] | None) -> list[str]:
        """Names of the columns to read, in the shard's order.

        Raises:
            FormatError: there is no such column.
            UnsafeDataError: a pickled column and no consent.
        """
        return wanted_columns(columns, self.columns, self.where, self.options, self.unsafe)


class PackedShard(OpenShard, ABC):
    """Base of open shards that are read a column at a time; what is asked for is checked here."""

    @abstractmethod
    def take(self, name: str, rows: Ids) -> Column:
        """A column's values in rows that are inside the shard."""

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        wanted = self.wanted(columns)
        check_rows(rows, self.samples)
        return {name: self.take(name, rows) for name in wanted}


def encodings_of(spec: Mapping[str, Any]) -> Mapping[str, Encoding]:
    """Encodings by column: of what stoker wrote, and of columns of other files for which they were chosen."""
    if "column_names" in spec:
        return {n: get_encoding(e) for n, e in zip(spec["column_names"], spec["column_encodings"], strict=True)}
    return {name: get_encoding(chosen) for name, chosen in spec.get("encodings", {}).items()}


def read_offsets(info: ShardInfo, files: Sequence[Buffer], where: str, first: int = 0) -> Ids | None:
    """Reads from the meta file where samples begin in the data file; ``None`` for a shard without one.

    CorruptDataError if sizes or offsets contradict the index or each other. ``info``, ``files``, ``where``: of the shard.
    ``first``: where the first sample must begin.
    """
    for number, (data, description) in enumerate(zip(files, info.raw, strict=True)):
        check_indexed(f"{where}: file {number} of the shard has", len(data), description.bytes, "bytes")
    if len(files) < 2:
        return None
    data, meta = files
    head = 4 + 4 * (info.samples + 1)
    if len(meta) < head:
        raise CorruptDataError(f"{where}: the meta file has {len(meta)} bytes, too few for {info.samples} samples")
    words = np.frombuffer(meta[:head], "<u4").astype(np.int64)
    check_indexed(f"{where}: the meta file says", int(words[0]), info.samples, "samples")
    offsets: Ids = words[1:]
    if int(offsets[0]) != first or int(offsets[-1]) != len(data) or (np.diff(offsets) < 0).any():
        raise CorruptDataError(
            f"{where}: the meta file's offsets run backwards or do not span the data file: first {offsets[0]} (should be "
            f"{first}), last {offsets[-1]} of {len(data)} bytes"
        )
    return offsets
