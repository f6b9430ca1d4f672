"""Finds the runs of Parquet's hybrid encoding; see :mod:`stoker.formats.parquet.pages.rle_bitpacked`.

The walks from head to head are the loops here; all else is done for many runs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.parquet.pages.pages import OtherPagesError
from stoker.types import Array, Ids

_LONGEST_HEAD: Final = 5
# Runs of fewer groups are not looked at many at once; and most runs after which it is tried again where it failed.
_LARGE: Final = 32
_MOST_PATIENCE: Final = 1 << 10
# After so many runs it is seen whether they take at most so many bytes each: then there will be very many.
_FIRST: Final = 48
_SHORT: Final = 16
# Bytes that are looked at in that way.
_MOST_SHORT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RleRuns:
    """Runs of a stream.

    Attributes:
        bodies: where their bodies begin in the stream; int64, shape ``(runs,)``.
        counts: values in each; the last is cut off at the end.
        packed: which are bit-packed.
    """

    bodies: Ids
    counts: Ids
    packed: NDArray[np.bool_]

    @property
    def starts(self) -> Ids:
        """Number of the first value of each."""
        starts: Ids = np.cumsum(self.counts) - self.counts
        return starts


def parse_runs(data: memoryview, count: int, width: int) -> RleRuns:
    """The runs of a stream, as many as hold ``count`` values. OtherPagesError if the stream is damaged.

    ``count``: values in it, at least 1. ``width``: bits of a value, 1 to 24.
    """
    flat = np.frombuffer(data, dtype=np.uint8)
    # How many values there are is counted afterwards.
    try:
        heads, at = _walk(data, flat, 0, width, _FIRST)
        parts = [_parse_heads(flat, heads)]
        if at < min(len(data), _FIRST * _SHORT):
            more, at = _short_runs(flat[: at + _MOST_SHORT], at, width)
            parts.append(more)
        if at < len(data):
            heads, at = _walk(data, flat, at, width, len(data))
            parts.append(_parse_heads(flat, heads))
    except IndexError:
        raise OtherPagesError("a run is cut off") from None
    bodies, counts, packed = (
        np.concatenate(column) for column in zip(*((p.bodies, p.counts, p.packed) for p in parts), strict=True)
    )
    seen = np.cumsum(counts)
    last = int(np.searchsorted(seen, count))
    if last >= seen.size or (last + 1 == seen.size and at > len(data)):
        raise OtherPagesError(f"fewer values than the {count} that a page should have")
    counts[last] -= int(seen[last]) - count
    used = slice(0, last + 1)
    return RleRuns(bodies[used], counts[used], packed[used])


def _walk(data: memoryview, flat: Array, at: int, width: int, most: int) -> tuple[list[int], int]:
    """Heads from ``at`` on, about as many as ``most``, and where the next one is."""
    end, size = len(data), -(-width // 8)
    heads: list[int] = []
    hope = wait = 1
    while at < end and len(heads) < most:
        heads.append(at)
        head, length = data[at], 1
        if head > 127:
            head, length = parse_head(data, at)
        if not head & 1:
            at += length + size
            continue
        stride = length + (head >> 1) * width
        wait -= 1
        if not wait:
            # Where nothing repeats, writers make runs of one size: see how many of them follow.
            alikes = alike(flat, at, stride) if length < 3 else 0
            heads += range(at + stride, at + stride + alikes * stride, stride)
            at += alikes * stride
            wait = hope = 1 if alikes > _LARGE else min(2 * hope, _MOST_PATIENCE)
        at += stride
    return heads, at


def _short_runs(flat: Array, begin: int, width: int) -> tuple[RleRuns, int]:
    """Runs from ``begin`` on, and where the walk ended: at a head of more than three bytes, or near the end, or behind it.

    What a run would be that begins at a byte is worked out for every byte at once, so that a step is one look at a list.
    """
    padded = np.zeros(flat.size - begin + 3, dtype=np.uint8)
    padded[:-3] = flat[begin:]
    more = padded > 127
    seven = (padded & 127).astype(np.int32)
    two = more[:-3]
    three = two & more[1:-2]
    heads = seven[:-3] | np.where(two, seven[1:-2] << 7, 0)
    if three.any():
        heads |= np.where(three, seven[2:-1] << 14, 0)
    packed = (heads & 1).astype(bool)
    heads >>= 1
    bodies = np.arange(1, two.size + 1, dtype=np.int64) + two + three
    after = bodies + np.where(packed, heads * np.int64(width), -(-width // 8))
    after[three & more[2:-1]] = -1
    after[-3:] = -1  # of a head there, some bytes may not have been given
    steps: list[int] = after.tolist()
    found: list[int] = []
    add = found.append
    at, end = 0, len(steps)
    while 0 <= at < end:
        add(at)
        at = steps[at]
    if at < 0:
        at = found.pop()
    heads_at = np.array(found, dtype=np.int64)
    which, counts = packed[heads_at], heads[heads_at].astype(np.int64)
    counts[which] *= 8
    return RleRuns(bodies[heads_at] + begin, counts, which), at + begin


def parse_head(body: memoryview | bytes, at: int) -> tuple[int, int]:
    """A run's head, and the bytes that it takes. IndexError if the stream ends in it, OtherPagesError if it is too long."""
    head = shift = length = 0
    while True:
        byte = body[at + length]
        head |= (byte & 127) << shift
        shift += 7
        length += 1
        if byte < 128:
            return head, length
        if length >= _LONGEST_HEAD:
            raise OtherPagesError("a run's head is too long")


def alike(flat: Array, at: int, stride: int) -> int:
    """Counts the whole runs that follow and have the same head of one or two bytes as the one at ``at``."""
    count = (flat.size - at) // stride - 1
    if count < 1:
        return 0
    differ = flat[at + stride :: stride][:count] != flat[at]
    if flat[at] > 127:
        differ |= flat[at + stride + 1 :: stride][:count] != flat[at + 1]
    first = int(np.argmax(differ))
    return first if differ[first] else count


def _parse_heads(flat: Array, heads: list[int]) -> RleRuns:
    heads_at: Ids = np.array(heads, dtype=np.int64)
    first = flat[heads_at].astype(np.int64)
    values, lengths = first & 127, np.ones(heads_at.size, dtype=np.int64)
    more = np.flatnonzero(first > 127)
    while more.size:
        byte = flat[heads_at[more] + lengths[more]].astype(np.int64)
        values[more] |= (byte & 127) << 7 * lengths[more]
        lengths[more] += 1
        more = more[byte > 127]
    packed = (values & 1) == 1
    return RleRuns(heads_at + lengths, np.where(packed, values >> 1 << 3, values >> 1), packed)
