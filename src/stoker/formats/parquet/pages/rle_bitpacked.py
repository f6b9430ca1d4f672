"""Parquet's hybrid of run-length and bit-packed encoding, in which it keeps levels and numbers of dictionary entries.

A run is a head, ULEB128, and a body: where the head is even, ``head / 2`` times the value that follows in as few bytes as
hold it; where it is odd, ``head // 2`` groups of eight values, of which each takes as many bytes as it has bits.

Source: ``Encodings.md`` of Apache parquet-format.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stoker.formats.parquet.pages.pages import OtherPagesError
from stoker.formats.parquet.pages.rle_runs import alike, find_runs, parse_head
from stoker.integers import ranges
from stoker.types import Array, Ids

WIDEST: Final = 24
"""Most bits of a value."""

# From so many runs of one size on they are unpacked together.
_FEW: Final = 4
_NO_POSITIONS: Final = np.zeros(0, dtype=np.int64)
_NO_VALUES: Final = np.zeros(0, dtype=np.uint8)


def exceptions(data: memoryview, count: int, width: int, usual: int) -> tuple[Ids, Array]:
    """Positions and values of the entries that differ from the usual value.

    Args:
        data: the stream.
        count: values in it.
        width: bits of a value, 1 to 8.
        usual: the value that most have; what differs is found without a step for each of these.

    Returns:
        Positions, rising; int64, shape ``(k,)``. Values there; uint8, shape ``(k,)``.

    Raises:
        OtherPagesError: the stream is damaged.
    """
    if _all_usual(data, count, usual):
        return _NO_POSITIONS, _NO_VALUES
    runs = find_runs(data, count, width)
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
        unpacked = _unpack_groups(flat[bytes_of], int(groups.sum()), width)
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

    Returns:
        Room for all values, of which the first were filled; their number; and where the next run begins.
    """
    kind = _kind(width)
    try:
        head, length = parse_head(data, 0)
    except IndexError:
        raise OtherPagesError("a run is cut off") from None
    groups = head >> 1
    stride = length + groups * width
    flat = np.frombuffer(data, dtype=np.uint8)
    runs = min(count // max(1, groups * 8), 1 + alike(flat, 0, stride)) if head & 1 and groups and length < 3 else 0
    if runs < _FEW:
        return np.empty(0, dtype=kind), 0, 0
    out, done = np.empty(count, dtype=kind), runs * groups * 8
    lines = np.lib.stride_tricks.as_strided(flat[length:], (runs, groups * width), (stride, 1), writeable=False)
    if kind.itemsize * 8 == width:
        out[:done].view(np.uint8).reshape(lines.shape)[:] = lines
    else:
        _unpack_groups(lines.reshape(-1), runs * groups, width, out[:done])
    return out, done, runs * stride


def _unpack_runs(data: memoryview, count: int, width: int) -> Array:
    """:func:`unpack` of any runs."""
    runs = find_runs(data, count, width)
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
    for byte in range(-(-width // 8)):
        values |= flat[bodies + byte].astype(np.uint32) << np.uint32(8 * byte)
    if int(values.max(initial=0)) >> width:
        raise OtherPagesError("a run's value is too large")
    out[~is_packed] = np.repeat(values, runs.counts[plain]).astype(out.dtype)
    return out


def _bodies(flat: Array, starts: Ids, sizes: Ids) -> Array:
    """Bytes of bodies, end to end."""
    if starts.size == 1:
        return flat[int(starts[0]) : int(starts[0] + sizes[0])]
    parts = [flat[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    return np.concatenate(parts) if parts else flat[:0]


def _kind(width: int) -> np.dtype[Any]:
    """The type into which values of so many bits are unpacked."""
    return np.dtype("<u1" if width <= 8 else "<u2" if width <= 16 else "<u4")


def _unpack_groups(body: Array, groups: int, width: int, into: Array | None = None) -> Array:
    """Values of groups of eight, each as many bytes as a value has bits; the lowest bit comes first.

    Args:
        body: the groups' bytes.
        groups: how many there are.
        width: bits of a value.
        into: room for the values, of :func:`_kind`; if there is none they are in memory of their own, or where they lie.
    """
    body, kind = body[: groups * width], _kind(width)
    if into is None and kind.itemsize * 8 == width:
        whole = np.ascontiguousarray(body)
        return whole.view(kind) if whole.ctypes.data % kind.itemsize == 0 else whole.copy().view(kind)
    if into is None and width == 1:
        return np.unpackbits(body, bitorder="little")
    out = (np.empty(groups * 8, dtype=kind) if into is None else into).reshape(groups, 8)
    if not groups:
        return out.reshape(-1)
    loaded = np.dtype("<u2" if width <= 9 else "<u4" if width <= 25 else "<u8")
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
