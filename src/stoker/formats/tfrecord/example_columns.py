"""Many ``tf.train.Example`` at once: each step reads the same field of all records, as columns of numbers.

This takes records as nearly all programs write them: fields in order, nothing unknown, and each list in one piece. All others
raise :class:`OtherRecordsError`, and are left to :mod:`stoker.formats.tfrecord.example`, which says what a record holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.common.gather import address_of, gather_rows
from stoker.formats.tfrecord.example import FLOATS, unpack
from stoker.types import Array, Ids

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
        text = self.text
        return [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

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
