"""A file's content as streams of bytes, read from their begin to their end: random, compressible, repeated, tokens, text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.generation.noise import BLOCK, Noise
from stoker_bench.generation.words import TEXT_RUN, text_block, token_block

UNIT: Final = 4096
"""Bytes of which each run has the compressibility that was asked for."""
REPEATED: Final = 1 << 16
"""Bytes of the pieces that are repeated where duplicates were asked for."""

# Up to here, pieces are copied out of a block that is made as a whole.
_DIRECT: Final = 1 << 16

_ALL: Final = (1 << 64) - 1

Maker = Callable[[int, int, NDArray[np.uint8], int], None]
"""Writes bytes of a block: its number, the first byte, where to, and the bits of each 8 bytes that may be set."""


class ByteStream:
    """Bytes in a row, of which each block is made by its number alone.

    Args:
        make: writes part of a block.
        grain: a part begins at a multiple of it.
    """

    def __init__(self, make: Maker, grain: int) -> None:
        self._make = make
        self._grain = grain
        self._at = 0
        self._held = -1
        self._block: NDArray[np.uint8] | None = None

    def fill(self, out: NDArray[np.uint8], bits: int | None = None) -> None:
        """Write the next ``len(out)`` bytes; with ``bits``, of each 8 only those bits, and from a multiple of 8 on."""
        wanted = _ALL if bits is None else bits
        done = 0
        while done < len(out):
            number, inside = divmod(self._at, BLOCK)
            count = min(len(out) - done, BLOCK - inside)
            part = out[done : done + count]
            # What is made as a whole would be made twice for two parts of it.
            whole = self._grain == BLOCK and count < BLOCK
            if count >= _DIRECT and not whole and inside % self._grain == 0 and part.ctypes.data % 8 == 0:
                self._make(number, inside, part, wanted)
            else:
                part[:] = self._whole(number)[inside : inside + count]
                if wanted != _ALL:
                    change_bits(np.bitwise_and, wanted.to_bytes(8, "little"), part)
            self._at += count
            done += count

    def fill_rows(self, rows: NDArray[np.uint8]) -> None:
        """Write the next bytes into rows of shape ``(n, width)``, which may lie apart; each is contiguous."""
        count, width = rows.shape
        done = 0
        while done < count:
            number, inside = divmod(self._at, BLOCK)
            several = min((BLOCK - inside) // width, count - done)
            if several < 2:  # it may go beyond the block
                self.fill(rows[done])
                done += 1
                continue
            block = self._whole(number)[inside : inside + several * width]
            rows[done : done + several] = block.reshape(several, width)
            self._at += several * width
            done += several

    def align(self) -> None:
        """Go on at a multiple of 8, so that a pattern of bytes fits the words of what follows."""
        self._at += -self._at % 8

    def _whole(self, number: int) -> NDArray[np.uint8]:
        if self._block is None:
            self._block = np.empty(BLOCK, np.uint8)
        if self._held != number:
            self._make(number, 0, self._block, _ALL)
            self._held = number
        return self._block


def change_bits(change: np.ufunc, pattern: bytes, out: NDArray[np.uint8]) -> None:
    """Apply ``change`` to bytes and a pattern that is repeated; the first byte of ``out`` meets that of the pattern."""
    if 8 % len(pattern) == 0:
        word = np.frombuffer(pattern * (8 // len(pattern)), np.uint64)[0]
        count = len(out) // 8
        words = out[: 8 * count].view(np.uint64)
        change(words, word, out=words)
        rest = out[8 * count :]
        change(rest, np.frombuffer(pattern * 8, np.uint8)[: len(rest)], out=rest)
        return
    whole = len(out) // len(pattern) * len(pattern)
    values = out[:whole].reshape(-1, len(pattern))
    change(values, np.frombuffer(pattern, np.uint8), out=values)


def noise_stream(
    noise: Noise, file: int, stream: int, size: int, compressibility: float = 1.0, duplication: float = 1.0
) -> ByteStream:
    """Random bytes.

    Args:
        noise: the seed's.
        file, stream: which.
        size: bytes that will be read, of which the share of duplicates is reckoned.
        compressibility: each 4 KiB have zeros at their end, so that they take this part of their size compressed.
        duplication: how often each piece of 64 KiB comes; its copies are as far from it as can be, in the same file.
    """
    kept = UNIT if compressibility == 1 else max(0, round(UNIT / compressibility) - 8)
    units = -(-size // REPEATED)
    different = max(1, -int(-units // duplication))

    def make(number: int, first: int, out: NDArray[np.uint8], bits: int) -> None:
        if different >= units:
            noise.fill(out, file, stream, number, first, bits)
        else:
            at = 0
            while at < len(out):
                unit, inside = divmod(number * BLOCK + first + at, REPEATED)
                count = min(REPEATED - inside, len(out) - at)
                block, begin = divmod(unit % different * REPEATED + inside, BLOCK)
                noise.fill(out[at : at + count], file, stream, block, begin, bits)
                at += count
        if kept < UNIT:
            whole = len(out) // UNIT * UNIT
            out[:whole].reshape(-1, UNIT)[:, kept:] = 0
            out[whole + kept :] = 0

    return ByteStream(make, 8 if kept == UNIT else UNIT)


def token_stream(noise: Noise, file: int, stream: int, dtype: np.dtype[Any], vocabulary: int) -> ByteStream:
    """Token ids by Zipf's law, as integers of ``dtype``."""
    pairs = BLOCK // dtype.itemsize // 2

    def make(number: int, _: int, out: NDArray[np.uint8], __: int) -> None:
        drawn = noise.draw(2 * pairs + 8, file, stream, number * (2 * pairs + 8)).view("<u2")
        token_block(drawn[:pairs], int(drawn[-2:].view("<u4")[0]), vocabulary, out.view(dtype))

    return ByteStream(make, BLOCK)


def text_stream(noise: Noise, file: int, stream: int) -> ByteStream:
    """ASCII text."""
    size = 2 * (BLOCK // TEXT_RUN)

    def make(number: int, _: int, out: NDArray[np.uint8], __: int) -> None:
        text_block(noise.draw(size, file, stream, number * size).view("<u2"), out)

    return ByteStream(make, BLOCK)
