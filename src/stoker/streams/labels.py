"""Labels: a column's values for all samples as one array, of classes to stratify by or of hashes to divide by.

All samples are read once to compute it; the array is saved next to the dataset's index and mapped from then on.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, Final, Literal, get_args

import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from stoker.catalog.location import DatasetLocation
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.streams.compare import null_mask, without_nulls
from stoker.streams.derived_arrays import ArraySink, derived_array
from stoker.streams.scan import check_column, scan
from stoker.types import Array, Column, Ids, Nulls

logger = logging.getLogger(__name__)

LabelKind = Literal["classes", "hashes"]
U64 = NDArray[np.uint64]

MOST_CLASSES: Final = 1 << 20
"""The most distinct texts of a column of classes; all of them are in memory while labels are computed."""

_NARROW: Final = tuple(np.dtype(name) for name in ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<i8"))
# xxh64's constants.
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_NULL_HASH: Final = np.uint64(xxhash.xxh64_intdigest(b"null", seed=1))
_WORKS: Final = {
    "classes": "integer, bool, str and bytes columns",
    "hashes": "integer, bool, float, str and bytes columns",
}


def column_labels(
    location: DatasetLocation,
    column: str,
    kind: LabelKind,
    *,
    nulls: Nulls = "error",
    options: ReadOptions = ReadOptions(),
) -> NDArray[np.integer[Any]]:
    """A label for every sample of a dataset, in the order of ids.

    The first call reads the column of all samples, in bounded memory; later ones, in any process, map the file. Of
    several processes that want it at once, one makes it and the others wait.

    Args:
        kind: ``"classes"``: the integers of an integer column in the narrowest type that holds them all; for a column of
            text or bytes, the index of the value among the column's different values, sorted.
            ``"hashes"``: uint64, see :func:`hash_values`.
        nulls: what samples without a value (null, NaN) are: an error, or ``"group"``, one group of their own: the class
            after all others, or a hash that no value is made for.
        options: consent to columns that run code from the data.

    Returns:
        Integers of shape ``(samples,)``, mapped read-only: 1 to 8 bytes of disk a sample, no memory of its own.

    Raises:
        ConfigError: no such column, values that can not be labels, a null, or more different texts than ``MOST_CLASSES``.
        CacheError, StorageFullError: the labels can not be saved.
        StorageError, CorruptDataError: a shard can not be read.
    """
    if kind not in get_args(LabelKind):
        raise ConfigError(f"kind={kind!r}: expected {' or '.join(map(repr, get_args(LabelKind)))}")
    check_column(location, column)
    where = f"{location.cache.root}: column {column!r}"

    def make(sink: ArraySink) -> tuple[DTypeLike, bytes]:
        logger.info(
            "reading column %r of all %d samples of %s, once, for its %s",
            column,
            location.index.samples,
            location.cache.root,
            kind,
        )
        chunks = ((first, batch[column]) for first, _, batch in scan(location, [column], options))
        make_labels = _make_hashes if kind == "hashes" else _make_classes
        return make_labels(chunks, sink, where, nulls, partial(_sample, location)), b""

    array: NDArray[np.integer[Any]] = derived_array(
        location, kind, column, {"column": column, "nulls": nulls}, make
    ).array
    return array


def hash_column(values: Column, where: str, nulls: Nulls, describe_sample: Callable[[int], str]) -> U64:
    """:func:`hash_values` of a column that may have nulls.

    Args:
        values: an array of shape ``(n,)`` or a list of n values.
        where: names the column in errors.
        nulls: see :func:`column_labels`.
        describe_sample: names the sample of the value at an index of ``values``.

    Raises:
        ConfigError: as :func:`hash_values`, or there is a null and ``nulls`` is ``"error"``.
    """
    null = null_mask(values)
    if null is None:
        return hash_values(values, where)
    if nulls == "error":
        raise null_error(where, describe_sample(int(np.argmax(null))))
    hashes = np.full(len(values), _NULL_HASH, np.uint64)
    if not null.all():
        hashes[~null] = hash_values(without_nulls(values, null), where)
    return hashes


def null_error(where: str, sample: str) -> ConfigError:
    """The error for a null in a column that samples are divided by."""
    return ConfigError(
        f'{where} has no value (null or NaN) in {sample}: nulls="group" keeps all such samples together as a group of their '
        'own (which subset=Where(column, "!=", None) leaves out), or name another column'
    )


def hash_values(values: Column, where: str = "the column") -> U64:
    """xxh64 (seed 0) of each value, the same on every machine.

    Integers and booleans are hashed as 8 bytes of little-endian two's complement, floats as little-endian float64
    (``-0.0`` as ``0.0``, every NaN as one), text as UTF-8, bytes as they are.

    ConfigError for values of other types, or integers beyond 64 bits. ``values``: an array of shape ``(n,)`` or a list of n
    values. ``where``: names the column in errors.
    """
    numbers = _numbers(values, where, "hashes")
    if numbers is not None:
        if numbers.dtype.kind == "f":
            floats = numbers.astype("<f8") + 0.0
            floats[np.isnan(floats)] = np.nan
            return _hash_words(floats.view("<u8"))
        return _hash_words(numbers.astype("<u8" if numbers.dtype.kind == "u" else "<i8").view("<u8"))
    encoded = map(str.encode, values) if isinstance(values[0], str) else iter(values)
    return np.fromiter(map(xxhash.xxh64_intdigest, encoded), np.uint64, len(values))


def _hash_words(words: NDArray[np.uint64]) -> U64:
    """xxh64 of 8-byte inputs (Y. Collet, xxHash specification, section XXH64, steps for one remaining lane)."""
    lane = _rotate(words * _P2, 31) * _P1
    state = _rotate(lane ^ (_P5 + np.uint64(8)), 27) * _P1 + _P4
    state ^= state >> np.uint64(33)
    state *= _P2
    state ^= state >> np.uint64(29)
    state *= _P3
    state ^= state >> np.uint64(32)
    return state.astype(np.uint64, copy=False)


def _rotate(words: U64, bits: int) -> U64:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _sample(location: DatasetLocation, number: int) -> str:
    """A sample by its number, its row and its shard."""
    starts = np.cumsum([0, *location.index.sizes])
    shard = int(np.searchsorted(starts, number, side="right")) - 1
    return f"sample {number} (row {number - starts[shard]} of {location.cache.describe(location.index.shards[shard])})"


def _make_hashes(
    chunks: Iterator[tuple[int, Column]], sink: ArraySink, where: str, nulls: Nulls, sample: Callable[[int], str]
) -> DTypeLike:
    for first, values in chunks:
        hashes = hash_column(values, where, nulls, lambda at, first=first: sample(first + at))  # type: ignore[misc]
        sink.append(hashes.astype("<u8", copy=False))
    return "<u8"


def _make_classes(
    chunks: Iterator[tuple[int, Column]], sink: ArraySink, where: str, nulls: Nulls, sample: Callable[[int], str]
) -> DTypeLike:
    """Two passes, as the final type and codes are known only at the end; the first goes to a file without a name."""
    codes: defaultdict[str | bytes, int] = defaultdict(itertools.count().__next__)
    kind: type | None = None
    with tempfile.TemporaryFile(dir=sink.directory) as file:
        spool = _Spool(file)
        for first, values in chunks:
            null = null_mask(values)
            if null is not None and nulls == "error":
                raise null_error(where, sample(first + int(np.argmax(null))))
            there = values if null is None else without_nulls(values, null)
            if not len(there):
                spool.append(np.zeros(0, np.int64), null)
                continue
            integers = _numbers(there, where, "classes")
            found = type(None) if integers is not None else type(there[0])
            if kind not in (None, found):
                raise ConfigError(f"{where} is not of one type in all shards: classes need one")
            kind = found
            if integers is None:
                # The dictionary fills itself in C, without interpreter steps for each sample.
                integers = np.fromiter(map(codes.__getitem__, there), np.int64, len(there))
                if len(codes) > MOST_CLASSES:
                    raise ConfigError(
                        f"{where} has more than {MOST_CLASSES} different values, too many for classes: "
                        "divide by its hashes instead"
                    )
            spool.append(integers, null)
            sink.beat()
        names = sorted(codes)
        rank = np.empty(len(names), dtype=np.int64)
        rank[[codes[name] for name in names]] = np.arange(len(names))
        low, high = (0, len(names) - 1) if names else (spool.low, spool.high)
        of_null = high + 1
        if spool.nulls and of_null > np.iinfo(np.int64).max:
            raise ConfigError(f"{where} has the largest integer, {high}, which leaves no class for nulls")
        dtype = _narrowest(low, of_null if spool.nulls else high)
        for integers, null in spool.chunks():
            labels = (rank[integers] if names else integers).astype(dtype)
            if null is not None:
                whole = np.full(len(null), of_null, dtype)
                whole[~null] = labels
                labels = whole
            sink.append(labels)
    return dtype


class _Spool:
    """Arrays of integers in a file, each in the narrowest type that holds it, and where among them nulls are.

    Attributes:
        low: the least integer; 0 where there is none.
        high: the greatest one; -1 where there is none.
        nulls: whether there is any null.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parts: list[tuple[np.dtype[Any], int, int]] = []
        self.low, self.high = 0, -1
        self.nulls = False

    def append(self, integers: Array, null: NDArray[np.bool_] | None) -> None:
        """Add integers, and for each row, those of the integers included, whether it is null; ``None`` for no null."""
        low, high = (int(integers.min()), int(integers.max())) if len(integers) else (0, -1)
        part = integers.astype(_narrowest(low, high))
        if len(integers):
            empty = self.high < self.low
            self.low, self.high = (low, high) if empty else (min(low, self.low), max(high, self.high))
        self.nulls |= null is not None
        self._parts.append((part.dtype, len(part), 0 if null is None else len(null)))
        self._file.write(part.tobytes())
        if null is not None:
            self._file.write(np.packbits(null).tobytes())

    def chunks(self) -> Iterator[tuple[Array, NDArray[np.bool_] | None]]:
        """The labels that were added, once more."""
        self._file.seek(0)
        for dtype, count, rows in self._parts:
            integers = np.frombuffer(self._file.read(count * dtype.itemsize), dtype)
            bits = np.frombuffer(self._file.read(-(-rows // 8)), np.uint8)
            yield integers, np.unpackbits(bits, count=rows).astype(np.bool_) if rows else None


def _narrowest(low: int, high: int) -> np.dtype[Any]:
    return next(dtype for dtype in _NARROW if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)


def _numbers(values: Column, where: str, kind: LabelKind) -> Array | None:
    """The values as an array of numbers; ``None`` for text or bytes, all of one type.

    ConfigError for anything else, or integers beyond 64 bits.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in ("biu" if kind == "classes" else "biuf"):
            raise ConfigError(_refusal(where, kind, f"{values.dtype} of shape {values.shape[1:]}"))
        if values.dtype.kind == "b":
            return values.view(np.uint8)
        if kind == "classes" and values.dtype.itemsize == 8 and values.dtype.kind == "u":
            if len(values) and int(values.max()) > np.iinfo(np.int64).max:
                raise ConfigError(f"{where} has an integer beyond int64, {values.max()}: classes are int64")
            return values.astype(np.int64)
        return values
    types = set(map(type, values))
    if types in ({str}, {bytes}):
        return None
    convert: Callable[[Any], Array] | None = None
    if types <= {int, bool}:
        convert = _integers
    elif types == {float} and kind == "hashes":
        convert = np.array
    if convert is None:
        raise ConfigError(_refusal(where, kind, " and ".join(sorted(one.__name__ for one in types))))
    try:
        return convert(values)
    except OverflowError:
        raise ConfigError(f"{where} has an integer beyond int64, which can not be a label") from None


def _integers(values: list[int]) -> Ids:
    return np.array(values, dtype=np.int64)


def _refusal(where: str, kind: LabelKind, found: str) -> str:
    return f"{where} holds {found}: labels are made of {_WORKS[kind]}"
