"""A keyed bijection on ``[0, n)``, evaluated for many indices at once and stored nowhere.

An m-bit permutation is built from steps that are each a bijection on m bits (key addition, multiplication by an odd
number, xor with a right shift of itself: the finaliser of MurmurHash3, by Austin Appleby, keyed), and is brought to
any n by *cycle walking*: an image that falls outside ``[0, n)`` is mapped again until it falls inside
(J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Since ``n > 2**(m-1)``, fewer than two
applications are expected.

Only integer arithmetic modulo 2**64 is used: results are the same on every machine and NumPy version.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["mix", "mix_array", "permute"]

U64 = NDArray[np.uint64]

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_M1: Final = 0xBF58476D1CE4E5B9
_M2: Final = 0x94D049BB133111EB
# Odd multipliers of the rounds: large, with no simple relation to each other.
_ROUNDS: Final = tuple(
    np.uint64(m) for m in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
)


def mix(*values: int) -> int:
    """Hash integers of any size and sign into 64 bits (SplitMix64's finaliser, Steele, Lea and Flood 2014, chained)."""
    state = 0
    for value in values:
        rest = value
        while True:
            state = (state + (rest & _MASK) + _GOLDEN) & _MASK
            state = ((state ^ (state >> 30)) * _M1) & _MASK
            state = ((state ^ (state >> 27)) * _M2) & _MASK
            state ^= state >> 31
            rest >>= 64
            if rest in (0, -1):
                break
    return state


def mix_array(key: int, values: NDArray[np.integer]) -> U64:
    """Hash each of ``values`` with ``key`` into 64 bits; equals ``mix`` chained after a state of ``key``."""
    state = values.astype(np.uint64)
    state += np.uint64((key + _GOLDEN) & _MASK)
    state ^= state >> np.uint64(30)
    state *= np.uint64(_M1)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_M2)
    state ^= state >> np.uint64(31)
    return state


def permute(index: NDArray[np.integer], n: int | NDArray[np.integer], key: int | U64) -> NDArray[np.int64]:
    """Map each ``index[i]`` in ``[0, n[i])`` by the bijection of ``key[i]``.

    Args:
        index: integers, shape ``(k,)``, each ``0 <= index < n``.
        n: domain sizes, one for all or one for each, ``1 <= n < 2**62``.
        key: 64-bit keys, one for all or one for each. Elements that share a domain must share its key.

    Returns:
        int64 of shape ``(k,)``: for one ``(n, key)``, distinct indices give distinct images in ``[0, n)``.
    """
    x = index.astype(np.uint64)
    size = np.asarray(n, dtype=np.uint64)
    keys = np.asarray(key, dtype=np.uint64)
    if x.size == 0:
        return x.astype(np.int64)
    bits = _bit_length(size)
    x = _round_trip(x, bits, keys)
    outside = np.flatnonzero(x >= size)
    while outside.size:
        again = _round_trip(
            x[outside],
            bits if bits.ndim == 0 else bits[outside],
            keys if keys.ndim == 0 else keys[outside],
        )
        x[outside] = again
        outside = outside[again >= (size if size.ndim == 0 else size[outside])]
    return x.view(np.int64)


def _bit_length(size: U64) -> U64:
    """Bits that hold ``size - 1``, and at least 1."""
    last = np.maximum(size, np.uint64(2)) - np.uint64(1)
    # frexp's exponent is the bit length; it is exact below 2**53, and rounding up above only widens the domain.
    return np.asarray(np.frexp(last.astype(np.float64))[1], dtype=np.uint64)


def _round_trip(x: U64, bits: U64, key: U64) -> U64:
    """One application of the keyed permutation on ``bits`` bits. ``x`` may be overwritten."""
    mask = (np.uint64(1) << bits) - np.uint64(1)
    half = (bits + np.uint64(1)) >> np.uint64(1)
    odd = key | np.uint64(1)
    x ^= key & mask
    for number, multiplier in enumerate(_ROUNDS):
        # The key enters every round: as an odd factor, and as an addend taken from other bits each time.
        x *= odd if number == 1 else multiplier
        x += key >> np.uint64(13 * number + 7)
        x &= mask
        x ^= x >> half
    return x
