"""Records of TFRecord: checksums, and ``tf.train.Example``, a protocol buffer of named lists of bytes, floats or integers.

    message Example   { Features features = 1; }
    message Features  { map<string, Feature> feature = 1; }
    message Feature   { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3; } }
    message *List     { repeated ... value = 1; }   (floats and integers packed, or one by one)

Read by its own few lines: the libraries that know it bring TensorFlow along, or decode every feature of a record.

A ``SequenceExample`` has lists of Features besides, in field 2: ``map<string, FeatureList> feature_list = 1``.

Many Examples are read at once, each step the same field of all of them, as columns of numbers: :func:`find_features`. This
takes records as nearly all programs write them: fields in order, nothing unknown, and each list in one piece. All others
raise :class:`OtherRecordsError`, and are read one by one, which tells what a record holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import MissingPackageError
from stoker.formats.common.gather import address_of, cut, gather_rows
from stoker.formats.common.inspect_header import HeadView
from stoker.integers import encode_varint
from stoker.types import Array, Ids

_POLYNOMIAL: Final = 0x82F63B78
_DELTA: Final = 0xA282EAD8


@cache
def crc32c_function() -> Callable[[bytes], int]:
    """A function from bytes to their CRC-32C. MissingPackageError if no package that has one is installed."""
    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            found: Callable[[bytes], int] = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        return found
    raise MissingPackageError("TFRecord needs a package for its checksums: pip install 'stoker[tfrecord]'")


def mask(crc: int) -> int:
    """A checksum as the file holds it: rotated and shifted, so that checksums of data with checksums stay good."""
    return (((crc >> 15) | (crc << 17)) + _DELTA) & 0xFFFFFFFF


def masked(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """:func:`mask` of many."""
    wide = crcs.astype(np.uint64)
    return ((((wide >> np.uint64(15)) | (wide << np.uint64(17))) + np.uint64(_DELTA)) & np.uint64(0xFFFFFFFF)).astype(
        np.uint32
    )


def crc_of_lengths(lengths: Ids) -> NDArray[np.uint32]:
    """CRC-32C of each number's eight little-endian bytes."""
    octets = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, 8)
    table = _table()
    crc: NDArray[Any] = np.full(len(octets), 0xFFFFFFFF, np.uint32)
    for column in range(8):
        crc = table[(crc ^ octets[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


@cache
def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table


BYTES: Final = 1
FLOATS: Final = 2
INTEGERS: Final = 3
SEQUENCES: Final = 4
"""Kind of the feature lists of a ``SequenceExample``, which are told of and not read."""

# Bytes of a list from which on it holds more than one number: a tag, a length, a tag, and ten bytes.
_MOST_OF_ONE: Final = 16
# Bytes of integers up to which Python is sooner done than NumPy.
_FEW: Final = 32


Sliced: TypeAlias = bytes | HeadView
"""The bytes of an Example, or what reads them as they are looked at."""


def split_example(data: Sliced) -> dict[bytes, tuple[int, int, int]]:
    """The features of an Example: name to kind (0 for one without), and where its list begins and ends.

    Feature lists are among them, if no feature has their name. ValueError if it is no Example.
    """
    found: dict[bytes, tuple[int, int, int]] = {}
    for part, begin, end in _messages(data, 0, len(data), (1, 2)):
        for _, entry, entry_end in _messages(data, begin, end):
            name = b""
            feature = (0, entry_end, entry_end)
            for field, start, stop in _messages(data, entry, entry_end, (1, 2)):
                if field == 1:
                    name = data[start:stop]
                else:
                    for kind, first, last in _messages(data, start, stop, (BYTES, FLOATS, INTEGERS)):
                        feature = (kind, first, last)
            if part == 1:
                found[name] = feature
            else:
                found.setdefault(name, (SEQUENCES, entry, entry_end))
    return found


def feature_values(data: bytes, kind: int, begin: int, end: int) -> list[bytes] | list[int] | Array:
    """The values of a feature's list: bytes, a float32 array, or integers as an int64 array or a list.

    ValueError if it is no such list.
    """
    if kind == BYTES:
        return [data[start:stop] for _, start, stop in _messages(data, begin, end)]
    if kind == FLOATS:
        if end - begin == 5 and data[begin] == 0x0D:
            return np.frombuffer(data, "<f4", 1, begin + 1)
        return _floats(data, begin, end)
    if kind == INTEGERS:
        return _integers(data, begin, end)
    return []


def has_one_value(data: Sliced, kind: int, begin: int, end: int) -> bool:
    """Whether a feature's list has one value, by as few of its bytes as tell it. ValueError if it is no such list."""
    if kind == BYTES:
        return len(_messages(data, begin, end)) == 1
    few = min(end, begin + _MOST_OF_ONE)  # more are no single number
    return few == end and len(feature_values(data[begin:end], kind, 0, end - begin)) == 1


def _messages(data: Sliced, at: int, end: int, fields: Sequence[int] = (1,)) -> list[tuple[int, int, int]]:
    """Number, begin and end of the fields of these numbers, which are all length-delimited; others are passed over."""
    found: list[tuple[int, int, int]] = []
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, end)
        wire = tag & 7
        if wire == 2:
            if at >= end:
                raise ValueError("a field without its length")
            size = data[at]
            at += 1
            if size >= 0x80:
                size, at = _varint(data, at - 1, end)
            if size > end - at:
                raise ValueError(f"a field of {size} bytes where {end - at} are left")
            if tag >> 3 in fields:
                found.append((tag >> 3, at, at + size))
            at += size
        elif wire in (0, 1, 5) and tag >> 3 not in fields and tag >> 3:
            at = _varint(data, at, end)[1] if wire == 0 else at + (8 if wire == 1 else 4)
        else:
            raise ValueError(f"a field {tag >> 3} of wire type {wire}")
    if at > end:
        raise ValueError("a field leaves its message")
    return found


def _varint(data: Sliced, at: int, end: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number without an end")


def _floats(data: bytes, at: int, end: int) -> Array:
    parts: list[Array] = []
    while at < end:
        tag, at = _varint(data, at, end)
        if tag == 0x0A:
            size, at = _varint(data, at, end)
            if size % 4 or size > end - at:
                raise ValueError(f"{size} bytes of floats where {end - at} are left")
        elif tag == 0x0D and end - at >= 4:
            size = 4
        else:
            raise ValueError(f"no list of floats: tag {tag}")
        parts.append(np.frombuffer(data, "<f4", size // 4, at))
        at += size
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])


def _integers(data: bytes, at: int, end: int) -> Array | list[int]:
    parts: list[Array | list[int]] = []
    while at < end:
        tag, at = _varint(data, at, end)
        if tag == 0x0A:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise ValueError(f"{size} bytes of integers where {end - at} are left")
            last = at + size
            if size > _FEW:
                parts.append(unpack(np.frombuffer(data, np.uint8, size, at)))
                at = last
                continue
            few: list[int] = []
            while at < last:
                value, at = _varint(data, at, last)
                few.append(value - (value >> 63 << 64))
            parts.append(few)
        elif tag == 0x08:
            value, at = _varint(data, at, end)
            parts.append([value - (value >> 63 << 64)])
        else:
            raise ValueError(f"no list of integers: tag {tag}")
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def unpack(octets: NDArray[np.uint8]) -> Array:
    """Numbers of variable length that lie end to end: uint8, shape ``(bytes,)``, to int64, shape ``(numbers,)``.

    ValueError if one has no end, or more than ten bytes.
    """
    if not octets.size:
        return np.zeros(0, np.int64)
    last = octets < 0x80
    if last.all():
        return octets.astype(np.int64)
    stops = np.flatnonzero(last)
    if not last[-1]:
        raise ValueError("a number without an end")
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])
    widths = stops - starts + 1
    if int(widths.max()) > 10:
        raise ValueError("a number of more than ten bytes")
    octet = np.arange(len(octets)) - np.repeat(starts, widths)
    parts = (octets & np.uint8(0x7F)).astype(np.uint64) << (7 * octet).astype(np.uint64)
    values: Array = np.bitwise_or.reduceat(parts, starts).view(np.int64)
    return values


def feature_head(name: bytes, kind: int, size: int) -> bytes:
    """The bytes of an Example before the ``size`` bytes of a feature's one value of bytes, or of its packed numbers."""
    head = b"\x0a" + encode_varint(size)
    for tag, before in ((kind << 3 | 2, b""), (0x12, b"\x0a" + encode_varint(len(name)) + name), (0x0A, b"")):
        head = before + bytes((tag,)) + encode_varint(len(head) + size) + head
    return head


def pack_integers(values: Array) -> bytes:
    """Integers in variable length, end to end."""
    if len(values) < 8:
        return b"".join([encode_varint(int(value) & 0xFFFFFFFFFFFFFFFF) for value in values])
    wide = values.astype(np.int64).view(np.uint64)
    shifts = (7 * np.arange(10)).astype(np.uint64)
    groups = (wide[:, None] >> shifts) & np.uint64(0x7F)
    used = np.maximum(1, 10 - np.argmax(groups[:, ::-1] != 0, axis=1))
    used[wide == 0] = 1
    octet = np.arange(10)
    octets = groups.astype(np.uint8) | np.where(octet < (used - 1)[:, None], 0x80, 0).astype(np.uint8)
    packed: bytes = octets[octet < used[:, None]].tobytes()
    return packed


_VALUES: Final = 0x0A
_NAME: Final = 0x0A
_FEATURE: Final = 0x12
_ONE_FLOAT: Final = 0x0D
_ONE_INTEGER: Final = 0x08
# A field of 2**28 bytes has a size of five bytes; records that are read at once are smaller.
_SHIFTS: Final = range(7, 28, 7)


class OtherRecordsError(Exception):
    """Records that have to be read one by one."""


@dataclass(frozen=True)
class Features:
    """One feature of n records.

    ``kind``: of its lists. ``begins``, ``ends``: where each list's message begins and ends; int64, shape ``(n,)``.
    """

    text: bytes
    kind: int
    begins: Ids
    ends: Ids

    def blobs(self) -> list[bytes]:
        """The values of lists of one value of bytes each."""
        starts, stops = _message(np.frombuffer(self.text, np.uint8), self.begins, self.ends, _VALUES)
        _expect(stops == self.ends)
        return cut(self.text, starts, stops)

    def numbers(self) -> tuple[Array, Ids]:
        """The values of lists of numbers, end to end, and how many each has; float32 or int64."""
        octets = np.frombuffer(self.text, np.uint8)
        single = octets[self.begins] == (_ONE_FLOAT if self.kind == FLOATS else _ONE_INTEGER)
        if single.all():
            starts = self.begins + 1
        else:
            _expect(~single)
            starts, stops = _message(octets, self.begins, self.ends, _VALUES)
            _expect(stops == self.ends)
        sizes = self.ends - starts
        _expect(sizes > 0)
        data, firsts = _spans(octets, starts, sizes)
        if self.kind == FLOATS:
            _expect(sizes % 4 == 0)
            values: Array = data.view("<f4").astype(np.float32, copy=False)
            counts = sizes // 4
        else:
            _expect(data[firsts + sizes - 1] < 0x80)
            try:
                values = unpack(data)
            except ValueError:
                raise OtherRecordsError from None
            counts = np.add.reduceat(data < 0x80, firsts, dtype=np.int64)
        if single.any():
            _expect(counts == 1)
        return values, counts


def find_features(
    text: bytes, begins: Ids, ends: Ids, kinds: Mapping[str, int], *, whole: bool = False
) -> dict[str, Features]:
    """Finds features of records, each of which has each of them. OtherRecordsError if the records are to be read one by one.

    ``begins``, ``ends``: where each record begins and ends; int64, shape ``(n,)``. ``kinds``: the features to find, and the
    kind of each. ``whole``: whether these are all that a record may have.
    """
    octets = np.frombuffer(text, np.uint8)
    keys = {name: np.frombuffer(name.encode(), np.uint8) for name in kinds}
    found = {name: (np.full(len(begins), -1, np.int64), np.zeros(len(begins), np.int64)) for name in kinds}
    at, last = _message(octets, begins, ends, _VALUES)
    _expect(last == ends)
    rows = np.arange(len(begins))
    while True:
        unread = at < last
        if not unread.all():
            rows, at, last = rows[unread], at[unread], last[unread]
        if not len(rows):
            break
        entry, end = _message(octets, at, last, _VALUES)
        name, name_end = _message(octets, entry, end, _NAME)
        feature, feature_end = _message(octets, name_end, end, _FEATURE)
        _expect((feature_end == end) & (feature < end))
        first, stop = _message(octets, feature, end)
        _expect(stop == end)
        strange = len(rows)
        for key, letters in keys.items():
            here = _named(octets, name, name_end, letters)
            if here is None:
                continue
            strange -= len(here)
            _expect(octets[feature[here]] == kinds[key] << 3 | 2)
            starts, stops = found[key]
            starts[rows[here]], stops[rows[here]] = first[here], stop[here]
        if whole and strange:
            raise OtherRecordsError
        at = end
    for starts, stops in found.values():
        _expect((starts >= 0) & (stops > starts))
    return {name: Features(text, kinds[name], starts, stops) for name, (starts, stops) in found.items()}


def _spans(octets: NDArray[np.uint8], starts: Ids, sizes: Ids) -> tuple[NDArray[np.uint8], Ids]:
    """Copies of spans, end to end, and where each begins."""
    firsts = np.cumsum(sizes) - sizes
    if int(sizes.min()) == int(sizes.max()):
        return gather_rows(starts + address_of(octets), int(sizes[0])).reshape(-1), firsts
    return octets[np.repeat(starts - firsts, sizes) + np.arange(int(sizes.sum()))], firsts


def _named(octets: NDArray[np.uint8], begins: Ids, ends: Ids, letters: NDArray[np.uint8]) -> Ids | None:
    """The indices of the names that are these letters; ``None`` where none is."""
    here = np.flatnonzero(ends - begins == len(letters))
    for number, letter in enumerate(letters):
        if not len(here):
            return None
        same = octets[begins[here] + number] == letter
        if not same.all():
            here = here[same]
    return here if len(here) else None


def _message(octets: NDArray[np.uint8], at: Ids, end: Ids, tag: int | None = None) -> tuple[Ids, Ids]:
    """Begins and ends of the length-delimited fields that begin at some bytes, with one tag if it is given."""
    _expect(at + 2 <= end)
    tags = octets[at]
    _expect(tags == tag if tag is not None else (tags & 7 == 2) & (tags < 0x80))
    sizes = octets[at + 1].astype(np.int64)
    at = at + 2
    more = np.flatnonzero(sizes >= 0x80)
    sizes[more] &= 0x7F
    for shift in _SHIFTS:
        if not len(more):
            break
        _expect(at[more] < end[more])
        octet = octets[at[more]].astype(np.int64)
        sizes[more] |= (octet & 0x7F) << shift
        at[more] += 1
        more = more[octet >= 0x80]
    stops = at + sizes
    if len(more) or (stops > end).any():
        raise OtherRecordsError
    return at, stops


def _expect(true: NDArray[np.bool_]) -> None:
    if not true.all():
        raise OtherRecordsError
