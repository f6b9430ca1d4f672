"""Parquet's hybrid of run-length and bit-packed encoding, in which it keeps levels and numbers of dictionary entries.

A run is a head, ULEB128, and a body: where the head is even, ``head / 2`` times the value that follows in as few bytes as
hold it; where it is odd, ``head // 2`` groups of eight values, of which each takes as many bytes as it has bits. The walk
from head to head is the one loop here; all else is done for many runs at once.

Source: ``Encodings.md`` of Apache parquet-format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.parquet.pages import OtherPagesError
from stoker.types import Array, Ids

__all__ = ["WIDEST", "exceptions", "ranges", "unpack"]

WIDEST: Final = 24
"""Most bits of a value."""

_LONGEST_HEAD: Final = 5
# Runs of fewer groups are not looked at many at once; and most runs after which it is tried again where it failed.
_LARGE: Final = 32
_MOST_PATIENCE: Final = 1 << 10
# So many runs are walked before it is seen whether they come in a pattern, which has so many runs at most.
_FIRST: Final = 48
_PATTERN: Final = 8


@dataclass(frozen=True, slots=True)
class _Runs:
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


def exceptions(data: memoryview, count: int, width: int, usual: int) -> tuple[Ids, Array]:
    """Places and values of what is not the usual value.

    Args:
        data: the stream.
        count: values in it.
        width: bits of a value, 1 to 8.
        usual: the value that most have; what differs is found without a step for each of these.

    Returns:
        Places, rising; int64, shape ``(k,)``. Values there; uint8, shape ``(k,)``.

    Raises:
        OtherPagesError: the stream is damaged.
    """
    runs = _find_runs(data, count, width)
    flat = np.frombuffer(data, dtype=np.uint8)
    places: list[Ids] = []
    values: list[Array] = []
    starts = runs.starts
    plain = np.flatnonzero(~runs.packed)
    kinds = flat[runs.bodies[plain]]
    if (other := np.flatnonzero(kinds != usual)).size:
        chosen = plain[other]
        places.append(ranges(starts[chosen], runs.counts[chosen]))
        values.append(np.repeat(kinds[other], runs.counts[chosen]))
    packed = np.flatnonzero(runs.packed)
    if packed.size:
        groups = -(-runs.counts[packed] // 8)
        bytes_of = ranges(runs.bodies[packed], groups * width)
        unpacked = _unpack_groups(flat[bytes_of], int(groups.sum()), width)
        where = ranges(starts[packed], groups * 8)
        found = np.flatnonzero(unpacked != usual)
        found = found[where[found] < count] if int(where[-1]) >= count else found
        places.append(where[found])
        values.append(unpacked[found].astype(np.uint8))
    if not places:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    if len(places) == 1:
        return places[0], values[0]
    all_places, all_values = np.concatenate(places), np.concatenate(values)
    order = np.argsort(all_places, kind="stable")
    return all_places[order], all_values[order]


def unpack(data: memoryview, count: int, width: int) -> Array:
    """All values of a stream.

    Args:
        data: the stream.
        count: values in it.
        width: bits of a value, 0 to ``WIDEST``.

    Returns:
        uint8, uint16 or uint32, shape ``(count,)``; perhaps a view of ``data``.

    Raises:
        OtherPagesError: the stream is damaged.
    """
    if not width:
        return np.zeros(count, dtype=np.uint8)
    runs = _find_runs(data, count, width)
    flat = np.frombuffer(data, dtype=np.uint8)
    packed = runs.packed
    groups = -(-runs.counts[packed] // 8)
    body = _bodies(flat, runs.bodies[packed], groups * width)
    unpacked = _unpack_groups(body, int(groups.sum()), width)
    if packed.all():
        return unpacked[:count]
    out = np.empty(count, dtype=unpacked.dtype)
    is_packed = np.repeat(packed, runs.counts)
    out[is_packed] = unpacked[: int(runs.counts[packed].sum())]
    plain = ~packed
    bodies = runs.bodies[plain]
    values = np.zeros(bodies.size, dtype=np.uint32)
    for place in range(-(-width // 8)):
        values |= flat[bodies + place].astype(np.uint32) << np.uint32(8 * place)
    if int(values.max(initial=0)) >> width:
        raise OtherPagesError("a run's value is too large")
    out[~is_packed] = np.repeat(values, runs.counts[plain]).astype(out.dtype)
    return out


def _find_runs(data: memoryview, count: int, width: int) -> _Runs:
    """The runs of a stream, as many as hold ``count`` values."""
    flat = np.frombuffer(data, dtype=np.uint8)
    body: memoryview | bytes = data
    end, at, size = len(body), 0, -(-width // 8)
    plain, sizes = 2 + size, _sizes(width)
    heads: list[int] = []
    add = heads.append
    hope = wait = 1
    # This runs once a run, of which a page may have a hundred thousand. How many values there are is counted afterwards.
    try:
        while at < end:
            add(at)
            if len(heads) == _FIRST:
                # Rows of one length, as those of tokens often are, have levels of one pattern.
                again = _again(flat, heads)
                heads.extend(again)
                at = heads[-1]
                body = bytes(data)  # whose items are found twice as fast
            head = body[at]
            if head < 128:
                step = sizes[head]
                if step:
                    at += step
                    continue
                length = 1
            elif body[at + 1] < 128:
                if not head & 1:
                    at += plain
                    continue
                head, length = (head & 127) | body[at + 1] << 7, 2
            else:
                head, length = _long_head(body, at)
            stride = length + (head >> 1) * width if head & 1 else length + size
            wait -= head & 1
            if not wait:
                # Where nothing repeats, writers make runs of one size: see how many of them follow.
                more = _alike(flat, at, stride) if length < 3 else 0
                heads.extend(range(at + stride, at + stride + more * stride, stride))
                at += more * stride
                wait = hope = 1 if more > _LARGE else min(2 * hope, _MOST_PATIENCE)
            at += stride
    except IndexError:
        raise OtherPagesError("a run is cut off") from None
    runs = _parse_heads(flat, np.array(heads, dtype=np.int64))
    seen = np.cumsum(runs.counts)
    last = int(np.searchsorted(seen, count))
    if last >= seen.size or (last + 1 == seen.size and at > end):
        raise OtherPagesError(f"fewer values than the {count} that a page should have")
    runs.counts[last] -= int(seen[last]) - count
    used = slice(0, last + 1)
    return _Runs(runs.bodies[used], runs.counts[used], runs.packed[used])


def _again(flat: Array, heads: list[int]) -> list[int]:
    """Heads of further runs, as far as the stream repeats the bytes of its last few runs over and over."""
    for count in range(1, _PATTERN + 1):
        period = heads[-1] - heads[-1 - count]
        if all(
            after - before == period
            for before, after in zip(heads[-2 * _PATTERN :], heads[count - 2 * _PATTERN :], strict=False)
        ):
            break
    else:
        return []
    begin = heads[-1 - count]
    differ = flat[begin + period :] != flat[begin:-period]
    first = int(np.argmax(differ))
    whole = (first if differ[first] else differ.size) // period
    # The last of the repetitions ends where the walk goes on.
    pattern = np.array(heads[-count:], dtype=np.int64)
    more: list[int] = (pattern + period * np.arange(1, whole, dtype=np.int64)[:, None]).reshape(-1).tolist()
    return more


@cache
def _sizes(width: int) -> list[int]:
    """By the head of one byte, how many bytes a run takes; 0 where it is worth while to look for more of its kind."""
    size = -(-width // 8)
    small = [1 + (head >> 1) * width if head & 1 else 1 + size for head in range(_LARGE)]
    return small + [0 if head & 1 else 1 + size for head in range(_LARGE, 128)]


def _long_head(body: memoryview | bytes, at: int) -> tuple[int, int]:
    """A run's head of any length, and the length."""
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


