"""Hashes of integers, concatenated ranges of them, integers of variable length, and checks of untrusted numbers.

The hash is SplitMix64's output function (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
2014). Orders, placements and synthetic values depend on it: what it gives for a number never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Ids

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
M1: Final = 0xBF58476D1CE4E5B9
M2: Final = 0x94D049BB133111EB


def is_count(value: Any) -> bool:
    """Whether a value of a state is a count, such as one of samples."""
    return type(value) is int and 0 <= value < 1 << 62


def first_true(mask: NDArray[np.bool_]) -> int | None:
    """Index of the first that is true; ``None`` where none is."""
    return int(mask.argmax()) if mask.any() else None


def encode_varint(value: int) -> bytes:
    """An integer of at least 0 as Thrift and Protocol Buffers store it: 7 bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def finalise(word: int) -> int:
    """Map 64 bits one to one to 64 bits, so that close numbers give unlike ones."""
    word = ((word ^ (word >> 30)) * M1) & MASK
    word = ((word ^ (word >> 27)) * M2) & MASK
    return word ^ (word >> 31)


def finalise_array(words: U64) -> U64:
    """:func:`finalise` of each word, in place; returns the same array."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(M1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(M2)
    words ^= words >> np.uint64(31)
    return words


def mix(*values: int) -> int:
    """Hash integers of any size and sign into 64 bits: :func:`finalise`, chained over their 64-bit words."""
    state = 0
    for value in values:
        rest = value
        while True:
            state = finalise((state + (rest & MASK) + GOLDEN) & MASK)
            rest >>= 64
            if rest in (0, -1):
                break
    return state


def mix_array(key: int, values: NDArray[np.integer]) -> U64:
    """Hash each of ``values`` with ``key`` into 64 bits; equals :func:`mix` chained after a state of ``key``."""
    state = values.astype(np.uint64)
    state += np.uint64((key + GOLDEN) & MASK)
    return finalise_array(state)


def mix_arrays(keys: Sequence[int], values: NDArray[np.integer]) -> U64:
    """:func:`mix_array` of ``values``, shape ``(k,)``, with each of several keys; shape ``(len(keys), k)``."""
    states = np.array([(key + GOLDEN) & MASK for key in keys], dtype=np.uint64)
    return finalise_array(states[:, None] + values.astype(np.int64, copy=False).view(np.uint64))


def ranges(starts: Ids, lengths: Ids) -> Ids:
    """``starts[i], starts[i] + 1, ...``, ``lengths[i]`` of them, for every i; int64."""
    ends = np.cumsum(lengths)
    if not ends.size or not int(ends[-1]):
        return np.zeros(0, dtype=np.int64)
    found: Ids = np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]), dtype=np.int64)
    return found
