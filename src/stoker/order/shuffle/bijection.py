"""A keyed bijection on ``[0, n)`` and its inverse, evaluated for many indices at once and stored nowhere.

It is an unbalanced Feistel network over integers (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA
2002) on a domain that need not be a product. The numbers ``[0, n)`` are written row by row into a table of ``2**b``
columns, whose last row may be short. Then, five times, in turn:

* each full row is mapped by ``column * odd + amount`` modulo ``2**b``; the short row is left as it is;
* each column, of ``n >> b`` entries or one more, is rotated by an amount.

Amounts depend on the row's or column's number and on the key: the middle bits of a square (J. von Neumann, 1949) to which
the key was added before. Each step is one to one whatever n is. So no image falls outside and has to be mapped again, as
with cycle walking, and the time does not depend on n.

Only integer arithmetic modulo 2**32 (for n below 2**32, at twice the speed) or 2**64 is used: results are the same on every
machine and NumPy version. This is no cipher; its statistics are those of a random permutation (see the tests).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.integers import GOLDEN, M1, M2, U64, mix_array
from stoker.types import Ids

# Words of the computation, uint32 or uint64: an array with one for each element, or a scalar for all.
Words = Any

# Odd multipliers of the rounds: large, with no simple relation to each other. 32-bit words use the lower halves.
_ROUNDS: Final = (
    0xFF51AFD7ED558CCD,
    0xC4CEB9FE1A85EC53,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0x8EBC6AF09C88C6E3,
)
# Which of the key's two words each round takes. Rows and columns of one table never share one with the next of their kind.
_KEY_WORDS: Final = (0, 1, 1, 0, 0)
# So many elements are done at a time that they stay in the processor's cache.
_CHUNK: Final = 1 << 13
# By a word's bytes: the shift that leaves its sign.
_SIGN: Final[dict[int, Words]] = {4: np.asarray(31, dtype=np.int32), 8: np.asarray(63, dtype=np.int64)}
_POWERS: Final = 1 << np.arange(63, dtype=np.int64)


def permute(index: NDArray[np.integer], n: int | NDArray[np.integer], key: int | U64) -> Ids:
    """Map each ``index[i]`` in ``[0, n[i])`` by the bijection of ``key[i]``.

    ``index``: integers, shape ``(k,)``, each ``0 <= index < n``. ``n``: domain sizes, one for all or one for each, ``1 <= n <
    2**62``. ``key``: 64-bit keys, one for all or one for each. Elements that share a domain must share its key. Gives int64
    of shape ``(k,)``: for one ``(n, key)``, distinct indices give distinct images in ``[0, n)``.
    """
    return _apply(index, n, key, inverse=False)


def unpermute(index: NDArray[np.integer], n: int | NDArray[np.integer], key: int | U64) -> Ids:
    """The inverse of :func:`permute`: ``unpermute(permute(i, n, key), n, key) == i``; same arguments, shapes and dtypes."""
    return _apply(index, n, key, inverse=True)


def split_keys(keys: U64 | np.uint64, word: type[np.uint32 | np.uint64]) -> tuple[Words, Words]:
    """The two words of each 64-bit key, as :class:`Domain` takes them. The second is even."""
    # Keys may be small numbers, or alike; their words must not be. In an array, as NumPy warns of scalars that overflow.
    mixed = np.atleast_1d(keys) * np.uint64(GOLDEN)
    mixed += np.uint64(M2)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(M1)
    low = mixed.reshape(np.shape(keys))
    high = np.asarray(low >> np.uint64(32))
    if word is np.uint64:
        high |= low << np.uint64(32)
    high &= ~np.uint64(1)
    return low.astype(word), high.astype(word)


def word_of(rows: int, bits: int) -> type[np.uint32 | np.uint64]:
    """The word that domains of up to so many full rows of up to ``2**bits`` columns are computed with."""
    # Amounts have half a word's bits, and so must the numbers of rows and of columns.
    return np.uint32 if rows < 1 << 16 and bits <= 16 else np.uint64


class Domain:
    """One domain for all elements, or one for each: the heart of :func:`permute`, its preparations done.

    Domains of a few numbers are mixed less well than by :func:`permute`. ``sizes``: n, as int64. Whether words have 32 bits
    or 64 depends on the largest. ``bits``: b, for all or of each; default: half the bits of each n. ``rounds``: number of
    rounds. ``taken``: the sizes of elements are given to each call of :meth:`move`: what follows from all sizes is not kept.
    """

    __slots__ = ("_bits", "_factors", "_half", "_last", "_rest", "_row_mask", "_rows", "_sizes", "_whole", "word")

    def __init__(
        self, sizes: np.int64 | Ids, bits: int | Ids | None = None, rounds: int = len(_ROUNDS), *, taken: bool = False
    ) -> None:
        # Half the bits of n, so that there are about as many rows as columns. The number of powers of two up to n is its
        # bit length, without floating point.
        width = np.asarray(np.searchsorted(_POWERS, sizes, side="right") >> 1 if bits is None else bits)
        rows = sizes >> width
        word: Any = word_of(int(np.max(rows)), int(np.max(width)))
        self.word = word
        self._sizes: Words = np.asarray(sizes).astype(word)
        # What is one for all is an array of no dimensions: NumPy takes it faster than a scalar.
        self._bits: Words = np.asarray(width, dtype=word)
        self._last: Words = np.asarray((np.int64(1) << width) - 1, dtype=word)
        self._rows: Words = np.asarray(rows, dtype=word)
        self._rest: Words = np.asarray(sizes & ((np.int64(1) << width) - 1), dtype=word)
        self._whole = not np.any(self._rest)
        self._row_mask: Words = None
        if self._whole and not self._rows.ndim and not int(self._rows) & (int(self._rows) - 1):
            self._row_mask = np.asarray(int(self._rows) - 1, dtype=word)
        if taken:
            self._rows = self._rest = None
        mask = np.iinfo(word).max
        self._factors = [np.asarray(factor & mask, dtype=word) for factor in _ROUNDS[:rounds]]
        self._half = np.asarray(word(0).itemsize * 4, dtype=word)

    def take(self, which: Ids) -> Words:
        """Their sizes, as :meth:`move` takes them, of the domains of these numbers, where ``bits`` is one for all."""
        return self._sizes.take(which, mode="wrap")

    def move(
        self, x: NDArray[Any], low: Words, high: Words, sizes: Words | None = None, *, inverse: bool = False
    ) -> None:
        """Map ``x``, contiguous and of dtype :attr:`word`, in place, or back again.

        Args:
            x: shape ``(k,)``, each below its n.
            low: first word of the key.
            high: second word of the key, even.
            sizes: n of each, where that is not what the domain was made with.
            inverse: whether to undo what was done.
        """
        # NumPy takes output arguments faster by position than by name.
        rows, rest = self._rows, self._rest
        if sizes is not None:
            rows, rest = sizes >> self._bits, sizes & self._last
        row = x >> self._bits
        np.bitwise_and(x, self._last, x)
        t, u = np.empty_like(x), np.empty_like(x)
        factor = high
        if inverse or self._whole:
            factor = high | self.word(1)
        if inverse:
            factor = _reciprocal(factor)
        order = range(len(self._factors))
        for number in reversed(order) if inverse else order:
            by_column = number % 2
            np.multiply(x if by_column else row, self._factors[number], t)
            np.add(t, high if _KEY_WORDS[number] else low, t)
            np.multiply(t, t, t)
            np.right_shift(t, self._half, t)
            if by_column:
                self._turn_columns(row, x, rows, rest, t, u, inverse)
            else:
                self._map_rows(row, x, rows, factor, t, u, inverse)
        np.left_shift(row, self._bits, row)
        np.bitwise_or(x, row, x)

    def _map_rows(
        self,
        row: NDArray[Any],
        column: NDArray[Any],
        rows: Words,
        factor: Words,
        t: NDArray[Any],
        u: NDArray[Any],
        inverse: bool,
    ) -> None:
        """One round of rows, by the amounts in ``t``; ``u`` is scratch.

        The factor is an odd number, or its inverse; but going forth with a short row that number less one.
        """
        if inverse:
            np.subtract(column, t, t)
            np.multiply(t, factor, t)
            if not self._whole:
                np.subtract(t, column, t)
        else:
            np.multiply(column, factor, u)
            np.add(t, u, t)
        if self._whole:
            np.bitwise_and(t, self._last, column)
            return
        # What is to be added to the column: nothing in the short row.
        _below(row, rows, u)
        np.bitwise_and(t, u, t)
        np.add(column, t, column)
        np.bitwise_and(column, self._last, column)

    def _turn_columns(
        self,
        row: NDArray[Any],
        column: NDArray[Any],
        rows: Words,
        rest: Words,
        t: NDArray[Any],
        u: NDArray[Any],
        inverse: bool,
    ) -> None:
        """One round of columns, likewise."""
        length: Words = rows
        if not self._whole:
            # One more, which is minus all ones, in columns that have an entry in the short row.
            _below(column, rest, u)
            np.subtract(rows, u, u)
            length = u
        np.multiply(t, length, t)
        np.right_shift(t, self._half, t)
        forth, back = (np.subtract, np.add) if inverse else (np.add, np.subtract)
        forth(row, t, row)
        if self._row_mask is not None:
            np.bitwise_and(row, self._row_mask, row)
            return
        # Modulo the length: of the two candidates the wrong one has wrapped around and is large.
        back(row, length, t)
        np.minimum(row, t, out=row)


def _below(x: NDArray[Any], bound: Words, out: NDArray[Any]) -> None:
    """All ones where ``x < bound``, else 0, for numbers of fewer bits than a word."""
    np.subtract(x, bound, out)
    signed = out.view(np.int32 if out.itemsize == 4 else np.int64)
    np.right_shift(signed, _SIGN[out.itemsize], signed)


def _reciprocal(factor: Words) -> Words:
    """The inverses of odd numbers modulo the word, by Newton's iteration: each step doubles the bits that are right."""
    values = np.atleast_1d(factor)
    two = values.dtype.type(2)
    found = values.copy()
    for _ in range(5):
        found *= two - values * found
    return found


