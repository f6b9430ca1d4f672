"""Samples to shards in other programs' formats: records are collected as for MDS, and laid out when a shard is full."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.common.records import BytesLike
from stoker.formats.common.rows.gather import address_of, gather_rows
from stoker.formats.mds.encoder import MDSEncoder
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.types import Array, Ids

# Most bytes of a data file's headers, which the records' own bytes do not count.
_HEADROOM: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Slices:
    """A column's values in a buffer of records.

    Attributes:
        begins: where each value begins; int64, shape ``(n,)``.
        lengths: its bytes; int64, shape ``(n,)``.
    """

    begins: Ids
    lengths: Ids


class PackedEncoder(MDSEncoder):
    """Base of encoders whose shards are a data file and a meta file; see :mod:`stoker.formats.common.container`.

    Args:
        columns: column name to encoding name.
        settings: what all shards' entries share.

    Raises:
        ConfigError: no columns, an unknown encoding, or one that the format can not hold.
    """

    roles = ("data", "meta")  # type: ignore[assignment]  # MDS has one
    fixed_only: ClassVar[str] = ""
    """Set where the format holds values of fixed width only: its name in messages."""

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        super().__init__(columns, settings)
        self.largest = MAX_OFFSET - _HEADROOM
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
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
        sizes = [encoding.size for encoding in self.encodings.values()]
        variable = sum(size is None for size in sizes)
        data = np.frombuffer(body, np.uint8)
        heads = None
        if variable and len(ends):
            heads = gather_rows(address_of(data) + starts, 4 * variable).view("<u4").astype(np.int64)
        cursor = starts + 4 * variable
        number = 0
        found: dict[str, Slices] = {}
        for name, size in zip(self.encodings, sizes, strict=True):
            if size is not None:
                lengths = np.full(len(ends), size, np.int64)
            else:
                lengths = heads[:, number] if heads is not None else np.zeros(len(ends), np.int64)
                number += 1
            found[name] = Slices(cursor, lengths)
            cursor = cursor + lengths
        return found

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


def flatten(body: memoryview, slices: Slices) -> tuple[NDArray[np.uint8], Ids]:
    """A column's values end to end, and where each begins, with the end of the last: int64, shape ``(n + 1,)``."""
    offsets = np.zeros(len(slices.lengths) + 1, np.int64)
    np.cumsum(slices.lengths, out=offsets[1:])
    pairs = zip(slices.begins.tolist(), (slices.begins + slices.lengths).tolist(), strict=True)
    return np.frombuffer(b"".join([body[begin:end] for begin, end in pairs]), np.uint8), offsets