def _alike(flat: Array, at: int, stride: int) -> int:
    """How many whole runs follow that have the same head of one or two bytes as the one at ``at``."""
    count = (flat.size - at) // stride - 1
    if count < 1:
        return 0
    differ = flat[at + stride :: stride][:count] != flat[at]
    if flat[at] > 127:
        differ |= flat[at + stride + 1 :: stride][:count] != flat[at + 1]
    first = int(np.argmax(differ))
    return first if differ[first] else count


def _parse_heads(flat: Array, places: Ids) -> _Runs:
    first = flat[places].astype(np.int64)
    heads, lengths = first & 127, np.ones(places.size, dtype=np.int64)
    more = np.flatnonzero(first > 127)
    while more.size:
        byte = flat[places[more] + lengths[more]].astype(np.int64)
        heads[more] |= (byte & 127) << 7 * lengths[more]
        lengths[more] += 1
        more = more[byte > 127]
    packed = (heads & 1) == 1
    return _Runs(places + lengths, np.where(packed, heads >> 1 << 3, heads >> 1), packed)


def _bodies(flat: Array, starts: Ids, sizes: Ids) -> Array:
    """Bytes of bodies, end to end."""
    if starts.size == 1:
        return flat[int(starts[0]) : int(starts[0] + sizes[0])]
    if starts.size > 2:
        stride, size = int(starts[1] - starts[0]), int(sizes[0])
        if (np.diff(starts) == stride).all() and (sizes[:-1] == size).all():
            # As most writers make them: all alike but the last.
            last = int(sizes[-1])
            out = np.empty(size * (starts.size - 1) + last, dtype=np.uint8)
            lines = np.lib.stride_tricks.as_strided(
                flat[int(starts[0]) :], (starts.size - 1, size), (stride, 1), writeable=False
            )
            out[: out.size - last].reshape(lines.shape)[:] = lines
            out[out.size - last :] = flat[int(starts[-1]) : int(starts[-1]) + last]
            return out
    parts = [flat[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    return np.concatenate(parts) if parts else flat[:0]


def _unpack_groups(body: Array, groups: int, width: int) -> Array:
    """Values of groups of eight, each as many bytes as a value has bits; the lowest bit comes first."""
    body = body[: groups * width]
    if width in (8, 16):
        kind: np.dtype[Any] = np.dtype("<u1" if width == 8 else "<u2")
        whole = np.ascontiguousarray(body)
        return whole.view(kind) if whole.ctypes.data % kind.itemsize == 0 else whole.copy().view(kind)
    if width == 1:
        return np.unpackbits(body, bitorder="little")
    loaded = np.dtype("<u2" if width <= 9 else "<u4" if width <= 25 else "<u8")
    out = np.empty((groups, 8), dtype="u1" if width < 8 else "u2" if width < 16 else "u4")
    if not groups:
        return out.reshape(-1)
    padded = np.empty(body.size + loaded.itemsize, dtype=np.uint8)
    padded[: body.size] = body
    padded[body.size :] = 0
    shifted = np.empty(groups, dtype=loaded)
    mask = loaded.type((1 << width) - 1)
    for number in range(8):
        byte, shift = divmod(number * width, 8)
        column: Array = np.ndarray((groups,), loaded, padded.data, byte, (width,))
        np.right_shift(column, loaded.type(shift), out=shifted)
        np.bitwise_and(shifted, mask, out=out[:, number], casting="unsafe")
    return out.reshape(-1)


def ranges(starts: Ids, lengths: Ids) -> Ids:
    """``starts[i], starts[i] + 1, ...``, ``lengths[i]`` of them, for every i."""
    ends = np.cumsum(lengths)
    if not ends.size or not int(ends[-1]):
        return np.zeros(0, dtype=np.int64)
    found: Ids = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]), dtype=np.int64)
    return found