def _apply(index: NDArray[np.integer], n: int | NDArray[np.integer], key: int | U64, *, inverse: bool) -> Ids:
    images = np.array(index, dtype=np.int64)
    sizes = np.asarray(n, dtype=np.int64)
    keys = np.asarray(key, dtype=np.uint64)
    if not images.size:
        return images
    if not sizes.ndim:
        domain = Domain(sizes[()])
        for start in range(0, images.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            _apply_chunk(images, chunk, domain, sizes, keys, inverse)
        return images
    # The word is a domain's own affair: it must not depend on what else is asked for in the same call.
    large = sizes >= 1 << 32
    for part in (np.flatnonzero(large), np.flatnonzero(~large)) if large.any() else (np.arange(images.size),):
        for start in range(0, part.size, _CHUNK):
            which = part[start : start + _CHUNK]
            _apply_chunk(images, which, Domain(sizes[which]), sizes[which], keys, inverse)
    return images


def _apply_chunk(images: Ids, which: slice | Ids, domain: Domain, sizes: Any, keys: U64, inverse: bool) -> None:
    key = keys[which] if keys.ndim else keys[()]
    words = split_keys(key, domain.word)
    x = images[which].astype(domain.word)
    if domain.word is np.uint64:
        domain.move(x, *words, inverse=inverse)
        images[which] = x
        return
    # In a table of a few entries not all values are equally likely: the domain as a whole is rotated too.
    mixed = mix_array(0, np.atleast_1d(key)) >> np.uint64(32)
    turns = ((mixed * sizes.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    if inverse:
        domain.move(x, *words, inverse=True)
        moved = x - turns
        moved += (moved < 0) * sizes
        images[which] = moved
        return
    moved = x + turns
    moved -= (moved >= sizes) * sizes
    x = moved.astype(domain.word)
    domain.move(x, *words)
    images[which] = x
