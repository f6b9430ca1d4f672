"""Parquet's hybrid of run-length and bit-packed encoding, in which it keeps levels and numbers of dictionary entries.

A run is a head, ULEB128, and a body: where the head is even, ``head / 2`` times the value that follows in as few bytes as
hold it; where it is odd, ``head // 2`` groups of eight values, of which each takes as many bytes as it has bits.

Source: ``Encodings.md`` of Apache parquet-format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.parquet.pages import OtherPagesError
from stoker.integers import ranges
from stoker.types import Array, Ids

_LONGEST_HEAD: Final = 5
# Runs of fewer groups are not looked at many at once; and most runs after which it is tried again where it failed.
_LARGE: Final = 32
_MOST_PATIENCE: Final = 1 << 10
# After so many runs it is seen whether they take at most so many bytes each: then there will be very many.
_FIRST: Final = 48
_SHORT_RUNS: Final = 16
# Bytes that are looked at in that way.
_MOST_LOOKED_AT: Final = 1 << 20


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
        if at < min(len(data), _FIRST * _SHORT_RUNS):
            more, at = _short_runs(flat[: at + _MOST_LOOKED_AT], at, width)
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


WIDEST: Final = 24
"""Most bits of a value."""

# From so many runs of one size on they are unpacked together.
_FEW: Final = 4
# Streams of so few bytes are walked through sooner than arrays are made of them.
_SHORT: Final = 128
_MOST_SHORT: Final = 1024
_NO_POSITIONS: Final = np.zeros(0, dtype=np.int64)
_NO_VALUES: Final = np.zeros(0, dtype=np.uint8)


def exceptions(data: memoryview, count: int, width: int, usual: int) -> tuple[Ids, Array]:
    """Positions and values of the entries that differ from the usual value. OtherPagesError if the stream is damaged.

    ``width``: bits of a value, 1 to 8. ``usual``: the value that most have; what differs is found without a step for each of
    these. Gives positions, rising; int64, shape ``(k,)``. Values there; uint8, shape ``(k,)``.
    """
    if _all_usual(data, count, usual):
        return _NO_POSITIONS, _NO_VALUES
    if width == 1 and len(data) <= _SHORT and (short := _short_exceptions(bytes(data), count, usual)) is not None:
        return short
    runs = parse_runs(data, count, width)
    flat = np.frombuffer(data, dtype=np.uint8)
    positions: list[Ids] = []
    values: list[Array] = []
    starts = runs.starts
    plain = np.flatnonzero(~runs.packed)
    kinds = flat[runs.bodies[plain]]
    if (other := np.flatnonzero(kinds != usual)).size:
        chosen = plain[other]
        positions.append(ranges(starts[chosen], runs.counts[chosen]))
        values.append(np.repeat(kinds[other], runs.counts[chosen]))
    packed = np.flatnonzero(runs.packed)
    if packed.size:
        groups = -(-runs.counts[packed] // 8)
        bytes_of = ranges(runs.bodies[packed], groups * width)
        unpacked = _unpack_groups([flat[bytes_of]], int(groups.sum()), width)
        where = ranges(starts[packed], groups * 8)
        found = np.flatnonzero(unpacked != usual)
        found = found[where[found] < count] if int(where[-1]) >= count else found
        positions.append(where[found])
        values.append(unpacked[found].astype(np.uint8))
    if not positions:
        return _NO_POSITIONS, _NO_VALUES
    if len(positions) == 1:
        return positions[0], values[0]
    all_positions, all_values = np.concatenate(positions), np.concatenate(values)
    order = np.argsort(all_positions, kind="stable")
    return all_positions[order], all_values[order]


def _short_exceptions(data: bytes, count: int, usual: int) -> tuple[Ids, Array] | None:
    """:func:`exceptions` of values of one bit, of which the stream has few bytes; ``None`` where many differ."""
    found: list[int] = []
    values: list[int] = []
    at = done = 0
    while done < count:
        try:
            head, length = parse_head(data, at)
            at += length
            size = head >> 1
            if not head & 1:
                if data[at] != usual:
                    if size > _MOST_SHORT:
                        return None
                    found += range(done, done + size)
                    values += (data[at],) * size
                at, done = at + 1, done + size
                continue
        except IndexError:
            raise OtherPagesError("a run is cut off") from None
        if at + size > len(data):
            raise OtherPagesError(f"fewer values than the {count} that a page should have")
        for byte in data[at : at + size]:
            differ = byte ^ (0xFF if usual else 0)
            while differ:
                lowest = differ & -differ
                found.append(done + lowest.bit_length() - 1)
                values.append(1 - usual)
                differ ^= lowest
            done += 8
        at += size
    while found and found[-1] >= count:
        found.pop()
    return np.array(found, dtype=np.int64), np.array(values[: len(found)], dtype=np.uint8)


def unpack(data: memoryview, count: int, width: int) -> Array:
    """All values of a stream. OtherPagesError if the stream is damaged. ``width``: bits of a value, 0 to ``WIDEST``.

    Gives uint8, uint16 or uint32, shape ``(count,)``; perhaps a view of ``data``.
    """
    if not width:
        return np.zeros(count, dtype=np.uint8)
    out, done, at = _unpack_alike(data, count, width)
    if done < count:
        rest = _unpack_runs(data[at:], count - done, width)
        if not done:
            return rest
        out[done:] = rest
    return out


def _all_usual(data: memoryview, count: int, usual: int) -> bool:
    """Whether the first run holds all values, and they are the usual one: levels are so where nothing is null or empty."""
    try:
        head, length = parse_head(data, 0)
        return not head & 1 and head >> 1 >= count and data[length] == usual
    except IndexError:
        return False


def _unpack_alike(data: memoryview, count: int, width: int) -> tuple[Array, int, int]:
    """Values of the first runs, as far as they are bit-packed and of one size, as those are that most writers make.

    The run behind them is taken, too, where it is bit-packed and the last. Gives room for all values, of which the first were
    filled; their number; and where the next run begins.
    """
    kind = _kind(width)
    head, length = _run_head(data, 0)
    groups = head >> 1
    stride = length + groups * width
    flat = np.frombuffer(data, dtype=np.uint8)
    runs = min(count // max(1, groups * 8), 1 + alike(flat, 0, stride)) if head & 1 and groups and length < 3 else 0
    at = runs * stride if runs >= _FEW else 0
    bodies: list[Array] = []
    if at:
        lines = np.lib.stride_tricks.as_strided(flat[length:], (runs, groups * width), (stride, 1), writeable=False)
        bodies.append(lines)
    done = groups = runs * groups if at else 0
    done *= 8
    if done < count:
        head, length = _run_head(data, at)
        last = head >> 1
        if head & 1 and last * 8 >= count - done:
            end = at + length + last * width
            if end > len(data):
                raise OtherPagesError(f"fewer values than the {count} that a page should have")
            bodies.append(flat[at + length : end])
            groups, done, at = groups + last, count, end
    if not bodies:
        return np.empty(0, dtype=kind), 0, 0
    if done == count:
        return _unpack_groups(bodies, groups, width)[:count], done, at
    out = np.empty(count, dtype=kind)
    out[:done] = _unpack_groups(bodies, groups, width)
    return out, done, at


def _run_head(data: memoryview, at: int) -> tuple[int, int]:
    try:
        return parse_head(data, at)
    except IndexError:
        raise OtherPagesError("a run is cut off") from None


def _unpack_runs(data: memoryview, count: int, width: int) -> Array:
    """:func:`unpack` of any runs."""
    runs = parse_runs(data, count, width)
    flat = np.frombuffer(data, dtype=np.uint8)
    packed = runs.packed
    groups = -(-runs.counts[packed] // 8)
    spans = zip(runs.bodies[packed].tolist(), (groups * width).tolist(), strict=True)
    unpacked = _unpack_groups([flat[start : start + size] for start, size in spans], int(groups.sum()), width)
    if packed.all():
        return unpacked[:count]
    out = np.empty(count, dtype=unpacked.dtype)
    is_packed = np.repeat(packed, runs.counts)
    out[is_packed] = unpacked[: int(runs.counts[packed].sum())]
    plain = ~packed
    bodies = runs.bodies[plain]
    values = np.zeros(bodies.size, dtype=np.uint32)
    for byte in range(-(-width // 8)):
        values |= flat[bodies + byte].astype(np.uint32) << np.uint32(8 * byte)
    if int(values.max(initial=0)) >> width:
        raise OtherPagesError("a run's value is too large")
    out[~is_packed] = np.repeat(values, runs.counts[plain]).astype(out.dtype)
    return out


def _kind(width: int) -> np.dtype[Any]:
    """The type into which values of so many bits are unpacked."""
    return np.dtype("<u1" if width <= 8 else "<u2" if width <= 16 else "<u4")


def _unpack_groups(bodies: Sequence[Array], groups: int, width: int) -> Array:
    """Values of groups of eight, each as many bytes as a value has bits; the lowest bit comes first.

    ``bodies``: bytes of the groups, one after the other. ``groups``: how many there are. ``width``: bits of a value.
    Gives values of :func:`_kind`, shape ``(8 * groups,)``; perhaps where they lie.
    """
    kind, size = _kind(width), groups * width
    if not groups:
        return np.empty(0, dtype=kind)
    if kind.itemsize * 8 == width:
        whole = np.ascontiguousarray(bodies[0]) if len(bodies) == 1 else _joined(bodies, np.empty(size, np.uint8))
        whole = whole.reshape(-1)
        return whole.view(kind) if whole.ctypes.data % kind.itemsize == 0 else whole.copy().view(kind)
    # Four values of a group lie in eight bytes where they have at most 15 bits, as the second four begin in a byte's middle.
    loaded, at_once = (np.dtype("<u8"), 4) if width < 16 else (np.dtype("<u4"), 1)
    padded = np.empty(size + loaded.itemsize, dtype=np.uint8)
    _joined(bodies, padded)
    if width == 1:
        return np.unpackbits(padded[:size], bitorder="little")
    padded[size:] = 0
    out = np.empty((groups, 8), dtype=kind)
    shifted = np.empty(groups, dtype=loaded)
    for first in range(0, 8, at_once):
        byte, shift = divmod(first * width, 8)
        column: Array = np.ndarray((groups,), loaded, padded.data, byte, (width,))
        if at_once > 1:
            column = column.copy()
        for number in range(first, first + at_once):
            np.right_shift(column, loaded.type(shift), out=shifted)
            out[:, number] = shifted
            shift += width
    out &= kind.type((1 << width) - 1)
    return out.reshape(-1)


def _joined(bodies: Sequence[Array], into: Array) -> Array:
    """Bodies of groups, each of any shape, one after the other."""
    at = 0
    for body in bodies:
        into[at : at + body.size].reshape(body.shape)[...] = body
        at += body.size
    return into
